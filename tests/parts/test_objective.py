"""Objectives against the numbers that can be worked out by hand, and against PyTorch's."""

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
from ablate.parts.objective.cross_entropy import FusedCrossEntropy, SmoothedCrossEntropy
from ablate.registry import build, choose, lookup, slots
from ablate.training.gradient import StepInputs, forward_backward
from ablate.training.step import StepConfig
from tests.fake_cuda import CudaMachine
from tests.tiny import alternatives, ids, tiny

PAD = 0
LOGITS = torch.tensor([[0.05, 0.2, 0.6, 0.1, 0.05]], dtype=torch.float64).log()
TARGET = torch.tensor([2])
NAMES = sorted(slots()["objective"])
OPTIONS = [
    (name, option)
    for name in NAMES
    for option in lookup("objective", name).options.model_fields
    if name != "minimum_risk"  # tests/training/test_minimum_risk.py
]


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


def test_annotated_is_the_divergence_that_pytorch_computes() -> None:
    logits, targets = _batch()
    v = logits.size(1)
    expected = torch.full_like(logits, 0.1 / (v - 2)).scatter(1, targets[:, None], 0.9)
    expected[:, PAD] = 0
    is_token = targets != PAD
    theirs = F.kl_div(logits.log_softmax(-1)[is_token], expected[is_token], reduction="sum")
    ours = objective("label_smoothing", form="annotated").loss(logits, targets)
    torch.testing.assert_close(ours, theirs)


CHOICES = [
    *((name, {}) for name in NAMES),
    ("label_smoothing", {"form": "others"}),
    ("label_smoothing", {"form": "annotated"}),
    ("z_loss", {"weight": 0.5, "epsilon": 0.2}),
    ("confidence_penalty", {"beta": 2.0, "epsilon": 0.2}),
    ("unlikelihood", {"alpha": 3.0, "epsilon": 0.2}),
]


@pytest.mark.parametrize(("name", "options"), CHOICES)
def test_padding_costs_nothing_and_gets_no_gradient(name: str, options: dict[str, Any]) -> None:
    chosen = objective(name, **options)
    logits, targets = _passes(chosen)
    logits.requires_grad_()
    loss = chosen.loss(logits, targets)
    is_token = targets != PAD
    assert 0 < is_token.sum() < is_token.numel()
    torch.testing.assert_close(loss, chosen.loss(logits[is_token], targets[is_token]))
    loss.backward()
    assert logits.grad is not None
    assert not logits.grad[~is_token].any()
    assert logits.grad[is_token].any(dim=1).all()


@pytest.mark.parametrize(("name", "options"), CHOICES)
def test_tokens_add_up(name: str, options: dict[str, Any]) -> None:
    """The loss of a batch is the sum of those of its tokens, each with all its passes."""
    chosen = objective(name, **options)
    logits, targets = _passes(chosen)
    by_pass, of_pass = (x.unflatten(0, (chosen.n_passes, -1)) for x in (logits, targets))
    context = chosen.context(of_pass[:1])
    rows = torch.empty(1, of_pass.size(1), 0) if context is None else context
    each = [
        chosen.loss_in_context(by_pass[:, t], of_pass[:, t], rows[:, t])
        for t in range(of_pass.size(1))
    ]
    torch.testing.assert_close(torch.stack(each).sum(), chosen.loss(logits, targets))


@pytest.mark.parametrize(("name", "options"), CHOICES)
def test_narrow_logits_are_summed_in_single_precision(name: str, options: dict[str, Any]) -> None:
    chosen = objective(name, **options)
    logits, targets = _passes(chosen)
    narrow = logits.bfloat16()
    loss = chosen.loss(narrow, targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, chosen.loss(narrow.float(), targets), rtol=1e-6, atol=0)


def test_an_objective_without_a_context_has_the_gradient_of_its_loss() -> None:
    logits, targets = _batch()
    gradients = []
    for hook, context in (("loss", ()), ("loss_in_context", (targets[:, None],))):
        leaf = logits.clone().requires_grad_()
        getattr(objective("cross_entropy"), hook)(leaf, targets, *context).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, atol=0, rtol=0)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_changes_the_loss(name: str, option: str) -> None:
    usual = objective(name)
    logits, targets = _passes(usual)
    if option == "form":
        logits[:, 2] = -1e9  # a token that the embedding masks
    values = list(alternatives(lookup("objective", name), option))
    assert values
    for value in values:
        other = objective(name, **{option: value})
        assert not torch.allclose(usual.loss(logits, targets), other.loss(logits, targets))


@pytest.mark.parametrize(
    ("form", "floor"), [("others", 1.376948), ("uniform", 1.376913), ("annotated", 0.0)]
)
def test_no_model_gets_below_the_floor(form: str, floor: float) -> None:
    """The best prediction is the smoothed target, for a vocabulary of 37,000."""
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


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.3])
@pytest.mark.parametrize(
    ("name", "without"),
    [
        ("r_drop", {"alpha": 0.0}),
        ("z_loss", {"weight": 0.0}),
        ("confidence_penalty", {"beta": 0.0}),
        ("unlikelihood", {"alpha": 0.0}),
    ],
)
def test_without_their_weight_all_are_label_smoothing(
    name: str, without: dict[str, float], epsilon: float
) -> None:
    """R-Drop of two equal passes, too: the loss is their mean, not their sum."""
    logits, targets = _batch()
    chosen = objective(name, **without, epsilon=epsilon)
    n = chosen.n_passes
    ours = chosen.loss(logits.repeat(n, 1), targets.repeat(n))
    torch.testing.assert_close(
        ours, objective("label_smoothing", epsilon=epsilon).loss(logits, targets)
    )


