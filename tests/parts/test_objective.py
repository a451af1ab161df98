"""Objectives against the numbers that can be worked out by hand, and against PyTorch's."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.parts.objective import Objective
from ablate.registry import build, choose

PAD = 0
LOGITS = torch.tensor([[0.05, 0.2, 0.6, 0.1, 0.05]], dtype=torch.float64).log()
TARGET = torch.tensor([2])


def objective(name: str, **options: object) -> Objective:
    return build(Objective, choose(Objective, name, **options), PAD)


@pytest.mark.parametrize(
    ("form", "loss"),
    [("others", 0.7073302502), ("uniform", 0.6680293249), ("annotated", 0.2550573684)],
)
def test_the_three_forms_of_label_smoothing(form: str, loss: float) -> None:
    smoothed = objective("label_smoothing", epsilon=0.1, form=form)
    assert smoothed.loss(LOGITS, TARGET).item() == pytest.approx(loss, abs=1e-9)


def test_cross_entropy_by_hand() -> None:
    loss = objective("cross_entropy").loss(LOGITS, TARGET).item()
    assert loss == pytest.approx(0.5108256238, abs=1e-9)


@pytest.mark.parametrize("form", ["uniform", "others"])
def test_no_smoothing_is_cross_entropy(form: str) -> None:
    logits, targets = _batch()
    plain = objective("cross_entropy").loss(logits, targets)
    smoothed = objective("label_smoothing", epsilon=0.0, form=form).loss(logits, targets)
    torch.testing.assert_close(smoothed, plain)


def test_uniform_is_what_pytorch_computes() -> None:
    logits, targets = _batch()
    theirs = F.cross_entropy(
        logits, targets, label_smoothing=0.2, reduction="sum", ignore_index=PAD
    )
    torch.testing.assert_close(
        objective("label_smoothing", epsilon=0.2).loss(logits, targets), theirs
    )


def test_annotated_is_the_divergence_that_pytorch_computes() -> None:
    logits, targets = _batch()
    v = logits.size(1)
    wanted = torch.full_like(logits, 0.1 / (v - 2)).scatter(1, targets[:, None], 0.9)
    wanted[:, PAD] = 0
    kept = targets != PAD
    theirs = F.kl_div(logits.log_softmax(-1)[kept], wanted[kept], reduction="sum")
    ours = objective("label_smoothing", form="annotated").loss(logits, targets)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("form", ["uniform", "others", "annotated"])
def test_padding_costs_nothing_and_gets_no_gradient(form: str) -> None:
    logits, targets = _batch()
    logits.requires_grad_()
    smoothed = objective("label_smoothing", form=form)
    loss = smoothed.loss(logits, targets)
    kept = targets != PAD
    torch.testing.assert_close(loss, smoothed.loss(logits[kept], targets[kept]))
    loss.backward()
    assert logits.grad is not None
    assert not logits.grad[~kept].any()


@pytest.mark.parametrize(
    ("form", "floor"), [("others", 1.376948), ("uniform", 1.376913), ("annotated", 0.0)]
)
def test_no_model_gets_below_the_floor(form: str, floor: float) -> None:
    """The best prediction is the smoothed target itself, here of 37,000 tokens."""
    v, epsilon = 37_000, 0.1
    others = {"others": v - 1, "uniform": v, "annotated": v - 2}[form]
    best = torch.full((1, v), epsilon / others, dtype=torch.float64)
    best[0, 5] = 1 - epsilon + (epsilon / v if form == "uniform" else 0)
    if form == "annotated":
        best[0, PAD] = 1e-300
    loss = objective("label_smoothing", form=form).loss(best.log(), torch.tensor([5]))
    assert loss.item() == pytest.approx(floor, abs=1e-6)


def test_more_smoothing_costs_a_confident_model_more() -> None:
    losses = [
        objective("label_smoothing", epsilon=e).loss(10 * LOGITS, TARGET).item()
        for e in (0.0, 0.1, 0.2)
    ]
    assert losses == sorted(losses)
    assert math.isfinite(losses[-1])


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 11, generator=generator)
    return logits, torch.tensor([4, PAD, 9, 1, PAD, 10])
