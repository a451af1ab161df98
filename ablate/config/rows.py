"""Rows of the table: the baseline, and one for every change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ablate.config.experiment import RunSpec
from ablate.config.merge import change, leaves, marks, merge, merge_schema, union
from ablate.config.messages import validated
from ablate.config.paths import with_file_paths
from ablate.config.runs import Origin, Row
from ablate.config.tree import Mark, Mistake, Node

BASELINE = "baseline"


@dataclass(frozen=True)
class _Request:
    """A row of which only the change is known; a point of a grid may be the baseline itself."""

    name: str
    at: Mark
    path: str
    layer: Node
    is_grid: bool = False


def rows(tree: Node, mistakes: list[Mistake]) -> tuple[list[Row], dict[str, Origin]]:
    """Return the rows of an experiment, the baseline first, and where each comes from.

    A point of a grid that equals the baseline is the baseline, and makes no row of its own. The
    mistakes of any row are added to ``mistakes``; such a row is not returned.
    """
    base = replace(tree, value={k: v for k, v in tree.items() if k in merge_schema().children})
    valid_rows: dict[RunSpec, Row] = {}
    origins: dict[str, Origin] = {}
    spec = _validated(base, mistakes)
    if spec:
        valid_rows[spec] = Row(BASELINE, spec, {})
        origins[BASELINE] = Origin(base, base, base.start)
    requests: dict[str, _Request] = {}
    for request in _requests(tree, mistakes):
        if reason := _why_name_is_taken(request, requests):
            mistakes.append(Mistake(request.at, request.path, reason))
            continue
        requests[request.name] = request
        merged = merge(base, request.layer, merge_schema())
        spec = _validated(merged, mistakes, request)
        twin = valid_rows.get(spec) if spec else None
        if spec is None or (twin and request.is_grid and twin.name == BASELINE):
            continue
        if twin:
            reason = f"the row {request.name!r} changes nothing: it equals the baseline"
            if twin.name != BASELINE:
                line = requests[twin.name].at.seen_from(request.at)
                reason = (
                    f"the row {request.name!r} equals the row {twin.name!r} of {line}; remove one"
                )
            mistakes.append(Mistake(request.at, request.path, reason))
            continue
        valid_rows[spec] = Row(request.name, spec, _changes(base, request.layer, spec))
        origins[request.name] = Origin(merged, request.layer, request.at)
    return list(valid_rows.values()), origins


def requested_names(tree: Node) -> list[str]:
    """Return the names of all rows that an experiment requests, the baseline apart."""
    return [request.name for request in _requests(tree, [])]


def _validated(
    tree: Node, mistakes: list[Mistake], request: _Request | None = None
) -> RunSpec | None:
    located = with_file_paths(tree, merge_schema())
    spec, more = validated(RunSpec, located, merge_schema())
    known = {(mistake.mark, mistake.reason) for mistake in mistakes}
    new = [mistake for mistake in more if (mistake.mark, mistake.reason) not in known]
    if request:
        new = [in_row(each, request.name, request.layer, request.at) for each in new]
    mistakes += new
    return spec


def in_row(mistake: Mistake, row: str, layer: Node, at: Mark) -> Mistake:
    """Return a mistake of a row, moved to the row's beginning if its layer is not the cause."""
    return mistake if mistake.mark in set(marks(layer)) else at_row(mistake, row, at)


def at_row(mistake: Mistake, row: str, at: Mark) -> Mistake:
    """Return a mistake of a row, moved to the row's beginning."""
    return replace(with_row_name(mistake, row), mark=at)


def with_row_name(mistake: Mistake, row: str) -> Mistake:
    """Return a mistake whose reason names its row, unless the row is the baseline."""
    where = "" if row == BASELINE else f" (in the row {row!r})"
    return replace(mistake, reason=f"{mistake.reason}{where}")


def _why_name_is_taken(request: _Request, requests: Mapping[str, _Request]) -> str | None:
    if request.name == BASELINE:
        return "'baseline' is the file without its variants; choose another name"
    if request.name not in requests:
        return None
    line = requests[request.name].at.seen_from(request.at)
    way_out = "remove one" if request.is_grid else "choose another name"
    return f"{line} already has a row {request.name!r}; {way_out}"


