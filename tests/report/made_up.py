"""An experiment whose results are made up, each number different from all others."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import ablate.data
import ablate.decoding
import ablate.parts  # noqa: F401  (parts enter the registry when their rooms are imported)
from ablate.config import Experiment, load
from ablate.report import Table

SETS = ("test", "test_long", "test_novel")
BLEU_SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"
CHRF_SIGNATURE = "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.5.1"

Records = dict[tuple[str, int], dict[str, Any]]

HEAD = """
question: Does the position matter?
corpus: synthetic
tokenizer: {name: bpe, vocab_size: 500}
model:
  dims: {d_model: 16, n_heads: 2, max_len: 64}
  n_layers: 1
  feed_forward: {name: relu, d_ff: 32}
training: {steps: 10}
decoding: greedy
"""
VARIANTS = """
  learned: {model.position: learned}
  literal: {model.position: {name: sinusoidal, exponent: literal_2i}}
  heads_1: {model.dims.n_heads: 1}
"""


def experiment(
    folder: Path, variants: str = VARIANTS, seeds: str = "[1, 2, 3]", head: str = HEAD
) -> Experiment:
    path = folder / "made_up.yaml"
    path.write_text(f"{head}seeds: {seeds}\nvariants:{variants}", encoding="utf-8")
    return load(path)


def records(of: Experiment) -> Records:
    return {(row.name, seed): record(row.name, seed) for row in of.rows for seed in of.seeds}


def record(name: str, seed: int) -> dict[str, Any]:
    draw = random.Random(f"{name} {seed}").uniform
    turn = random.Random(name).uniform  # all seeds of a row share a probe
    rounds = {
        "train_target_tokens_per_second": [turn(5000, 5500) for _ in range(5)],
        "decode_sentences_per_second": [turn(80, 90) for _ in range(5)],
    }
    return {
        "status": "done",
        "error": None,
        "spec": {"tokenizer": {"name": "bpe"}, "training": {"precision": "fp32"}},
        "params": {"total": {"learned": 1_354_000}.get(name, 1_321_000), "embedding": 256_000},
        "flops": {"train_per_target_token": 1e6},
        "train": {"steps": 10, "target_tokens": 4000 + seed, "stopped_early": False},
        "speed": {
            **{measure: statistics.median(values) for measure, values in rounds.items()},
            "rounds": rounds,
            "session": "2026-11-22T12:00:00+00:00",
        },
        "memory": {"train_peak_mib": draw(600, 700), "decode_peak_mib": draw(300, 400)},
        "dev": {"nll": draw(0.3, 0.5), "perplexity": draw(1.3, 1.7)},
        "test": {
            test_set: {
                "bleu": draw(40, 42),
                "bleu_signature": BLEU_SIGNATURE,
                "chrf": draw(50, 70),
                "chrf_signature": CHRF_SIGNATURE,
                "exact_match": draw(20, 22),
                "nll": draw(0.5, 0.6),
                "bits_per_character": draw(0.2, 0.3),
            }
            for test_set in SETS
        },
        "corpus": {
            "name": "synthetic",
            "src": "en",
            "tgt": "xx",
            "fingerprint": "9f86d081884c7d659a2feaa0",
            "notes": ["3 over-long pairs were skipped"],
            "n_train": 20_000,
        },
        "tokenizer": {"fingerprint": "ab12cd34ef56ab78", "n_src": 500, "n_tgt": 510},
        "hardware": {"device": "cpu", "device_name": "Abacus 9", "cpu": "Abacus 9", "threads": 1},
        "versions": {"ablate": "0.1.0", "torch": "2.13.0"},
        "git": {"commit": "9839b24aa1bb22cc33dd", "is_clean": False},
        "engine": "eager",
    }


def without_result(status: str, error: str, name: str, seed: int) -> dict[str, Any]:
    whole = record(name, seed)
    known = ("spec", "params", "corpus", "tokenizer", "hardware", "versions", "git", "engine")
    return {"status": status, "error": error, **{key: whole[key] for key in known}}


def notes(of: Table) -> dict[str, str]:
    return {note.label: note.text for note in of.footnotes}


def vital(of: Table) -> list[str]:
    """Return the labels of the notes that a terminal always shows."""
    return [note.label for note in of.footnotes if note.is_vital]


def texts(of: Table, key: str) -> list[str]:
    return [cell.text for cell in of.column(key)]
