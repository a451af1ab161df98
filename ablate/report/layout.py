"""The table of an experiment, as cells: in our own layout, or in that of a paper.

In our own, after the names of the rows comes a column for each path of the spec that some row
changes, or takes away by another key in its place. The baseline says what it has there, a variant
what it changes.
Vaswani et al. 2017, arXiv:1706.03762, table 3: groups of rows by letter, a column for everything
that some row changes, cells filled only where a row changes something.
Narang et al. 2021, arXiv:2102.11972, table 1: parameters, operations, steps per second, the loss
and the scores; a mark where a row is better than the baseline. Their early loss is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import ascii_uppercase
from typing import Literal

from ablate.analysis.measures import Sentences, Verdict, higher_is_better, verdict
from ablate.analysis.summary import TRAIN_FLOPS, Records
from ablate.config import Experiment, Row
from ablate.config.rows import labels
from ablate.report import columns
from ablate.report.columns import APART, DIVERGED, SMALL, Block
from ablate.report.footnotes import MARKED, footnotes
from ablate.report.results import TRAIN_SPEED, Results
from ablate.report.table import Cell, Column, Footnote, Line, Table
from ablate.report.values import NOTHING, measure_decimals, measure_name, number, of_seeds
from ablate.report.verdicts import conclusion
from ablate.wording import listed

Layout = Literal["ours", "vaswani", "narang"]

BETTER = "*"
_DROPOUT = ("model.dropout.embedding", "model.dropout.residual")
_SYMBOLS = {  # as the paper calls them, and in its order
    "model.n_layers": "N",
    "model.dims.d_model": "d_model",
    "model.feed_forward.d_ff": "d_ff",
    "model.dims.n_heads": "h",
    "model.dims.d_k": "d_k",
    "model.dims.d_v": "d_v",
    "model.dropout.residual": "P_drop",
    "training.objective.epsilon": "ε_ls",
    "training.steps": "steps",
}
_LETTER = re.compile(r"([A-Z])(?=[ :])")
_OWN_NOTES = ("intervals", "verdict", "new sentences", "columns", APART, SMALL, DIVERGED)
FALSE_IF_ADDED = 0.16
"""The share of tables with a false difference if seeds 4 to 10 are added one by one until a
difference is significant, as simulated by ``benchmarks/table_errors.py``."""

_SD = "in brackets the standard deviation over seeds"


def tabulate(
    experiment: Experiment,
    records: Records,
    sentences: Sentences | None = None,
    trial: Sequence[str] = (),
    layout: Layout = "ours",
    looks: Sequence[Sequence[int]] = (),
) -> Table:
    """Lay out what is known of an experiment.

    ``trial`` says how it differs from its file's; ``looks`` are the seeds of earlier tables with
    verdicts, where this one has more.
    """
    results = Results.of(experiment, records, sentences or {})
    blocks_of = {"ours": _ours, "vaswani": _vaswani, "narang": _narang}[layout]
    begins = _groups(experiment.rows)[1] if layout == "vaswani" else ()
    table = _table(experiment, results, blocks_of(experiment, results), begins)
    notes = list(footnotes(experiment, results))
    if looks:
        notes.insert(0, _added_seeds(experiment, looks))
    if trial:
        text = f"not the experiment as its file has it: {'; '.join(trial)}"
        notes.insert(0, Footnote("trial", text, is_vital=True))
    if layout != "ours":
        notes = _paper_notes(notes, layout, results, table.columns)
    below = columns.more(results) if layout == "ours" else []
    head = Column("row", "more", kind="row"), [Cell(row.name) for row in experiment.rows]
    return replace(
        table,
        footnotes=tuple(notes),
        conclusion=conclusion(results),
        more=_table(experiment, results, [head, *below]) if below else None,
        trial=tuple(trial),
        is_of_paper=layout != "ours",
    )


def _table(
    experiment: Experiment, results: Results, blocks: Sequence[Block], begins: Sequence[int] = ()
) -> Table:
    heads, cells = zip(*blocks, strict=True)
    rows = zip(*cells, experiment.rows, results.summaries, strict=True)
    lines = [
        Line(tuple(of_row), row.changes, summary, begins_group=at in begins)
        for at, (*of_row, row, summary) in enumerate(rows)
    ]
    return Table(
        name=experiment.name,
        question=experiment.question,
        seeds=experiment.seeds,
        columns=heads,
        lines=tuple(lines),
        footnotes=(),
        results=results,
    )


def _added_seeds(experiment: Experiment, looks: Sequence[Sequence[int]]) -> Footnote:
    last = max(looks, key=len)
    added = [seed for seed in experiment.seeds if seed not in last]
    earlier = "; ".join(listed(list(look)) for look in looks)
    effect = (
        f"if seeds are added until a difference is significant, up to {FALSE_IF_ADDED:.0%} of "
        "tables have a false one, not 5%."
    )
    if experiment.looks:
        effect = (
            "the intervals hold for the looks of this plan; where a plan is extended until a "
            "difference is significant, more than 5% of tables have a false one."
        )
    return Footnote(
        "seeds added",
        f"{listed(added)}, after a table with verdicts from seeds {earlier}: {effect}",
        is_vital=True,
    )


def _ours(experiment: Experiment, results: Results) -> list[Block]:
    rows = experiment.rows
    return [
        (Column("row", "", kind="row"), [Cell(row.name) for row in rows]),
        *_changes(rows, columns.shown_paths(rows), {}),
        *columns.quality(results),
        *columns.costs(results),
    ]


def _vaswani(experiment: Experiment, results: Results) -> list[Block]:
    names, _ = _groups(experiment.rows)
    first = results.sets[0] if results.sets else ""
    return [
        (Column("row", "", kind="row"), [Cell(name) for name in names]),
        *_settings(experiment.rows),
        *columns.known(
            [
                _with_diverged(results, columns.losses(results, first)[-1]),
                _theirs(results, "ppl", "ppl"),
                _with_sd(results, Column(results.bleu or "", "BLEU", first)),
                _theirs(results, "bleu", "BLEU"),
                _without_asides(columns.parameters(results)),
            ]
        ),
    ]


def _narang(experiment: Experiment, results: Results) -> list[Block]:
    sets = [Column(f"test.{name}.bleu", "BLEU", name) for name in results.sets]
    first = results.sets[0] if results.sets else ""
    others = [Column(f"test.{first}.{n}", measure_name(n), first) for n in results.metrics]
    loss = Column("dev.nll", "loss", "final, dev")
    if not results.has_one_tokenizer:
        loss = Column(results.loss or "", "bits/char", first)
    return [
        (Column("row", "model", kind="row"), [Cell(row.name) for row in experiment.rows]),
        *columns.known(
            [
                _without_asides(columns.parameters(results)),
                columns.published(results, "params", "params"),
                _without_asides(columns.amount(results, TRAIN_FLOPS, "ops")),
                _steps_per_second(results),
                *(_with_sd(results, column) for column in (loss, *sets, *others)),
                columns.published(results, "bleu", "BLEU"),
            ]
        ),
    ]


def _paper_notes(
    notes: Sequence[Footnote], layout: Layout, results: Results, heads: Sequence[Column]
) -> list[Footnote]:
    """Return the footnotes of our own layout that hold in a paper's with these columns."""
    empty = "an empty cell is as in the base model; " if layout == "vaswani" else ""
    text = (
        f"{empty}{_SD}; {BETTER} better than the baseline: the 95% interval of the difference, "
        "which holds together with those of all rows, leaves out 0"
    )
    present = {measure_name(column.key) for column in heads}
    left_out = {measure_name(metric) for metric in ("chrf", *results.metrics)} - present
    left_out |= {*_OWN_NOTES, "speed"} if layout == "vaswani" else {*_OWN_NOTES}
    rest = [note for note in notes if note.label not in left_out]
    if layout == "vaswani":  # no column holds what would be marked
        rest = [replace(note, text=note.text.removesuffix(f"; {MARKED}")) for note in rest]
    n_of = {row.name: len(row.outcomes) for row in results.summaries}
    if diverged := [
        f"{row} ({of_seeds(len(s), n_of[row])})" for row, s in results.diverged.items()
    ]:
        selection = (
            f"{listed(diverged)}: diverged; neither such a row nor any beside such a baseline is "
            "compared, for the seeds that did not diverge are a selection."
        )
        rest.insert(0, Footnote(DIVERGED, selection, is_vital=True))
    return [Footnote("layout", text), *rest]


