"""The files in a run's folder: what a run resumes from, what is removed, copies between machines.

A run that is repeated with another engine or in smaller micro-batches begins anew: it must not mix
random draws of both kinds. If it is stopped, it resumes with the same fallbacks.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate.errors import StoreError
from ablate.runner.task import Task, TaskGroup
from ablate.store import Store, is_finished, verify, writable, write_whole
from ablate.writing import atomic_write, remove_tree

Bundle = dict[str, bytes]
"""The contents of files, by their paths relative to the folder of results."""

WEIGHTS = "model.safetensors"
CURVES = ("curve.csv", "layers.csv")
_PERMANENT = ("lock", "log.txt")
_CHECKPOINT = "checkpoint.pt"
_CHANGED = "changed.json"
"""Beside a checkpoint: the fallbacks that the run began with, if any."""


def resume(task: Task, folder: Path) -> Task:
    """Prepare a run's folder for a task; return the task with the fallbacks of its checkpoint."""
    for name in ("record.json", "error.txt"):
        (folder / name).unlink(missing_ok=True)
    if task.fresh:
        _remove_all(folder)
    earlier = _read_fallbacks(folder)
    # Neither another reason for its engine nor smaller micro-batches than its probe's matter
    same = replace(
        task,
        engine_note=task.engine_note and earlier.get("engine_note", task.engine_note),
        micro_batch_factor=max(task.micro_batch_factor, earlier.get("micro_batch_factor", 1)),
    )
    if task.fallbacks and same.fallbacks != earlier:
        _remove_all(folder)
        write_whole(folder / _CHANGED, json.dumps(task.fallbacks) + "\n")
        return task
    return replace(task.with_fallbacks(earlier), key=task.key)


def tidy(folder: Path) -> None:
    """Remove files that only an unfinished run needs, and incomplete ones that a kill has left."""
    for name in (_CHECKPOINT, _CHANGED):
        (folder / name).unlink(missing_ok=True)
    remove_tree(folder / "snapshots", ignore_errors=True)
    for path in (*folder.glob(".*"), *folder.glob("*.new")):
        if path.is_file():
            path.unlink(missing_ok=True)


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
        if (store.path(task.key) / _CHECKPOINT).exists() and not task.fresh:
            bundle |= outputs_of(task)  # with the checkpoint
        if trained := trained_alike(task):
            folder = store.path(trained["hash"])
            names = ("record.json", WEIGHTS, *CURVES)
            bundle |= _read([folder / name for name in names], task.results)
    return bundle


def trained_alike(task: Task) -> dict[str, Any] | None:
    """Return the record of the first run whose weights a task can take; None if there is none."""
    store = Store(task.results)
    for key in task.trained_alike:
        record = store.load(key)
        if record is None or record["status"] != "done" or "replaced_by" in record:
            continue
        file = store.path(key) / WEIGHTS
        with suppress(StoreError):
            verify(file, record)
            if file.is_file():
                return record
    return None


def write(bundle: Bundle, results: Path) -> None:
    """Write the files of a bundle into a folder of results; the record, which makes a run, last."""
    for name in sorted(bundle, key=lambda name: name.endswith("record.json")):
        with writable(results / name), atomic_write(results / name) as file:
            file.write(bundle[name])


def store_outputs(task: Task, bundle: Bundle) -> None:
    """Write the outputs of a task on another machine into its store: a whole run, or none.

    A run that another process has finished meanwhile stays. Of any other, what the other machine
    did not have, or has removed, is removed here too: the run would go on from it.
    """
    store = Store(task.results)
    if task.action == "probe":
        write(bundle, task.results)
        return
    with store.lock(task.key):
        folder = store.path(task.key)
        if is_finished(store.load(task.key)) and not task.fresh:
            return
        (folder / "record.json").unlink(missing_ok=True)
        stay = (*_PERMANENT, "record.damaged.json")
        with writable(folder):
            for path in _checkpoint_first(folder.rglob("*")):
                is_sent = path.relative_to(task.results).as_posix() in bundle
                if path.is_file() and path.name not in stay and not is_sent:
                    path.unlink()
        write(bundle, task.results)
        if is_finished(store.load(task.key)):
            tidy(folder)


def _read_fallbacks(folder: Path) -> dict[str, Any]:
    """Return the fallbacks that a checkpoint was made with; without a checkpoint, forget them."""
    file = folder / _CHANGED
    if not file.exists() or not (folder / _CHECKPOINT).exists():
        file.unlink(missing_ok=True)
        return {}
    return json.loads(file.read_bytes())


def _remove_all(folder: Path) -> None:
    for path in _checkpoint_first(folder.iterdir()):
        if path.is_dir():
            remove_tree(path)
        elif path.name not in _PERMANENT:
            path.unlink()


def _checkpoint_first(paths: Iterable[Path]) -> list[Path]:
    """Return files in the order of their removal: no checkpoint outlasts what it was made with."""
    return sorted(paths, key=lambda path: path.name != _CHECKPOINT)


def _read(paths: Iterable[Path], results: Path) -> Bundle:
    return {
        path.relative_to(results).as_posix(): path.read_bytes() for path in paths if path.is_file()
    }
