"""Adding speeds to the records of runs that were done before their row was measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ablate.runner.devices import Device
from ablate.runner.probe import record_sections
from ablate.runner.staleness import other_machine
from ablate.runner.task import Task
from ablate.store import Store


def lacks_speed(task: Task, store: Store, device: Device) -> bool:
    """Return whether a record lacks the speed that the same machine has measured since."""
    record = store.load(task.key)
    if record is None or record["status"] != "done" or "speed" in record:
        return False
    return store.load_probe(task.probe) is not None and other_machine(record, device) is None


def add_speeds(tasks: Iterable[Task], store: Store, device: Device) -> None:
    """Add measured speeds to the records that lack them."""
    for task in tasks:
        if lacks_speed(task, store, device):
            _add_speed(task, store)


def update_speeds(
    tasks: Iterable[Task], attempts: Mapping[str, Task], store: Store, device: Device
) -> None:
    """Write the speeds of rows that were measured now into the records of their earlier runs.

    Runs of another machine keep the speeds that were measured there.
    """
    for task in tasks:
        record, probe = store.load(task.key), store.load_probe(task.probe)
        is_new = probe is not None and probe.get("session") == attempts[task.probe].session
        is_done = record is not None and record["status"] == "done" and not task.fresh
        if record is not None and is_done and is_new and other_machine(record, device) is None:
            _add_speed(task, store)


def _add_speed(task: Task, store: Store) -> None:
    """Write the speed of a row into the record of a run that is done."""
    with store.lock(task.key):
        record = store.load(task.key)
        if record is not None:  # which another call may have removed since
            store.save({**record, **record_sections(store.load_probe(task.probe) or {})})
