"""``ablate report``: the table of stored runs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ablate import config
from ablate import report as reporting
from ablate.api import trials
from ablate.api.corpora import text_of_runs
from ablate.api.looks import at_look, earlier_looks
from ablate.api.metrics import scored, tokenizer_of
from ablate.api.selection import (
    Fingerprints,
    Records,
    RunLookup,
    Selection,
    key_of,
    print_remark,
    remarks_on,
    select,
    stored,
    stored_in_each,
)
from ablate.config import Experiment
from ablate.errors import DamagedFileWarning, DataError, StoreError
from ablate.measuring import SentenceStatistics, bleu_counts
from ablate.report import contexts as overview
from ablate.report.layout import Layout
from ablate.runner.check import check
from ablate.store import Store, readable, verify
from ablate.wording import counted


@dataclass(frozen=True, repr=False)
class Outcome:
    """The results of an experiment; in a notebook it shows its table."""

    experiment: Experiment
    records: Records  # of every run that has ended, by row and seed
    table: reporting.Table
    exit_status: int = 0  # 1 unless every requested run is done and the tables are written

    def __repr__(self) -> str:
        n_done = sum(record["status"] == "done" for record in self.records.values())
        n_contexts = max(1, len(self.experiment.contexts))
        n_runs = n_contexts * len(self.experiment.rows) * len(self.experiment.seeds)
        of = "at most " if self.experiment.looks else ""
        done = f"{n_done} of {of}{counted(n_runs, 'run')} done"
        return f"<Outcome of {self.experiment.name}: {done}, exit_status={self.exit_status}>"

    def _repr_markdown_(self) -> str:
        return reporting.render(self.table, "markdown")


def report(
    path: Path | str,
    *,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    overrides: Sequence[str] = (),
    results: Path | str = "results",
    layout: Layout = "ours",
) -> Outcome:
    """Tabulate what is stored of an experiment, in each of its contexts: of all rows or ``only``.

    Seeds and overrides are as for `run`. Prints on standard error which runs other code, libraries
    or another machine have made.

    Raises:
        DataError: if the content of the corpus is not known here, so that no run has a hash.
        StoreError: if nothing is stored; it names the overrides and seeds of other stored runs.
    """
    store = Store(Path(results))
    lookup = RunLookup(store)

    def read(one: Path | str) -> Outcome:
        selection = at_look(select(one, overrides, seeds, only, lookup), lookup)
        records = stored(selection, lookup)
        if not records:
            Fingerprints().known(selection.corpus)
            about = "".join(f", {remark}" for remark in trials.remarks(selection))
            raise StoreError(
                f"{store.results} holds no run of {selection.experiment.name} that has ended{about}"
                f"{trials.hints(selection, store)}; `ablate run {trials.arguments(selection)}` "
                "makes them"
            )
        missing = set(map(key_of, selection.runs)) - records.keys()
        for remark in trials.remarks_on_missing(selection, store, missing):
            print_remark(remark)
        return Outcome(selection.experiment, records, tabulate(selection, records, store, layout))

    if contexts := config.contexts_of(path, overrides):
        whole = checked(path, overrides)
        outcome = joined(whole, stored_in_each(contexts, read))
    else:
        outcome = read(path)
    for remark in remarks_on(outcome.records):
        print_remark(remark)
    return outcome


def checked(path: Path | str, overrides: Sequence[str]) -> Experiment:
    """Read an experiment with contexts; SpecError with every mistake in any row of any context."""
    whole = config.load(path, overrides)
    for each in whole.contexts.values():
        check(each)
    return whole


def joined(whole: Experiment, outcomes: Mapping[str, Outcome]) -> Outcome:
    """Return the outcome of an experiment with contexts, from those of its contexts by name."""
    first = next(iter(outcomes.values())).experiment
    rows = {row.name for row in first.rows}
    narrowed = replace(
        whole, rows=tuple(row for row in whole.rows if row.name in rows), seeds=first.seeds
    )
    tables = {name: each.table for name, each in outcomes.items()}
    table = overview.tabulate(narrowed, tables)
    records = {
        (f"{name}: {row}", seed): record
        for name, each in outcomes.items()
        for (row, seed), record in each.records.items()
    }
    status = max(each.exit_status for each in outcomes.values())
    return Outcome(narrowed, records, table, status)


def tabulate(
    selection: Selection, records: Records, store: Store, layout: Layout = "ours"
) -> reporting.Table:
    """Return the table of records, with what its formats need besides."""
    experiment, stored_records = selection.experiment, records
    records = scored(records, selection.corpus, experiment.metrics, store)
    statistics = _sentences(records, store)

    @cache
    def texts() -> reporting.Texts:
        try:
            tests = text_of_runs(selection.corpus, records.values()).tests
        except DataError:  # they are not on this machine
            return {}
        return {name: (bitext.src, bitext.references) for name, bitext in tests.items()}

    for run, of_sets in statistics.items():
        for name in list(of_sets):
            tokenizer = tokenizer_of(records[run]["test"][name])
            if tokenizer != tokenizer_of(stored_records[run]["test"][name]):
                of_set, lines = of_sets.pop(name), store.translations(records[run], name)
                if lines is not None and name in texts():
                    counts = bleu_counts(lines, texts()[name][1], tokenizer)
                    of_sets[name] = replace(of_set, bleu=counts)

    looks = earlier_looks(selection, store.results)
    remarks = trials.remarks(selection)
    table = reporting.tabulate(experiment, records, statistics, remarks, layout, looks)
    assert table.results is not None, "it is the table of runs"
    details = reporting.Details(
        experiment=experiment,
        results=table.results,
        records=records,
        sentences=statistics,
        folders={run: store.path(record["hash"]) for run, record in records.items()},
        texts=texts,
        arguments=trials.arguments(selection),
    )
    return replace(table, details=details)


def _sentences(
    records: Records, store: Store
) -> dict[tuple[str, int], dict[str, SentenceStatistics]]:
    """Return the statistics of each test sentence, of the runs that have stored them."""
    statistics: dict[tuple[str, int], dict[str, SentenceStatistics]] = {}
    for run, record in records.items():
        for test_set, scores in record.get("test", {}).items():
            path = store.path(record["hash"]) / str(scores.get("sentences", ""))
            if not path.is_file():
                continue
            with readable(path):
                try:
                    verify(path, record)
                    of_set = SentenceStatistics.from_csv(path.read_text(encoding="utf-8"))
                except (StoreError, ValueError):
                    text = (
                        "damaged, and left out of the intervals; `ablate run` makes the run again"
                    )
                    warnings.warn(f"{path}: {text}", DamagedFileWarning, stacklevel=3)
                else:
                    statistics.setdefault(run, {})[test_set] = of_set
    return statistics
