"""Encoded corpora in the user's cache: text is read and split into tokens once, not in every run.

An entry is a folder: ``text.json`` holds what is not ids, ``<split>.<side>.npy`` the ids of a
split, end to end, and ``<split>.<side>.lengths.npy`` their lengths. Ids are mapped into memory, so
that several runs on one machine share them, and only the pages that are read take any.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablate.data.batches import Encoded, Ragged
from ablate.data.cache import sealed, unsealed
from ablate.data.corpus import Bitext, CorpusText
from ablate.data.tokenizer import TokenizerPair
from ablate.errors import DataError

NOT_KEPT = Bitext((), ())
"""In place of the training text, which nobody reads once it is encoded."""

_TEXT = "text.json"
_READ_AT_ONCE = 2**24

CachedCorpus = tuple[CorpusText, TokenizerPair, dict[str, Encoded]]
"""The corpus without its training text, what it was encoded with, and the ids of all splits."""


class CacheWriter:
    """An entry in the making; used with ``with``, which takes what is unfinished away.

    Args:
        entry: the folder that it becomes; None for one that is forgotten once it is read.

    Raises:
        OSError: if nothing can be written there; so do its methods.
    """

    def __init__(self, entry: Path | None) -> None:
        self._entry = entry
        if entry is None:
            self._folder = Path(tempfile.mkdtemp(prefix="ablate."))
        else:
            entry.parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
        self._splits: list[str] = []

    def __enter__(self) -> CacheWriter:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def write(self, split: str, parts: Iterable[Encoded]) -> int:
        """Write the ids of a split, taken one part at a time; return the number of pairs.

        Args:
            split: a name that can stand in a file name.
            parts: of it.
        """
        n_pairs = 0
        with ExitStack() as stack:
            src, tgt = (
                [stack.enter_context(_Growing(self._folder / x, dtype)) for x, dtype in side]
                for side in (_files(split, "src"), _files(split, "tgt"))
            )
            for part in parts:
                for (flat, lengths), ragged in ((src, part.src), (tgt, part.tgt)):
                    flat.extend(ragged.flat)
                    lengths.extend(ragged.lengths)
                n_pairs += len(part)
        self._splits.append(split)
        return n_pairs

    def finished(self, text: CorpusText, tokenizers: TokenizerPair) -> CachedCorpus:
        """Return the whole entry as `read_cache` would.

        Args:
            text: the corpus; its training text is not kept.
            tokenizers: what it was encoded with.
        """
        known = {
            "text": asdict(replace(text, train=NOT_KEPT)),
            "codec": tokenizers.to_json(),
            "splits": self._splits,
            "sha256": {file.name: _sha256(file) for file in sorted(self._folder.iterdir())},
        }
        content = sealed(json.dumps(known, ensure_ascii=False))
        (self._folder / _TEXT).write_text(content, encoding="utf-8")
        found = _opened(self._folder, known)
        if self._entry is not None:
            shutil.rmtree(self._entry, ignore_errors=True)
            with suppress(OSError):  # somebody else was as quick
                self._folder.replace(self._entry)
        return found


def read_cache(entry: Path) -> CachedCorpus | None:
    """Return an entry, without training text; None if it is not there, or damaged."""
    try:
        known = json.loads(unsealed((entry / _TEXT).read_text(encoding="utf-8")))
        for name, sha256 in known["sha256"].items():
            if _sha256(entry / name) != sha256:
                return None
        return _opened(entry, known)
    except (OSError, ValueError, DataError):
        return None


def _opened(entry: Path, known: dict[str, Any]) -> CachedCorpus:
    splits = {
        split: Encoded(_side(entry, split, "src"), _side(entry, split, "tgt"))
        for split in known["splits"]
    }
    told = known["text"]
    text = CorpusText(
        **{
            **told,
            "train": NOT_KEPT,
            "dev": _bitext(told["dev"]),
            "tests": {name: _bitext(test) for name, test in told["tests"].items()},
            "notes": tuple(told["notes"]),
        }
    )
    return text, TokenizerPair.from_json(known["codec"]), splits


def _bitext(told: dict[str, Sequence[str]]) -> Bitext:
    return Bitext(tuple(told["src"]), tuple(told["tgt"]))


def _files(split: str, side: str) -> tuple[tuple[str, Any], ...]:
    """Return the names of the files of one side of a split, and the types of their numbers."""
    return (f"{split}.{side}.npy", np.int32), (f"{split}.{side}.lengths.npy", np.int64)


def _side(entry: Path, split: str, side: str) -> Ragged:
    (flat, _), (lengths, _) = _files(split, side)
    return Ragged(
        np.load(entry / flat, mmap_mode="c", allow_pickle=False),
        np.load(entry / lengths, allow_pickle=False),
    )


class _Growing:
    """An array in a file, as `numpy.save` writes it, that need not be in memory as a whole.

    Args:
        path: of the file.
        dtype: of the array's numbers.
    """

    def __init__(self, path: Path, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)
        self._n = 0
        self._file = path.open("wb")
        self._write_header()

    def extend(self, numbers: NDArray[Any]) -> None:
        """Add numbers at the end."""
        self._file.write(numbers.astype(self._dtype, copy=False).tobytes())
        self._n += len(numbers)

    def __enter__(self) -> _Growing:
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()

    def _write_header(self) -> None:
        """Write what comes first: numpy leaves room in it for any number of numbers."""
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self._n,)}
        np.lib.format.write_array_header_1_0(self._file, header)


def _sha256(file: Path) -> str:
    sha = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_READ_AT_ONCE):
            sha.update(piece)
    return sha.hexdigest()
