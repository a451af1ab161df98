"""The table of an experiment, as cells.

The first column names the row; then comes one column for each path of the spec that some row
changes, or takes away by giving another key in its place. The baseline says what it has there, a
variant only what it changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ablate.analysis import Records, Sentences
from ablate.config import Experiment
from ablate.report.cells import Cell, Column, Footnote, Line, Table
from ablate.report.changes import change_cells, labels, shown_paths
from ablate.report.choices import choices
from ablate.report.conclusion import conclusion
from ablate.report.footnotes import footnotes
from ablate.report.measures import Block, costs, more, quality
from ablate.report.paper_layouts import Layout, narang, paper_notes, vaswani
from ablate.report.results import Results


def table(
    experiment: Experiment,
    records: Records,
    sentences: Sentences | None = None,
    trial: Sequence[str] = (),
    layout: Layout = "ours",
) -> Table:
    """Lay out what is known of ``experiment``; a run without a record is shown as missing.

    Args:
        experiment: rows in the order of the file, baseline first, and seeds.
        records: of other experiments too, if need be; only this one's rows and seeds count.
        sentences: what each test sentence contributes, of the runs that have kept it.
        trial: how the experiment differs from that of its file, in sentences.
        layout: ours, or that of a paper.
    """
    results = Results.of(experiment, records, sentences or {})
    notes = [*_trial(trial), *footnotes(results, list(choices(experiment, results.summaries)))]
    if layout != "ours":
        return _of_paper(experiment, results, layout, notes)
    names = [Cell(row.name) for row in experiment.rows]
    row = (Column("row", "", kind="row"), names)
    first = [row, *_changes(experiment), *quality(results), *costs(results)]
    beside = more(results)
    again = (Column("row", "more", kind="row"), names)
    second = _laid_out(experiment, results, [again, *beside]) if beside else None
    return replace(
        _laid_out(experiment, results, first),
        footnotes=tuple(notes),
        conclusion=conclusion(results),
        more=second,
        trial=tuple(trial),
    )


def _of_paper(
    experiment: Experiment, results: Results, layout: Layout, notes: Sequence[Footnote]
) -> Table:
    blocks, begins = (vaswani if layout == "vaswani" else narang)(experiment, results)
    laid_out = _laid_out(experiment, results, blocks)
    lines = [replace(line, begins_group=at in begins) for at, line in enumerate(laid_out.lines)]
    return replace(
        laid_out,
        lines=tuple(lines),
        footnotes=tuple(paper_notes(notes, layout, results, laid_out.columns)),
        conclusion=conclusion(results),
        is_of_paper=True,
    )


def _trial(remarks: Sequence[str]) -> list[Footnote]:
    text = "; ".join(remarks)
    return [Footnote("trial", f"not the experiment as its file has it: {text}")] if text else []


def _laid_out(experiment: Experiment, results: Results, blocks: Sequence[Block]) -> Table:
    columns, cells = zip(*blocks, strict=True)
    lines = tuple(
        Line(tuple(of_row), row.changes, summary)
        for *of_row, row, summary in zip(*cells, experiment.rows, results.summaries, strict=True)
    )
    return Table(
        name=experiment.name,
        question=experiment.question,
        seeds=experiment.seeds,
        columns=columns,
        lines=lines,
        footnotes=(),
        published=experiment.published,
        negligible=experiment.negligible,
        comparisons=results.comparisons,
        has_one_tokenizer=results.has_one_tokenizer,
        signatures=results.signatures,
    )


def _changes(experiment: Experiment) -> list[Block]:
    paths = shown_paths(experiment.rows)
    return [
        (Column(path, label, kind="change"), change_cells(experiment.rows, path))
        for path, label in zip(paths, labels(paths), strict=True)
    ]
