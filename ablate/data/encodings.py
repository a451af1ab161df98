"""Encoded corpora in the user's cache: text is tokenized once, not in every run.

An entry is a folder: ``text.json`` holds everything but ids, ``<split>.<side>.ids`` the ids of a
split end to end, and ``<split>.<side>.lengths`` the lengths of its sentences, both as raw arrays.
Ids are mapped into memory, which the runs on one machine share.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from filelock import FileLock

from ablate.data.batches import Encoded
from ablate.data.cache import cache_folder, sealed, unsealed
from ablate.data.corpus import Bitext, CorpusText, Report
from ablate.data.sentences import Ragged
from ablate.data.tokenizer import TokenizerPair
from ablate.errors import DataError
from ablate.hashing import sha256_of_file
from ablate.writing import remove_tree

NO_TEXT = Bitext((), ())
"""Replaces the training text, which is not needed once it is encoded."""

_TEXT = "text.json"
_POLL_S = 1.0  # from one try to lock to the next
_IDS, _LENGTHS = np.dtype("<i4"), np.dtype("<i8")

CachedCorpus = tuple[CorpusText, TokenizerPair, dict[str, Encoded]]
"""The corpus without its training text, its tokenizers, and the ids of all splits."""


class CacheWriter:
    """Writes an entry; a context manager, which removes the files of an unfinished one.

    Without ``entry`` it is in a temporary folder, deleted once it has been opened. An OSError means
    that the folder is not writable.
    """

    def __init__(self, entry: Path | None) -> None:
        self._entry = entry
        if entry is None:
            self._folder = Path(tempfile.mkdtemp(prefix="ablate."))
        else:
            self._folder = entry.with_name(f".{entry.name}.{uuid4().hex}")
            self._folder.mkdir(parents=True)  # readable for those whom the umask lets read it
        self._splits: list[str] = []

    def __enter__(self) -> CacheWriter:
        return self

    def __exit__(self, *_: object) -> None:
        remove_tree(self._folder, ignore_errors=True)

    def write(self, split: str, parts: Iterable[Encoded]) -> int:
        """Write the ids of a split, block after block; return the number of pairs."""
        n_pairs = 0
        with ExitStack() as stack:
            src, tgt = (
                [stack.enter_context(file.open("wb")) for file in _files(self._folder, split, side)]
                for side in ("src", "tgt")
            )
            for part in parts:
                for (ids, lengths), ragged in ((src, part.src), (tgt, part.tgt)):
                    ids.write(ragged.flat.astype(_IDS, copy=False).tobytes())
                    lengths.write(ragged.lengths.astype(_LENGTHS, copy=False).tobytes())
                n_pairs += len(part)
        self._splits.append(split)
        return n_pairs

    def finish(self, text: CorpusText, tokenizers: TokenizerPair) -> CachedCorpus:
        """Complete the entry and return it as `read_cache` would, without the training text."""
        contents = {
            "text": asdict(replace(text, train=NO_TEXT)),
            "codec": tokenizers.to_json(),
            "splits": self._splits,
            "sha256": {file.name: sha256_of_file(file) for file in sorted(self._folder.iterdir())},
        }
        sealed_text = sealed(json.dumps(contents, ensure_ascii=False))
        (self._folder / _TEXT).write_text(sealed_text, encoding="utf-8")
        opened = _open(self._folder, contents)
        if self._entry is not None:
            remove_tree(self._entry, ignore_errors=True)
            with suppress(OSError):  # another process was faster
                self._folder.replace(self._entry)
        return opened


@contextmanager
def entry_lock(entry: Path, report: Report) -> Iterator[None]:
    """Wait until no other process prepares an entry, and keep others from it.

    A wait is reported every second. Drafts of processes that were killed are removed. A cache that
    cannot be written to has no locks, and every process prepares for itself.
    """

    def is_cancelled() -> bool:
        report("waiting for another process to encode the corpus")
        return False

    with ExitStack() as stack:
        with suppress(OSError):
            lock = _lock_of(entry.name)
            stack.enter_context(lock.acquire(poll_interval=_POLL_S, cancel_check=is_cancelled))
            for draft in entry.parent.glob(".*.*"):
                name = draft.name.split(".")[1]
                with suppress(OSError):  # Timeout is one: another process writes it
                    if name == entry.name:
                        remove_tree(draft)
                    else:
                        with _lock_of(name, timeout=0):
                            remove_tree(draft)
        yield


def _lock_of(name: str, timeout: float = -1) -> FileLock:
    folder = cache_folder("locks")
    folder.mkdir(parents=True, exist_ok=True)
    return FileLock(folder / f"{name}.lock", timeout=timeout)


def is_written(entry: Path) -> bool:
    """Return whether there is an entry, which may be damaged."""
    return (entry / _TEXT).exists()


def read_tokenizers(entry: Path) -> TokenizerPair | None:
    """Return the tokenizers of an entry, whose ids are not read; None as with `read_cache`."""
    try:
        contents = json.loads(unsealed((entry / _TEXT).read_text(encoding="utf-8")))
        return TokenizerPair.from_json(contents["codec"])
    except (OSError, ValueError, DataError):
        return None


def read_cache(entry: Path | None) -> CachedCorpus | None:
    """Return an entry, without training text; None if there is none or it is damaged."""
    if entry is None:
        return None
    try:
        contents = json.loads(unsealed((entry / _TEXT).read_text(encoding="utf-8")))
        for name, sha256 in contents["sha256"].items():
            if sha256_of_file(entry / name) != sha256:
                return None
        return _open(entry, contents)
    except (OSError, ValueError, DataError):
        return None


def _open(entry: Path, contents: dict[str, Any]) -> CachedCorpus:
    splits = {
        split: Encoded(_side(entry, split, "src"), _side(entry, split, "tgt"))
        for split in contents["splits"]
    }
    text = {
        **contents["text"],
        "train": NO_TEXT,
        "dev": _bitext(contents["text"]["dev"]),
        "tests": {name: _bitext(test) for name, test in contents["text"]["tests"].items()},
        "notes": tuple(contents["text"]["notes"]),
    }
    return CorpusText(**text), TokenizerPair.from_json(contents["codec"]), splits


def _bitext(sides: dict[str, Any]) -> Bitext:
    return Bitext(tuple(sides["src"]), tuple(sides["tgt"]), tuple(map(tuple, sides["more"])))


def _files(entry: Path, split: str, side: str) -> tuple[Path, Path]:
    return entry / f"{split}.{side}.ids", entry / f"{split}.{side}.lengths"


def _side(entry: Path, split: str, side: str) -> Ragged:
    ids, lengths = _files(entry, split, side)
    is_empty = not ids.stat().st_size  # which cannot be mapped
    flat = np.empty(0, _IDS) if is_empty else np.memmap(ids, _IDS, mode="c")
    return Ragged(flat, np.fromfile(lengths, _LENGTHS))
