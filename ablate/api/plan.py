"""``ablate plan``: what ``ablate run`` would do, and what that would cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any

from ablate.analysis import power, sequential
from ablate.analysis.measures import comparisons
from ablate.analysis.statistics import LEVEL
from ablate.analysis.summary import evaluated_sets, summarise
from ablate.api import trials
from ablate.api.check import cautions
from ablate.api.costs import count
from ablate.api.looks import at_look
from ablate.api.selection import (
    Fingerprints,
    Records,
    RunLookup,
    Selection,
    hash_of,
    select,
    training_of,
    tuning_runs,
)
from ablate.config import Experiment, Row, Run, RunSpec
from ablate.data.prepare import n_bytes_to_encode, vocabulary_at_hand
from ablate.data.tokenizer import Tokenizer
from ablate.measuring.counts import FlopCounter
from ablate.parts.embedding import Vocabulary
from ablate.registry import Choice, build
from ablate.report.plan import Plan, PlannedRow, PlannedRun, Power
from ablate.report.values import grouped
from ablate.runner import devices
from ablate.runner.backends.contract import BackendRequest
from ablate.runner.backends.registry import open_backend
from ablate.runner.check import check, check_devices, check_distinct, check_engine
from ablate.runner.devices import Device
from ablate.runner.match import target_tokens
from ablate.runner.probe import TRAIN_SPEED, probe_key, training_seconds
from ablate.runner.provenance import stale_remarks
from ablate.runner.run_files import WEIGHTS
from ablate.store import Store, is_finished
from ablate.training.engines import engine_of
from ablate.training.engines import resolve as resolve_engine
from ablate.training.step import count_passes
from ablate.wording import counted


def plan(  # noqa: PLR0913 - one argument for every option of the command
    path: Path | str,
    *,
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    device: str = "auto",
    jobs: int | None = None,
    engine: str = "auto",
    overrides: Sequence[str] = (),
    results: Path | str = "results",
    backend: str = "local",
    backend_options: Mapping[str, str] | None = None,
) -> Plan:
    """Return what `run` would do; download nothing and train nothing.

    Options are as for `RunOptions`. ``only`` names rows, by default all.

    Raises:
        SpecError: with every mistake of the file; also if there is no such engine, or if two rows
            are the same run on this device.
        DeviceError: if the machine lacks the device.
    """
    request = BackendRequest(device, jobs, Path(results), backend_options or {})
    with closing(open_backend(backend, request)) as opened_backend:
        worker_slots = opened_backend.worker_slots
    precision = devices.resolve("auto", worker_slots[0])
    engine = resolve_engine(engine, worker_slots[0].kind)
    lookup = RunLookup(Store(Path(results)), precision, engine)
    chosen = select(path, overrides, seeds, only, lookup)
    check(chosen.whole)
    if chosen.tuning is not None:
        check(chosen.tuning.experiment)
    selection = at_look(chosen, lookup)
    check_devices(selection.whole, worker_slots)
    check_distinct(selection.whole, worker_slots[0])
    check_engine(selection.whole, engine)
    experiment, looks = selection.experiment, selection.looks
    published = experiment.published
    planner = _Planner(worker_slots[0], jobs, lookup, selection)
    rows = [planner.row(row) for row in experiment.rows if not only or row.name in only]
    n_devices = experiment.rows[0].spec.devices_per_run
    runs = ((row.name, run) for row in rows for run in row.runs)
    missing = {(row, run.seed) for row, run in runs if run.hash and not run.is_done}
    first, n_nodes = worker_slots[0], len({device.node for device in worker_slots})
    return Plan(
        experiment=experiment.name,
        question=experiment.question,
        device=f"{first.kind} ({counted(n_nodes, 'node')})" if first.node else str(first),
        n_worker_slots=devices.n_at_once(worker_slots, n_devices) * n_devices,
        rows=tuple(planner.with_estimated_times(rows)),
        published=published.model_dump(include={"source", "note"}) if published else None,
        text_mib=planner.text_mib(),
        stale=(
            *stale_remarks(planner.finished, worker_slots[0]),
            *trials.remarks_on_missing(selection, lookup.store, missing),
        ),
        cautions=tuple(cautions(experiment.rows)),
        looks=experiment.looks,
        n_looks=looks.n_looks,
        decided=looks.decided,
        given_up=looks.given_up,
        n_expected=looks.n_expected if looks.n_looks else None,
        power=_power(experiment, planner.finished),
    )


def _power(experiment: Experiment, records: Records) -> Power | None:
    """Return what an experiment can find, by the error of its runs so far."""
    names, n_rows = [row.name for row in experiment.rows], len(experiment.rows) - 1
    n_seeds, level = len(experiment.seeds), LEVEL
    metric = f"test.{next(iter(evaluated_sets(records)), '')}.bleu"
    compared = comparisons(summarise(names, experiment.seeds, records)).get(metric)
    if compared is None or not compared.sd or n_seeds < 2:
        return None
    if experiment.looks:
        level = sequential.levels(experiment.looks, n_rows)[-1]
    detectable = power.detectable(compared.sd, n_rows, n_seeds, level)
    sizes = sorted({1.0, 0.5, experiment.negligible.bleu}, reverse=True)
    seeds_for = {
        size: power.seeds_for(size, compared.sd, n_rows) for size in sizes if size < detectable
    }
    return Power(compared.sd, compared.df, n_seeds, detectable, seeds_for)


class _Planner:
    """Plans rows; ``finished`` are the records of the runs that are done."""

    def __init__(
        self, device: Device, jobs: int | None, lookup: RunLookup, selection: Selection
    ) -> None:
        assert lookup.engine is not None, "the caller has resolved it"
        self._device = device
        self._jobs = jobs if device.kind == "cuda" else None
        self._engine = lookup.engine
        self._store = lookup.store
        self._selection = selection
        self._fingerprints = Fingerprints()
        self._count = cache(partial(count, FlopCounter()))
        self.finished: Records = {}
        self._vocabularies: dict[tuple[Choice, Choice], Vocabulary] = {}
        self._runs = grouped((run.variant, run) for run in selection.runs)
        # by what is trained and what is still to be chosen, the run whose weights others take
        self._trained: dict[tuple[RunSpec, Sequence[str]], RunSpec] = {}
        self._probe = cache(self._load_probe)
        self._record = cache(self._load_record)
        tuning = selection.tuning and tuning_runs(selection.tuning, selection.pending)
        self._to_tune = tuning.runs if tuning else ()
        for run in (*selection.tabulated, *self._to_tune):
            record = self._record(run)[1]
            if record and (self._store.path(record["hash"]) / WEIGHTS).is_file():
                self._trained.setdefault((training_of(run.spec), ()), run.spec)
        for row in selection.whole.rows:
            self._note_vocabulary(row.spec, self._probe(row.spec))
        for run in selection.runs:
            if _vocabulary_key(run.spec) not in self._vocabularies:
                record = self._record(run)[1] or {}
                self._note_vocabulary(run.spec, record.get("tokenizer", {}))
        for row in selection.experiment.rows:
            key = _vocabulary_key(row.spec)
            if key not in self._vocabularies and (learned := vocabulary_at_hand(row.spec)):
                self._vocabularies[key] = learned

    def _note_vocabulary(self, spec: RunSpec, sizes: Mapping[str, Any]) -> None:
        """Note the vocabulary of a probe or run for all rows of its corpus and tokenizer."""
        if "n_src" in sizes and "n_tgt" in sizes:
            self._vocabularies[_vocabulary_key(spec)] = Vocabulary(
                int(sizes["n_src"]), int(sizes["n_tgt"]), _nominal(spec).is_joint
            )

    def row(self, row: Row) -> PlannedRow:
        probe = self._probe(row.spec)
        params, flops_of_pass = self._counts(row.spec)
        experiment = self._selection.experiment
        of_baseline, _ = self._counts(experiment.rows[0].spec)
        is_measured = TRAIN_SPEED in probe
        planned = [self._run(run) for run in self._runs.get(row.name, ())]
        if row.pending:
            n_seeds = self._selection.looks.n_seeds.get(row.name)  # None without looks
            specs = [row.spec.model_copy(update={"seed": s}) for s in experiment.seeds[:n_seeds]]
            planned = [self._missing(spec, None, row.pending) for spec in specs]
        candidates = self._selection.tuning
        tuning = tuning_runs(candidates, [row.name]).runs if candidates else ()
        return PlannedRow(
            name=row.name,
            changes=row.changes,
            params=params,
            params_delta=params / of_baseline - 1,
            is_vocabulary_known=_vocabulary_key(row.spec) in self._vocabularies,
            flops_per_target_token=flops_of_pass * count_passes(row.spec.training),
            train_peak_mib=probe.get("train_peak_mib"),
            seconds_per_run=training_seconds(row.spec.training, probe) if is_measured else None,
            runs_at_once=self._jobs or int(probe.get("runs_at_once", 1)),
            runs=tuple(planned),
            published=experiment.published.of(row.name) if experiment.published else {},
            chosen=row.chosen,
            pending=row.pending,
            tuning=tuple(self._run(run, is_tuning=True) for run in tuning),
            devices_per_run=row.spec.devices_per_run,
        )

    def with_estimated_times(self, rows: Sequence[PlannedRow]) -> list[PlannedRow]:
        """Return rows with estimated times if they are not probed, by the first probed row."""
        probed = next((row for row in rows if row.seconds_per_run is not None), None)
        if probed is None:
            return list(rows)
        specs = {row.name: row.spec for row in self._selection.experiment.rows}
        training = specs[probed.name].training
        probe = self._probe(specs[probed.name])
        flops_per_second = probe[TRAIN_SPEED] * probed.flops_per_target_token
        per_batch, n_batches = probe["target_tokens_per_batch"], probe["batches_per_epoch"]
        timed = []
        for row in rows:
            if row.seconds_per_run is None:
                own = specs[row.name].training
                size = own.batch_tokens / training.batch_tokens  # of its batches
                n_tokens = target_tokens(own, per_batch * size, n_batches / size)
                seconds = n_tokens * row.flops_per_target_token / flops_per_second
                row = replace(row, seconds_per_run=seconds, is_time_estimated=True)
            timed.append(row)
        return timed

    def text_mib(self) -> float:
        """Return the MiB of own text that missing runs have to encode."""
        ids_of = attrgetter("corpus", "tokenizer", "model.dims.max_len", "training.teacher")
        runs = (*self._selection.runs, *self._to_tune)
        missing = (run.spec for run in runs if not self._record(run)[1])
        texts = {ids_of(spec): spec for spec in missing}
        known = ((spec, self._fingerprints.of(spec.corpus)) for spec in texts.values())
        return sum(n_bytes_to_encode(spec, x) for spec, x in known if x is not None) / 2**20

    def _counts(self, spec: RunSpec) -> tuple[int, float]:
        """Return the parameters of a run's model, and its FLOPs per target token and pass."""
        vocabulary = self._vocabularies.get(_vocabulary_key(spec)) or _nominal(spec)
        return self._count(spec.model, vocabulary)

    def _load_probe(self, spec: RunSpec) -> Mapping[str, Any]:
        fingerprint = self._fingerprints.of(spec.corpus) or ""
        engine = engine_of(spec, self._engine)
        precision = devices.resolve(spec.training.precision, self._device)
        key = probe_key(spec, self._device, precision, engine, fingerprint)
        return self._store.load_probe(key) or {}

    def _run(self, run: Run, *, is_tuning: bool = False) -> PlannedRun:
        key, record = self._record(run)
        if record is None:
            return self._missing(run.spec, key)
        if not is_tuning:
            self.finished[run.variant, run.seed] = record
        takes_weights = "weights_of" in record
        return PlannedRun(run.seed, record["hash"], is_done=True, takes_weights=takes_weights)

    def _missing(self, spec: RunSpec, key: str | None, pending: Sequence[str] = ()) -> PlannedRun:
        first = self._trained.setdefault((training_of(spec), pending), spec)
        return PlannedRun(spec.seed, key, is_done=False, takes_weights=spec != first)

    def _load_record(self, run: Run) -> tuple[str | None, dict[str, Any] | None]:
        """Return a run's hash, unless its corpus is unknown, and its record if it is finished."""
        fingerprint = self._fingerprints.of(run.spec.corpus)
        if fingerprint is None:
            return None, None
        precision = devices.resolve(run.spec.training.precision, self._device)
        key = hash_of(run.spec, fingerprint, precision, self._engine)
        record = self._store.load_outcome(key)
        return key, record if is_finished(record) else None


def _vocabulary_key(spec: RunSpec) -> tuple[Choice, Choice]:
    return spec.corpus, spec.tokenizer


def _nominal(spec: RunSpec) -> Vocabulary:
    return build(Tokenizer, spec.tokenizer, at="tokenizer").nominal_vocabulary()
