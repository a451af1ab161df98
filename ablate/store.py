"""The folder of results: one record for every run, written atomically.

<results>/runs/<hash>/record.json    written when the run has ended
<results>/runs/<hash>/...            its model, curve, translations and log
<results>/runs/index.json            what lists show of all records: see `ablate.index`
<results>/probes/<key>.json          speed and memory of one row on one kind of machine
<results>/matches/<key>.json         the value by which one row takes as long as its baseline

Each file holds a digest of its content. One that cannot be read, or whose content is no longer what
was written, counts as not there: a warning names it, and what it held is made again.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, TypeGuard, TypeVar

from filelock import FileLock, Timeout

from ablate import writing
from ablate.errors import DamagedFileWarning, StoreError
from ablate.hashing import sha256, sha256_of_file, sha256_of_text
from ablate.index import Heading, headings
from ablate.printable import CONTROL, printable, printable_content
from ablate.processes import is_true_within
from ablate.record import FileContent, read_match, read_probe, read_record
from ablate.wording import counted, suggest

FINISHED = ("done", "diverged")
"""The statuses that the same run would end with again: it is not repeated."""

Check = Callable[[object], dict[str, Any]]
"""Returns the content of a file; raises ValueError if it is no record, probe or match."""
_R = TypeVar("_R", bound=Mapping[str, Any])

_POLL_S = 0.1  # from one try to lock to the next
_LARGE_BYTES = 2**20
_DIGEST = "digest"
"""The key of a file's digest; callers get and give content without it."""


