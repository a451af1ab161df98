"""The table of an experiment, as cells.

After the names of the rows comes a column for each path of the spec that some row changes, or takes
away by another key in its place. The baseline says what it has there, a variant what it changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ablate.analysis.measures import Sentences
from ablate.analysis.summary import Records
from ablate.config import Experiment
from ablate.config.rows import labels
from ablate.report.columns import Block, change_cells, costs, more, quality, shown_paths
from ablate.report.footnotes import footnotes
from ablate.report.paper_layouts import Layout, narang, paper_notes, vaswani
from ablate.report.results import Results
from ablate.report.table import Cell, Column, Footnote, Line, Table
from ablate.report.verdicts import conclusion


def tabulate(
    experiment: Experiment,
    records: Records,
    sentences: Sentences | None = None,
    trial: Sequence[str] = (),
    layout: Layout = "ours",
) -> Table:
    """Lay out what is known of ``experiment``; a run without a record is shown as missing.

    Args:
        experiment: rows in the order of the file, baseline first, and seeds.
        records: only those of this experiment's rows and seeds count.
        sentences: what each test sentence contributes, of the runs that have kept it.
        trial: how the experiment differs from that of its file, in sentences.
        layout: ours, or that of a paper.
    """
    rows = experiment.rows
    results = Results.of(experiment, records, sentences or {})
    notes = list(footnotes(experiment, results))
    if trial:
        text = f"not the experiment as its file has it: {'; '.join(trial)}"
        notes.insert(0, Footnote("trial", text))

    def block_of(blocks: Sequence[Block], begins: Sequence[int] = ()) -> Table:
        columns, cells = zip(*blocks, strict=True)
        lines = [
            Line(tuple(of_row), row.changes, summary, begins_group=at in begins)
            for at, (*of_row, row, summary) in enumerate(
                zip(*cells, rows, results.summaries, strict=True)
            )
        ]
        return Table(
            name=experiment.name,
            question=experiment.question,
            seeds=experiment.seeds,
            columns=columns,
            lines=tuple(lines),
            footnotes=(),
            results=results,
        )

    if layout != "ours":
        of_paper = block_of(*(vaswani if layout == "vaswani" else narang)(experiment, results))
        notes = paper_notes(notes, layout, results, of_paper.columns)
        return replace(
            of_paper, footnotes=tuple(notes), conclusion=conclusion(results), is_of_paper=True
        )
    names, paths = [Cell(row.name) for row in rows], shown_paths(rows)
    changes = [
        (Column(path, label, kind="change"), change_cells(rows, path))
        for path, label in zip(paths, labels(paths), strict=True)
    ]
    head = (Column("row", "", kind="row"), names)
    beside = more(results)
    below = block_of([(Column("row", "more", kind="row"), names), *beside]) if beside else None
    return replace(
        block_of([head, *changes, *quality(results), *costs(results)]),
        footnotes=tuple(notes),
        conclusion=conclusion(results),
        more=below,
        trial=tuple(trial),
    )
