"""What a run's checkpoint was begun with, where that is not what was asked for.

A run that is repeated with another engine or in smaller micro-batches begins anew: it must not mix
random draws of both kinds. If it is stopped, it goes on as it was begun.
"""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from ablate.errors import DamagedFileWarning
from ablate.runner.task import Task
from ablate.store import write_whole

_KEPT = ("lock", "log.txt")
_FILE = "changed.json"
"""Beside a checkpoint: what the run was begun with, if that was changed after a failure."""
_BEGUN = TypeAdapter(dict[Literal["micro_batch_factor", "engine", "engine_note"], Any])


def resume(task: Task, folder: Path) -> Task:
    """Make a run's folder ready for a task, and return the task as it is to be executed.

    The record of a failure is removed. A checkpoint stays if the task can go on from it.

    Args:
        task: a run.
        folder: the run's own.
    """
    for name in ("record.json", "error.txt"):
        (folder / name).unlink(missing_ok=True)
    if task.fresh:
        _remove_all(folder)
    begun = _read(folder)
    if task.fallbacks and task.fallbacks != begun:
        _remove_all(folder)
        write_whole(folder / _FILE, json.dumps(task.fallbacks) + "\n")
    return task if task.fallbacks else replace(task.with_fallbacks(begun), key=task.key)


def tidy(folder: Path) -> None:
    """Remove what only an unfinished run needs, and what a kill has left half written."""
    for name in ("checkpoint.pt", _FILE):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "snapshots", ignore_errors=True)
    for path in (*folder.glob(".*"), *folder.glob("*.new")):
        path.unlink()


def _read(folder: Path) -> dict[str, Any]:
    """Return with what changes a checkpoint was begun; nothing if there is none.

    If that is damaged, how the run was begun is unknown, and it begins anew.
    """
    file = folder / _FILE
    if not file.exists() or not (folder / "checkpoint.pt").exists():
        file.unlink(missing_ok=True)
        return {}
    try:
        begun = _BEGUN.validate_json(file.read_bytes())
        return {str(key): value for key, value in begun.items()}
    except ValidationError:
        text = f"{file}: is damaged; the run begins anew"
        warnings.warn(text, DamagedFileWarning, stacklevel=2)
        _remove_all(folder)
        return {}


def _remove_all(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in _KEPT:
            path.unlink()