class Store:
    """Records and probes under one folder of results, which is made when something is written.

    Its methods raise a `StoreError` where the system does not let them read or write; the
    constructor, if no record or table could name the folder.
    """

    def __init__(self, results: Path) -> None:
        path = str(results.absolute())  # as workers get it
        if CONTROL.search(path):
            raise StoreError(
                f"{printable(path)}: cannot be a folder of results: its name contains a "
                "control character, or bytes that are not UTF-8; name another with --results"
            )
        self.results = results
        self._runs = results / "runs"

    def path(self, run: str) -> Path:
        return self._runs / run

    def probe_path(self, key: str) -> Path:
        return self.results / "probes" / f"{key}.json"

    def match_path(self, key: str) -> Path:
        return self.results / "matches" / f"{key}.json"

    def load(self, run: str) -> dict[str, Any] | None:
        """Return the record of the run with this hash; None if it has not ended.

        A damaged file counts as none, with a `DamagedFileWarning`, here and for probes and matches.
        """
        effect = "the run counts as not done, and `ablate run` makes it again"
        return _read_unless_damaged(self.path(run) / "record.json", read_record, effect)

    def read(self, run: str) -> dict[str, Any] | None:
        """Return the record of a run; None if it has not ended. Damage is a `StoreError`."""
        return _read_record(self.path(run) / "record.json")

    def headings(self) -> dict[str, Heading]:
        """Return what lists show of every record that can be read, by hash and in its order."""

        def read(run: str) -> Heading | None:
            try:
                return self.heading(run)
            except StoreError:
                return None

        return headings(self._runs, read)

    def heading(self, run: str) -> Heading | None:
        """Return what lists show of the record of a run; None if it has not ended."""
        record = self.read(run)
        if record is None:
            return None
        scores = [scores.get("bleu") for scores in record.get("test", {}).values()]
        return Heading(
            status=str(record["status"]),
            experiment=record.get("experiment"),
            row=record.get("variant"),
            seed=record.get("seed"),
            bleu=scores[0] if scores else None,
            finished=record.get("finished"),
            is_replaced="replaced_by" in record,
        )

    def set_aside(self, run: str) -> None:
        """Rename the damaged record of a run that is to be made again, if there is one."""
        file = self.path(run) / "record.json"
        with writable(file), suppress(FileNotFoundError):
            file.replace(file.with_name("record.damaged.json"))

    def load_outcome(self, run: str) -> dict[str, Any] | None:
        """Return the record of a run, or of the run that replaced it; None if that has not ended.

        A replacement is returned with the ``engine_note`` of the run that it replaced.
        """
        return _outcome(run, self.load)

    def save(self, record: Mapping[str, Any]) -> None:
        write_whole(self.path(record["hash"]) / "record.json", _dump(record))

    def damaged_files(self, record: Mapping[str, Any]) -> list[Path]:
        """Return the files of a run that are no longer what it left; they may be missing.

        Of large files, such as the model, only the size is compared: see `verify`.
        """
        folder = self.path(record["hash"])
        return [
            folder / name
            for name, content in record.get("files", {}).items()
            if not _is_whole(folder / name, content, max_hashed=_LARGE_BYTES)
        ]

    def translations(self, record: Mapping[str, Any], test_set: str) -> list[str] | None:
        """Return a run's translations of a test set, one for each sentence; None without a file."""
        return read_translations(self.path(record["hash"]) / translations_file(test_set), record)

    def load_probe(self, key: str) -> dict[str, Any] | None:
        effect = "the speed of its row counts as not measured, and `ablate run` measures it again"
        return _read_unless_damaged(self.probe_path(key), read_probe, effect)

    def save_probe(self, key: str, probe: dict[str, Any]) -> None:
        write_whole(self.probe_path(key), _dump(probe))

    def load_match(self, key: str) -> dict[str, Any] | None:
        effect = "it counts as not measured, and `ablate run` measures it again"
        return _read_unless_damaged(self.match_path(key), read_match, effect)

    def save_match(self, key: str, match: dict[str, Any]) -> None:
        write_whole(self.match_path(key), _dump(match))

    def refuse_links(self, run: str) -> None:
        """Raise a `StoreError` if a run would be made in a link, or find one in its folder."""
        folder = self.path(run)
        for path in (folder, *folder.glob("*")):
            _refuse_link(path)

    @contextmanager
    def lock(self, run: str, should_stop: Callable[[], bool] = lambda: False) -> Iterator[bool]:
        """Lock a run against every other process; yield whether the lock is held.

        Waits while another process has the lock, which ends with that process. It is not held after
        ``should_stop``, which is called very often while waiting. A folder that cannot be written
        to, is a link, or whose file system has no locks is a `StoreError`.
        """
        folder = self.path(run)
        _refuse_link(folder)
        with _locked(folder / "lock", should_stop) as is_held:
            yield is_held

    def lock_probe(self, key: str, wait: Callable[[], None]) -> AbstractContextManager[None]:
        """Lock the probe of a baseline, beside which one call at a time measures its rows.

        ``wait`` is called if another call has the lock, before this one waits for it.
        """
        return _one_at_a_time(self.probe_path(key).with_suffix(".lock"), wait)

    def lock_matches(self, wait: Callable[[], None]) -> AbstractContextManager[None]:
        """Lock all matches, as `lock_probe` locks a probe."""
        return _one_at_a_time(self.results / "matches" / "lock", wait)

    def find(self, run: str) -> dict[str, Any]:
        """Return the record of a run, or of the run that replaced it.

        It is named by its folder, the first characters of its hash, or ``experiment:row:seed``,
        with the names that it was first trained under; the folder of the experiment may be left
        out. None, or more than one, is a `StoreError`.
        """
        if (Path(run) / "record.json").is_file():
            record = _read_record(Path(run) / "record.json") or {}
            if "replaced_by" not in record:
                return record
            return Store(Path(run).resolve().parents[1])._read_outcome(record["hash"])
        hashes = sorted(path.parent.name for path in self._runs.glob("*/record.json"))
        matches = [name for name in hashes if run and name.startswith(run)]
        hint = ""
        if ":" in run:
            headings = self.headings()
            for name in set(hashes) - headings.keys():
                self.load(name)  # warns of its damage
            labels = {name: h.label for name, h in headings.items() if not h.is_replaced}
            matches = [name for name, label in labels.items() if label == run]
            matches = matches or [n for n, label in labels.items() if label.endswith(f"/{run}")]
            hint = suggest(run, labels.values())
        if len(matches) == 1:
            return self._read_outcome(matches[0])
        if matches:
            raise StoreError(f"{run!r} fits several runs: {', '.join(matches)}; give one of these")
        raise StoreError(
            f"there is no run {run!r} in {self._runs} ({counted(len(hashes), 'run')} there);{hint} "
            "give experiment:row:seed, as in pe:none:1, the first characters of a run's hash, or "
            "its folder; `ablate plan SPEC --json` has the hashes"
        )

    def _read_outcome(self, run: str) -> dict[str, Any]:
        record = _outcome(run, self.read)
        if record is None:
            raise StoreError(
                f"the run {run} was given up for one with the eager engine, which has not ended; "
                "`ablate run` makes it"
            )
        return record


