"""Presets that name a program start as that program does, and drop, smooth and rank as it does.

The numbers follow from the programs' code: fairseq (multihead_attention.py; transformer_layer.py
since commit 73e1f683; label_smoothed_cross_entropy.py since 791ab7c2; sequence_generator.py);
tensor2tensor (transformer.py, transformer_base_v2; common_layers.py, smoothing_cross_entropy, less
its constant; beam_search.py); harvardnlp/annotated-transformer of 2022;
tnq177/transformers_without_tears, model.py at 0bb47d5 and layers.py at 02ef063.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.decoding import Search
from ablate.decoding.beam import Beam
from ablate.parts.embedding import Vocabulary
from ablate.parts.objective import Objective
from ablate.registry import build
from tests.presets import JOINT, PAD, built, preset

D = 512
APART = Vocabulary(n_src=2_000, n_tgt=2_000, is_joint=False)


def xavier(fan_in: int, fan_out: int) -> float:
    return math.sqrt(2 / (fan_in + fan_out))


def uniform(bound: float) -> float:
    return bound / math.sqrt(3)


def spreads(qkv: float, out: float, up: float, down: float, table: float) -> dict[str, float]:
    attention = dict.fromkeys(("attention.q", "attention.k", "attention.v"), qkv)
    feed_forward = {"feed_forward.up": up, "feed_forward.down": down}
    return {**attention, "attention.out": out, **feed_forward, "table": table}


SQUARE, UP, SMALL = xavier(D, D), xavier(D, 2048), math.sqrt(2 / (5 * D))
SPREADS = {
    "fairseq_iwslt": spreads(
        SQUARE * 2**-0.5, SQUARE, uniform(D**-0.5), uniform(1024**-0.5), D**-0.5
    ),
    "t2t_v2": spreads(SQUARE, SQUARE, UP, UP, D**-0.5),
    "annotated": spreads(SQUARE, SQUARE, UP, UP, xavier(2_000, D)),
    "transformers_without_tears": spreads(
        SMALL, SMALL, math.sqrt(2 / (D + 2048)), math.sqrt(2 / (D + 2048)), uniform(0.01)
    ),
}


@pytest.mark.parametrize("name", SPREADS)
def test_matrices_start_as_wide_as_the_program_s(name: str) -> None:
    model = built(name, APART if name == "annotated" else JOINT, n_layers=1)
    for path, std in SPREADS[name].items():
        block, table = model.decoder.blocks[0], model.embedding.tgt_table
        weight = (table if path == "table" else block.get_submodule(path)).weight
        assert isinstance(weight, Tensor)
        assert weight.std().item() == pytest.approx(std, rel=0.02), path


RATES: dict[str, dict[str, Any]] = {
    "fairseq_iwslt": {"embedding": 0.3, "residual": 0.3, "attention": 0.0, "activation": 0.0},
    "t2t_v2": {"embedding": 0.1, "residual": 0.1, "attention": 0.1, "activation": 0.1},
    "annotated": {"embedding": 0.1, "residual": 0.1, "attention": 0.1, "activation": 0.1},
    "transformers_without_tears": {
        "word": 0.1, "word_form": "unknown", "embedding": 0.3, "residual": 0.3, "attention": 0.3,
        "activation": 0.3,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", RATES)
def test_dropout_has_the_program_s_rates(name: str) -> None:
    others = {"word": 0.0, "word_form": "token", "head": 0.0, "head_form": "independent"}
    expected = others | {"layer": 0.0} | RATES[name]
    assert preset(name).model.dropout.model_dump() == expected


def reference_loss(name: str, log_p: Tensor, target: int) -> float:
    """Return the loss of one token in the program's own terms, with smoothing of 0.1."""
    n = len(log_p)
    others = [float(log_p[v]) for v in range(n) if v != target]
    nll = -float(log_p[target])
    if name == "fairseq_iwslt":  # eps / (n - 1) for the sum over all, the target's share less eps_i
        share = 0.1 / (n - 1)
        return (1 - 0.1 - share) * nll + share * -float(log_p.sum())
    if name == "t2t_v2":  # confidence and low confidence
        return 0.9 * nll - 0.1 / (n - 1) * sum(others)
    if name == "annotated":  # KLDivLoss against a target without probability for padding
        low = 0.1 / (n - 2)
        rest = sum(low * (math.log(low) - float(log_p[v])) for v in range(1, n) if v != target)
        return 0.9 * (math.log(0.9) + nll) + rest
    allowed = [v for v in range(n) if v not in (0, 1)]  # BOS and PAD are masked out
    return 0.9 * nll - 0.1 * sum(float(log_p[v]) for v in allowed) / len(allowed)


@pytest.mark.parametrize("name", SPREADS)
def test_the_loss_of_a_token_is_the_program_s(name: str) -> None:
    run = preset(name)
    objective = build(Objective, run.training.objective, PAD)
    logits = torch.randn(1, 12, generator=torch.Generator().manual_seed(0)).double()
    if name == "transformers_without_tears":
        logits[:, :2] = -1e9
        assert run.model.embedding.options["mask_unwritten"]
    expected = reference_loss(name, logits.log_softmax(dim=-1)[0], 7)
    loss = objective.loss(logits, torch.tensor([7])).item()
    assert loss == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "penalty"),
    [
        ("fairseq_iwslt", lambda n: n**1.0),
        ("t2t_v2", lambda n: ((5 + n) / 6) ** 0.6),
        ("transformers_without_tears", lambda n: (5 + n) ** 0.6 / 6**0.6),
    ],
)
def test_log_probabilities_are_divided_by_the_program_s_penalty(name: str, penalty: Any) -> None:
    search = build(Search, preset(name).decoding)
    assert isinstance(search, Beam)
    for n in (1, 5, 40):
        assert search.penalty(torch.tensor(n)).item() == pytest.approx(penalty(n), rel=1e-6)
