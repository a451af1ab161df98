"""The folder of results: one record for every run, written atomically.

<results>/runs/<hash>/record.json    written when the run has ended
<results>/runs/<hash>/...            its model, curve, translations and log
<results>/probes/<key>.json          speed and memory of one row on one kind of machine
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ablate import writing
from ablate.errors import StoreError
from ablate.record import read_record
from ablate.wording import counted, suggest

FINISHED = ("done", "diverged")
"""The statuses that the same run would end with again: it is not repeated."""

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
        """Return the record of the run with this hash; None if it has not ended.

        Raises:
            StoreError: if the record cannot be read.
        """
        return _read_record(self.path(run) / "record.json")

    def load_outcome(self, run: str) -> dict[str, Any] | None:
        """Return the record of a run, or of the one that was made in its place; None if neither is.

        The latter says why, if it was made for another reason too.

        Raises:
            StoreError: if a record cannot be read.
        """
        record = self.load(run)
        if record is None or "replaced_by" not in record:
            return record
        other = self.load(record["replaced_by"])
        return other and {**other, "engine_note": record["engine_note"], "is_fallback": True}

    def save(self, record: Mapping[str, Any]) -> None:
        """Write a record atomically.

        Raises:
            StoreError: if the folder cannot be written to.
        """
        write_whole(self.path(record["hash"]) / "record.json", _dump(record))

    def load_probe(self, key: str) -> dict[str, Any] | None:
        """Return the measurements of the probe with this key; None if it has not run.

        Raises:
            StoreError: if the file cannot be read.
        """
        return _read(self._probe(key))

    def save_probe(self, key: str, probe: dict[str, Any]) -> None:
        """Write the measurements of a probe."""
        write_whole(self._probe(key), _dump(probe))

    def load_match(self, key: str) -> dict[str, Any] | None:
        """Return what was measured to make a row as slow as its baseline; None if nothing was.

        Raises:
            StoreError: if the file cannot be read.
        """
        return _read(self._match(key))

    def save_match(self, key: str, match: dict[str, Any]) -> None:
        """Write what was measured to make a row as slow as its baseline."""
        write_whole(self._match(key), _dump(match))

    @contextmanager
    def lock(self, run: str, should_stop: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Lock the run with this hash against every other process.

        Waits while another process has the lock, which ends with that process, however it ends.

        Args:
            run: the hash.
            should_stop: called while waiting; True ends it.

        Yields:
            Whether the lock is held; False only after ``should_stop``.

        Raises:
            StoreError: if the folder cannot be written to.
        """
        folder = self.path(run)
        lock = FileLock(folder / "lock", poll_interval=_POLL_S, thread_local=False)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with suppress(Timeout):
                lock.acquire(cancel_check=should_stop)
        except OSError as error:
            raise _unwritable(folder, error) from error
        try:
            yield lock.is_locked
        finally:
            lock.release()

    def find(self, run: str) -> dict[str, Any]:
        """Return the record of a run.

        Args:
            run: its folder, the first characters of its hash, or ``experiment:row:seed``, with
                the names that it was first trained under.

        Raises:
            StoreError: if there is no such run, or more than one.
        """
        if (Path(run) / "record.json").is_file():
            return _read_record(Path(run) / "record.json") or {}
        runs = self.results / "runs"
        hashes = sorted(path.parent.name for path in runs.glob("*/record.json"))
        matches = [name for name in hashes if run and name.startswith(run)]
        hint = ""
        if ":" in run:
            records = {name: self.load(name) or {} for name in hashes}
            labels = {n: _label(r) for n, r in records.items() if "replaced_by" not in r}
            matches = [name for name, label in labels.items() if label == run]
            hint = suggest(run, labels.values())
        if len(matches) == 1:
            return self.load_outcome(matches[0]) or {}
        if matches:
            raise StoreError(f"{run!r} fits several runs: {', '.join(matches)}; give one of these")
        raise StoreError(
            f"there is no run {run!r} in {runs} ({counted(len(hashes), 'run')} there);{hint} give "
            "experiment:row:seed, as in pe:none:1, the first characters of a run's hash, or its "
            "folder; `ablate plan SPEC --json` has the hashes"
        )

    def _probe(self, key: str) -> Path:
        return self.results / "probes" / f"{key}.json"

    def _match(self, key: str) -> Path:
        return self.results / "matches" / f"{key}.json"


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically.

    Raises:
        StoreError: if that fails.
    """
    try:
        writing.write_whole(path, text)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> StoreError:
    return StoreError(f"{path}: cannot be written: {error.strerror or error}")


def _label(record: dict[str, Any]) -> str:
    return ":".join(str(record.get(key)) for key in ("experiment", "variant", "seed"))


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
