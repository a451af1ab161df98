"""Mistakes as sentences that a newcomer understands.

Every mistake is one line, ``file:line:column: path: what``, then the offending line and a caret.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ablate.config.inheritance import SIDES, Steps
from ablate.config.merge import MergeSchema, merge_schema
from ablate.config.runs import locate
from ablate.config.tree import Mark, Mistake, Node, scalar
from ablate.errors import SpecError, suggestion_in
from ablate.registry import slots
from ablate.wording import and_list, nearest, suggest

M = TypeVar("M", bound=BaseModel)


class MistakesError(SpecError):
    """An experiment is not valid; ``mistakes`` are in the order of files and lines."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        distinct: dict[tuple[Mark, str], Mistake] = {}
        for each in mistakes:
            distinct.setdefault((each.mark, each.reason), each)
        self.mistakes = tuple(sorted(distinct.values(), key=_order))
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))

    def details(self) -> list[dict[str, Any]]:
        return [
            {
                "file": mistake.mark.source.label,
                "line": mistake.mark.line,
                "column": mistake.mark.column,
                "path": mistake.path or None,
                "message": mistake.reason,
                "suggestion": suggestion_in(mistake.reason),
            }
            for mistake in self.mistakes
        ]


def validated(model: type[M], tree: Node, schema: MergeSchema) -> tuple[M | None, list[Mistake]]:
    """Return ``tree`` as a ``model``, or None and every mistake at its position."""
    mistakes: list[Mistake] = []
    while True:
        try:
            valid = model.model_validate(tree.plain())
        except ValidationError as error:
            details = error.errors(include_url=False)
            mistakes += _explain(details, tree, schema)
            excess = [each for each in details if each["type"] in _EXCESS]
            if not excess:
                return None, mistakes
            for each in excess:  # without this key the others of its mapping can be checked
                key = each["ctx"][_EXCESS[each["type"]]]
                tree = _without(tree, [*map(str, each["loc"]), key])
        else:
            return (None, mistakes) if mistakes else (valid, [])


def certain(model: type[BaseModel], tree: Node, schema: MergeSchema) -> list[Mistake]:
    """Return the mistakes that ``tree`` has whatever layers are missing below it."""
    try:
        model.model_validate(tree.plain())
    except ValidationError as error:
        details = error.errors(include_url=False)
        return _explain([each for each in details if _is_certain(each, tree, schema)], tree, schema)
    return []


def _is_certain(detail: Any, tree: Node, schema: MergeSchema) -> bool:
    """Return whether a value is wrong by itself, and not an option of a part without a name."""
    path = _path(tree, detail)
    kinds = {*_SENTENCES, *_NEEDS, "literal_error", "unknown_part", "extra_forbidden"}
    for depth, step in enumerate(path[:-1]):
        schema = schema.at(str(step))
        if schema.slot and tree.find([*path[: depth + 1], "name"]) is None:
            return False
    return detail["type"] in kinds


def _explain(details: Sequence[Any], tree: Node, schema: MergeSchema) -> list[Mistake]:
    groups: dict[tuple[str | int, ...], list[dict[str, Any]]] = {}
    of_keys: list[Mistake] = []
    for detail in details:
        path = _path(tree, detail)
        if detail["loc"][-1:] == (_KEY,):
            node, _ = locate(tree, path)
            of_keys.append(Mistake(node.key, _dotted(path[:-1]), sentence([detail], path[-1])))
        else:
            groups.setdefault(path, []).append(dict(detail))
    return of_keys + [
        _mistake(tree, schema, path, details)
        for path, details in groups.items()
        if not _is_shadowed(path, details, groups)
    ]


def _without(node: Node, path: list[str]) -> Node:
    head, *rest = path
    value = node.entries()
    child = value.pop(head)
    return replace(node, value={**value, head: _without(child, rest)} if rest else value)


