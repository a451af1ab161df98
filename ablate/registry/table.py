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
import re
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model, model_serializer

from ablate.errors import SpecError


class Part(ABC):
    """Something the YAML can name. Its direct subclasses are the slots."""

    slot: ClassVar[str]

    def __init_subclass__(cls, *, slot: str | None = None, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if slot is not None:
            if slot in TABLE:
                raise ValueError(f"the slot {slot!r} is already declared")
            cls.slot = slot
            TABLE[slot] = {}


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
class Plugin:
    """Where parts from outside come from: a file, or an installed package.

    Attributes:
        name: the file, as it was given; or the distribution and its version.
        sha256: of the content of the file, or of all Python files of the package.
        module: what it is imported as, or the package that all its modules lie in.
        source: the text of a file, so that another process can run the very same; else empty.
    """

    name: str
    sha256: str
    module: str
    source: str = field(default="", repr=False)

    @property
    def identity(self) -> str:
        """Return what the results of its parts depend on: not where a file lies."""
        return self.sha256 if self.source else f"{self.name} {self.sha256}"


@dataclass(frozen=True)
class Entry:
    """One registered part.

    Attributes:
        formula: what it computes, in one line of plain text.
        source: paper and section, with the year, or the code it follows.
        version: raised whenever a change moves the part's numbers; enters the identity of a run.
        options: the keyword-only arguments as a pydantic model.
        origin: the plugin it comes from; None for our own.
    """

    slot: str
    name: str
    cls: type[Part]
    formula: str
    source: str
    version: int
    options: type[BaseModel]
    origin: Plugin | None = None

    @property
    def told(self) -> dict[str, str]:
        """Return what the documentation says of each option."""
        told = documented(self.cls)
        return {name: told[name] for name in self.options.model_fields if name in told}

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
TABLE: dict[str, dict[str, Entry]] = {}
_HOMES = ("ablate.parts", "ablate.data", "ablate.decoding")
"""The packages whose modules register parts; they import all that they hold."""


def register(
    name: str, *, source: str, formula: str = "", version: int = 1
) -> Callable[[type[P]], type[P]]:
    """Enter a part in its slot's table; its keyword-only arguments become its YAML options.

    Args:
        name: what the YAML calls it.
        source: paper and section, with the year, or the code it follows.
        formula: what it computes, in one line of plain text; empty where nothing is computed.
        version: to be raised by a change that moves the part's numbers.

    Raises:
        ValueError: if the slot already has a part of that name, or the class is of no slot or
            leaves out something that its slot asks for.
    """

    def enter(cls: type[P]) -> type[P]:
        if not hasattr(cls, "slot"):
            raise ValueError(f"{cls.__qualname__} is of no slot; derive it from a slot's contract")
        if inspect.isabstract(cls):
            missing = " and ".join(sorted(cls.__abstractmethods__))
            raise ValueError(f"the {cls.slot} {cls.__qualname__} does not define {missing}")
        table = TABLE[cls.slot]
        if name in table:
            known = table[name]
            owner = f" of {known.origin.name}" if known.origin else ""
            raise ValueError(f"{cls.slot} {name!r} is already {known.cls.__qualname__}{owner}")
        table[name] = Entry(cls.slot, name, cls, formula, source, version, _options_of(cls))
        return cls

    return enter


def lookup(slot: str, name: str) -> Entry:
    """Find a part by name.

    Raises:
        ValueError: naming the nearest part, and all that there are.
    """
    _fill()
    table = TABLE[slot]
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
    return {slot: dict(table) for slot, table in TABLE.items()}


def label(cls: type[Part]) -> str:
    """Return what a person knows a part by, ``slot: name``; of one without a name, its class."""
    for name, entry in slots()[cls.slot].items():
        if entry.cls is cls:
            return f"{cls.slot}: {name}"
    return cls.__name__


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
    with refusals(at or slot.slot):
        part = lookup(slot.slot, choice.name).cls(*given, **choice.options)
    assert isinstance(part, slot)
    return part


@contextmanager
def refusals(at: str) -> Iterator[None]:
    """Turn the ValueError by which a part refuses into a `RefusedError` that says where.

    Args:
        at: the dotted path of the choice in the experiment.
    """
    try:
        yield
    except RefusedError:
        raise
    except ValueError as error:
        raise RefusedError(at, str(error)) from error


class RefusedError(SpecError):
    """A part refused its arguments; ``path`` says which choice of the experiment it was."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


def documented(cls: type) -> dict[str, str]:
    """Return what a docstring, or that of a base, says of each argument or attribute, by name."""
    told: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        section = re.search(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
        found = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.M)
        told |= {name: " ".join(words.split()) for name, words in found}
    return told


@functools.cache
def _fill() -> None:
    """Import every home of parts; before the first look into the table, not before."""
    for home in _HOMES:
        importlib.import_module(home)
    from ablate.registry.outside import load_installed  # which needs this file

    load_installed()


def _options_of(cls: type[Part]) -> type[BaseModel]:
    hints = get_type_hints(cls.__init__, include_extras=True)
    fields: dict[str, Any] = {
        p.name: (hints[p.name], ... if p.default is p.empty else p.default)
        for p in inspect.signature(cls.__init__).parameters.values()
        if p.kind is p.KEYWORD_ONLY
    }
    return create_model(f"{cls.__name__}Options", __base__=Frozen, **fields)
