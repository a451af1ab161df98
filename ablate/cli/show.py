"""What commands print on standard output."""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import typer
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from ablate import report
from ablate.api import (
    Compared,
    CorpusListing,
    CorpusStatistics,
    Diagnosis,
    PartListing,
    Plan,
    PlannedRow,
    RunningTask,
    Session,
    StoredRun,
)
from ablate.cli import catalogue
from ablate.cli.output import echo
from ablate.console import Console
from ablate.printable import json_text
from ablate.report.changes import format_value
from ablate.report.comparison import FORMATS
from ablate.runner.display import format_duration
from ablate.store import write_whole
from ablate.wording import counted

_WIDE = 1000
"""The width of a pipe, so that lines are not wrapped."""

_SCREEN = (100, 24)
"""Columns and lines of a text that is not for a terminal, unless ``$COLUMNS`` is set."""

_ROOM_FOR_CHANGES = 110  # columns of a terminal
_STYLES = {"ok": "green", "warning": "yellow", "broken": "bold red", "not applicable": "dim"}


def table(
    content: report.Table,
    form: str | None = None,
    output: Path | None = None,
    columns: Sequence[str] | None = None,
    *,
    is_wide: bool = False,
) -> None:
    """Print a table of results, or write it to a file, in the format of its suffix."""
    form = form or ("terminal" if output is None else report.format_of(output))
    render = functools.partial(report.render, content, form, columns=columns)
    _print_or_write(render, output, is_wide=is_wide)


def compared(
    content: Compared, form: str | None = None, output: Path | None = None, *, is_wide: bool = False
) -> None:
    """Print a comparison, or write it to a file, in the format of its suffix."""
    form = form or ("terminal" if output is None else report.format_of(output, FORMATS))
    _print_or_write(functools.partial(content.text, form), output, is_wide=is_wide)


def _print_or_write(render: Callable[..., str], output: Path | None, *, is_wide: bool) -> None:
    """Print a text that depends on the width and the colours of the terminal, or write it."""
    width = None if is_wide else shutil.get_terminal_size(_SCREEN).columns
    if output is not None:
        write_whole(output, render(width=width))
    else:
        echo(render(width=width, is_coloured=sys.stdout.isatty()), nl=False, is_styled=True)


def as_json(data: Any) -> None:
    """Print plain data."""
    echo(json_text(data))


def plan(planned: Plan) -> None:
    """Print a plan; in a narrow terminal changes stand below the names of the rows."""
    console = _console()
    is_narrow = console.width < _ROOM_FOR_CHANGES
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("row", overflow="fold")
    if not is_narrow:
        grid.add_column("change", overflow="fold")
    sizes = ["published"] if any("params" in row.published for row in planned.rows) else []
    for header in ("parameters", *sizes, "MFLOPs", "peak MiB", "a run", "done"):
        grid.add_column(header, justify="right", no_wrap=True)
    rows = []
    for row in planned.rows:
        name, changes, *numbers = _cells(row, is_published=bool(sizes))
        below = f"\n  {changes}" if changes else ""
        texts = [f"{name}{below}"] if is_narrow else [name, changes]
        rows.append([*texts, *numbers])
    console.print(Text(f"{planned.experiment}  {planned.question or ''}".rstrip(), style="bold"))
    _print_rows(console, grid, rows)
    for line in planned.remarks():
        console.print(Text(line))


def parts(listed: Sequence[PartListing], *, is_full: bool) -> None:
    """Print the catalogue, or one part in detail."""
    console = _console()
    with console.capture() as captured:
        if is_full:
            catalogue.details(console, listed[0])
        else:
            catalogue.overview(console, listed)
    lines = captured.get().splitlines()
    text = "\n".join(lines if console.is_terminal else map(str.rstrip, lines))
    typer.echo(text)  # as our console has made it


@contextmanager
def waiting(reason: str) -> Iterator[None]:
    """Show on a terminal why there is no output yet."""
    console = Console(stderr=True)
    with console.status(reason) if console.is_terminal else nullcontext():
        yield


def corpora(listed: Sequence[CorpusListing]) -> None:
    """Print the corpora, a line each."""
    grid = Table.grid(padding=(0, 2))
    for corpus in listed:
        state = {True: "available", False: "not fetched", None: "needs options"}[
            corpus.is_available
        ]
        grid.add_row(Text(corpus.name), Text(state), Text(corpus.summary))
    _console().print(grid)


def corpus(statistics: CorpusStatistics) -> None:
    """Print the statistics of a corpus, its first pairs, and what was skipped."""
    console = _console()
    console.print(Text(f"{statistics.name}  {statistics.src} -> {statistics.tgt}", style="bold"))
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("split")
    for header in ("pairs", "source words", "target words", "words per target", "longest"):
        grid.add_column(header, justify="right")
    for split in statistics.splits:
        grid.add_row(
            split.name,
            f"{split.n_pairs:,}",
            f"{split.n_src_words:,}",
            f"{split.n_tgt_words:,}",
            f"{split.n_tgt_words / max(1, split.n_pairs):.1f}",
            f"{split.longest_tgt_words}",
        )
    console.print(grid)
    for source, target in statistics.examples:
        console.print(Text(f"\n{source}\n{target}"))
    for note in statistics.notes:
        console.print(Text(f"\n{note}", style="dim"))


