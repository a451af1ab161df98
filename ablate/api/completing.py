"""Training what is missing of a selection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console

from ablate.api.options import RunOptions
from ablate.api.selecting import MadeBy, Records, Selection, stored, tasks, unfinished
from ablate.data.corpus import Corpus
from ablate.registry import Choice, build
from ablate.runner import devices
from ablate.runner.check import check
from ablate.runner.devices import Device
from ablate.runner.display import display
from ablate.runner.schedule import Limits, schedule
from ablate.runner.sessions import session_file
from ablate.training import engines


def complete(selection: Selection, options: RunOptions) -> tuple[Records, bool]:
    """Train what is missing of a selection; return all its records, and whether any is new.

    Args:
        selection: the runs that must be there.
        options: how they are made, and where they are kept.

    Raises:
        SpecError: if there is no such engine.
        DataError: if a corpus cannot be had.
        DeviceError: if the machine lacks the device.
    """
    worker_slots, by = workers(options)
    records = stored(selection, by.store, by.precision, by.engine)
    if not options.fresh and not unfinished(selection, records):
        return records, False
    check(selection.whole)
    _train(selection, worker_slots, replace(options, engine=by.engine or options.engine))
    return stored(selection, by.store, by.precision, by.engine), True


def workers(options: RunOptions) -> tuple[Sequence[Device], MadeBy]:
    """Return where runs are made, and what ``auto`` means there.

    Raises:
        SpecError: if there is no such engine.
        DeviceError: if the machine lacks the device.
    """
    worker_slots = devices.worker_slots(devices.find(options.device), options.jobs)
    engine = engines.resolve(options.engine, worker_slots[0].kind)
    return worker_slots, MadeBy(options.store, devices.resolve("auto", worker_slots[0]), engine)


def fetch(choice: Choice) -> None:
    """Download a corpus unless it is there, before several workers want it at once."""
    console, corpus = Console(stderr=True), build(Corpus, choice, at="corpus")
    if not corpus.is_available():
        corpus.fetch(lambda line: console.print(line, markup=False, highlight=False))


def _train(selection: Selection, worker_slots: Sequence[Device], options: RunOptions) -> None:
    store = options.store
    fetch(selection.corpus)
    todo = tasks(
        selection.runs,
        worker_slots[0],
        store.results,
        engine=options.engine,
        is_fresh=options.fresh,
    )
    runs_per_process = options.jobs if worker_slots[0].kind == "cuda" else 1
    limits = Limits(runs_per_process, options.probe_seconds, probes=options.probes)
    name = selection.experiment.name
    with (
        display(Console(stderr=True)) as listener_on_screen,
        session_file(store.results, name, listener_on_screen) as listener,
    ):
        schedule(todo, worker_slots, store, listener, limits=limits)