def _changes(base: Node, layer: Node, spec: RunSpec) -> dict[str, Any]:
    """Return the values of a change, without those that make no difference to the others."""
    values = dict(leaves(layer, merge_schema()))
    for path in list(reversed(values)):
        others = {other: node for other, node in values.items() if other != path}
        if others:
            tree = merge(base, change(replace(base, value=others), []), merge_schema())
            tree = with_file_paths(tree, merge_schema())
            with_others, _ = validated(RunSpec, tree, merge_schema())
            values = others if with_others == spec else values
    return {path: node.as_written() for path, node in values.items()}


def _requests(tree: Node, mistakes: list[Mistake]) -> Iterator[_Request]:
    """Yield the rows; what the changes of one give twice is added to ``mistakes``."""
    for name, layer in tree.entries("variants").items():
        yield _Request(name, layer.key, layer.path, layer)
    grid, one_out = tree.get("grid"), tree.get("leave_one_out")
    if grid:
        yield from _grid(grid, mistakes)
    if one_out:
        yield from _leave_one_out(one_out, mistakes)


def _grid(grid: Node, mistakes: list[Mistake]) -> Iterator[_Request]:
    """Yield a row for every point of the product of all axes, the last axis fastest."""
    axes = grid.entries()
    for point in product(*(axis.elements for axis in axes.values())):
        pairs = zip(axes.items(), point, strict=True)
        values = {path: replace(node, key=axis.key) for (path, axis), node in pairs}
        layer = change(replace(grid, value=values), mistakes)
        name = point_name(list(axes), point)
        yield _Request(name, point[-1].start, point[-1].path, layer, is_grid=True)


def _leave_one_out(section: Node, mistakes: list[Mistake]) -> Iterator[_Request]:
    """Yield a row with every change, and one with all changes but one for each of them."""
    changes = _named(section.elements) or list(section.items())
    everything = replace(section, value={})
    for _, layer in changes:
        whole = union(everything, layer, [])
        if whole.plain() != union(layer, everything, []).plain():  # one path, two values
            union(everything, layer, mistakes)
        everything = whole
    yield _Request("all", section.key, section.path, everything)
    for index, (name, layer) in enumerate(changes):
        rest = replace(section, value={})
        for _, other in (*changes[:index], *changes[index + 1 :]):
            rest = union(rest, other, [])
        yield _Request(f"all - {name}", layer.key, layer.path, rest)


def _named(layers: Sequence[Node]) -> list[tuple[str, Node]]:
    """Return changes with names that tell their values, and their whole paths where needed."""
    values = [list(leaves(layer, merge_schema())) for layer in layers]
    paths = [[path for path, _ in each] for each in values]
    nodes = [[node for _, node in each] for each in values]
    names = list(map(point_name, paths, nodes))
    if len(set(names)) < len(names):
        names = list(map(_name_of, paths, nodes))
    return list(zip(names, layers, strict=True))


def point_name(paths: Sequence[str], nodes: Sequence[Node]) -> str:
    """Return a name that gives the value at each path: ``norm=rms lr=0.01``."""
    return _name_of(labels(paths), nodes)


def _name_of(names: Sequence[str], nodes: Sequence[Node]) -> str:
    pairs = zip(names, nodes, strict=True)
    return " ".join(f"{name}={compact(node.plain())}" for name, node in pairs)


def labels(paths: Sequence[str]) -> list[str]:
    """Return the shortest ends of dotted ``paths`` that tell them apart."""
    parts = [path.split(".") for path in paths]

    def shortest(own: list[str]) -> str:
        others = [other for other in parts if other != own]
        ends = (n for n in range(1, len(own)) if all(o[-n:] != own[-n:] for o in others))
        return ".".join(own[-next(ends, len(own)) :])

    return [shortest(own) for own in parts]


def compact(value: Any, null: str = "null") -> str:
    """Write a value of the YAML compactly: ``relu(d_ff=256)``; None as ``null``."""
    if value is None:
        return null
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(compact(item, null) for item in value)}]"
    if isinstance(value, Mapping):
        items = value.items()
        inner = ", ".join(f"{key}={compact(item, null)}" for key, item in items if key != "name")
        if "name" not in value:
            return inner
        name = compact(value["name"], null)
        return f"{name}({inner})" if inner else name
    return str(value)
