"""The table of an experiment, laid out as in Vaswani et al. 2017, table 3.

The first column names the row; then comes one column for each path of the spec that some row
changes. The baseline says what it has there, a variant only what it changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ablate.analysis import STATUSES, Records, Summary, evaluated_sets, summarise
from ablate.config import Experiment
from ablate.report.cells import Cell, Column, Line, Table
from ablate.report.changes import changed_paths, labels, shown, value_at
from ablate.report.footnotes import footnotes
from ablate.report.measures import Block, measures


def table(experiment: Experiment, records: Records) -> Table:
    """Lay out what is known of ``experiment``; a run without a record is shown as missing.

    Args:
        experiment: rows in the order of the file, baseline first, and seeds.
        records: of other experiments too, if need be; only this one's rows and seeds count.
    """
    names = [row.name for row in experiment.rows]
    ours = {
        (name, seed): records[name, seed]
        for name in names
        for seed in experiment.seeds
        if (name, seed) in records
    }
    summaries = summarise(names, experiment.seeds, ours)
    sets = evaluated_sets(ours)
    blocks: list[Block] = [
        (Column("row", "", kind="row"), [Cell(name) for name in names]),
        *_changes(experiment),
        *_status(summaries),
        *measures(summaries, sets, experiment.published),
    ]
    columns, cells = zip(*blocks, strict=True)
    lines = tuple(
        Line(tuple(of_row), row.changes, summary)
        for *of_row, row, summary in zip(*cells, experiment.rows, summaries, strict=True)
    )
    return Table(
        name=experiment.name,
        question=experiment.question,
        seeds=experiment.seeds,
        columns=columns,
        lines=lines,
        footnotes=tuple(footnotes(summaries, sets, ours, experiment.published)),
        published=experiment.published,
    )


def _changes(experiment: Experiment) -> list[Block]:
    rows = experiment.rows
    paths = changed_paths(row.changes for row in rows)
    baseline = rows[0].spec.model_dump(mode="json")
    return [
        (
            Column(path, label, kind="change"),
            [
                Cell(shown(value_at(baseline, path), path)),
                *(Cell(shown(r.changes[path])) if path in r.changes else Cell() for r in rows[1:]),
            ],
        )
        for path, label in zip(paths, labels(paths), strict=True)
    ]


def _status(summaries: Sequence[Summary]) -> list[Block]:
    """Return a column that counts what is not done, if there is anything to count."""
    if all(summary.is_complete for summary in summaries):
        return []
    return [(Column("status", "runs", kind="status"), [Cell(_counts(s)) for s in summaries])]


def _counts(summary: Summary) -> str:
    n = len(summary.outcomes)
    counts = {status: summary.count(status) for status in STATUSES}
    if counts["done"] == n:
        return "done"
    words = {"oom": "out of memory"}
    return ", ".join(
        f"{count} of {n} {words.get(status, status)}"
        for status, count in counts.items()
        if count and status != "done"
    )
