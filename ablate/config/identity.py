"""The name of a run: the hash of everything that determines its numbers, and of nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ablate.config.experiment import RunSpec, slot_of
from ablate.errors import DataError
from ablate.hashing import sha256_of_file, sha256_of_text
from ablate.registry import AddedOption, Choice, Entry, Plugin, lookup

WHOLE_BATCH = "whole_batch"
"""The scheme of random draws of the eager engine, and of others where they draw alike."""


def identity(
    run: RunSpec, corpus_fingerprint: str, precision: str, random_draws: str = WHOLE_BATCH
) -> str:
    """Return the name of a run, 16 hexadecimal digits.

    It covers the spec in canonical form, the content of the corpus and of a teacher's translations
    in place of the paths to them, the version of every part, the content of the plugins of any of
    them, and the scheme of random draws where engines differ in it. An option that a part got later
    counts where it makes a difference (`ablate.registry.AddedOption`). Code, libraries and kind of
    device stand in the record: `ablate.runner.provenance` compares them.

    ``precision`` is that of training on this device, ``auto`` resolved; ``random_draws`` is what
    `ablate.training.engines.random_draws` returns.
    """
    spec = canonical(run)
    spec["training"]["precision"] = precision
    determinants = {
        "spec": spec,
        "corpus": corpus_fingerprint,
        "versions": {path: entry.version for path, entry in _parts(run)},
    }
    if random_draws != WHOLE_BATCH:
        determinants["random_draws"] = random_draws
    plugins = plugins_of(run)
    if plugins:  # a run without any has the name that it had before there were plugins
        determinants["plugins"] = {path: plugin.identity for path, plugin in plugins.items()}
    text = json.dumps(determinants, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256_of_text(text)[:16]


def canonical(run: RunSpec) -> dict[str, Any]:
    """Return a spec as plain data, without what was added later and makes no difference.

    The content of a teacher's translations stands in place of their path.
    """
    spec = run.model_dump(mode="json")
    _leave_out_neutral(run, spec)
    if run.training.teacher is not None:
        spec["training"]["teacher"] = content_of(run.training.teacher)
    for path, entry in _parts(run):
        choice = reduce(getitem, path.split("."), spec)
        for option in entry.fingerprinted:
            del choice[option]
        for option, neutral in entry.neutral_values.items():
            if choice[option] == neutral:
                del choice[option]
    return spec


def content_of(path: str) -> str:
    """Return the hash of a file, which stands for it in the identity of a run, or a DataError."""
    try:
        return sha256_of_file(Path(path))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error


def files_of(run: RunSpec, corpus_fingerprint: str) -> dict[str, str]:
    """Return the hashes that stand for the text in files which a run names; empty without any."""
    files = {}
    if lookup("corpus", run.corpus.name).fingerprinted:
        files["corpus"] = corpus_fingerprint
    if run.training.teacher is not None:
        files["teacher"] = content_of(run.training.teacher)
    return files


def plugins_of(run: RunSpec) -> dict[str, Plugin]:
    """Return the plugin of every part that comes from one, by the path of its choice.

    Raises:
        PluginError: if a part is neither of a plugin nor of this package.
    """
    return {path: entry.origin for path, entry in _parts(run) if entry.code and entry.origin}


def plugin_parts(run: RunSpec) -> dict[str, Entry]:
    """Return every part that comes from a plugin, by the path of its choice."""
    return {path: entry for path, entry in _parts(run) if entry.origin}


def _leave_out_neutral(model: BaseModel, dumped: dict[str, Any]) -> None:
    """Remove from a dumped model, and those in it, the added fields at their neutral values."""
    for key, info in type(model).model_fields.items():
        value = getattr(model, key)
        if any(isinstance(mark, AddedOption) and value == mark.neutral for mark in info.metadata):
            del dumped[key]
        elif isinstance(value, BaseModel) and not isinstance(value, Choice):
            _leave_out_neutral(value, dumped[key])


def _parts(model: BaseModel, path: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield the path of every choice that ``model`` makes, and the part."""
    for key, info in type(model).model_fields.items():
        value: Any = getattr(model, key)
        if isinstance(value, Choice) and (slot := slot_of(info)):
            yield f"{path}{key}", lookup(slot.name, value.name)
        elif isinstance(value, BaseModel):
            yield from _parts(value, f"{path}{key}.")
