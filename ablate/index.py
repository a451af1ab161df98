"""The index of stored runs: what lists show of each, so that not every record has to be read.

An entry holds for one state of a record's file, by inode, size and times. The index may be removed,
damaged, or replaced by that of another call at any time: what it lacks is read from the records.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ablate.hashing import sha256_of_text
from ablate.writing import write_whole

VERSION = 1
"""To be raised when a heading, or which records are readable, changes."""

SETTLED_NS = 2 * 10**9
"""A file that changed so recently may change again without another time: it is not indexed."""


class Heading(NamedTuple):
    """What lists show of a record, None where it has no such key."""

    status: str
    experiment: str | None = None  # the first for which it was trained
    row: str | None = None
    seed: int | None = None
    bleu: float | None = None  # on its first test set
    finished: str | None = None
    is_replaced: bool = False  # whether another run was made instead

    @property
    def label(self) -> str:
        """The name by which commands find the run, as in ``pe:none:1``."""
        return f"{self.experiment}:{self.row}:{self.seed}"


_State = list[int]
_Entries = dict[str, tuple[_State, Heading]]


def headings(runs: Path, read: Callable[[str], Heading | None]) -> dict[str, Heading]:
    """Return the heading of every record below a folder, by hash; ``read`` returns one."""
    file, now = runs / "index.json", time.time_ns()
    known, entries, found = _load(file), _Entries(), dict[str, Heading]()
    for run, state in _states(runs):
        entry = known.get(run)
        if entry is None or entry[0] != state:
            heading = read(run)
            if heading is None:
                continue
            entry = state, heading
        found[run] = entry[1]
        if now - max(state[2:]) > SETTLED_NS:
            entries[run] = entry
    if entries != known:
        with suppress(OSError):  # a folder that cannot be written to
            text = json.dumps(entries)
            write_whole(file, f"{_digest(text)}\n{text}")
    return found


def _states(runs: Path) -> Iterator[tuple[str, _State]]:
    """Yield the hash of every run with a record, and the state of its file."""
    names: list[str] = []
    with suppress(OSError), os.scandir(runs) as folders:
        names = sorted(folder.name for folder in folders)
    for name in names:
        with suppress(OSError):
            stat = Path(f"{runs}/{name}/record.json").stat()
            yield name, [stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def _load(file: Path) -> _Entries:
    """Return the entries of an index; none if there is none, or it is not what was written."""
    with suppress(OSError, UnicodeDecodeError):
        digest, _, text = file.read_text(encoding="utf-8").partition("\n")
        if digest == _digest(text):
            entries = json.loads(text).items()
            return {run: (state, Heading(*heading)) for run, (state, heading) in entries}
    return {}


def _digest(text: str) -> str:
    return sha256_of_text(f"{VERSION} {text}")