def unknown(key: str, known: Sequence[str], owner: str = "") -> str:
    """Return the sentence for an unknown key; ``owner`` is the part if it stands for an option."""
    if key == "<<":
        return "YAML 1.2 has no merge key; write out what it would add"
    if ":" in key:
        return "unknown option; is a space missing after its ':'?"
    head, dot, _ = key.partition(".")
    if dot and head in known:
        return f"dotted paths are for rows; here, write '{head}:' with the rest below it"
    elsewhere = {} if owner else dict(_paths_to(key, merge_schema()))
    keys = [path for path, is_option in elsewhere.items() if not is_option]
    near = nearest(key, known)
    meant = [*(keys if len(keys) == 1 else ()), *([near] if near else ())]
    if not meant and len(elsewhere) == 1:
        meant = [*elsewhere]
    if meant == [key]:
        return f"unknown option; {key!r} stands at the top level"
    if meant:
        return f"unknown option; did you mean {' or '.join(map(repr, meant))}?"
    listed = ", ".join(known) or "none"
    return f"unknown option; {owner} has {listed}" if owner else f"unknown option; known: {listed}"


def _dotted(path: Iterable[str | int]) -> str:
    """Return a path with dots, without the indices of lists."""
    return ".".join(step for step in path if isinstance(step, str))


def _order(mistake: Mistake) -> tuple[str, tuple[str, ...], int, int]:
    source = mistake.mark.source  # the lines, because every override has the same label
    return source.label, source.lines, mistake.mark.line, mistake.mark.column


def _path(tree: Node, detail: Any) -> tuple[str | int, ...]:
    """Return the path of an error, without pydantic's names for the branches of a union."""
    path: list[str | int] = []
    for step in detail["loc"]:
        if locate(tree, [*path, step])[1]:
            path.append(step)
    if detail["type"] in _EXCESS:
        path.append(detail["ctx"][_EXCESS[detail["type"]]])
    return tuple(path)


def _is_shadowed(
    path: tuple[str | int, ...], details: list[dict[str, Any]], groups: Iterable[tuple[Any, ...]]
) -> bool:
    """Return whether another branch of a union, or an item, fails deeper in the value."""
    deeper = any(other[: len(path)] == path and len(other) > len(path) for other in groups)
    kinds = (*_NEEDS, "too_short")  # pydantic counts the valid items of a list alone
    return deeper and all(detail["type"] in kinds for detail in details)


def _mistake(
    tree: Node, schema: MergeSchema, steps: tuple[str | int, ...], details: list[dict[str, Any]]
) -> Mistake:
    node, is_exact = locate(tree, steps)
    kinds = {detail["type"] for detail in details}
    if kinds & {"unknown_part", "choice_name"}:
        node = node.get("name") or node
    path = node.path if is_exact and node.path else _dotted(steps)
    if "extra_forbidden" in kinds:
        known, owner = _known(tree, schema, steps[:-1])
        above, key = (None, *steps)[-2:]
        reason = unknown(str(key), known, owner)
        if above in SIDES and schema.at("model").at(str(key)).is_per_side:
            reason = f"unknown option; did you mean 'model.{key}.{above}'?"
        return Mistake(node.key, node.path, reason)
    if kinds & set(_EXCESS):
        return Mistake(node.key, path, str(details[0]["msg"]))
    reason = sentence(details, node.value)
    if kinds == {"model_type"} and (known := _known(tree, schema, steps)[0]):
        reason = f"{reason}; known: {', '.join(known)}"
    return Mistake(node.mark, path.removesuffix(".name"), reason)


def sentence(details: Sequence[Any], value: Any) -> str:
    """Return the sentence for one value from pydantic's errors about it."""
    for detail in details:
        kind, context = detail["type"], detail.get("ctx", {})
        if kind in _SENTENCES:
            return _SENTENCES[kind].format(**context, value=quoted(value))
        if kind == "missing":
            first, *others = [d["loc"][-1] for d in details if d["type"] == "missing"]
            if isinstance(first, int):
                return f"has too few items: item {first + 1} is missing"
            return f"needs {and_list([repr(key) for key in (first, *others)])}"
        if kind not in _NEEDS and kind != "literal_error":
            return str(context.get("error", detail["msg"]))
    needs = list(dict.fromkeys(_NEEDS.get(d["type"]) or d["ctx"]["expected"] for d in details))
    return f"needs {' or '.join(needs)}; {_actual(value, needs)}"


