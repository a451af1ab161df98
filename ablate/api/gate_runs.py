"""The runs of a gate: loaded if they are of this code and this machine, else trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from ablate.api.completion import RunOptions, complete, opened, workers
from ablate.api.metrics import scored
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
from ablate.errors import AblateError, SpecError, StoreError
from ablate.gate.evidence import first_losses
from ablate.gate.reference import Reference, Runs
from ablate.runner.provenance import stale_reason
from ablate.store import Store, is_finished
from ablate.wording import counted, listed


class StaleRecordError(AblateError):
    """Stored runs were made by other code or on another machine; they do not judge this code."""


@contextmanager
def open_runs(
    experiment: Experiment, options: RunOptions, *, is_stored: bool
) -> Iterator[GateRuns]:
    """Yield the runs of a gate, with an open backend unless nothing is to be trained."""
    with nullcontext(options) if is_stored else opened(options) as options:
        yield GateRuns(experiment, options, is_stored=is_stored)


class GateRuns:
    """Loads or trains the runs of a gate; trains nothing if it ``is_stored``.

    Attributes:
        experiment: with the values chosen for its rows, after the first call of a method.
    """

    def __init__(self, experiment: Experiment, options: RunOptions, *, is_stored: bool) -> None:
        self.experiment, self._options, self._is_stored = experiment, options, is_stored

    def load(self, runs: Runs) -> Records:
        """Return the records of runs that need not be trained.

        StaleRecordError if other code has made one; StoreError if it is missing and not trained.
        """
        if self._options.fresh or not runs:
            return {}
        selection, store = self._select(runs), self._options.store
        if self._is_stored:
            requested = self._options.engine
            engine = None if requested == "auto" else requested
            records = stored(selection, RunLookup(store, engine=engine))
            if missing := [run for run in selection.runs if key_of(run) not in records]:
                Fingerprints().known(selection.corpus)
                names = listed(f"{run.variant} with seed {run.seed}" for run in missing)
                raise StoreError(f"{store.results} holds no run of {names}")
            return self._scored(records, store)
        return self._scored(self._finished(stored(selection, workers(self._options)[1])), store)

    def train(self, runs: Runs) -> Records:
        """Train runs that are not stored; return their records."""
        if not runs:
            return {}
        records, _ = complete(self._select(runs), self._options)
        self._finished(records)  # other code may have begun one that was interrupted
        return self._scored(records, self._options.store)

    def losses(self, records: Records) -> dict[tuple[str, int], list[float]]:
        """Return the losses of the first steps of runs."""
        store = self._options.store
        return {
            key: first_losses(store.path(record["hash"]) / "curve.csv")
            for key, record in records.items()
        }

    def repeats(
        self, requested: Reference | None, seeds: Sequence[int], folder: Path | str | None
    ) -> Records:
        """Return the records that another folder of results has of the runs to bless."""
        if folder is None:
            return {}
        checks = requested.checks.values() if requested else ()
        if requested is None or not any(check.uses_repeats for check in checks):
            raise SpecError("--repeats is for checks of the kind 'paired'; the reference has none")
        store = Store(Path(folder))
        selection = self._select(requested.runs_to_bless(seeds))
        return self._scored(stored(selection, RunLookup(store)), store)

    def _scored(self, records: Records, store: Store) -> Records:
        """Return records with the BLEU that the table of the experiment has."""
        bleu = [metric for metric in self.experiment.metrics if metric.name == "bleu"]
        return scored(records, self.experiment.rows[0].spec.corpus, bleu, store)

    def _finished(self, records: Records) -> Records:
        """Return the records of finished runs; StaleRecordError if other code has made one."""
        device = workers(self._options)[0].worker_slots[0]
        finished = {key: record for key, record in records.items() if is_finished(record)}
        if stale := [(r, why) for r in finished.values() if (why := stale_reason(r, device))]:
            record, reason = stale[0]
            raise StaleRecordError(
                f"{self._options.results} holds {counted(len(stale), 'run')} that other code may "
                f"have made: {record['variant']} with seed {record['seed']} ({record['hash']}): "
                f"{reason}; say --fresh to replace what is stored by new runs, --stored to judge "
                "it as it is, or --results with another folder, which keeps it for other tables"
            )
        return finished

    def _select(self, runs: Runs) -> Selection:
        seeds, rows = sorted({seed for _, seed in runs}), sorted({row for row, _ in runs})
        path, options = self.experiment.path, replace(self._options, seeds=seeds)
        if self._is_stored:
            lookup = RunLookup(options.store)
            whole = select(path, options.overrides, seeds, rows, lookup)
            if whole.pending:
                names = listed(whole.pending)
                raise StoreError(f"{options.results} has not all that is chosen for {names}")
        else:
            whole = select_chosen(path, options, rows)
        self.experiment = whole.whole
        subset = tuple(run for run in whole.runs if key_of(run) in runs)
        return replace(whole, runs=subset, tabulated=subset)
