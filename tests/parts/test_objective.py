"""Objectives in steps of training, in half precision and of masked logits.

Their formulas are tested in tests/test_gradients.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.data.batches import Batch
from ablate.parts.objective import Objective
from ablate.parts.objective.likelihood import FusedCrossEntropy, SmoothedCrossEntropy
from ablate.registry import build, choose, lookup, slots
from ablate.training.gradient import StepInputs, forward_backward
from ablate.training.step import StepConfig
from tests.fake_cuda import CudaMachine
from tests.tiny import ids, tiny

PAD = 0
NAMES = sorted(slots()["objective"])


def objective(name: str, **options: object) -> Objective:
    return build(Objective, choose(Objective, name, **options), PAD)


@pytest.mark.parametrize("of_device", [SmoothedCrossEntropy, FusedCrossEntropy])
@pytest.mark.parametrize("epsilon", [0.0, 0.2])
@pytest.mark.parametrize("scale", [1, 300], ids=["doubtful", "certain"])
def test_the_loss_in_fewer_passes_is_what_pytorch_computes(
    epsilon: float, scale: int, of_device: Any
) -> None:
    """The classes for bf16 on a CPU, and for a GPU, tested in float64."""
    logits, targets = _batch()
    assert (targets == PAD).any()
    ours, theirs = ((scale * logits).double().requires_grad_() for _ in range(2))
    our_loss = of_device.apply(ours, targets, PAD, epsilon)
    expected = F.cross_entropy(
        theirs, targets, label_smoothing=epsilon, reduction="sum", ignore_index=PAD
    )
    torch.testing.assert_close(our_loss, expected, rtol=1e-12, atol=1e-12)
    for loss in (our_loss, expected):
        (loss / 7).backward()
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("machine", [nullcontext, CudaMachine], ids=["cpu", "gpu"])
@pytest.mark.parametrize("name", ["cross_entropy", "label_smoothing"])
def test_the_gradient_of_bf16_is_rounded_once(
    name: str, machine: Callable[[], AbstractContextManager[Any]]
) -> None:
    logits, targets = _batch()
    narrow = logits.bfloat16().requires_grad_()
    wide = narrow.detach().float().requires_grad_()
    (objective(name).loss(wide, targets) / 7).backward()
    with machine():
        (objective(name).loss(narrow, targets) / 7).backward()
    assert narrow.grad is not None
    assert wide.grad is not None
    assert narrow.grad.dtype == torch.bfloat16
    torch.testing.assert_close(narrow.grad.float(), wide.grad, rtol=2**-8, atol=1e-9)


def test_a_gpu_does_not_take_pytorchs_way_with_its_two_dense_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(F, "cross_entropy", None)
    logits, targets = _batch()
    with CudaMachine():
        assert objective("label_smoothing").loss(logits, targets).item() > 0


CHOICES = [
    *((name, {}) for name in NAMES),
    ("label_smoothing", {"form": "others"}),
    ("label_smoothing", {"form": "annotated"}),
    ("z_loss", {"weight": 0.5, "epsilon": 0.2}),
    ("confidence_penalty", {"beta": 2.0, "epsilon": 0.2}),
    ("unlikelihood", {"alpha": 3.0, "epsilon": 0.2}),
]


@pytest.mark.parametrize(("name", "options"), CHOICES)
def test_narrow_logits_are_summed_in_single_precision(name: str, options: dict[str, Any]) -> None:
    chosen = objective(name, **options)
    logits, targets = _passes(chosen)
    narrow = logits.bfloat16()
    loss = chosen.loss(narrow, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, chosen.loss(narrow.float(), targets), rtol=1e-6, atol=0)


def test_r_drop_sends_every_sentence_through_two_dropout_masks() -> None:
    dropout = {"embedding": 0.3, "residual": 0.3}
    model = tiny(dropout=dropout, n_layers=1).train()
    src, tgt = ids(3, 6), ids(3, 6, seed=2)
    tgt[1, 4:] = PAD
    batch = Batch(src, tgt[:, :-1], tgt[:, 1:].contiguous(), 13, torch.arange(3))
    step_config = StepConfig(objective("r_drop", alpha=2.0))

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return forward_backward(model, step_config, StepInputs.of(batch, 1))[0].item()

    torch.manual_seed(5)
    logits = model(src.repeat(2, 1), batch.tgt_in.repeat(2, 1))
    one, other = logits.chunk(2)
    assert not torch.allclose(one, other)
    expected = batch.tgt_out.flatten()
    smoothing = objective("label_smoothing")
    mean = (
        smoothing.loss(one.flatten(0, 1), expected) + smoothing.loss(other.flatten(0, 1), expected)
    ) / 2
    assert loss(5) > mean.item() + 0.1
    model.eval()
    without_dropout = (smoothing.loss(model(src, batch.tgt_in).flatten(0, 1), expected)).item()
    assert loss(5) == pytest.approx(without_dropout, rel=1e-5)


@pytest.mark.parametrize("form", ["uniform", "others", "annotated", "unmasked"])
def test_label_smoothing_by_nothing_is_cross_entropy(form: str) -> None:
    logits, targets = _batch()
    plain = objective("cross_entropy").loss(logits, targets)
    smoothing = objective("label_smoothing", epsilon=0.0, form=form)
    torch.testing.assert_close(smoothing.loss(logits, targets), plain)


def test_confident_and_doubtful_logits_give_numbers() -> None:
    for name in NAMES:
        chosen = objective(name)
        n = chosen.n_passes
        for scale in (0.0, 1e3):
            logits = (scale * _batch()[0]).repeat(n, 1).requires_grad_()
            loss = chosen.loss(logits, _batch()[1].repeat(n))
            loss.backward()
            assert logits.grad is not None
            assert bool(loss.isfinite() & logits.grad.isfinite().all()), (name, scale)


def _passes(chosen: Objective) -> tuple[Tensor, Tensor]:
    """Return a batch as an objective gets it: all passes, different logits in each."""
    logits, targets = _batch()
    n = chosen.n_passes
    return torch.cat([(k + 1) * logits.roll(k, dims=1) for k in range(n)]), targets.repeat(n)


def _batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 11, generator=generator)
    return logits, torch.tensor([4, PAD, 9, 1, PAD, 10])


def test_unmasked_smooths_over_what_the_embedding_leaves() -> None:
    """-(1 - e) log p(y) - e / (V - 2) sum over all but two, as in the code of Nguyen & Salazar."""
    logits, targets = (x.double() if x.is_floating_point() else x for x in _batch())
    targets[targets == 1] = 5  # the begin of a sentence is never a target
    masked = torch.nn.functional.pad(logits[:, 2:], (2, 0), value=-1e9)
    smoothed = objective("label_smoothing", epsilon=0.2, form="unmasked")
    log_p = logits[:, 2:].log_softmax(dim=-1)
    expected = sum(
        -0.8 * log_p[n, target - 2] - 0.2 / 9 * log_p[n].sum()
        for n, target in enumerate(targets.tolist())
        if target != PAD
    )
    torch.testing.assert_close(smoothed.loss(masked, targets), expected)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((n, {}) for n in NAMES if "epsilon" in lookup("objective", n).options.model_fields),
        *(("label_smoothing", {"form": form}) for form in ("others", "annotated", "unmasked")),
    ],
)
def test_smoothing_reaches_masked_tokens_where_it_is_said_to(
    name: str, options: dict[str, Any], epsilon: float
) -> None:
    part = objective(name, epsilon=epsilon, **options)
    logits, targets = _batch()
    logits[:, next(v for v in range(1, logits.size(1)) if v not in targets)] = -1e9
    assert (part.loss(logits, targets).item() > 1e6) == (part.smoothing == "all")


def authors_unlikelihood(logits: Tensor, target: Tensor, alpha: float) -> Tensor:
    """Return the loss of one sentence by candidate_penalty_ce_loss.py of Welleck et al.

    Their matrix of candidates, a row for each step; padding, which it holds besides, is left out.
    """
    lprobs = logits.log_softmax(dim=-1)
    candidates = target[None].expand(len(target), -1).tril(-1)
    candidates = candidates.masked_fill(candidates == target[:, None], PAD)
    negative = torch.zeros_like(lprobs).scatter_(1, candidates, 1)
    negative[:, PAD] = 0
    one_minus_probs = torch.clamp(1.0 - lprobs.exp(), min=1e-5)
    custom = (-torch.log(one_minus_probs) * negative)[target != PAD].sum()
    return F.nll_loss(lprobs, target, ignore_index=PAD, reduction="sum") + alpha * custom


def test_a_step_of_unlikelihood_is_as_in_the_authors_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With sentences that repeat words, and with the logits made of few rows at a time."""
    model = tiny(n_layers=1).double().train()
    src, tgt = ids(3, 6), ids(3, 9, seed=2) % 3 + 4
    tgt[1, 5:] = PAD
    batch = Batch(src, tgt[:, :-1], tgt[:, 1:].contiguous(), 20, torch.arange(3))
    step_config = StepConfig(objective("unlikelihood", alpha=0.7))
    logits = model(src, batch.tgt_in)
    rows = zip(logits, batch.tgt_out, strict=True)
    expected = torch.stack([authors_unlikelihood(row, target, 0.7) for row, target in rows]).sum()
    weights = list(model.parameters())
    gradients = torch.autograd.grad(expected, weights)
    monkeypatch.setattr(type(model.embedding), "rows_at_once", lambda *_: 3)
    loss = forward_backward(model, step_config, StepInputs.of(batch, 1))[0]
    torch.testing.assert_close(loss, expected.detach())
    for weight, gradient in zip(weights, gradients, strict=True):
        torch.testing.assert_close(weight.grad, gradient)


def test_a_token_that_is_certain_already_has_a_bounded_penalty() -> None:
    """The authors' code keeps 1 - p at 0.00001 or more."""
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, 50.0, 0.0]], dtype=torch.float64)
    targets = torch.tensor([1, 2])
    penalty = (
        objective("unlikelihood").loss(logits, targets)
        - objective("cross_entropy").loss(logits, targets)
    ).item()
    assert penalty == pytest.approx(-math.log(1e-5))