def test_r_drop_adds_both_divergences_of_pytorch() -> None:
    """Half of the paper's -log p1 - log p2 + alpha / 2 (KL(p1 || p2) + KL(p2 || p1))."""
    chosen = objective("r_drop", alpha=3.0, epsilon=0.2)
    logits, targets = _passes(chosen)
    is_token = targets.chunk(2)[0] != PAD
    one, other = (half[is_token].log_softmax(-1) for half in logits.chunk(2))
    both = F.kl_div(one, other, reduction="sum", log_target=True) + F.kl_div(
        other, one, reduction="sum", log_target=True
    )
    expected = targets[: is_token.numel()][is_token]
    smoothed = sum(
        F.cross_entropy(half, expected, reduction="sum", label_smoothing=0.2)
        for half in (one, other)
    )
    torch.testing.assert_close(2 * chosen.loss(logits, targets), smoothed + 3.0 / 2 * both)


def test_r_drop_by_hand() -> None:
    """p1 = (.5, .5) and p2 = (.8, .2): the divergences are .2231436 and .1927448."""
    logits = torch.tensor([[0.5, 0.5, 1e-30], [0.8, 0.2, 1e-30]], dtype=torch.float64).log()
    divergence = 0.2231435513 + 0.1927447570
    nll = -(math.log(0.5) + math.log(0.2)) / 2
    targets = torch.tensor([1, 1])
    for alpha in (0.0, 1.0, 5.0):
        loss = objective("r_drop", alpha=alpha, epsilon=0.0).loss(logits, targets).item()
        assert loss == pytest.approx(nll + alpha / 4 * divergence, abs=1e-9)


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


def test_z_loss_by_hand() -> None:
    """Logits that are log-probabilities have log Z = 0; shifted by 3, log^2 Z is 9."""
    chosen = objective("z_loss", weight=0.5)
    plain = objective("cross_entropy").loss(LOGITS, TARGET).item()
    assert chosen.loss(LOGITS, TARGET).item() == pytest.approx(plain, abs=1e-12)
    assert chosen.loss(LOGITS + 3, TARGET).item() == pytest.approx(plain + 4.5, abs=1e-12)
    assert chosen.loss(LOGITS - 3, TARGET).item() == pytest.approx(plain + 4.5, abs=1e-12)


def test_z_loss_is_the_palm_weight_times_the_squared_logarithm() -> None:
    logits, targets = (x.double() if x.is_floating_point() else x for x in _batch())
    is_token = targets != PAD
    log_z = logits.exp().sum(dim=1).log()[is_token]
    expected = objective("cross_entropy").loss(logits, targets) + 1e-4 * log_z.square().sum()
    torch.testing.assert_close(objective("z_loss").loss(logits, targets), expected)


def test_confidence_penalty_by_hand() -> None:
    entropy = -sum(p * math.log(p) for p in (0.05, 0.2, 0.6, 0.1, 0.05))
    loss = objective("confidence_penalty", beta=2.0).loss(LOGITS, TARGET).item()
    assert loss == pytest.approx(0.5108256238 - 2.0 * entropy, abs=1e-9)


def test_confidence_penalty_is_the_entropy_of_pytorch() -> None:
    logits, targets = _batch()
    is_token = targets != PAD
    entropy = torch.distributions.Categorical(logits=logits[is_token]).entropy().sum()
    expected = objective("cross_entropy").loss(logits, targets) - 0.1 * entropy
    torch.testing.assert_close(objective("confidence_penalty").loss(logits, targets), expected)


@pytest.mark.parametrize("name", ["cross_entropy", "label_smoothing"])
def test_losses_of_half_precision_are_summed_in_single(name: str) -> None:
    logits, targets = _batch()
    loss = objective(name).loss(logits.half(), targets)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, objective(name).loss(logits.half().float(), targets))


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
        *((name, {}) for name, option in OPTIONS if option == "epsilon"),
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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("focal", {"gamma": 0.0}),
        ("poly1", {"weight": 0.0}),
        ("generalised_cross_entropy", {"q": 1e-9}),
    ],
)
def test_functions_of_the_target_become_cross_entropy(name: str, options: dict[str, float]) -> None:
    logits, targets = (x.double() if x.is_floating_point() else x for x in _batch())
    expected = objective("cross_entropy").loss(logits, targets)
    torch.testing.assert_close(objective(name, **options).loss(logits, targets), expected)


def test_functions_of_the_target_by_hand() -> None:
    """The target has a probability of 0.6."""
    for name, options, expected in (
        ("focal", {}, 0.4**2 * -math.log(0.6)),
        ("poly1", {}, -math.log(0.6) + 0.4),
        ("generalised_cross_entropy", {}, (1 - 0.6**0.7) / 0.7),
    ):
        loss = objective(name, **options).loss(LOGITS, TARGET).item()
        assert loss == pytest.approx(expected, abs=1e-9), name


def test_unlikelihood_by_hand() -> None:
    """Of 1 2 1 3, the third token is penalised for 2, and the last for 1 and 2, each once."""
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4]], dtype=torch.float64).expand(4, 4)
    nll = -sum(math.log(p) for p in (0.2, 0.3, 0.2, 0.4))
    penalty = -(math.log(1 - 0.2) + math.log(1 - 0.3) + math.log(1 - 0.2) + math.log(1 - 0.3))
    for alpha in (0.0, 1.0, 2.5):
        chosen = objective("unlikelihood", alpha=alpha)
        loss = chosen.loss(p.log(), torch.tensor([1, 2, 1, 3])).item()
        assert loss == pytest.approx(nll + alpha * penalty, abs=1e-12)


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