def _groups(rows: Sequence[Row]) -> tuple[list[str], list[int]]:
    """Return the letters of groups, of names or of rows with equal changes, and their starts."""
    letters = [match[1] if (match := _LETTER.match(row.name)) else "" for row in rows]
    names, begins, last = ["base"], [], None
    for at, row in enumerate(rows[1:], start=1):
        group = letters[at] or (row.name if any(letters) else tuple(row.changes_of_file))
        is_first = group != last
        if is_first:
            begins.append(at)
        letter = letters[at] or (None if any(letters) else _letter(len(begins) - 1))
        names.append((f"({letter})" if letter else row.name) if is_first else "")
        last = group
    return names, begins


def _letter(number: int) -> str:
    """Return ``A``, ..., ``Z``, ``AA``, ..."""
    above, at = divmod(number, len(ascii_uppercase))
    return (_letter(above - 1) if above else "") + ascii_uppercase[at]


def _settings(rows: Sequence[Row]) -> list[Block]:
    order = list(_SYMBOLS)
    paths = columns.shown_paths(rows)
    if all(row.changes.get(_DROPOUT[0]) == row.changes.get(_DROPOUT[1]) for row in rows):
        paths = [path for path in paths if path != _DROPOUT[0]]
    paths.sort(key=lambda path: order.index(path) if path in order else len(order))
    return _changes(rows, paths, _SYMBOLS)


