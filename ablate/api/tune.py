"""Choosing what an experiment leaves open: values by measured time, and values tuned on dev."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from ablate.api.completion import RunOptions, complete, fetch, workers
from ablate.api.selection import (
    Fingerprints,
    RunLookup,
    Selection,
    key_of,
    load,
    print_remark,
    select,
    tasks,
    tuning_runs,
)
from ablate.config import Experiment, Row, Run, RunSpec
from ablate.console import Console
from ablate.errors import RunError
from ablate.runner.backends.contract import Backend
from ablate.runner.check import blueprint
from ablate.runner.display import display
from ablate.runner.match import UnmatchedError, match_key, solve, with_solutions
from ablate.runner.probe import TRAIN_SPEED, measure, training_tokens
from ablate.runner.provenance import hardware_of
from ablate.runner.task import Task
from ablate.store import is_finished
from ablate.wording import counted

_WAITS = "another call measures which values take the baseline's time: waiting for it"


def select_chosen(path: Path | str, options: RunOptions, only: Sequence[str] = ()) -> Selection:
    """Return a selection without pending rows, after the measurements and tuning runs they need.

    The options are those that `opened` yields.

    Raises:
        SpecError: with every mistake of the file; also if rows cannot be matched.
        RunError: if a tuning run has failed, so that nothing can be chosen.
    """
    backend, lookup = workers(options)
    select_now = partial(select, path, options.overrides, options.seeds, only, lookup)
    selection = select_now()
    if not _open(selection, only):
        return selection
    fetch(selection.corpus)
    match = selection.whole.match
    if match is not None and match.on == "time":
        with options.store.lock_matches(lambda: print_remark(_WAITS)):
            rows = [r.name for r in select_now().experiment.rows if match.via in r.pending]
            if rows := [name for name in rows if not only or name in only]:
                _Timing(load(path, options.overrides), backend, lookup).match(rows)
    selection = select_now()
    tune = selection.whole.tune
    for _ in range(1 + tune.extend if tune else 0):  # again for what lies beyond its grid
        if rows := _open(selection, only):
            _tune(selection, rows, options)
            options = replace(options, fresh=False)  # else each extension repeats the grid
            selection = select_now()
    return selection


def _open(selection: Selection, only: Sequence[str]) -> list[str]:
    """Return the rows to be trained for which some value is still to be chosen."""
    return [name for name in selection.pending if not only or name in only]


def _tune(selection: Selection, rows: Sequence[str], options: RunOptions) -> None:
    tuning = selection.tuning
    assert tuning is not None, "its rows are tuned"
    candidates = tuning_runs(tuning, rows)
    print_remark(
        f"tuning {counted(len(rows), 'row')} on dev: {counted(len(candidates.runs), 'run')}, with "
        f"{counted(len(tuning.experiment.seeds), 'seed')} of their own"
    )
    records, _ = complete(candidates, options)
    failed = [run for run in candidates.runs if not is_finished(records.get(key_of(run)))]
    if failed:
        first = failed[0]
        error = (records.get(key_of(first)) or {}).get("error")
        raise RunError(
            f"{counted(len(failed), 'tuning run')} failed, so that nothing is chosen for the rows: "
            f"{first.variant}, seed {first.seed}: {error}; `ablate run` tries again"
        )


class _Timing:
    """Measures rows by turns with their baseline until they take as long as the baseline.

    The experiment is the one that was loaded: `match_key` covers no tuned values.
    """

    def __init__(self, experiment: Experiment, backend: Backend, lookup: RunLookup) -> None:
        self._experiment, self._match = experiment, experiment.match
        self._backend, self._device, self._lookup = backend, backend.worker_slots[0], lookup
        self._measured: dict[str, list[float]] = {}  # seconds per token over the baseline's
        self._ratios: list[float] = []  # of times of training, of the last run asked for

    def match(self, rows: Sequence[str]) -> None:
        """Choose the values of some rows and keep them; SpecError if a row cannot be matched."""
        print_remark(
            f"matching the training time of {counted(len(rows), 'row')}: every value that is tried "
            "is measured by turns with the baseline, which takes about half a minute"
        )
        with_solutions(self._experiment, lambda row: self._value(row) if row.name in rows else None)

    def _value(self, row: Row) -> int | None:
        assert self._match is not None
        value = solve(self._experiment, row, self._ratio, 1.0, is_measured=True)
        logs = [math.log(ratio) for ratio in self._ratios]
        error = statistics.stdev(logs) / math.sqrt(len(logs))
        if error > self._match.tolerance:
            raise UnmatchedError(
                f"this machine's speed varies too much for a tolerance of {self._match.tolerance}: "
                f"the ratio of times has a standard error of {error:.3f} in {len(logs)} rounds"
            )
        matched = {
            "value": value,
            "ratio": statistics.median(self._ratios),
            "standard_error": error,
            "n_rounds": len(logs),
            "hardware": hardware_of(self._device),
        }
        fingerprint = Fingerprints().of(row.spec.corpus) or ""
        self._lookup.store.save_match(match_key(self._experiment, row, fingerprint), matched)
        return value

    def _ratio(self, spec: RunSpec) -> float:
        """Return the training time of a run, divided by the baseline's."""
        blueprint(spec)
        baseline = self._experiment.rows[0].spec
        runs = [Run(self._experiment.name, name, s) for name, s in (("", baseline), ("row", spec))]
        store, engine = self._lookup.store, self._lookup.engine or "eager"
        base, ours = tasks(runs, self._device, store.results, engine=engine)
        if ours.probe not in self._measured:
            with display(Console(stderr=True)) as listener:
                session = measure([base, ours], self._backend, listener)
            speeds = [self._speeds(task, session) for task in (base, ours)]
            self._measured[ours.probe] = [a / b for a, b in zip(*speeds, strict=False)]
        n_base, n_ours = (
            training_tokens(task.training, store.load_probe(task.probe) or {})
            for task in (base, ours)
        )
        self._ratios = [each * (n_ours / n_base) for each in self._measured[ours.probe]]
        return statistics.median(self._ratios)

    def _speeds(self, task: Task, session: str) -> Sequence[float]:
        """Return the speed of a row in each round of a session."""
        probe = self._lookup.store.load_probe(task.probe) or {}
        rounds = probe.get("rounds", {}) if probe.get("session") == session else {}
        speeds = rounds.get(TRAIN_SPEED, ())
        if len(speeds) < 2:
            log = replace(task, action="probe", key=task.probe).log
            raise UnmatchedError(f"the time of training could not be measured; {log} says why")
        return speeds
