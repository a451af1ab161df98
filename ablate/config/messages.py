"""What is wrong, in sentences a newcomer understands.

Every mistake is one line, ``file:line:column: path: what``, then the offending line and a caret.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ablate.config.experiment import SIDES, PartField
from ablate.config.merge import LEAF, MergeSchema, merge_schema
from ablate.config.runs import locate
from ablate.config.source import Mistake, Node, scalar
from ablate.errors import SpecError
from ablate.registry import slots, suggest

M = TypeVar("M", bound=BaseModel)


class MistakesError(SpecError):
    """An experiment is not valid; every mistake is told.

    Attributes:
        mistakes: in the order of files and lines.
    """

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        distinct = {(m.mark, m.reason): m for m in reversed(list(mistakes))}
        self.mistakes = tuple(sorted(distinct.values(), key=_order))
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


def validated(model: type[M], tree: Node, at: MergeSchema) -> tuple[M | None, list[Mistake]]:
    """Return what ``tree`` says, as a ``model``; or None, and every mistake where it is said."""
    found: list[Mistake] = []
    rest: Node | None = tree
    while rest:
        try:
            valid = model.model_validate(rest.plain())
        except ValidationError as error:
            found += _explained(error, rest, at)
            rest = _without(rest, _excess(error))
        else:
            return (None, found) if found else (valid, [])
    return None, found


def _explained(error: ValidationError, tree: Node, at: MergeSchema) -> list[Mistake]:
    """Return the mistakes that a failed validation of ``tree`` found, each where it is said."""
    groups: dict[tuple[str | int, ...], list[dict[str, Any]]] = {}
    for detail in error.errors(include_url=False):
        place = _place(tree, detail)
        if detail["type"] != "missing" or not at.is_complete_at(place):
            groups.setdefault(place, []).append(dict(detail))
    return [
        _mistake(tree, at, place, details)
        for place, details in groups.items()
        if not _is_shadowed(place, details, groups)
    ]


def _excess(error: ValidationError) -> list[list[str]]:
    """Return the paths of keys that should not be there, and kept others from being checked."""
    return [
        [*map(str, detail["loc"]), detail["ctx"][_EXCESS[detail["type"]]]]
        for detail in error.errors(include_url=False)
        if detail["type"] in _EXCESS
    ]


def _without(tree: Node, paths: list[list[str]]) -> Node | None:
    """Return a tree without the keys that hide the mistakes beside them; None if none does."""
    for path in paths:
        tree = _dropped(tree, path)
    return tree if paths else None


def _dropped(node: Node, path: list[str]) -> Node:
    head, *rest = path
    value = dict(node.items())
    below = value.pop(head)
    return replace(node, value={**value, head: _dropped(below, rest)} if rest else value)


def unknown(key: str, known: Sequence[str], owner: str = "") -> str:
    """Return the sentence for a key that nobody knows.

    Args:
        key: the key.
        known: what could stand there.
        owner: the part whose options these are, if they are options of a part.
    """
    near = suggest(key, known)
    if near:
        return f"unknown option;{near}"
    elsewhere = [] if owner else [p for p in _paths(merge_schema(), "") if p.split(".")[-1] == key]
    if len(elsewhere) == 1:
        return f"unknown option; did you mean {elsewhere[0]!r}?"
    has = ", ".join(known) or "none"
    return f"unknown option; {owner} has {has}" if owner else f"unknown option; known: {has}"


def dotted(path: Iterable[str | int]) -> str:
    """Return a path as one writes it; the places of a list are left to the caret."""
    return ".".join(step for step in path if isinstance(step, str))


def options_of(slot: PartField, name: object) -> list[str]:
    """Return the options of a part, sorted."""
    entry = slots()[slot.name].get(str(name))
    return sorted(entry.options.model_fields) if entry else []


def _order(mistake: Mistake) -> tuple[str, tuple[str, ...], int, int]:
    source = mistake.mark.source  # every override has the same label
    return source.label, source.lines, mistake.mark.line, mistake.mark.column


def _place(tree: Node, detail: Any) -> tuple[str | int, ...]:
    """Return where an error is, without pydantic's names for the branches of a union."""
    place: list[str | int] = []
    for step in detail["loc"]:
        if locate(tree, [*place, step])[1]:
            place.append(step)
    if detail["type"] in _EXCESS:
        place.append(detail["ctx"][_EXCESS[detail["type"]]])
    return tuple(place)


def _is_shadowed(
    place: tuple[str | int, ...], details: list[dict[str, Any]], groups: Iterable[tuple[Any, ...]]
) -> bool:
    """Return whether only another branch of a union complains, and the fault lies deeper."""
    deeper = any(other[: len(place)] == place and len(other) > len(place) for other in groups)
    return deeper and all(detail["type"] in _NEEDS for detail in details)


