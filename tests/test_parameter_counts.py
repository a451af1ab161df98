"""Parameters of the models of the literature: closed forms and published numbers.

The closed form is that of a Transformer with one tied matrix, no biases in attention, biases in the
feed-forward, and gamma and beta in every norm; it is written down here independently of the model.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.config.experiment import ModelSpec
from ablate.model import assemble
from ablate.parts.embedding import Vocabulary

V = 37_000


def count(vocabulary: Vocabulary, **model: Any) -> int:
    with torch.device("meta"):
        built = assemble(ModelSpec.model_validate(model), vocabulary, 0)
    return sum(p.numel() for p in built.parameters())


def joint(size: int) -> Vocabulary:
    return Vocabulary(n_src=size, n_tgt=size, is_joint=True)


def paper(n: int = 6, d_ff: int = 2048, **dims: int) -> dict[str, Any]:
    return {
        "dims": {"d_model": 512, "n_heads": 8, "max_len": 64} | dims,
        "n_layers": n,
        "attention": {"name": "full", "bias": False},
        "feed_forward": {"name": "relu", "d_ff": d_ff},
    }


def closed_form(n: int = 6, d_ff: int = 2048, **dims: int) -> int:
    d, h = dims.get("d_model", 512), dims.get("n_heads", 8)
    d_k, d_v = dims.get("d_k", d // h), dims.get("d_v", d // h)
    attention = d * h * (2 * d_k + d_v) + h * d_v * d
    feed_forward, norm = 2 * d * d_ff + d_ff + d, 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    return V * d + n * (encoder + decoder)


TABLE_3: dict[str, tuple[dict[str, int], int]] = {
    "baseline": ({}, 63_045_632),
    "A h=1": ({"n_heads": 1}, 63_045_632),
    "A h=32": ({"n_heads": 32}, 63_045_632),
    "B d_k=16": ({"d_k": 16}, 55_967_744),
    "B d_k=32": ({"d_k": 32}, 58_327_040),
    "C N=2": ({"n": 2}, 33_644_544),
    "C N=4": ({"n": 4}, 48_345_088),
    "C N=8": ({"n": 8}, 77_746_176),
    "C d=256": ({"d_model": 256}, 26_816_512),
    "C d=1024": ({"d_model": 1024}, 163_815_424),
    "C d_ff=1024": ({"d_ff": 1024}, 50_450_432),
    "C d_ff=4096": ({"d_ff": 4096}, 88_236_032),
    "big": ({"d_model": 1024, "n_heads": 16, "d_ff": 4096}, 214_171_648),
}
"""What rows of table 3 of Vaswani et al. 2017 change, and their parameters."""


@pytest.mark.parametrize(("changes", "expected"), TABLE_3.values(), ids=TABLE_3)
def test_rows_of_table_3(changes: dict[str, int], expected: int) -> None:
    assert closed_form(**changes) == expected
    assert count(joint(V), **paper(**changes)) == expected


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"attention": "full"}, 36_864),
        ({"embedding": "separate"}, 2 * V * 512),
        ({"embedding": "tied_target"}, V * 512),
        ({"embedding": {"name": "tied", "output_bias": True}}, V),
        ({"residual": "pre"}, 2 * 2 * 512),
        ({"position": "learned"}, 2 * 64 * 512),
        ({"norm": "rms"}, -30 * 512),
        ({"norm": "none"}, -30 * 1024),
    ],
)
def test_what_a_choice_adds_to_the_base_model(change: dict[str, Any], difference: int) -> None:
    assert count(joint(V), **(paper() | change)) - count(joint(V), **paper()) == difference


def test_a_published_implementation_without_a_preset() -> None:
    hyunwoongko = {
        "dims": {"d_model": 512, "n_heads": 8, "max_len": 256},
        "n_layers": 6,
        "feed_forward": {"name": "relu", "d_ff": 2048},
        "embedding": {"name": "separate", "output_bias": True},
    }
    assert count(Vocabulary(5_893, 7_855, is_joint=False), **hyunwoongko) == 55_207_087
