"""Which runs a command is about, and what each is called in the store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any, TypeVar

from ablate import config
from ablate.config import Experiment, Run, RunSpec, Tune, Tuning
from ablate.console import Console
from ablate.data.corpus import Corpus, refusals_of
from ablate.errors import DataError, SpecError, StoreError
from ablate.registry import Choice, RefusedError, build
from ablate.report.looks import Looks
from ablate.runner import devices
from ablate.runner import match as matching
from ablate.runner.check import check, refused_rows
from ablate.runner.devices import Device, resolve
from ablate.runner.probe import probe_key
from ablate.runner.provenance import stale_remarks
from ablate.runner.task import Task
from ablate.store import Store, is_finished
from ablate.training import engines
from ablate.training.engines import Eager, engine_of, random_draws
from ablate.wording import listed

Record = dict[str, Any]
Read = TypeVar("Read")
Records = dict[tuple[str, int], Record]
"""By the name of the row and the seed."""

PRECISIONS = ("fp32", "bf16")
ENGINES = tuple(reversed(engines.OF_ONE_DEVICE))
"""The eager one last: its records may stand for those of an engine that failed.

Runs of several devices have the same hash whatever their engine.
"""


@dataclass(frozen=True)
class Selection:
    """An experiment, and those of its runs that are requested."""

    whole: Experiment  # as it was read
    experiment: Experiment  # with the baseline and the requested rows and seeds
    runs: tuple[Run, ...]  # that are requested
    tabulated: tuple[Run, ...]  # in its table: these, and those of the baseline
    overrides: tuple[str, ...] = ()  # ``path=value``, changes that the file does not have
    tuning: Tuning | None = None  # the candidates of all rows, if they are tuned
    looks: Looks = field(default_factory=Looks)  # what those at the experiment have come to

    @property
    def corpus(self) -> Choice:
        """The corpus, which all rows share."""
        return self.whole.rows[0].spec.corpus

    @property
    def pending(self) -> list[str]:
        """The requested rows for which some value is still to be chosen."""
        return [row.name for row in self.experiment.rows if row.pending]


def load(path: Path | str, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment in one context; if it has mistakes, also assemble rows without any.

    Raises:
        SpecError: with every mistake of the file, and all that the parts of other rows refuse.
    """
    try:
        experiment = config.load(Path(path), overrides)
        if experiment.contexts:
            names = listed(f"{path}#{name}" for name in experiment.contexts)
            raise SpecError(f"{path} has contexts, of which this takes one: {names}")
        return experiment
    except config.InvalidExperimentError as error:
        if error.valid is None:
            raise
        try:
            check(error.valid)
        except config.MistakesError as refused:
            raise config.MistakesError([*error.mistakes, *refused.mistakes]) from None
        raise


def select(
    path: Path | str,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    lookup: RunLookup | None = None,
) -> Selection:
    """Read an experiment and pick runs.

    ``lookup`` finds the runs that values of rows are chosen by (``match``, ``tune``); without it
    these rows are pending.
    """
    experiment, tuning = _with_chosen_values(load(path, overrides), lookup)
    shared = set(seeds or ()) & set(experiment.tune.seeds if experiment.tune else ())
    if shared:
        raise SpecError(f"the experiment {config.seeds_are_shared(sorted(shared))}")
    baseline = experiment.rows[0].name
    runs = config.expand(experiment, seeds, only or None)
    tabulated = config.expand(experiment, seeds, [baseline, *only] if only else None)
    names = {baseline, *only} if only else {row.name for row in experiment.rows}
    narrowed = replace(
        experiment,
        rows=tuple(row for row in experiment.rows if row.name in names),
        seeds=tuple(experiment.seeds if seeds is None else seeds),
        looks=experiment.looks if seeds is None else (),
    )
    return Selection(experiment, narrowed, runs, tabulated, tuple(overrides), tuning)


@dataclass(frozen=True)
class RunLookup:
    """A store in which to look for runs, and what ``auto`` means for them.

    A precision or engine of None means that of which the store holds most runs.
    """

    store: Store
    precision: str | None = None
    engine: str | None = None


def tuning_runs(tuning: Tuning, rows: Iterable[str]) -> Selection:
    """Return the tuning runs of some rows, as a selection of the candidates' own experiment."""
    names = [name for row in rows for name in tuning.candidates[row]]
    runs = config.expand(tuning.experiment, only=names)
    return Selection(tuning.experiment, tuning.experiment, runs, runs)


def _with_chosen_values(
    experiment: Experiment, lookup: RunLookup | None
) -> tuple[Experiment, Tuning | None]:
    """Return an experiment with the values that are chosen for its rows, and its candidates."""
    if experiment.match is None and experiment.tune is None:
        return experiment, None
    check(experiment)
    if experiment.match is not None and experiment.match.on != "time":
        experiment = matching.match_by_counting(experiment)
    elif experiment.match is not None:
        values: dict[str, int | None] = {}
        for row, key in match_keys(experiment).items():
            match = lookup.store.load_match(key) if lookup else None
            if match is None or match["value"] is not None:
                values[row] = match["value"] if match else None
        experiment = config.with_match(experiment, values)
    if experiment.tune is None:
        return experiment, None
    return _with_tuned_values(experiment, experiment.tune, lookup)


