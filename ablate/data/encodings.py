"""Encoded corpora in the user's cache: text is tokenized once, not in every run.

An entry is a folder: ``text.json`` holds everything but ids, ``<split>.<side>.npy`` the ids of a
split, end to end, and ``<split>.<side>.lengths.npy`` the lengths of its sentences. Ids are mapped
into memory: the runs on one machine share them, and only pages that are read occupy any.
"""

from __future__ import annotations

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
from ablate.hashing import sha256_of_file

NOT_KEPT = Bitext((), ())
"""Replaces the training text, which is not needed once it is encoded."""

_TEXT = "text.json"

CachedCorpus = tuple[CorpusText, TokenizerPair, dict[str, Encoded]]
"""The corpus without its training text, its tokenizers, and the ids of all splits."""


class CacheWriter:
    """Writes an entry; a context manager, which removes the files of an unfinished one.

    Args:
        entry: the folder of the entry; None for one that is deleted once it has been opened.

    Raises:
        OSError: if the folder is not writable; so do its methods.
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
        """Write the ids of a split, part after part; return the number of pairs.

        Args:
            split: its name, part of file names.
            parts: its ids, in blocks.
        """
        n_pairs = 0
        with ExitStack() as stack:
            src, tgt = (
                [stack.enter_context(_ArrayWriter(self._folder / x, dtype)) for x, dtype in side]
                for side in (_files(split, "src"), _files(split, "tgt"))
            )
            for part in parts:
                for (flat, lengths), ragged in ((src, part.src), (tgt, part.tgt)):
                    flat.extend(ragged.flat)
                    lengths.extend(ragged.lengths)
                n_pairs += len(part)
        self._splits.append(split)
        return n_pairs

    def finish(self, text: CorpusText, tokenizers: TokenizerPair) -> CachedCorpus:
        """Complete the entry and return it as `read_cache` would.

        Args:
            text: the corpus; its training text is not kept.
            tokenizers: those that encoded it.
        """
        contents = {
            "text": asdict(replace(text, train=NOT_KEPT)),
            "codec": tokenizers.to_json(),
            "splits": self._splits,
            "sha256": {file.name: sha256_of_file(file) for file in sorted(self._folder.iterdir())},
        }
        sealed_text = sealed(json.dumps(contents, ensure_ascii=False))
        (self._folder / _TEXT).write_text(sealed_text, encoding="utf-8")
        opened = _open(self._folder, contents)
        if self._entry is not None:
            shutil.rmtree(self._entry, ignore_errors=True)
            with suppress(OSError):  # another process was faster
                self._folder.replace(self._entry)
        return opened


def read_cache(entry: Path) -> CachedCorpus | None:
    """Return an entry, without training text; None if it is missing or damaged."""
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
        "train": NOT_KEPT,
        "dev": _bitext(contents["text"]["dev"]),
        "tests": {name: _bitext(test) for name, test in contents["text"]["tests"].items()},
        "notes": tuple(contents["text"]["notes"]),
    }
    return CorpusText(**text), TokenizerPair.from_json(contents["codec"]), splits


def _bitext(sides: dict[str, Sequence[str]]) -> Bitext:
    return Bitext(tuple(sides["src"]), tuple(sides["tgt"]))


def _files(split: str, side: str) -> tuple[tuple[str, Any], ...]:
    """Return the names of the files of one side of a split, and the types of their numbers."""
    return (f"{split}.{side}.npy", np.int32), (f"{split}.{side}.lengths.npy", np.int64)


def _side(entry: Path, split: str, side: str) -> Ragged:
    (flat, _), (lengths, _) = _files(split, side)
    return Ragged(
        np.load(entry / flat, mmap_mode="c", allow_pickle=False),
        np.load(entry / lengths, allow_pickle=False),
    )


class _ArrayWriter:
    """Writes an array as `numpy.save` does, without having all of it in memory.

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
        """Append numbers."""
        self._file.write(numbers.astype(self._dtype, copy=False).tobytes())
        self._n += len(numbers)

    def __enter__(self) -> _ArrayWriter:
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            self._file.seek(0)
            self._write_header()

    def _write_header(self) -> None:
        """Write the header, in which numpy leaves room for any length."""
        descr = np.lib.format.dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": (self._n,)}
        np.lib.format.write_array_header_1_0(self._file, header)
