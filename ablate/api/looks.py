"""Looks at an experiment with fewer seeds than it has: those that it plans, and others.

Adding seeds until a difference is significant raises the rate of false differences, unless the
intervals allow for the looks, as they do for those of ``looks:``. So a table reports all others
that came before it, also those of a plan that has been changed since. They are kept in
``<results>/<experiment>/looks.json`` (docs/statistics.md).
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from ablate import config
from ablate.api.metrics import scored
from ablate.api.selection import Records, RunLookup, Selection, key_of, stored
from ablate.report import Table
from ablate.report.looks import judge
from ablate.store import is_finished, write_whole

Looks = list[list[int]]
"""The seeds of every table with verdicts, in ascending order, the first table first.

A table with ``looks`` has all planned seeds, followed by those of each complete look.
"""

_LOOKS = TypeAdapter(Looks)


def at_look(selection: Selection, lookup: RunLookup) -> Selection:
    """Return a selection with the runs that its present look needs, and that earlier ones had.

    That of an experiment without looks stays as it is. Rows are judged by the BLEU of the table,
    with the tokenizer that the experiment names; errors are those of `scored`.
    """
    experiment = selection.experiment
    if not experiment.looks:
        return selection
    bleu = [metric for metric in experiment.metrics if metric.name == "bleu"]
    records = scored(stored(selection, lookup), selection.corpus, bleu, lookup.store)
    looks = judge(experiment, records)
    needed = {(row, seed) for row, n in looks.n_seeds.items() for seed in experiment.seeds[:n]}
    runs, tabulated = (
        tuple(run for run in of if key_of(run) in needed)
        for of in (selection.runs, selection.tabulated)
    )
    return replace(selection, runs=runs, tabulated=tabulated, looks=looks)


def with_early_runs(selection: Selection, records: Records, n_at_once: int) -> Selection:
    """Return a selection with as many runs of the next look as workers would be idle in this one.

    The baseline's come first, which every open row needs; they count in their look, or not at all.
    """
    looks, experiment = selection.looks, selection.experiment
    missing = [run for run in selection.runs if not is_finished(records.get(key_of(run)))]
    n_idle = -len(missing) % n_at_once
    n_now = max(looks.n_seeds.values(), default=0)
    n_next = next((n for n in experiment.looks if n > n_now), n_now)
    if not looks.planned or not n_idle or n_next == n_now:
        return selection
    closed = {*looks.decided, *looks.given_up}
    requested = {run.variant for run in selection.runs} - closed
    rows = [row.name for row in experiment.rows if row.name in requested]
    if rows in ([], [experiment.rows[0].name]):  # no row is open
        return selection
    early = config.expand(experiment, experiment.seeds[n_now:n_next], rows)[:n_idle]
    runs, tabulated = selection.runs + early, selection.tabulated + early
    return replace(selection, runs=runs, tabulated=tabulated)


def earlier_looks(selection: Selection, results: Path) -> Looks:
    """Return the looks with some of the seeds of a selection; none of runs under overrides.

    Its own ``looks`` are none, since its intervals allow for them. Those of another plan are.
    """
    experiment = selection.experiment
    known = [] if selection.overrides else _read(_file(selection, results))
    planned = sorted(experiment.seeds)
    if experiment.looks and planned in known:
        known = known[: known.index(planned)]
    return sorted((look for look in known if set(look) < set(planned)), key=len)


def note_look(selection: Selection, table: Table, results: Path) -> None:
    """Note the seeds of a table with verdicts, unless an earlier one had them and more."""
    assert table.results is not None, "it is the table of runs"
    compared = table.results.comparison(table.results.bleu)
    is_judged = compared and any(each.simultaneous for each in compared.differences.values())
    experiment, file = selection.experiment, _file(selection, results)
    n_looks = table.results.looks.n_looks
    known, new = _read(file), Looks()
    has_more = any(set(experiment.seeds) < set(look) for look in known)
    for n in (len(experiment.seeds), *experiment.looks[:n_looks]):
        if (look := sorted(experiment.seeds[:n])) not in [*known, *new]:
            new.append(look)
    is_new = new and (experiment.looks or not has_more)
    if is_judged and not selection.overrides and is_new:
        write_whole(file, json.dumps([*known, *new]) + "\n")


def _file(selection: Selection, results: Path) -> Path:
    return results / selection.experiment.name / "looks.json"


def _read(file: Path) -> Looks:
    with suppress(OSError, ValueError):
        return _LOOKS.validate_json(file.read_bytes())
    return []