def _with_tuned_values(
    experiment: Experiment, tune: Tune, lookup: RunLookup | None
) -> tuple[Experiment, Tuning]:
    """Return an experiment whose rows have their best candidates, and all candidates."""
    tuning = config.tuning_of(experiment)
    names = [row.name for row in experiment.rows if not row.pending]
    extra: dict[str, list[config.Point]] = {name: [] for name in names}
    for n_left in range(tune.extend, -1, -1):
        records = stored(tuning_runs(tuning, names), lookup) if lookup else {}
        ranked = {name: _ranked(tuning, name, records) for name in names}
        best = {name: next(iter(of_row), None) for name, of_row in ranked.items()}
        more = {
            name: config.points_beyond(tune, tuning, name, winner)
            for name, winner in best.items()
            if winner is not None
        }
        if not n_left or not any(more.values()):
            break
        for name, points in more.items():
            extra[name] += points
        tuning = _extended(tuning, config.tuning_of(experiment, extra))
    leads = {
        name: second - first
        for name, of_row in ranked.items()
        for first, second in pairwise([*of_row.values()][:2])
    }
    experiment = replace(experiment, tune=replace(tune, leads=leads))
    return config.with_tuning(experiment, tuning, best), tuning


def _extended(tuning: Tuning, longer: Tuning) -> Tuning:
    """Return a longer list of candidates, without new ones that no model or part can have."""
    tried = {row.name for row in tuning.experiment.rows}
    refused = refused_rows(row for row in longer.experiment.rows if row.name not in tried)
    rows = tuple(row for row in longer.experiment.rows if row.name not in refused)
    candidates = {
        row: tuple(name for name in names if name not in refused)
        for row, names in longer.candidates.items()
    }
    return Tuning(replace(longer.experiment, rows=rows), candidates)


def match_keys(experiment: Experiment) -> dict[str, str]:
    """Return the key of the stored match of each row that takes the baseline's time, by row.

    The experiment is as it was loaded, before values were chosen.
    """
    if experiment.match is None or experiment.match.on != "time":
        return {}
    fingerprint = Fingerprints().of(experiment.rows[0].spec.corpus) or ""
    return {
        row.name: matching.match_key(experiment, row, fingerprint)
        for row in matching.matched_rows(experiment)
    }


def _ranked(tuning: Tuning, row: str, records: Records) -> dict[str, float]:
    """Return a row's candidates by mean NLL on dev, the lowest first; none if a run is missing.

    A run that diverged counts as infinitely bad; of equals the first is first.
    """
    losses: dict[str, float] = {}
    for name in tuning.candidates[row]:
        of_seeds = [records.get((name, seed)) for seed in tuning.experiment.seeds]
        if not all(is_finished(record) for record in of_seeds):
            return {}
        done = [record["dev"]["nll"] for record in of_seeds if record and record.get("dev")]
        losses[name] = sum(done) / len(done) if len(done) == len(of_seeds) else math.inf
    return dict(sorted(losses.items(), key=lambda item: item[1]))


class Fingerprints:
    """Fingerprints of corpora, each computed once."""

    def __init__(self) -> None:
        self._of_choice: dict[Choice, str | None] = {}

    def of(self, corpus: Choice) -> str | None:
        """Return the fingerprint of a corpus; None if it cannot be known without a download."""
        if corpus not in self._of_choice:
            self._of_choice[corpus] = None
            with suppress(RefusedError):  # `check` says where in the file
                built = build(Corpus, corpus, at="corpus")
                try:
                    self._of_choice[corpus] = built.fingerprint()
                except DataError:
                    if built.is_available():
                        raise  # it is malformed
        return self._of_choice[corpus]

    def known(self, corpus: Choice) -> str:
        """Return the fingerprint of a corpus; DataError, with what is missing, if not known."""
        fingerprint = self.of(corpus)
        if fingerprint is not None:
            return fingerprint
        refusal = next(refusals_of(corpus), None)
        reason = refusal or f"it has not been fetched (`ablate corpora fetch {corpus.name}`)"
        raise DataError(
            f"the content of the corpus {corpus.name!r} is not known here, so that its runs cannot "
            f"be distinguished from others: {reason}"
        )


