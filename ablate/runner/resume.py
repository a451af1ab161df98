"""Resuming a run: with which fallbacks its checkpoint was made.

A run that is repeated with another engine or in smaller micro-batches begins anew: it must not mix
random draws of both kinds. If it is stopped, it resumes with the same fallbacks.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from ablate.errors import DamagedFileWarning
from ablate.runner.task import Task
from ablate.store import write_whole
from ablate.writing import remove_tree

_PERMANENT = ("lock", "log.txt")
_FILE = "changed.json"
"""Beside a checkpoint: the fallbacks that the run began with, if any."""
_FALLBACKS = TypeAdapter(dict[Literal["micro_batch_factor", "engine", "engine_note"], Any])


def resume(task: Task, folder: Path) -> Task:
    """Prepare a run's folder for a task; return the task with the fallbacks of its checkpoint.

    The record of a failure is removed. A checkpoint stays if the task can resume from it.

    Args:
        task: a run.
        folder: the run's own.
    """
    for name in ("record.json", "error.txt"):
        (folder / name).unlink(missing_ok=True)
    if task.fresh:
        _remove_all(folder)
    earlier = _read_fallbacks(folder)
    if task.fallbacks and task.fallbacks != earlier:
        _remove_all(folder)
        write_whole(folder / _FILE, json.dumps(task.fallbacks) + "\n")
    return task if task.fallbacks else replace(task.with_fallbacks(earlier), key=task.key)


def tidy(folder: Path) -> None:
    """Remove files that only an unfinished run needs, and incomplete ones that a kill has left."""
    for name in ("checkpoint.pt", _FILE):
        (folder / name).unlink(missing_ok=True)
    remove_tree(folder / "snapshots", ignore_errors=True)
    for path in (*folder.glob(".*"), *folder.glob("*.new")):
        if path.is_file():
            path.unlink(missing_ok=True)


def _read_fallbacks(folder: Path) -> dict[str, Any]:
    """Return the fallbacks that a checkpoint was made with; none if there is no checkpoint.

    If the file is damaged, they are unknown, and the run begins anew.
    """
    file = folder / _FILE
    if not file.exists() or not (folder / "checkpoint.pt").exists():
        file.unlink(missing_ok=True)
        return {}
    try:
        return {str(k): v for k, v in _FALLBACKS.validate_json(file.read_bytes()).items()}
    except ValidationError:
        text = f"{file}: is damaged; the run begins anew"
        warnings.warn(text, DamagedFileWarning, stacklevel=2)
        _remove_all(folder)
        return {}


def _remove_all(folder: Path) -> None:
    """Remove an attempt; first its checkpoint, which must not outlast what it was made with."""
    for path in sorted(folder.iterdir(), key=lambda path: path.name != "checkpoint.pt"):
        if path.is_dir():
            remove_tree(path)
        elif path.name not in _PERMANENT:
            path.unlink()
