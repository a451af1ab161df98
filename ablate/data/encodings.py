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
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ablate.data.batches import Encoded, Ragged
from ablate.data.cache import sealed, unsealed
from ablate.data.corpus import Bitext, CorpusText
from ablate.data.tokenizer import Codec
from ablate.errors import DataError

NOT_KEPT = Bitext((), ())
"""In place of the training text, which nobody reads once it is encoded."""

_TEXT = "text.json"
_READ_AT_ONCE = 2**24

Splits = dict[str, Encoded]


def keep(entry: Path, text: CorpusText, codec: Codec, splits: Splits) -> None:
    """Write an entry, whole or not at all.

    Args:
        entry: the folder.
        text: the corpus; its training text is not kept.
        codec: what it was encoded with.
        splits: the ids, by names that can stand in a file name.

    Raises:
        OSError: if it cannot be written.
    """
    entry.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{entry.name}.", dir=entry.parent))
    try:
        for name, array in _arrays(splits):
            np.save(draft / name, array, allow_pickle=False)
        told = asdict(replace(text, train=NOT_KEPT))
        known = {
            "text": told,
            "codec": codec.to_json(),
            "splits": list(splits),
            "sha256": {file.name: _sha256(file) for file in sorted(draft.iterdir())},
        }
        (draft / _TEXT).write_text(sealed(json.dumps(known, ensure_ascii=False)), encoding="utf-8")
        shutil.rmtree(entry, ignore_errors=True)
        draft.replace(entry)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def recall(entry: Path) -> tuple[CorpusText, Codec, Splits] | None:
    """Return what `keep` was given, without training text; None if it is not there, or damaged."""
    try:
        known = json.loads(unsealed((entry / _TEXT).read_text(encoding="utf-8")))
        for name, sha256 in known["sha256"].items():
            if _sha256(entry / name) != sha256:
                return None
        splits = {
            split: Encoded(_side(entry, split, "src"), _side(entry, split, "tgt"))
            for split in known["splits"]
        }
    except (OSError, ValueError, DataError):
        return None
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
    return text, Codec.from_json(known["codec"]), splits


def _bitext(told: dict[str, list[str]]) -> Bitext:
    return Bitext(tuple(told["src"]), tuple(told["tgt"]))


def _arrays(splits: Splits) -> Iterator[tuple[str, Any]]:
    for split, encoded in splits.items():
        for side, ragged in (("src", encoded.src), ("tgt", encoded.tgt)):
            yield f"{split}.{side}.npy", ragged.flat
            yield f"{split}.{side}.lengths.npy", ragged.lengths


def _side(entry: Path, split: str, side: str) -> Ragged:
    flat = np.load(entry / f"{split}.{side}.npy", mmap_mode="c", allow_pickle=False)
    return Ragged(flat, np.load(entry / f"{split}.{side}.lengths.npy", allow_pickle=False))


def _sha256(file: Path) -> str:
    sha = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(_READ_AT_ONCE):
            sha.update(piece)
    return sha.hexdigest()
