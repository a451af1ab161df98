"""Values that are not written in the file but chosen for each row: matched or tuned.

A candidate of tuning is a row like any other, of an experiment of its own: so its runs are checked,
trained and stored as those of a table are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from ablate.config.experiment import RunSpec
from ablate.config.merge import change, excluded_by, merge, merge_schema
from ablate.config.messages import MistakesError, validated
from ablate.config.paths import with_file_paths
from ablate.config.rows import point_name, with_row_name
from ablate.config.runs import Experiment, Origin, Row, Tune, are_numbers, beyond
from ablate.config.tree import Mark, Mistake, Node
from ablate.wording import no_such

How = Literal["matched", "tuned"]

_NOT_TUNED = {
    "decoding": "makes no difference to the NLL on dev, by which `tune` chooses; make rows of it",
    "tokenizer": "makes other tokens, and `tune` compares the NLL per token; make rows of it",
}
"""Why some parts of a spec cannot be tuned."""
_OF_TRAINING = ("tokenizer.dropout", "tokenizer.alpha")  # with the same tokens on dev


def why_not_tuned(path: str) -> str | None:
    """Return why the value at a path cannot be tuned; None if it can."""
    return None if path in _OF_TRAINING else _NOT_TUNED.get(path.partition(".")[0])


_Result = tuple[Row, Origin]
_Known = set[tuple[Mark, str]]
"""Mistakes that have been reported."""


def _with_values(
    row: Row,
    origin: Origin,
    values: dict[str, Node],
    how: How,
    mistakes: list[Mistake],
    known: _Known,
) -> _Result | None:
    """Return a row with values at some paths; None if that is invalid."""
    layer = change(replace(origin.tree, value=values), mistakes)
    schema = merge_schema()
    tree = merge(origin.tree, layer, schema)
    spec, more = validated(RunSpec, with_file_paths(tree, schema), schema)
    for each in more:
        if (each.mark, each.reason) not in known:
            known.add((each.mark, each.reason))
            mistakes.append(with_row_name(each, row.name))
    if spec is None:
        return None
    chosen = {path: node.as_written() for path, node in values.items()}
    result = replace(
        row,
        spec=spec.model_copy(update={"seed": row.spec.seed}),
        changes={**row.changes, **chosen},
        chosen={**row.chosen, **dict.fromkeys(chosen, how)},
        pending=tuple(path for path in row.pending if path not in chosen),
    )
    return result, replace(origin, tree=tree, layer=merge(origin.layer, layer, schema))


def with_match(experiment: Experiment, values: Mapping[str, int | None]) -> Experiment:
    """Return an experiment with the values that its rows are matched by.

    A value is None if it is not known yet; rows without one stay as they are. A `MistakesError`
    has the rows that cannot have theirs.
    """
    assert experiment.match is not None
    path, via = experiment.match.via, _via(experiment)
    via = replace(via, key=via.start, path=f"match.via.{path}")  # the steps stand in its value
    mistakes: list[Mistake] = []
    results: dict[str, _Result] = {}
    for row in experiment.rows:
        value, origin = values.get(row.name), experiment.origins[row.name]
        if value is None:
            results[row.name] = _pending(row, [path]) if row.name in values else row, origin
            continue
        point = {path: replace(via, value=value)}
        matched = _with_values(row, origin, point, "matched", mistakes, set())
        results[row.name] = matched or (row, origin)
    return _with_rows(experiment, results, mistakes)


def unmatched(experiment: Experiment, reasons: Mapping[str, str]) -> MistakesError:
    """Return an error that says of each row why it cannot be matched."""
    at = _via(experiment).mark
    return MistakesError(
        with_row_name(Mistake(at, "match.via", reason), row) for row, reason in reasons.items()
    )


@dataclass(frozen=True)
class Tuning:
    """The runs by which every row's values are chosen: rows are candidates, named by row."""

    experiment: Experiment
    candidates: Mapping[str, tuple[str, ...]]


Point = dict[str, Node]
"""The values of a candidate by path."""


def tuning_of(experiment: Experiment, extra: Mapping[str, Sequence[Point]] | None = None) -> Tuning:
    """Return the candidates of an experiment with a ``tune``, or raise why a row can have none.

    ``extra`` are further ones of rows, of which those that are invalid are left out.
    """
    mistakes: list[Mistake] = []
    assert experiment.tune is not None
    results: dict[str, _Result] = {}
    names: dict[str, tuple[str, ...]] = {}
    known: _Known = set()
    paths = list(experiment.tune.axes)
    for row in experiment.rows:
        of_row: dict[str, _Result] = {}
        grid = product(*experiment.tune.axes.values())  # the last axis is the fastest
        points = [(dict(zip(paths, nodes, strict=True)), mistakes) for nodes in grid]
        points += [(point, []) for point in (extra or {}).get(row.name, ())]
        for values, of_point in points:
            origin = experiment.origins[row.name]
            candidate = _with_values(row, origin, values, "tuned", of_point, known)
            if candidate:
                name = f"{row.name} {point_name(paths, list(values.values()))}"
                of_row[name] = replace(candidate[0], name=name), candidate[1]
        results |= of_row
        names[row.name] = tuple(of_row)
    seeded = replace(experiment, seeds=experiment.tune.seeds, match=None, tune=None)
    return Tuning(_with_rows(seeded, results, mistakes), names)


