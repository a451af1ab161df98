"""The record of a run is checked where it is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest

from ablate.errors import StoreError
from ablate.record import SCHEMA, Record, read_record
from ablate.store import Store

RECORD: dict[str, Any] = {
    "hash": "0123456789abcdef",
    "status": "done",
    "seed": 1,
    "params": {"total": 10, "embedding": 4},
    "test": {"test": {"bleu": 30.5, "bleu_signature": "nrefs:1"}},
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"status": "fine"}, "status cannot be 'fine'; it can be 'done', .*"),
        ({"test": "none"}, "test cannot be 'none'"),
        ({"test": {"test": 3}}, "test.test cannot be 3"),
        ({"params": {"total": "many", "embedding": 1}}, "params.total cannot be 'many'"),
        ({"params": {"total": 3}}, "params.embedding is missing"),
        ({"versions": {"torch": 2}}, "versions.torch cannot be 2"),
        ({"hash": None}, "hash cannot be None"),
        ({"seed": "1"}, "seed cannot be '1'"),
        ({"train": {"steps": 2.5}}, "train.steps cannot be 2.5"),
        ({"corpus": {"name": "synthetic", "src": "en"}}, "corpus.tgt is missing"),
        ({"tokenizer": {"n_src": 5, "n_tgt": 5}}, "tokenizer.fingerprint is missing"),
        ({"test": {"test": {"sentences": "a" * 300}}}, "test.test.sentences cannot be 'aaa.*"),
        ({"test": {"test": {"sentences": "../a"}}}, "test.test.sentences cannot be '../a'"),
        ({"spec": {"tokenizer": None}}, "spec.tokenizer cannot be None"),
        ({"spec": {"devices_per_run": ""}}, "spec.devices_per_run cannot be ''"),
    ],
)
def test_what_is_no_record_is_named_with_its_file(
    tmp_path: Path, change: dict[str, Any], reason: str
) -> None:
    store = Store(tmp_path)
    store.save(RECORD)
    path = store.path(RECORD["hash"]) / "record.json"
    path.write_text(json.dumps(RECORD | change), encoding="utf-8")
    with pytest.raises(
        StoreError, match=rf"record\.json: is not a record: {reason}; `ablate run` makes"
    ):
        store.read(RECORD["hash"])


def _keys(kind: Any, path: str = "") -> Iterator[str]:
    """Yield the dotted key of every leaf of a typed dictionary."""
    for key, hint in get_type_hints(kind).items():
        is_mapping = get_origin(hint) is dict and key in ("test", "files")
        inner = get_args(hint)[1] if is_mapping else hint
        of_all = {"test": ".<testset>", "files": ".<name>"}[key] if is_mapping else ""
        if hasattr(inner, "__total__") and key not in ("spec", "files"):
            yield from _keys(inner, f"{path}{key}{of_all}.")
        else:
            yield f"{path}{key}{of_all}"


def test_the_page_on_results_has_every_key_of_a_record() -> None:
    page = (Path(__file__).parents[1] / "docs/results.md").read_text(encoding="utf-8")
    section = page.partition("## The record")[2].partition("\n## ")[0]
    documented = set()
    for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE):
        first, *others = re.findall(r"`(.*?)`", row)
        stem = first.rpartition(".")[0]
        documented |= {first, *(f"{stem}{key}" if key[0] == "." else key for key in others)}
    outside_of_the_type = {"digest", "timings.<phase>_seconds", "flops.train_per_target_token"}
    outside_of_the_type |= {"dev.nll", "dev.perplexity"}
    assert documented - outside_of_the_type == set(_keys(Record)) - {"timings", "flops", "dev"}


def test_keys_of_a_later_version_are_kept() -> None:
    assert read_record(RECORD | {"schema": SCHEMA, "colour": "red"})["colour"] == "red"