def tasks(
    runs: Iterable[Run], device: Device, results: Path, *, engine: str = "eager"
) -> list[Task]:
    """Return the training task of each run, in order; DataError if a corpus is not known."""
    fingerprints = Fingerprints()
    todo: list[Task] = []
    alike: dict[Any, list[Task]] = {}  # tasks by what their training follows from
    for run in runs:
        fingerprint = fingerprints.known(run.spec.corpus)
        precision = resolve(run.spec.training.precision, device)
        of_run = engine_of(run.spec, engine)
        plain = run.spec.model_dump(mode="json")
        todo.append(
            Task(
                action="train",
                key=hash_of(run.spec, fingerprint, precision, of_run),
                experiment=run.experiment,
                variant=run.variant,
                spec={**plain, "training": {**plain["training"], "precision": precision}},
                device=device.kind,
                precision=precision,
                results=results.absolute(),
                probe=probe_key(run.spec, device, precision, of_run, fingerprint),
                engine=of_run,
                eager_key=hash_of(run.spec, fingerprint, precision, Eager.name),
                corpus_fingerprint=fingerprint,
                teacher_sha256=config.files_of(run.spec, fingerprint).get("teacher", ""),
            )
        )
        training = training_of(run.spec), precision, of_run
        alike.setdefault(training, []).append(todo[-1])
    others = {
        task.key: tuple(dict.fromkeys(other.key for other in group if other.key != task.key))
        for group in alike.values()
        for task in group
    }
    return [replace(task, trained_alike=others.get(task.key, ())) for task in todo]


def training_of(run_spec: RunSpec) -> RunSpec:
    """Return a spec that is the same for all runs that are trained alike."""
    return run_spec.model_copy(update={"decoding": None})


def hash_of(run_spec: RunSpec, fingerprint: str, precision: str, engine: str) -> str:
    """Return the hash of a run whose precision and engine are resolved."""
    draws = random_draws(engine_of(run_spec, engine), run_spec.training)
    return config.identity(run_spec, fingerprint, precision, draws)


def stored(selection: Selection, lookup: RunLookup) -> Records:
    """Return the stored records of a selection, by row and seed.

    What ``precision: auto`` and ``--engine auto`` mean depends on the machine. Where ``lookup``
    leaves them open and the store holds runs of several kinds, the kind of which it holds most is
    returned, so that a table never mixes two.
    """
    fingerprints, store = Fingerprints(), lookup.store
    precisions = PRECISIONS if lookup.precision is None else (lookup.precision,)
    kinds = product(precisions, ENGINES if lookup.engine is None else (lookup.engine,))
    outcomes: dict[tuple[Any, ...], Record | None] = {}  # most kinds of a run share one record
    by_kind: list[Records] = []
    for auto, engine in kinds:
        by_kind.append({})
        for run in selection.tabulated:
            fingerprint = fingerprints.of(run.spec.corpus)
            if fingerprint is None:
                continue
            precision = precision_of(run.spec, auto)
            key = (key_of(run), precision, random_draws(engine, run.spec.training))
            if key not in outcomes:
                run_hash = hash_of(run.spec, fingerprint, precision, engine)
                outcomes[key] = store.load_outcome(run_hash)
            if record := outcomes[key]:
                if engine == Eager.name and record.get("is_fallback"):  # eager is requested here
                    record = {**record, "engine_note": "", "is_fallback": False}
                names = {"experiment": run.experiment, "variant": run.variant}  # of this experiment
                by_kind[-1][key_of(run)] = {**record, **names}
    return max(by_kind, key=lambda records: (sum(map(is_finished, records.values())), len(records)))


def stored_in_each(contexts: Mapping[str, Path], read: Callable[[Path], Read]) -> dict[str, Read]:
    """Return what ``read`` returns of each context; remarks name those without results.

    Raises:
        StoreError: if no context has results.
    """
    results: dict[str, Read] = {}
    missing: list[StoreError] = []
    for name, path in contexts.items():
        try:
            results[name] = read(path)
        except StoreError as error:
            missing.append(error)
    if not results:
        raise missing[0]
    for reason in missing:
        print_remark(f"left out: {reason}")
    return results


def key_of(run: Run) -> tuple[str, int]:
    """Return what records call a run: the name of its row and its seed."""
    return run.variant, run.seed


def precision_of(run_spec: RunSpec, auto: str) -> str:
    """Return the precision of a run on a machine where ``precision: auto`` means ``auto``."""
    setting = run_spec.training.precision
    return auto if setting == "auto" else setting


def print_remark(text: str) -> None:
    """Print one line of plain text, which wraps where the terminal ends."""
    Console(stderr=True).print(text, markup=False, highlight=False, emoji=False, soft_wrap=True)


def remarks_on(records: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each way in which finished runs are not of this code and machine.

    Runs that were made on CPUs are compared with this machine's CPU, even if it has a GPU.
    """
    finished = {key: record for key, record in records.items() if is_finished(record)}
    kinds = {record.get("hardware", {}).get("device") for record in finished.values()}
    device = Device("cpu") if kinds <= {"cpu"} else devices.find("auto")[0]
    return stale_remarks(finished, device)
