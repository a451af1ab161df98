"""Copies of result files, between a worker and a store on machines that share no folder."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from ablate.runner.groups import TaskGroup
from ablate.runner.resume import tidy
from ablate.runner.task import Task
from ablate.store import Store, is_finished, writable
from ablate.writing import atomic_write

Bundle = dict[str, bytes]
"""The contents of files, by their paths relative to the folder of results."""

_RECORD = "record.json"
_STAY = ("lock", "log.txt", "record.damaged.json")


def outputs_of(task: Task) -> Bundle:
    """Return the files that a task has written on this machine: a probe, or a run's folder."""
    store = Store(task.results)
    if task.action == "probe":
        return _read([store.probe_path(task.key), task.log], task.results)
    paths = (path for path in store.path(task.key).rglob("*") if path.name != "lock")
    return _read(paths, task.results)


def inputs_of(group: TaskGroup) -> Bundle:
    """Return the files of the store that tasks read or continue: probes, logs, runs to resume."""
    bundle: Bundle = {}
    for task in group:
        store = Store(task.results)
        bundle |= _read([store.probe_path(task.probe), task.log], task.results)
        if (store.path(task.key) / "checkpoint.pt").exists() and not task.fresh:
            bundle |= outputs_of(task)  # with the checkpoint
    return bundle


def write(bundle: Bundle, results: Path) -> None:
    """Write the files of a bundle into a folder of results; the record, which makes a run, last.

    Raises:
        StoreError: if a file cannot be written.
    """
    for name in sorted(bundle, key=lambda name: name.endswith(_RECORD)):
        with writable(results / name), atomic_write(results / name) as file:
            file.write(bundle[name])


def store_outputs(task: Task, bundle: Bundle) -> None:
    """Write the outputs of a task on another machine into its store: a whole run, or none.

    A run that another process has finished meanwhile stays as it is. Of any other, what the other
    machine did not have, or has removed, is removed here too: the run would go on from it.

    Raises:
        StoreError: if a file cannot be written; the run then has no record, so that it is made
            again.
    """
    store = Store(task.results)
    if task.action == "probe":
        write(bundle, task.results)
        return
    with store.lock(task.key):
        folder = store.path(task.key)
        if is_finished(store.load(task.key)) and not task.fresh:
            return
        (folder / _RECORD).unlink(missing_ok=True)
        with writable(folder):
            _remove_others(folder, {task.results / name for name in bundle})
        write(bundle, task.results)
        if is_finished(store.load(task.key)):
            tidy(folder)


def _remove_others(folder: Path, files: Collection[Path]) -> None:
    """Remove what is in a run's folder beside ``files``; first its checkpoint, as in `resume`."""
    for path in sorted(folder.rglob("*"), key=lambda path: path.name != "checkpoint.pt"):
        if path.is_file() and path.name not in _STAY and path not in files:
            path.unlink()


def _read(paths: Iterable[Path], results: Path) -> Bundle:
    return {
        path.relative_to(results).as_posix(): path.read_bytes() for path in paths if path.is_file()
    }
