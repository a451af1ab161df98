"""The table of parts: the class behind each name in each slot.

A slot is a contract, declared by a direct subclass of `Part`; a part is a registered class below
it. The signature of a part is the only schema there is: positional arguments come from the
program, keyword-only arguments are the options that a user may write in YAML.
"""

from __future__ import annotations

import difflib
import inspect
import re
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, ValidationError, create_model, model_serializer

from ablate.errors import SpecError


class Part(ABC):
    """A component that the YAML can name. Its direct subclasses are the slots.

    ``batch_dependence`` says what a part of the model does with a batch as a whole, such as "keeps
    means from batch to batch"; empty if the pairs of a batch do not depend on each other.
    ``capture_blocker`` says why its work cannot be captured in a CUDA graph, such as "decides by
    numbers how many steps it makes"; empty if it can.
    """

    slot: ClassVar[str]
    batch_dependence: ClassVar[str] = ""
    capture_blocker: ClassVar[str] = ""

    def __init_subclass__(cls, *, slot: str | None = None, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if slot is not None:
            if slot in TABLE:
                raise ValueError(f"the slot {slot!r} is already declared")
            cls.slot = slot
            TABLE[slot] = {}


class Frozen(BaseModel):
    """Base of all models read from YAML: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Choice(Frozen):
    """The part chosen for one slot, with every option filled in."""

    name: str
    options: dict[str, Any] = {}

    @model_serializer
    def flat(self) -> dict[str, Any]:
        """Return the choice as it is written in YAML: ``{name: ..., option: ...}``."""
        return {"name": self.name, **self.options}

    def __hash__(self) -> int:
        return hash((self.name, _hashable(self.options)))


def _hashable(value: object) -> object:
    """Return what equal values have in common."""
    if isinstance(value, dict):
        return frozenset((key, _hashable(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return value


@dataclass(frozen=True)
class Fingerprinted:
    """Marks an option of which only the content counts that it points to, such as a file's path.

    The identity of a run has the fingerprint of the corpus in its place.
    """


@dataclass(frozen=True)
class FilePaths:
    """Marks an option whose texts are paths of files.

    In an experiment, relative ones begin at the folder of the YAML file that holds them.
    """


@dataclass(frozen=True)
class AddedOption:
    """Marks an option that a part got when runs of it had been stored already.

    At ``neutral`` the part computes what it did before it had the option. The identity of a run
    leaves such a value out, so that stored runs keep their names as the catalogue grows. It is
    plain data, as of JSON: a list, not a tuple.
    """

    neutral: Any


@dataclass(frozen=True)
class Plugin:
    """Code outside of this package that registers parts: a file, or an installed distribution."""

    name: str  # the file, as it was given; or the distribution and its version
    sha256: str  # of the content of the file, or of all Python files of the package
    module: str
    source: str = field(default="", repr=False)  # of a file: another process runs the same text

    @property
    def identity(self) -> str:
        """Return what the results of its parts depend on, which excludes the path of a file."""
        return self.sha256 if self.source else f"{self.name} {self.sha256}"


@dataclass(frozen=True)
class Entry:
    """One registered part."""

    slot: str
    name: str
    cls: type[Part]
    formula: str  # what it computes, in one line of plain text
    source: str  # paper and section, with the year, or the code it follows
    version: int  # raised by a change that moves the part's numbers; enters the identity of a run
    options: type[BaseModel]  # the keyword-only arguments
    origin: Plugin | None = None  # the plugin it comes from; None for those of this package

    @property
    def code(self) -> str:
        """Return what stands for its code in the identity of results; empty if of this package.

        Raises:
            PluginError: if no plugin holds its code, as of a cell of a notebook.
        """
        if self.origin is not None:
            return self.origin.identity
        module = self.cls.__module__
        if module.partition(".")[0] != __name__.partition(".")[0]:
            raise PluginError(
                f"{self.slot} {self.name!r} was registered by the module {module}, which is no "
                "plugin: the hash of a run would not cover its code, and workers do not have it; "
                f"write it into a file, my_{self.slot}.py, and load that with "
                f"`ablate.registry.load_plugin('my_{self.slot}.py')`"
            )
        return ""

    @property
    def doc(self) -> str:
        """Return the docstring of the class itself; empty, and not its contract's, without one."""
        return inspect.cleandoc(self.cls.__doc__ or "")

    @property
    def option_docs(self) -> dict[str, str]:
        """Return the description of each option that has one, from the docstring."""
        docs = argument_docs(self.cls)
        return {name: docs[name] for name in self.options.model_fields if name in docs}

    @cached_property
    def fingerprinted(self) -> set[str]:
        """Return the names of the options that the identity of a run leaves out."""
        fields = self.options.model_fields.items()
        return {name for name, field in fields if Fingerprinted() in field.metadata}

    @cached_property
    def file_paths(self) -> set[str]:
        fields = self.options.model_fields.items()
        return {name for name, field in fields if FilePaths() in field.metadata}

    @cached_property
    def neutral_values(self) -> dict[str, Any]:
        """Return the value of each added option at which the part is as it was without it."""
        return {
            name: mark.neutral
            for name, field in self.options.model_fields.items()
            for mark in field.metadata
            if isinstance(mark, AddedOption)
        }

    def choose(self, options: Mapping[str, Any]) -> Choice:
        """Check ``options`` and fill in the defaults; a `ValidationError` has every mistake."""
        checked = self.options.model_validate(dict(options))
        return Choice(name=self.name, options=checked.model_dump())


P = TypeVar("P", bound=Part)

TABLE: dict[str, dict[str, Entry]] = {}
"""The parts that have been registered so far, by slot and name."""

EXTENSIBLE: list[type] = []
"""Contracts other than those of parts, from which the classes of a plugin may inherit."""


def register(
    name: str, *, source: str, formula: str = "", version: int = 1, is_contract: bool = False
) -> Callable[[type[P]], type[P]]:
    """Return a decorator that registers a part; its keyword-only arguments are its YAML options.

    Args:
        name: the name in YAML.
        source: paper and section, with the year, or the code it follows.
        formula: what it computes, in one line of plain text; empty where nothing is computed.
        version: to be raised by a change that moves the part's numbers.
        is_contract: whether the part is its slot's contract, unchanged.

    Raises:
        ValueError: if the slot already has a part of that name, or the class is of no slot, does
            not define all abstract methods of its slot, or overrides nothing of it.
    """

    def enter(cls: type[P]) -> type[P]:
        if not hasattr(cls, "slot"):
            raise ValueError(f"{cls.__qualname__} is of no slot; derive it from a slot's contract")
        if inspect.isabstract(cls):
            missing = " and ".join(sorted(cls.__abstractmethods__))
            raise ValueError(f"the {cls.slot} {cls.__qualname__} does not define {missing}")
        _refuse_idle(cls, is_contract=is_contract)
        table = TABLE[cls.slot]
        if name in table:
            other = table[name]
            owner = f" of {other.origin.name}" if other.origin else ""
            if other.origin and other.origin.source:
                owner += "; choose another name, or, if that file has changed, start Python anew"
            raise ValueError(f"{cls.slot} {name!r} is already {other.cls.__qualname__}{owner}")
        table[name] = Entry(cls.slot, name, cls, formula, source, version, options_model(cls))
        return cls

    return enter


def _refuse_idle(cls: type[Part], *, is_contract: bool) -> None:
    """Refuse a class that overrides nothing of its contract, or misspells what it overrides."""
    contract = contract_of(cls)
    hooks = sorted(name for name in vars(contract) if not name.startswith("_") and name != "slot")
    bases = [base for base in cls.__mro__ if issubclass(base, contract) and base is not contract]
    own = list(dict.fromkeys(n for base in bases for n in vars(base) if not n.startswith("_")))
    for name in own:
        idle = [hook for hook in hooks if hook not in own]
        near = difflib.get_close_matches(name, idle, n=1, cutoff=0.8)
        if name not in hooks and near and callable(getattr(cls, name)):
            raise ValueError(
                f"the {cls.slot} {cls.__qualname__} defines {name!r}, which nothing calls; "
                f"did you mean {near[0]!r}?"
            )
    # A constructor may set the attributes that a contract declares, as attention its projections.
    declared = inspect.get_annotations(contract).items()
    has_attributes = any(
        name not in vars(contract) and not str(kind).startswith("ClassVar")
        for name, kind in declared
    )
    may_set_attributes = has_attributes and any("__init__" in vars(base) for base in bases)
    if not (is_contract or may_set_attributes or set(own) & set(hooks)):
        defined = f"defines {', '.join(own)}" if own else "defines no method"
        raise ValueError(
            f"the {cls.slot} {cls.__qualname__} overrides nothing of its contract, so that it "
            f"would change nothing: it {defined}; the contract has {', '.join(hooks)}"
        )


def contract_of(cls: type[Part]) -> type[Part]:
    """Return the class that declares the slot of a part."""
    return next(base for base in cls.__mro__ if "slot" in vars(base))


@contextmanager
def refusals(at: str) -> Iterator[None]:
    """Turn the ValueError by which a part refuses into a `RefusedError` with the choice's path."""
    try:
        yield
    except RefusedError:
        raise
    except ValueError as error:
        raise RefusedError(at, str(error)) from error


class RefusedError(SpecError):
    """A part refused its arguments; ``path`` is that of the choice in the experiment."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class PluginError(SpecError):
    """A plugin could not be loaded; none of its parts is in the table."""


def argument_docs(cls: type) -> dict[str, str]:
    """Return the descriptions of arguments and attributes in the docstrings of a class."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(base.__doc__ or "")
        section = re.search(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
        items = re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", section[1] if section else "", re.M)
        docs |= {name: " ".join(words.split()) for name, words in items}
    return docs


def options_model(cls: type[Part]) -> type[BaseModel]:
    """Return a pydantic model of the keyword-only arguments of a part, which must have types."""
    hints = get_type_hints(cls.__init__, include_extras=True)
    arguments = inspect.signature(cls.__init__).parameters.values()
    options = [argument for argument in arguments if argument.kind is argument.KEYWORD_ONLY]
    for argument in options:
        if argument.name == "name":
            raise ValueError(
                f"an option of {cls.__qualname__} is called 'name', which is the key that chooses "
                "the part in the YAML; call it otherwise"
            )
        if argument.name not in hints:
            raise ValueError(
                f"the option {argument.name!r} of {cls.__qualname__} has no type, which is the "
                f"only rule for its values; write one, as in `{argument.name}: PositiveFloat = 1.0`"
            )
        if _has_list(hints[argument.name]):
            raise ValueError(
                f"the option {argument.name!r} of {cls.__qualname__} has a type with a list, and "
                "the lists of an experiment are read as tuples; write a tuple, as in "
                f"`{argument.name}: tuple[float, ...]`"
            )
    fields: dict[str, Any] = {
        option.name: (hints[option.name], ... if option.default is option.empty else option.default)
        for option in options
    }
    model = create_model(f"{cls.__name__}Options", __base__=Frozen, **fields)
    _refuse_defaults(cls, model, {o.name: o.default for o in options if o.default is not o.empty})
    return model


def tupled(value: Any) -> Any:
    """Return ``value`` with every list in it as a tuple, which strict fields ask for."""
    if isinstance(value, Mapping):
        return {key: tupled(item) for key, item in value.items()}
    return tuple(tupled(item) for item in value) if isinstance(value, list | tuple) else value


def _has_list(annotation: object) -> bool:
    """Return whether a type is of lists, or one that it is made of."""
    is_list = list in (annotation, get_origin(annotation))
    return is_list or any(map(_has_list, get_args(annotation)))


def _refuse_defaults(
    cls: type[Part], model: type[BaseModel], defaults: Mapping[str, object]
) -> None:
    """Refuse a default of another type than its option: no record with it could be read."""
    try:
        model.model_validate(tupled(defaults))
    except ValidationError as error:
        for each in error.errors(include_url=False):
            if each["type"] != "missing":  # an option that must be given
                name = str(each["loc"][0])
                raise ValueError(
                    f"the option {name!r} of {cls.__qualname__} has the default "
                    f"{defaults[name]!r}, which its type does not allow ({each['msg']}); change "
                    "one of them"
                ) from error
