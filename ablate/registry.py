"""The table of parts: which class answers to which name in which slot.

A slot is a contract, declared by a direct subclass of `Part`; a part is a registered class below
it. The signature of a part is the only schema there is: positional arguments come from the
program, keyword-only arguments are the options a user may write in YAML.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model, model_serializer

from ablate.errors import SpecError


class Part:
    """Something the YAML can name. Its direct subclasses are the slots."""

    slot: ClassVar[str]

    def __init_subclass__(cls, *, slot: str | None = None, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if slot is not None:
            if slot in _TABLE:
                raise ValueError(f"the slot {slot!r} is already declared")
            cls.slot = slot
            _TABLE[slot] = {}


class Frozen(BaseModel):
    """Base of everything read from YAML: strict types, no unknown keys, no later changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Choice(Frozen):
    """The part chosen for one slot, with every option filled in."""

    name: str
    options: dict[str, Any] = {}

    @model_serializer
    def flat(self) -> dict[str, Any]:
        """Return the choice as one writes it: ``{name: ..., option: ...}``."""
        return {"name": self.name, **self.options}


@dataclass(frozen=True)
class Fingerprinted:
    """Marks an option that counts only through the content it leads to, such as a file's path.

    The identity of a run leaves it out: the corpus' fingerprint stands for it.
    """


@dataclass(frozen=True)
class Entry:
    """One registered part.

    Attributes:
        version: raised whenever a change moves the part's numbers; enters the identity of a run.
        options: the keyword-only arguments as a pydantic model.
    """

    slot: str
    name: str
    cls: type[Part]
    source: str
    version: int
    options: type[BaseModel]

    @property
    def fingerprinted(self) -> set[str]:
        """Return the options that the identity of a run leaves out."""
        fields = self.options.model_fields.items()
        return {n for n, field in fields if Fingerprinted() in field.metadata}

    def choose(self, options: Mapping[str, Any]) -> Choice:
        """Check ``options`` and fill in the defaults.

        Raises:
            pydantic.ValidationError: with the place and reason of every mistake.
        """
        checked = self.options.model_validate(dict(options))
        return Choice(name=self.name, options=checked.model_dump())


P = TypeVar("P", bound=Part)
_TABLE: dict[str, dict[str, Entry]] = {}
_HOMES = ("ablate.parts", "ablate.data", "ablate.decoding")
"""The packages whose modules register parts; they import all that they hold."""


def register(name: str, *, source: str, version: int = 1) -> Callable[[type[P]], type[P]]:
    """Enter a part in its slot's table; its keyword-only arguments become its YAML options.

    Args:
        name: what the YAML calls it.
        source: paper and section, or the code it follows.
        version: to be raised by a change that moves the part's numbers.

    Raises:
        ValueError: if the slot already has a part of that name.
    """

    def enter(cls: type[P]) -> type[P]:
        table = _TABLE[cls.slot]
        if name in table:
            raise ValueError(f"{cls.slot} {name!r} is already {table[name].cls.__qualname__}")
        table[name] = Entry(cls.slot, name, cls, source, version, _options_of(cls))
        return cls

    return enter


def lookup(slot: str, name: str) -> Entry:
    """Find a part by name.

    Raises:
        ValueError: naming the nearest part, and all that there are.
    """
    table = slots()[slot]
    if name in table:
        return table[name]
    known = ", ".join(sorted(table))
    raise ValueError(f"no {slot} is called {name!r};{suggest(name, table)} known: {known}")


def suggest(word: str, known: Iterable[str]) -> str:
    """Return `` did you mean '...'?``, or nothing if no known word is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" did you mean {near[0]!r}?" if near else ""


def slots() -> dict[str, dict[str, Entry]]:
    """Return every slot with its parts, for listings and for tests that visit all of them."""
    _fill()
    return {slot: dict(table) for slot, table in _TABLE.items()}


def choose(slot: type[Part], name: str, **options: Any) -> Choice:
    """Return a checked choice, for use from Python: ``choose(Position, "learned")``."""
    return lookup(slot.slot, name).choose(options)


def build(slot: type[P], choice: Choice, *given: object, at: str = "") -> P:
    """Make the chosen part: ``given`` comes from the program, the options from the YAML.

    Args:
        slot: the contract that the part keeps.
        choice: name and options.
        *given: the positional arguments that the slot asks for.
        at: the dotted path of the choice in the experiment, for the message of a refusal.

    Raises:
        RefusedError: if the part refuses its arguments.
    """
    try:
        part = lookup(slot.slot, choice.name).cls(*given, **choice.options)
    except ValueError as error:
        raise RefusedError(at or slot.slot, str(error)) from error
    assert isinstance(part, slot)
    return part


class RefusedError(SpecError):
    """A part refused its arguments; ``path`` says which choice of the experiment it was."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


@functools.cache
def _fill() -> None:
    """Import every home of parts; before the first look into the table, not before."""
    for home in _HOMES:
        importlib.import_module(home)


def _options_of(cls: type[Part]) -> type[BaseModel]:
    hints = get_type_hints(cls.__init__, include_extras=True)
    fields: dict[str, Any] = {
        p.name: (hints[p.name], ... if p.default is p.empty else p.default)
        for p in inspect.signature(cls.__init__).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    return create_model(f"{cls.__name__}Options", __base__=Frozen, **fields)