def points_beyond(tune: Tune, tuning: Tuning, row: str, winner: str) -> list[Point]:
    """Return the points beyond the numbers that a row has tried, where its best is at an end."""
    changes = {each.name: each.changes for each in tuning.experiment.rows}
    tried, best = [changes[name] for name in tuning.candidates[row]], changes[winner]
    nodes = {}
    for path, axis in tune.axes.items():
        given = (node for node in axis if node.as_written() == best[path])
        nodes[path] = next(given, replace(axis[0], value=best[path]))
    points = []
    for path, node in nodes.items():
        values = list(dict.fromkeys(each[path] for each in tried if are_numbers([0, each[path]])))
        for end in (min, max):
            if are_numbers(tune.values()[path]) and best[path] == end(values):
                value = beyond(values, end)
                points += [{**nodes, path: replace(node, value=value)}] if value else []
    return points


def with_tuning(
    experiment: Experiment, tuning: Tuning, winners: Mapping[str, str | None]
) -> Experiment:
    """Return an experiment whose rows have the values of their best candidates.

    ``winners`` are the names of these candidates by row; None if not known yet.
    """
    candidates = {row.name: row for row in tuning.experiment.rows}
    assert experiment.tune is not None
    results: dict[str, _Result] = {}
    for row in experiment.rows:
        winner = winners.get(row.name)
        if winner is None:
            pending = _pending(row, experiment.tune.axes)
            results[row.name] = pending, experiment.origins[row.name]
        else:
            best = replace(candidates[winner], name=row.name)
            results[row.name] = best, tuning.experiment.origins[winner]
    return _with_rows(experiment, results, [])


def mistakes_of_choices(experiment: Experiment, variants: Sequence[str]) -> Iterator[Mistake]:
    """Yield the mistakes of ``match`` and ``tune`` that show without a model.

    The rows of the experiment are valid; ``variants`` are those that the file requests.
    """
    if match := experiment.match:
        for name in (*(match.rows or ()), *match.exclude):
            if name not in variants:
                at = experiment.sections["match"].mark
                yield Mistake(at, "match", no_such("variant", name, variants))
        for row in experiment.rows[1:]:
            if match.applies_to(row.name):
                yield from _mistakes_of_variant(row, experiment, [match.via], "match")
    if experiment.tune is not None:
        yield from _mistakes_of_tune(experiment, experiment.tune)


def seeds_are_shared(seeds: list[int]) -> str:
    """Return what to do about seeds of tuning that are seeds of the table."""
    listed = ", ".join(map(str, seeds))
    return (
        f"tunes with seed {listed}, which the table reports; what a row was chosen by cannot judge "
        "it too: give other seeds, as in tune: {seeds: [1001]}"
    )


def _mistakes_of_tune(experiment: Experiment, tune: Tune) -> Iterator[Mistake]:
    node = experiment.sections["tune"]
    if not tune.axes:
        reason = "needs a path with the values to try, as in training.schedule.lr: [1e-3, 2e-3]"
        yield Mistake(node.mark, "tune", reason)
        return
    try:
        tuning_of(experiment)
    except MistakesError as error:
        yield from error.mistakes
    for row in experiment.rows[1:]:
        yield from _mistakes_of_variant(row, experiment, list(tune.axes), "tune")
    via = experiment.match.via if experiment.match else None
    for path, axis in tune.axes.items():
        yield from _repeated(path, axis)
        if why := why_not_tuned(path):
            yield Mistake(axis[0].key, f"tune.{path}", why)
        if via and _overlap(via, path):
            what = "is" if path == via else f"would undo {via},"
            reason = f"{what} what the rows are matched by"
            yield Mistake(axis[0].mark, f"tune.{path}", reason)
    if shared := [seed for seed in tune.seeds if seed in experiment.seeds]:
        yield Mistake(node.mark, "tune", seeds_are_shared(shared))


def _repeated(path: str, axis: Sequence[Node]) -> Iterator[Mistake]:
    """Yield the mistakes of values that an axis has twice, which make one candidate."""
    first: dict[str, Node] = {}
    for node in axis:
        other = first.setdefault(point_name([path], [node]), node)
        if other is not node:
            line = other.start.seen_from(node.start)
            yield Mistake(node.start, f"tune.{path}", f"is given twice; first in {line}")


def _mistakes_of_variant(
    row: Row, experiment: Experiment, paths: list[str], section: str
) -> Iterator[Mistake]:
    """Yield the mistakes of a variant that sets what a section chooses, or would remove."""
    layer = experiment.origins[row.name].layer
    way_out = "give another path"
    if section == "match":
        names_rows = experiment.match is not None and experiment.match.rows is not None
        where = "leave {!r} out of match.rows" if names_rows else "give {!r} in match.exclude"
        way_out = where.format(row.name)
    for path in paths:
        chosen = path.removesuffix(".name")
        for own in (chosen, *excluded_by(chosen)):
            node = layer.find(own.split("."))
            if node is not None:
                what = "is what" if own == chosen else f"excludes {path}, which"
                reason = f"{what} `{section}` chooses for every row; leave it out, or {way_out}"
                yield with_row_name(Mistake(node.key, own, reason), row.name)


def _overlap(one: str, other: str) -> bool:
    """Return whether one of two paths leads to the other, or removes it."""
    above, below = sorted((f"{path.removesuffix('.name')}." for path in (one, other)), key=len)
    return below.startswith(above) or other in excluded_by(one)


def _via(experiment: Experiment) -> Node:
    section = experiment.sections["match"]
    return section.find(["via"]) or section


def _with_rows(
    experiment: Experiment, results: Mapping[str, _Result], mistakes: list[Mistake]
) -> Experiment:
    if mistakes:
        raise MistakesError(mistakes)
    rows = tuple(row for row, _ in results.values())
    return replace(experiment, rows=rows, origins={name: at for name, (_, at) in results.items()})


def _pending(row: Row, paths: Iterable[str]) -> Row:
    changes = {**row.changes, **dict.fromkeys(paths)}
    return replace(row, changes=changes, pending=(*row.pending, *paths))
