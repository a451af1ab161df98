"""What is kept of every run: one record, written whole or not at all.

<results>/runs/<hash>/record.json    the run is over, and this is how it went
<results>/runs/<hash>/...            what else it left
<results>/probes/<key>.json          speed and memory of one row on one kind of machine
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ablate import writing
from ablate.errors import StoreError
from ablate.record import read_record

FINISHED = ("done", "diverged")
"""The statuses that the same run would end with again, so that nobody repeats it."""

_POLL_S = 0.1


class Store:
    """Records and probes under one folder of results.

    Args:
        results: the folder; made when something is first written.
    """

    def __init__(self, results: Path) -> None:
        self.results = results

    def path(self, run: str) -> Path:
        """Return the folder of the run with this hash."""
        return self.results / "runs" / run

    def load(self, run: str) -> dict[str, Any] | None:
        """Return the record of the run with this hash; None if it has not ended yet.

        Raises:
            StoreError: if there is a record that cannot be read.
        """
        return _read_record(self.path(run) / "record.json")

    def save(self, record: Mapping[str, Any]) -> None:
        """Write a record; whoever reads meanwhile, or after a crash, sees the old one or this one.

        Raises:
            StoreError: if the folder cannot be written to.
        """
        write_whole(self.path(record["hash"]) / "record.json", _dump(record))

    def load_probe(self, key: str) -> dict[str, Any] | None:
        """Return what the probe with this key measured; None if it has not run yet.

        Raises:
            StoreError: if the file cannot be read.
        """
        return _read(self._probe(key))

    def save_probe(self, key: str, probe: dict[str, Any]) -> None:
        """Keep what a probe measured."""
        write_whole(self._probe(key), _dump(probe))

    @contextmanager
    def lock(self, run: str, should_stop: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Hold the run with this hash against every other process.

        Waits while another process holds it. The lock ends with its process, however that ends.

        Args:
            run: the hash.
            should_stop: asked while waiting.

        Yields:
            Whether the lock is held; False only when told to stop.
        """
        folder = self.path(run)
        _make(folder)
        with (folder / "lock").open("w") as file:
            yield _acquire(file.fileno(), should_stop)

    def find(self, run: str) -> dict[str, Any]:
        """Return the record of the run that a user means.

        Args:
            run: its folder, or the first characters of its hash.

        Raises:
            StoreError: if there is no such run, or more than one.
        """
        if (Path(run) / "record.json").is_file():
            return _read_record(Path(run) / "record.json") or {}
        runs = self.results / "runs"
        found = sorted(path.parent for path in runs.glob("*/record.json"))
        near = [folder.name for folder in found if run and folder.name.startswith(run)]
        if len(near) == 1:
            return self.load(near[0]) or {}
        if near:
            raise StoreError(f"{run!r} begins the names of several runs: {', '.join(near)}")
        raise StoreError(
            f"there is no run {run!r} in {runs} ({len(found)} runs there); give the first "
            "characters of a run's hash, or its folder; `ablate plan SPEC --json` has the hashes"
        )

    def _probe(self, key: str) -> Path:
        return self.results / "probes" / f"{key}.json"


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is never seen half written, not even after a power cut.

    Raises:
        StoreError: if that fails.
    """
    _make(path.parent)
    try:
        writing.write_whole(path, text)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror or error}") from error


def _acquire(handle: int, should_stop: Callable[[], bool]) -> bool:
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if should_stop():
                return False
            time.sleep(_POLL_S)
        else:
            return True


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: cannot be made: {error.strerror or error}") from error


def _dump(content: Mapping[str, Any]) -> str:
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _read_record(path: Path) -> dict[str, Any] | None:
    content = _read(path)
    try:
        return None if content is None else read_record(content)
    except ValueError as error:
        raise StoreError(f"{path}: {error}; move it away to repeat the run") from error


def _read(path: Path) -> Any:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path}: cannot be read: {error}; move it away to repeat it") from error
    if not isinstance(content, dict):
        raise StoreError(f"{path}: is not a record; move it away to repeat it")
    return content