def _mistake(
    tree: Node, at: MergeSchema, place: tuple[str | int, ...], details: list[dict[str, Any]]
) -> Mistake:
    node, is_there = locate(tree, place)
    kinds = {detail["type"] for detail in details}
    if kinds & {"unknown_part", "choice_name"}:
        node = node.get("name") or node
    path = node.path if is_there and node.path else dotted(place)
    if "extra_forbidden" in kinds:
        return Mistake(node.key, node.path, unknown(str(place[-1]), *_known(tree, at, place[:-1])))
    if kinds & set(_EXCESS):
        return Mistake(node.key, path, str(details[0]["msg"]))
    return Mistake(node.mark, path.removesuffix(".name"), sentence(details, node))


def sentence(details: Sequence[dict[str, Any]], node: Node) -> str:
    """Return what is wrong with one value, of which each of ``details`` is a complaint."""
    for detail in details:
        kind, limits = detail["type"], detail.get("ctx", {})
        if kind in _BOUNDS:
            words, key = _BOUNDS[kind]
            return f"must be {words} {limits[key]:g}; it is {shown(node.value)}"
        if kind == "missing":
            return _missing([d["loc"][-1] for d in details if d["type"] == "missing"])
        if kind == "too_short":
            return f"needs {limits['min_length']} or more; it has {limits['actual_length']}"
        if kind == "too_long":
            return f"has room for {limits['max_length']}; it has {limits['actual_length']}"
        if kind not in _NEEDS and kind != "literal_error":
            return str(limits.get("error", detail["msg"]))
    needs = list(dict.fromkeys(_need(detail) for detail in details))
    return f"needs {' or '.join(needs)}; {_but(node.value, needs)}"


def shown(value: Any) -> str:
    """Return a value as the YAML says it, shortly."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}...")
    if isinstance(value, float):
        return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}.get(repr(value), repr(value))
    return str(value)


_LONGEST = 60
_EXCESS = {"rivals": "second", "null": "key"}
_BOUNDS = {
    "greater_than": ("greater than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_NEEDS = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "choice_type": "a name or a mapping with a name",
    "choice_name": "the name of a part",
    "none_required": "null",
}


def _missing(keys: Sequence[str | int]) -> str:
    if isinstance(keys[0], int):
        return f"has too few items: item {keys[0] + 1} is missing"
    *others, last = [repr(key) for key in keys]
    return f"needs {', '.join(others)} and {last}" if others else f"needs {last}"


def _need(detail: dict[str, Any]) -> str:
    if detail["type"] == "literal_error":
        return str(detail["ctx"]["expected"])
    return _NEEDS[detail["type"]]


def _but(value: Any, needs: Sequence[str]) -> str:
    """Return what a value is instead, and the way out where it is near."""
    if isinstance(value, str):
        return _but_text(value, needs)
    if value is None:
        return "nothing is there"
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'} is there"
    if isinstance(value, bool):
        return f"{shown(value)} is a truth value"
    if isinstance(value, float) and not math.isfinite(value):
        return f"it is {shown(value)}"
    if isinstance(value, float) and "a whole number" in needs and value.is_integer():
        return f"{shown(value)} has a decimal point or an exponent; write {int(value)}"
    is_near = any("number" in need for need in needs)
    return f"{shown(value)} is {'not one' if is_near else 'a number'}"


def _but_text(value: str, needs: Sequence[str]) -> str:
    told = f"{shown(value)} is a text"
    needs_number = any("number" in need for need in needs)
    if needs_number and isinstance(scalar(value), int | float):
        return f"{told}; take off the quotes"
    if needs_number and isinstance(scalar(value.replace("_", "")), int | float):
        return f"{told}; leave out the '_'"
    if "true or false" in needs and value.lower() in _CLAIMS:
        return f"{told}; write {shown(_CLAIMS[value.lower()])}"
    words = [word for need in needs for word in need.split("'")[1::2]]
    near = suggest(value, words)
    hint = f";{near}" if near else ""
    return f"{told}{hint}" if needs_number or not words else f"it is {shown(value)}{hint}"


_CLAIMS = {"yes": True, "on": True, "no": False, "off": False}


def _known(tree: Node, at: MergeSchema, place: Sequence[str | int]) -> tuple[list[str], str]:
    """Return the keys that a mapping may have, and what to call it."""
    for depth, step in enumerate(place, start=1):
        at = at.at(str(step))
        if at.slot:
            said = locate(tree, [*place[:depth], "name"])
            name = said[0].value if said[1] else at.slot.default
            return options_of(at.slot, name), f"{at.slot.name} {name!r}"
    return list(at.below), ""


def _paths(at: MergeSchema, path: str) -> Iterable[str]:
    below = dict(at.below)
    if at.slot:
        for entry in slots()[at.slot.name].values():
            below |= dict.fromkeys(entry.options.model_fields, LEAF)
    for key, item in below.items():
        if key in SIDES and item.below:
            continue
        here = f"{path}.{key}" if path else key
        yield here
        yield from _paths(item, here)
