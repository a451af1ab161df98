"""Training and measuring what is missing of a selection."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from ablate.api.looks import with_early_runs
from ablate.api.metrics import scored
from ablate.api.selection import (
    Record,
    Records,
    RunLookup,
    Selection,
    key_of,
    print_remark,
    stored,
    tasks,
)
from ablate.api.trials import table_folder
from ablate.console import Console
from ablate.data.corpus import Corpus
from ablate.errors import DamagedFileWarning, DetachedError, RunError
from ablate.exports.export import exporting
from ablate.registry import Choice, build
from ablate.runner import devices
from ablate.runner.backends.contract import Backend, BackendRequest
from ablate.runner.backends.registry import open_backend
from ablate.runner.check import check, check_devices, check_distinct, check_engine
from ablate.runner.devices import Device
from ablate.runner.display import display
from ablate.runner.probe import lacks_speed, rows_to_probe
from ablate.runner.provenance import code_digest
from ablate.runner.schedule import Limits, outcome_text, schedule
from ablate.runner.sessions import session_file
from ablate.runner.task import Task
from ablate.store import Store, is_finished
from ablate.training import engines
from ablate.wording import counted, listed

Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class RunOptions:
    """Which runs a command needs, and how those that are missing are made.

    Attributes:
        seeds: in place of those of the experiment.
        overrides: ``path=value``, changes of the baseline, which make other runs of all rows.
        device: ``auto``, ``cpu``, ``cuda``, or GPUs by number, ``cuda:0,2``.
        jobs: parallel runs on each GPU, by default as many as fit; without a GPU the cores that
            runs share, by default all.
        engine: how training steps and the decoding of translations are executed. All engines
            compute the same function; one that draws other dropout masks makes other runs.
        fresh: whether to repeat finished runs.
        probe_seconds: how long the speed of each row is measured; by default `PROBE_SECONDS`, or
            less where runs are short.
        probes: whether speed and memory are measured at all.
        figures: whether figures are drawn beside the table.
        stall_after: seconds without a heartbeat after which a worker is reported, and killed after
            as many again; by default as long as its phase needs (`runner.watchdog`).
        backend: where runs are made: its name, or one that is open already.
        log: names of the trackers that finished runs are exported to.
    """

    seeds: Sequence[int] | None = None
    overrides: Sequence[str] = ()
    device: str = "auto"
    jobs: int | None = None
    engine: str = "auto"
    results: Path | str = "results"
    fresh: bool = False
    probe_seconds: float | None = None
    probes: bool = True
    figures: bool = True
    stall_after: float | None = None
    backend: str | Backend = "local"
    backend_options: Mapping[str, str] = field(default_factory=dict)
    log: Sequence[str] = ()

    @property
    def store(self) -> Store:
        """Where the runs are kept."""
        return Store(Path(self.results))


DEFAULT = RunOptions()


def complete(selection: Selection, options: RunOptions) -> tuple[Records, bool]:
    """Train and measure what is missing; return all records, and whether any is new.

    The options are those that `opened` yields.

    Raises:
        SpecError: if there is no such engine or tracker, or if two rows are the same run here.
        DataError: if a corpus is unavailable.
        RunError: if a run has no record at the end, because files were changed meanwhile.
    """
    store, (backend, lookup) = options.store, workers(options)
    with exporting(options.log, store) as exports:
        trial = replace(selection, experiment=selection.whole, overrides=tuple(options.overrides))
        export = partial(exports.export, table_folder(trial, Path()).as_posix())
        device = backend.worker_slots[0]
        check_distinct(selection.whole, device)
        records = stored(selection, lookup)
        requested = {run: records[run] for run in map(key_of, selection.runs) if run in records}
        if not options.fresh and _set_aside_damaged(requested, store):
            records = stored(selection, lookup)
        options = replace(options, engine=lookup.engine or options.engine)
        is_trained = all(is_finished(records.get(key_of(run))) for run in selection.runs)
        is_new = options.fresh or not is_trained
        if not is_new and options.probes:
            tabulated = _tasks(selection, records, device, options)
            unmeasured = (task for task in tabulated if lacks_speed(task, store, device))
            is_new = bool(rows_to_probe(tabulated, store, device) or any(unmeasured))
        if is_new:
            check(selection.whole)
            check_devices(selection.whole, backend.worker_slots)
            check_engine(selection.whole, options.engine)
            fetch(selection.corpus)
            code_digest()  # of the code that is loaded: its files may change during the runs
            n_devices = selection.whole.rows[0].spec.devices_per_run
            n_at_once = devices.n_at_once(backend.worker_slots, n_devices)
            early = with_early_runs(selection, records, n_at_once)
            _schedule(early, records, options, export)
            records = stored(selection, lookup)
            if missing := set(map(key_of, selection.runs)) - records.keys():
                raise RunError(
                    f"{counted(len(missing), 'run')} of {len(selection.runs)} have no record: the "
                    f"corpus {selection.corpus.name} was changed, or files of the store were "
                    "removed, while runs were made; call again to make the runs of the present "
                    "content"
                )
        metrics = selection.experiment.metrics
        exported = scored(records, selection.corpus, metrics, store) if options.log else {}
        for (row, seed), record in exported.items():
            if remark := export(row, record):
                print_remark(f"{row}, seed {seed}: {remark}")
        return records, is_new


@contextmanager
def opened(options: RunOptions) -> Iterator[RunOptions]:
    """Yield options whose backend is open; close the backend at the end if it was opened here."""
    if isinstance(options.backend, Backend):
        yield options
        return
    results = options.store.results
    request = BackendRequest(
        options.device, options.jobs, results, options.backend_options, options.stall_after
    )
    with closing(open_backend(options.backend, request)) as backend:
        for remark in backend.remarks:
            print_remark(remark)
        yield replace(options, backend=backend)


def made_in_each(
    contexts: Mapping[str, Given], make: Callable[[str, Given], Made]
) -> dict[str, Made]:
    """Return what ``make`` returns of each context, with options whose backend is open.

    If jobs were left behind in some contexts, the others have theirs before that is raised.
    """
    results: dict[str, Made] = {}
    detached: DetachedError | None = None
    for name, given in contexts.items():
        try:
            results[name] = make(name, given)
        except DetachedError as error:
            detached = error  # counts the tasks of all contexts so far
    if detached is not None:
        raise detached
    return results


def _set_aside_damaged(records: Records, store: Store) -> bool:
    """Set aside the records of runs whose files are damaged; return whether there are any."""
    damaged = [(each, files) for each in records.values() if (files := store.damaged_files(each))]
    for record, files in damaged:
        store.set_aside(record["hash"])
        text = f"{listed(files)}: damaged; {record['variant']} seed {record['seed']} is made again"
        warnings.warn(text, DamagedFileWarning, stacklevel=3)
    return bool(damaged)


def workers(options: RunOptions) -> tuple[Backend, RunLookup]:
    """Return the open backend of options, and the lookup of runs like those that it makes."""
    backend = options.backend
    assert isinstance(backend, Backend), "the options are those that `opened` yields"
    device = backend.worker_slots[0]
    engine = engines.resolve(options.engine, device.kind)
    return backend, RunLookup(options.store, devices.resolve("auto", device), engine)


def fetch(choice: Choice) -> None:
    """Download a corpus unless it is there, before several workers do so at the same time."""
    corpus = build(Corpus, choice, at="corpus")
    if not corpus.is_available():
        corpus.fetch(print_remark)


def _tasks(
    selection: Selection, records: Records, device: Device, options: RunOptions
) -> list[Task]:
    """Return the tasks of the requested runs, and of the finished ones in the same table."""
    requested = {key_of(run) for run in selection.runs}
    finished = {key for key, record in records.items() if is_finished(record)}
    tabulated = [run for run in selection.tabulated if key_of(run) in requested | finished]
    return [
        replace(task, fresh=options.fresh and (task.variant, task.seed) in requested)
        for task in tasks(tabulated, device, options.store.results, engine=options.engine)
    ]


def _schedule(
    selection: Selection,
    records: Records,
    options: RunOptions,
    export: Callable[[str, Record], str],
) -> None:
    store, backend = options.store, workers(options)[0]
    device = backend.worker_slots[0]
    todo = _tasks(selection, records, device, options)
    runs_per_process = options.jobs if device.kind == "cuda" else 1
    limits = Limits(runs_per_process, options.probe_seconds, probes=options.probes)
    name = selection.experiment.name

    def export_and_describe(task: Task, record: Record) -> str:
        return "; ".join(filter(None, (outcome_text(record), export(task.variant, record))))

    with (
        display(Console(stderr=True)) as screen,
        session_file(store.results, name, screen),
    ):
        schedule(todo, backend, store, screen, limits, export_and_describe)
