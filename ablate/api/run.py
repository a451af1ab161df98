"""``ablate run`` and ``ablate report``."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablate import report as reporting
from ablate.analysis import Sentences
from ablate.api import trials
from ablate.api.completion import complete, opened, workers
from ablate.api.corpora import text_of_runs
from ablate.api.metrics import scored
from ablate.api.options import DEFAULT, RunOptions
from ablate.api.reading import remarks_on
from ablate.api.remarks import print_remark
from ablate.api.selection import (
    Fingerprints,
    Records,
    RunLookup,
    Selection,
    key_of,
    select,
    stored,
)
from ablate.api.tune import select_chosen
from ablate.config import Experiment
from ablate.errors import DamagedFileWarning, DataError, RunError, StoreError
from ablate.hashing import sha256_of_text
from ablate.measuring import SentenceStatistics
from ablate.registry import Choice
from ablate.report.paper_layouts import Layout
from ablate.runner.staleness import stale_remarks
from ablate.store import Store, is_finished, readable, verify, write_whole
from ablate.wording import counted

_FIGURES = ".figures"
"""The file with a digest of what the figures beside it show."""


@dataclass(frozen=True, repr=False)
class Outcome:
    """The results of an experiment; in a notebook it shows its table.

    Attributes:
        experiment: its rows and seeds.
        records: of every run that has ended, by row and seed.
        table: of the records.
        exit_status: 0 if every requested run is done and the tables are written, else 1.
    """

    experiment: Experiment
    records: Records
    table: reporting.Table
    exit_status: int = 0

    def __repr__(self) -> str:
        n_done = sum(record["status"] == "done" for record in self.records.values())
        n_runs = len(self.experiment.rows) * len(self.experiment.seeds)
        done = f"{n_done} of {counted(n_runs, 'run')} done"
        return f"<Outcome of {self.experiment.name}: {done}, exit_status={self.exit_status}>"

    def _repr_markdown_(self) -> str:
        return reporting.render(self.table, "markdown")


def run(path: Path | str, options: RunOptions = DEFAULT, *, only: Sequence[str] = ()) -> Outcome:
    """Train and measure what is missing of an experiment, and tabulate it.

    Prints the progress on standard error. Writes ``table.*`` and figures into
    ``<results>/<experiment>/``; with overrides, other seeds or some rows alone into
    ``<results>/<experiment>/trials/``, so that the table of the whole experiment stays.

    Args:
        path: the experiment file.
        options: which runs, and how they are made.
        only: names of rows; all unless given.

    Raises:
        SpecError: with every mistake of the file.
        DataError: if a corpus is unavailable.
        DeviceError: if the machine lacks the device.
        KeyboardInterrupt: if the user stops it; the next call continues.
    """
    with opened(options) as options:
        selection, store = select_chosen(path, options, only), options.store
        records, is_new = complete(selection, options)
        device = workers(options)[0].worker_slots[0]
    for remark in stale_remarks({k: r for k, r in records.items() if is_finished(r)}, device):
        print_remark(remark)
    folder = trials.table_folder(selection, store.results)
    table = _table(selection, records, store)
    is_written = _write(table, folder, with_figures=options.figures, is_new=is_new)
    if table.trial:
        print_remark(f"a trial, not the whole experiment: its tables are in {folder}")
    is_done = all(records[key_of(run)]["status"] == "done" for run in selection.runs)
    exit_status = 0 if is_done and is_written else RunError.exit_status
    return Outcome(selection.experiment, records, table, exit_status)


def report(
    path: Path | str,
    *,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
    results: Path | str = "results",
    layout: Layout = "ours",
) -> Outcome:
    """Tabulate what is stored of an experiment.

    Prints on standard error which runs other code, libraries or another machine have made.

    Args:
        path: the experiment file.
        seeds: in place of those of the experiment.
        only: names of rows; all unless given.
        overrides: ``path=value``, as they were given to `run`.
        results: the folder of results.
        layout: of the table: ours, or that of a paper.

    Raises:
        DataError: if the content of the corpus is not known here, so that no run has a hash.
        StoreError: if nothing is stored; it names the overrides and seeds of other stored runs.
    """
    store = Store(Path(results))
    lookup = RunLookup(store)
    selection = select(path, overrides, seeds, only, lookup)
    records = stored(selection, lookup)
    if not records:
        Fingerprints().known(selection.corpus)
        about = "".join(f", {remark}" for remark in trials.remarks(selection))
        raise StoreError(
            f"{store.results} holds no run of {selection.experiment.name}{about}"
            f"{trials.hints(selection, store)}; `ablate run {os.fspath(path)}` makes them"
        )
    for remark in remarks_on(records):
        print_remark(remark)
    return Outcome(selection.experiment, records, _table(selection, records, store, layout))


def _sentences(records: Records, store: Store) -> Sentences:
    """Return the statistics of each test sentence, of the runs that have stored them.

    Raises:
        StoreError: if a file cannot be read.
    """
    statistics: dict[tuple[str, int], dict[str, SentenceStatistics]] = {}
    for run, record in records.items():
        for test_set, scores in record.get("test", {}).items():
            path = store.path(record["hash"]) / str(scores.get("sentences", ""))
            if path.is_file() and (of_set := _read_sentences(path, record)):
                statistics.setdefault(run, {})[test_set] = of_set
    return statistics


def _read_sentences(path: Path, record: Mapping[str, Any]) -> SentenceStatistics | None:
    """Return the statistics in a file; None, with a warning, if it is damaged."""
    with readable(path):
        try:
            verify(path, record)
            return SentenceStatistics.from_csv(path.read_text(encoding="utf-8"))
        except (StoreError, ValueError):
            advice = "left out of the intervals; `ablate run` makes the run again"
            warnings.warn(f"{path}: damaged, and {advice}", DamagedFileWarning, stacklevel=3)
            return None


def _table(
    selection: Selection, records: Records, store: Store, layout: Layout = "ours"
) -> reporting.Table:
    statistics = _sentences(records, store)
    experiment = selection.experiment
    records = scored(records, selection.corpus, experiment.metrics, store)
    table = reporting.table(experiment, records, statistics, trials.remarks(selection), layout)
    details = reporting.Details(
        experiment=experiment,
        records=records,
        sentences=statistics,
        folders={run: store.path(record["hash"]) for run, record in records.items()},
        read_texts=lambda: _texts(selection.corpus, records),
        arguments=trials.arguments(selection),
    )
    return replace(table, details=details)


def _texts(corpus: Choice, records: Records) -> reporting.Texts:
    """Return the test sets that runs have read; none if they are not on this machine."""
    try:
        tests = text_of_runs(corpus, records.values()).tests
    except DataError:
        return {}
    return {name: (bitext.src, bitext.tgt) for name, bitext in tests.items()}


def _write(table: reporting.Table, folder: Path, *, with_figures: bool, is_new: bool) -> bool:
    """Write a table and its figures; return whether that was possible.

    Otherwise, as on a full disk or in a read-only folder, the table can still be printed. Figures
    that would show the same are not drawn again.
    """
    drawn, content = folder / _FIGURES, _content_of_figures(table)
    try:
        reporting.write_tables(table, folder)
        if with_figures and (is_new or not drawn.is_file() or drawn.read_text("utf-8") != content):
            _draw(table, folder)
            write_whole(drawn, content)
    except (StoreError, OSError) as error:
        print_remark(f"the table is printed, but not kept: {error}")
        return False
    return True


def _content_of_figures(table: reporting.Table) -> str:
    """Return a digest of what the figures of a table show: its records, and what is negligible."""
    details = table.details
    assert details is not None, "it is the table of runs"
    records = [[*run, record] for run, record in details.records.items()]
    negligible = details.experiment.negligible.model_dump()
    return sha256_of_text(json.dumps([records, negligible], sort_keys=True))


def _draw(table: reporting.Table, folder: Path) -> None:
    from ablate.report import figures  # slow to import, and seldom needed

    assert table.details is not None, "it is the table of runs"
    for drawing in figures.drawings(table.details):
        drawing.save(folder)
