"""What there is to choose from, read from the registry."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ablate import spec
from ablate.errors import SpecError
from ablate.registry import Entry, slots, suggest


@dataclass(frozen=True)
class OptionListing:
    """One option of a part.

    Attributes:
        type: what may be written, in words.
        default: None for an option that must be given.
        is_required: whether it must be given.
    """

    name: str
    type: str
    default: Any
    is_required: bool


@dataclass(frozen=True)
class PartListing:
    """One registered part.

    Attributes:
        summary: the first line of its documentation.
        text: the whole documentation.
        source: the paper and section, or the code, that it follows.
    """

    slot: str
    name: str
    summary: str
    text: str
    options: tuple[OptionListing, ...]
    source: str
    version: int

    def to_json(self) -> dict[str, Any]:
        """Return the listing as plain data."""
        return asdict(self)


def parts(slot: str | None = None, name: str | None = None) -> tuple[PartListing, ...]:
    """Return every part, or those of one slot, or one of them.

    Raises:
        SpecError: if there is no such slot or part.
    """
    table = slots()
    wanted = table if slot is None else {slot: _of(table, slot, "slot")}
    if slot is not None and name is not None:
        wanted = {slot: {name: _of(wanted[slot], name, slot)}}
    return tuple(
        _listing(entry) for of_slot in wanted.values() for _, entry in sorted(of_slot.items())
    )


def schema() -> dict[str, Any]:
    """Return the JSON Schema of an experiment file, for editors."""
    return spec.schema()


def _of(table: Mapping[str, Any], name: str, kind: str) -> Any:
    if name in table:
        return table[name]
    known = ", ".join(sorted(table))
    raise SpecError(f"no {kind} is called {name!r};{suggest(name, table)} known: {known}")


def _listing(entry: Entry) -> PartListing:
    text = inspect.getdoc(entry.cls) or ""
    schema = entry.options.model_json_schema()
    required = schema.get("required", [])
    options = tuple(
        OptionListing(name, _words(of_option, schema), of_option.get("default"), name in required)
        for name, of_option in schema.get("properties", {}).items()
    )
    summary = text.partition("\n")[0]
    return PartListing(entry.slot, entry.name, summary, text, options, entry.source, entry.version)


def _words(option: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Say in words what a JSON Schema allows."""
    if "$ref" in option:
        return _words(schema["$defs"][option["$ref"].rpartition("/")[2]], schema)
    if "anyOf" in option:
        return " or ".join(_words(one, schema) for one in option["anyOf"])
    if "enum" in option or "const" in option:
        return " | ".join(str(value) for value in option.get("enum", [option.get("const")]))
    if "prefixItems" in option:
        return f"[{', '.join(_words(one, schema) for one in option['prefixItems'])}]"
    if "items" in option:
        return f"list of {_words(option['items'], schema)}"
    return f"{option.get('type', 'any')}{_bounds(option)}"


def _bounds(option: Mapping[str, Any]) -> str:
    signs = {"exclusiveMinimum": ">", "minimum": ">=", "exclusiveMaximum": "<", "maximum": "<="}
    return "".join(f" {sign} {option[key]}" for key, sign in signs.items() if key in option)
