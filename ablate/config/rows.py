"""Rows of the table: the baseline, and one for every change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pydantic import ValidationError

from ablate.config.experiment import RunSpec
from ablate.config.merge import leaves, marks, merge, merge_schema, nested, normalize
from ablate.config.messages import validated
from ablate.config.runs import Origin, Row
from ablate.config.source import Mark, Mistake, Node

BASELINE = "baseline"


@dataclass(frozen=True)
class RowRequest:
    """A row to make.

    Attributes:
        at: where it is asked for.
        path: what to call it in a message.
        layer: its change.
        is_grid: a point of a grid, which may be the baseline itself.
    """

    name: str
    at: Mark
    path: str
    layer: Node
    is_grid: bool = False


def rows(whole: Node, mistakes: list[Mistake]) -> tuple[list[Row], dict[str, Origin]]:
    """Return the rows of an experiment, the baseline first, and where each comes from.

    A point of a grid that equals the baseline is the baseline, and makes no row of its own. What
    is wrong with any row is added to ``mistakes``; such a row is not returned.
    """
    base = replace(whole, value={k: v for k, v in whole.items() if k in merge_schema().below})
    made: list[Row] = []
    origins: dict[str, Origin] = {}
    spec = _checked(base, mistakes)
    if spec:
        made.append(Row(BASELINE, spec, {}))
        origins[BASELINE] = Origin(base, base, base.start)
    asked: dict[str, RowRequest] = {}
    for wanted in _wanted(whole):
        if not _is_free(wanted, asked, mistakes):
            continue
        asked[wanted.name] = wanted
        tree = merge(base, wanted.layer, merge_schema())
        spec = _checked(tree, mistakes, wanted)
        twin = next((row for row in made if row.spec == spec), None)
        if spec is None or (twin and wanted.is_grid and twin.name == BASELINE):
            continue
        if twin:
            mistakes.append(_same(wanted, twin, asked))
            continue
        made.append(Row(wanted.name, spec, _changes(base, wanted.layer, spec)))
        origins[wanted.name] = Origin(tree, wanted.layer, wanted.at)
    return made, origins


def names_asked_for(whole: Node) -> list[str]:
    """Return the names of all rows that an experiment asks for, the baseline apart."""
    return [wanted.name for wanted in _wanted(whole)]


def _checked(
    tree: Node, mistakes: list[Mistake], wanted: RowRequest | None = None
) -> RunSpec | None:
    spec, found = validated(RunSpec, tree, merge_schema())
    if spec:
        return spec
    known = {(mistake.mark, mistake.reason) for mistake in mistakes}
    new = [mistake for mistake in found if (mistake.mark, mistake.reason) not in known]
    mistakes += [told(m, wanted.name, wanted.layer, wanted.at) for m in new] if wanted else new
    return None


def told(mistake: Mistake, row: str, layer: Node, at: Mark) -> Mistake:
    """Return a mistake of one row, told where the row begins if the row does not say it."""
    return mistake if mistake.mark in set(marks(layer)) else told_at(mistake, row, at)


def told_at(mistake: Mistake, row: str, at: Mark) -> Mistake:
    """Return a mistake of one row, told where the row begins."""
    return Mistake(at, mistake.path, f"{mistake.reason} (in the row {row!r})")


def _is_free(wanted: RowRequest, asked: dict[str, RowRequest], mistakes: list[Mistake]) -> bool:
    reason = None
    if wanted.name == BASELINE:
        reason = "'baseline' is the file without its variants; choose another name"
    elif wanted.name in asked:
        at = asked[wanted.name].at
        way_out = "drop one" if wanted.is_grid else "choose another name"
        reason = f"a row {wanted.name!r} stands in line {at.line} already; {way_out}"
    if reason:
        mistakes.append(Mistake(wanted.at, wanted.path, reason))
    return reason is None


def _same(wanted: RowRequest, twin: Row, asked: dict[str, RowRequest]) -> Mistake:
    if twin.name == BASELINE:
        reason = f"the row {wanted.name!r} changes nothing: it equals the baseline"
    else:
        line = asked[twin.name].at.line
        reason = f"the row {wanted.name!r} equals the row {twin.name!r} of line {line}; drop one"
    return Mistake(wanted.at, wanted.path, reason)


def _changes(base: Node, layer: Node, spec: RunSpec) -> dict[str, Any]:
    """Return what a change says, less what the baseline says already."""
    said = list(leaves(layer, merge_schema()))
    found: dict[str, Any] = {}
    for path, node in said:
        others = [other for other in said if other[0] != path]
        if len(said) == 1 or _run(base, others) != spec:
            found[path] = _spoken(node)
    return found


def _run(base: Node, said: Sequence[tuple[str, Node]]) -> RunSpec | None:
    tree = base
    for path, node in said:
        tree = merge(tree, normalize(nested(path.split("."), node), merge_schema()), merge_schema())
    try:
        return RunSpec.model_validate(tree.plain())
    except ValidationError:
        return None


def _spoken(node: Node) -> Any:
    """Return a value as one writes it: a part without options is its name, lists are lists."""
    if isinstance(node.value, dict):
        if list(node.value) == ["name"]:
            return node.value["name"].value
        return {key: _spoken(item) for key, item in node.items()}
    if isinstance(node.value, list):
        return [_spoken(item) for item in node.value]
    return node.value


def _wanted(whole: Node) -> Iterator[RowRequest]:
    variants = whole.get("variants")
    for name, layer in variants.items() if variants else ():
        yield RowRequest(name, layer.key, layer.path, layer)
    grid, one_out = whole.get("grid"), whole.get("leave_one_out")
    if grid:
        yield from _grid(grid)
    if one_out:
        yield from _leave_one_out(one_out)


def _grid(grid: Node) -> Iterator[RowRequest]:
    """Yield a row for every point of the product of all axes, the last axis fastest."""
    labels = _labels([path for path, _ in grid.items()])
    for point in product(*(axis.elements for _, axis in grid.items())):
        layer, name = replace(grid, value={}), []
        for label, (path, axis), node in zip(labels, grid.items(), point, strict=True):
            step = nested(path.split("."), replace(node, key=axis.key))
            layer = merge(layer, normalize(step, merge_schema()), merge_schema())
            name.append(f"{label}={_label(node)}")
        yield RowRequest(" ".join(name), point[-1].start, point[-1].path, layer, is_grid=True)


def _leave_one_out(section: Node) -> Iterator[RowRequest]:
    """Yield a row with every change, and one with all changes but one for each of them."""
    changes = {_name_of(layer): layer for layer in section.elements} or dict(section.items())
    everything = replace(section, value={})
    for layer in changes.values():
        everything = merge(everything, layer, merge_schema())
    yield RowRequest("all", section.key, section.path, everything)
    for name, layer in changes.items():
        rest = replace(section, value={})
        for other, kept in changes.items():
            rest = rest if other == name else merge(rest, kept, merge_schema())
        yield RowRequest(f"all - {name}", layer.key, layer.path, rest)


def _name_of(layer: Node) -> str:
    said = list(leaves(layer, merge_schema()))
    labels = _labels([path for path, _ in said])
    return " ".join(
        f"{label}={_label(node)}" for label, (_, node) in zip(labels, said, strict=True)
    )


def _label(node: Node) -> str:
    """Return a value as it stands in the name of a row: ``sinusoidal(base=500)``."""
    value = node.value
    if isinstance(value, dict):
        options = [f"{key}={_label(item)}" for key, item in value.items() if key != "name"]
        inner = ", ".join(options)
        name = value.get("name")
        return f"{_label(name)}({inner})" if name and inner else _label(name) if name else inner
    if isinstance(value, list):
        return f"[{', '.join(_label(item) for item in value)}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _labels(paths: Sequence[str]) -> list[str]:
    """Return the shortest ends of paths that tell them apart."""
    split = [path.split(".") for path in paths]
    return [
        next(
            ".".join(own[-n:])
            for n in range(1, len(own) + 1)
            if n == len(own) or all(other is own or other[-n:] != own[-n:] for other in split)
        )
        for own in split
    ]
