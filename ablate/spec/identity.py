"""What names a run: the hash of everything that determines its numbers, and of nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from ablate.registry import Choice, lookup
from ablate.spec.experiment import RunSpec, slot_of


def identity(run: RunSpec, corpus_fingerprint: str, precision: str) -> str:
    """Return the name of a run, 16 hexadecimal digits.

    It covers the spec in canonical form, the content of the corpus in place of the paths to it, and
    the version of every part.

    Args:
        run: the spec, with its seed.
        corpus_fingerprint: of the content.
        precision: what ``auto`` has come to on this device.
    """
    spec = run.model_dump(mode="json")
    spec["training"]["precision"] = precision
    for option in lookup("corpus", run.corpus.name).fingerprinted:
        del spec["corpus"][option]
    known = {"spec": spec, "corpus": corpus_fingerprint, "versions": dict(sorted(_versions(run)))}
    text = json.dumps(known, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _versions(model: BaseModel, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the path and version of every part that ``model`` chooses."""
    for key, info in type(model).model_fields.items():
        value: Any = getattr(model, key)
        slot = slot_of(info)
        if isinstance(value, Choice) and slot:
            yield f"{path}{key}", lookup(slot.name, value.name).version
        elif isinstance(value, BaseModel):
            yield from _versions(value, f"{path}{key}.")