def _changes(rows: Sequence[Row], paths: Sequence[str], symbols: Mapping[str, str]) -> list[Block]:
    return [
        (Column(path, symbols.get(path, label), kind="change"), columns.change_cells(rows, path))
        for path, label in zip(paths, labels(paths), strict=True)
    ]


def _theirs(results: Results, measure: str, header: str) -> Block:
    """Return what a source prints, so narrow that a page has room for a column for each path."""
    column, cells = columns.published(results, measure, header)
    return replace(column, detail="publ."), cells


def _with_sd(results: Results, column: Column) -> Block:
    """Return means with their deviations, marked where the interval says that a row is better."""
    column, cells = _with_diverged(results, columns.means(results, column))
    decimals, written = measure_decimals(column.key), []
    for row, cell in zip(results.summaries, cells, strict=True):
        estimate = row.metrics.get(column.key)
        difference = results.difference(row.name, column.key)
        interval = difference.simultaneous if difference else None
        judged = verdict(interval, 0, higher_is_better=higher_is_better(column.key))
        sd = estimate.sd if estimate else None
        aside = "" if sd is None else f"±{number(sd, decimals)}"
        mark = cell.mark + (BETTER if judged is Verdict.BETTER else "")
        written.append(replace(cell, aside=aside, mark=mark))
    return column, written


def _with_diverged(results: Results, block: Block) -> Block:
    column, cells = block
    marks = [DIVERGED if row.count("diverged") else "" for row in results.summaries]
    marked = [replace(c, mark=c.mark + mark) for c, mark in zip(cells, marks, strict=True)]
    return column, marked


def _steps_per_second(results: Results) -> Block:
    cells = []
    for row in results.summaries:
        speed, measured = row.speeds.get(TRAIN_SPEED), row.metrics.get(TRAIN_SPEED)
        steps, tokens = row.metrics.get("train.steps"), row.metrics.get("train.target_tokens")
        if measured and steps and tokens:
            per_second = (speed.value if speed else measured.mean) * steps.mean / tokens.mean
            cells.append(Cell(number(per_second, 2)))
        else:
            cells.append(Cell(NOTHING))
    return Column(TRAIN_SPEED, "step/s"), cells


def _without_asides(block: Block) -> Block:
    return block[0], [replace(cell, aside="") for cell in block[1]]