def diagnosis(diagnosed: Diagnosis) -> None:
    """Print how the checks of a machine came out."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    grid.add_column("check", no_wrap=True)
    grid.add_column("outcome", no_wrap=True)
    grid.add_column("what was observed")
    devices = {result.device for result in diagnosed.results if result.device}
    for result in diagnosed.results:
        name = f"{result.name} {result.device}".strip() if len(devices) > 1 else result.name
        outcome = Text(result.outcome, style=_STYLES[result.outcome])
        grid.add_row(Text(name), outcome, Text(result.sentence))
    console = _console()
    console.print(grid)
    console.print(Text(f"\n{_summary(diagnosed)}", style="bold"))


def _summary(diagnosed: Diagnosis) -> str:
    outcomes = [result.outcome for result in diagnosed.results]
    n_broken, n_warnings = outcomes.count("broken"), outcomes.count("warning")
    warnings = f", with {n_warnings} warning{'s' * (n_warnings > 1)}" if n_warnings else ""
    if n_broken:
        return f"This machine is not fit: {n_broken} of {len(outcomes)} checks broken{warnings}."
    return f"This machine is fit{warnings}."


def _console() -> Console:
    width = None if sys.stdout.isatty() else _WIDE
    return Console(width=width, highlight=False, markup=False, emoji=False)


def _print_rows(console: Console, grid: Table, rows: Sequence[Sequence[str]]) -> None:
    """Print rows in the columns of a grid without a box, as rich does.

    Where every row fits in a line they are printed as they are: rich takes half a millisecond each.
    """
    headers = [str(column.header) for column in grid.columns]
    widths = [max(map(cell_len, cells)) for cells in zip(headers, *rows, strict=True)]
    fits = sum(widths) + 2 * len(widths) - 2 <= console.width
    if not fits or not all(cell.isprintable() for row in rows for cell in row):
        for row in rows:
            grid.add_row(*map(Text, row))
        console.print(grid)
        return

    def line(cells: Sequence[str]) -> str:
        pads = [" " * (width - cell_len(cell)) for cell, width in zip(cells, widths, strict=True)]
        columns = zip(cells, pads, grid.columns, strict=True)
        return "  ".join(p + c if column.justify == "right" else c + p for c, p, column in columns)

    console.out(line(headers), style="bold")
    if rows:
        console.out("\n".join(map(line, rows)))


def _cells(row: PlannedRow, *, is_published: bool) -> list[str]:
    delta = f" ({row.params_delta:+.1%})" if row.params_delta else ""
    approximately = "" if row.is_vocabulary_known else "~"
    memory, seconds = row.train_peak_mib, row.seconds_per_run
    return [
        row.name,
        ", ".join(_change(row, path) for path in row.changes),
        f"{approximately}{row.params:,}{delta}",
        *([_size(row.published.get("params"))] if is_published else []),
        f"{approximately}{row.flops_per_target_token / 1e6:,.3g}",
        "?" if memory is None else f"{memory:,.0f}",
        "?" if seconds is None else f"{'~' * row.is_time_estimated}{format_duration(seconds)}",
        f"{row.n_done} of {len(row.runs)}",
    ]


def _change(row: PlannedRow, path: str) -> str:
    if path in row.pending:
        return f"{path}=?"
    note = f" ({row.chosen[path]})" if path in row.chosen else ""
    return f"{path}={format_value(row.changes[path])}{note}"


def _size(params: float | None) -> str:
    return "" if params is None else f"{params / 1e6:,.4g} M"


def stored_runs(runs: Sequence[StoredRun], *, has_experiments: bool) -> None:
    """Print stored runs, one per line."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("hash", "experiment", "row"):
        grid.add_column(header, overflow="fold")
    for header in ("seed", "status", "BLEU", "MiB"):
        grid.add_column(header, justify="left" if header == "status" else "right", no_wrap=True)
    grid.add_column("finished", no_wrap=True)
    if has_experiments:
        grid.add_column("needed by")
    rows = [
        [
            run.run,
            run.experiment or "",
            run.row or "",
            "" if run.seed is None else str(run.seed),
            "at work" if run.is_at_work else run.status,
            "" if run.bleu is None else f"{run.bleu:.2f}",
            f"{run.n_bytes / 2**20:,.1f}",
            (run.finished or "")[:16].replace("T", " "),
            *([", ".join(run.experiments)] if has_experiments else []),
        ]
        for run in runs
    ]
    _print_rows(_console(), grid, rows)
    n_mib = sum(run.n_bytes for run in runs) / 2**20
    echo(f"{counted(len(runs), 'run')}, {n_mib:,.1f} MiB")


def sessions(listed: Sequence[Session], results: Path) -> None:
    """Print what each call of ``ablate run`` is doing."""
    if not listed:
        echo(f"nothing is at work on {results}")
    for session in listed:
        process = f"{session.experiment}, process {session.pid} on {session.host}"
        if not session.is_alive:
            echo(f"{process}: was killed, last heard of {session.updated}")
            continue
        done = f"{session.n_ended} of {session.n_tasks} done"
        duration = format_duration(session.seconds)
        echo(f"{process}: {session.stage}, {done}, at work for {duration}")
        for running in session.running:
            task = f"{running.task} on {running.device}, for {format_duration(running.seconds)}"
            echo(f"  {task}: {_progress(running)}")
        for failure in session.failures:
            echo(f"  failed: {failure}")


def _progress(running: RunningTask) -> str:
    if running.silent_seconds:
        return f"{running.phase}, no news for {format_duration(running.silent_seconds)}"
    if running.step is None or running.seconds_left is None:
        return running.phase
    left = format_duration(running.seconds_left)
    return f"step {running.step:,} of {running.n_steps:,}, {left} left"