def quoted(value: Any) -> str:
    """Return a value as in the YAML, shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST else f"{value[:_LONGEST]}...")
    if isinstance(value, float):
        return {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}.get(repr(value), repr(value))
    if isinstance(value, dict | list):
        return f"a {'mapping' if isinstance(value, dict) else 'list'}"
    return str(value)


_LONGEST = 60
_KEY = "[key]"  # in pydantic's path of an error, after a key that is itself invalid
_EXCESS = {"alternatives": "second", "null": "key"}
_SENTENCES = {
    "greater_than": "must be greater than {gt:g}; it is {value}",
    "greater_than_equal": "must be at least {ge:g}; it is {value}",
    "less_than": "must be less than {lt:g}; it is {value}",
    "less_than_equal": "must be at most {le:g}; it is {value}",
    "too_short": "needs {min_length} or more; it has {actual_length}",
    "too_long": "may have {max_length} at most; it has {actual_length}",
    "multiple_of": "must be a multiple of {multiple_of:g}; it is {value}",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must match {pattern}; it is {value}",
}
_NEEDS = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "a string",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "choice_type": "a name or a mapping with a name",
    "choice_name": "the name of a part",
    "none_required": "null",
}


def _actual(value: Any, needs: Sequence[str]) -> str:
    """Return what a value is instead of what it needs to be, and an obvious correction."""
    if isinstance(value, str):
        return _actual_string(value, needs)
    if value is None:
        return "it is empty"
    if isinstance(value, bool):
        return f"{quoted(value)} is a boolean"
    if isinstance(value, dict | list) or (isinstance(value, float) and not math.isfinite(value)):
        return f"it is {quoted(value)}"
    if isinstance(value, float) and "a whole number" in needs and value.is_integer():
        return f"{quoted(value)} has a decimal point or an exponent; write {int(value)}"
    is_near = any("number" in need for need in needs)
    return f"{quoted(value)} is {'not one' if is_near else 'a number'}"


def _actual_string(value: str, needs: Sequence[str]) -> str:
    is_string = f"{quoted(value)} is a string"
    needs_number = any("number" in need for need in needs)
    if needs_number and isinstance(scalar(value), int | float):
        return f"{is_string}; remove the quotes"
    if "true or false" in needs and value.lower() in _BOOLEANS:
        return f"{is_string}; write {quoted(_BOOLEANS[value.lower()])}"
    words = [word for need in needs for word in need.split("'")[1::2]]
    near = suggest(value, words)
    hint = f";{near}" if near else ""
    return f"{is_string}{hint}" if needs_number or not words else f"it is {quoted(value)}{hint}"


_BOOLEANS = {"yes": True, "on": True, "no": False, "off": False}


def _known(tree: Node, schema: MergeSchema, path: Steps) -> tuple[list[str], str]:
    """Return the valid keys of a mapping, and its name in messages."""
    for depth, step in enumerate(path, start=1):
        schema = schema.at(str(step))
        if schema.slot:
            node, is_exact = locate(tree, [*path[:depth], "name"])
            name = node.value if is_exact else schema.slot.default
            entry = slots()[schema.slot.name].get(str(name))
            options = sorted(entry.options.model_fields) if entry else []
            return options, f"{schema.slot.name} {name!r}"
    return list(schema.children), ""


def _paths_to(key: str, schema: MergeSchema, above: str = "") -> Iterator[tuple[str, bool]]:
    """Yield every path that ends in ``key``, and whether it is that of an option of a part."""
    if schema.slot:
        parts = slots()[schema.slot.name].values()
        if any(key in part.options.model_fields for part in parts):
            yield f"{above}{key}", True
    for name, child in schema.children.items():
        if name == key:
            yield f"{above}{name}", False
        if not (name in SIDES and child.children):  # whose choices are those of both stacks
            yield from _paths_to(key, child, f"{above}{name}.")