def is_finished(record: _R | None) -> TypeGuard[_R]:
    """Return whether a run has ended in a way that a repetition would not change."""
    return record is not None and record["status"] in FINISHED


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically."""
    with writable(path):
        writing.write_whole(path, text)


# older versions lack the option: there a lock may fall back to the mere existence of its file
_KNOWS_FALLBACK = "fallback_to_soft" in signature(FileLock.__init__).parameters
_NO_FALLBACK: Mapping[str, Any] = {"fallback_to_soft": False} if _KNOWS_FALLBACK else {}


def process_lock(file: Path) -> FileLock:
    """Return a lock that ends with its process; `OSError` if the file system has no such locks."""
    return FileLock(file, poll_interval=0.0, thread_local=False, **_NO_FALLBACK)


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise StoreError(
            f"{path}: is a link, and nothing is written or removed outside of the results; "
            "remove the link, or make the whole folder of results a link"
        )


@contextmanager
def _locked(file: Path, should_stop: Callable[[], bool] = lambda: False) -> Iterator[bool]:
    """Lock a file; yield whether the lock is held, as it is not after ``should_stop``."""
    lock = process_lock(file)
    with writable(file.parent):
        file.parent.mkdir(parents=True, exist_ok=True)
    with writable(file, "locked"), suppress(Timeout):
        lock.acquire(cancel_check=lambda: is_true_within(_POLL_S, should_stop))
    try:
        yield lock.is_locked
    finally:
        lock.release()


@contextmanager
def _one_at_a_time(file: Path, wait: Callable[[], None]) -> Iterator[None]:
    with ExitStack() as stack:
        if not stack.enter_context(_locked(file, lambda: True)):
            wait()
            stack.enter_context(_locked(file))
        yield


@contextmanager
def writable(file: Path, done: str = "written") -> Iterator[None]:
    """Raise a `StoreError` for the system's error in a block that writes or locks a file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"{file}: cannot be {done}: {error.strerror or error}") from error


readable = partial(writable, done="read")


def translations_file(test_set: str) -> str:
    """Return the name of the file in which a run keeps its translations of a test set."""
    return f"hypotheses.{test_set}.txt"


def read_translations(file: Path, record: Mapping[str, Any]) -> list[str] | None:
    """Return the translations in a file of a run, one for each line; None if there is no file.

    A file that is not what the record says is a `StoreError`.
    """
    verify(file, record)
    with readable(file), suppress(FileNotFoundError):
        return file.read_bytes().decode("utf-8").split("\n")[:-1]
    return None


def describe(content: bytes) -> FileContent:
    """Return what a record holds of a file, with which `verify` compares the file later."""
    return {"bytes": len(content), "sha256": sha256([content])}


def verify(file: Path, record: Mapping[str, Any]) -> None:
    """Compare a file of a run with what its record says, if anything; damage is a `StoreError`."""
    content = record.get("files", {}).get(file.name)
    if content is not None and not _is_whole(file, content):
        raise StoreError(f"{file}: is damaged; `ablate run --fresh` makes it anew")


def _is_whole(file: Path, content: FileContent, max_hashed: float = math.inf) -> bool:
    """Return whether a file has this content or is missing; above ``max_hashed`` bytes, by size."""
    try:
        n_bytes = file.stat().st_size
        if n_bytes != content["bytes"]:
            return False
        return n_bytes > max_hashed or sha256_of_file(file) == content["sha256"]
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _outcome(run: str, read: Callable[[str], dict[str, Any] | None]) -> dict[str, Any] | None:
    """Return the record of a run, or of the run that replaced it."""
    record = read(run)
    if record is None or "replaced_by" not in record:
        return record
    replacement = read(record["replaced_by"])
    note = {"engine_note": record["engine_note"], "is_fallback": True}
    return replacement and {**replacement, **note}


def _dump(content: Mapping[str, Any]) -> str:
    plain = {key: value for key, value in content.items() if key != _DIGEST}
    sealed = {**plain, _DIGEST: _digest(plain)}
    return json.dumps(sealed, indent=1, ensure_ascii=False) + "\n"


def _digest(content: Mapping[str, Any]) -> str:
    return sha256_of_text(json.dumps(content, sort_keys=True))


def _read_record(path: Path) -> dict[str, Any] | None:
    try:
        return _read(path, read_record)
    except ValueError as error:
        raise StoreError(
            f"{path}: {error}; `ablate run` makes the run again, if an experiment needs it"
        ) from error


def _read_unless_damaged(path: Path, check: Check, effect: str) -> dict[str, Any] | None:
    """Return the content of a file; None if there is none or, with a warning, it is damaged."""
    try:
        return _read(path, check)
    except ValueError as error:
        warnings.warn(f"{path}: {error}; {effect}", DamagedFileWarning, stacklevel=3)
        return None


def _read(path: Path, check: Check) -> dict[str, Any] | None:
    with readable(path), suppress(FileNotFoundError):
        return parse(path.read_bytes(), check)
    return None


def parse(text: bytes, check: Check) -> dict[str, Any]:
    """Return the content of a file, which may be another's: its texts are made printable.

    A `ValueError` says how it is damaged.
    """
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"cannot be read: {error}") from error
    if isinstance(content, dict) and _DIGEST in content:
        digest = content.pop(_DIGEST)
        if digest != _digest(content):
            raise ValueError(
                f"is not what was written: it is damaged, or edited (without its key "
                f"'{_DIGEST}' it is read as it is)"
            )
    content, written = check(content), text.decode(errors="replace")
    is_printable = "\\" not in written and not CONTROL.search(written)  # no escape, so no need to
    return content if is_printable else printable_content(content)  # visit each of its texts
