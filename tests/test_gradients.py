"""Gradients in double precision, against finite differences and against plain formulas."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.model import Transformer
from ablate.parts.attention import Attention, AttentionContext
from ablate.parts.dims import Dims, Dropout
from ablate.parts.embedding import MASKED_LOGIT, Embedding, Vocabulary
from ablate.parts.objective import Objective
from ablate.parts.scaling import Scaling
from ablate.registry import build, choose, lookup, slots
from ablate.training.gradient import StepInputs, forward_backward
from ablate.training.step import StepConfig
from tests.tiny import (
    PAD,
    PARTS,
    RATES,
    accepted,
    alternatives,
    choices,
    ids,
    loss_of_sentences,
    scrambled,
    some_batch,
    tiny,
)

H = 1e-7  # of the differences: so small that hardly any rectified unit changes its sign
SMOOTH = {"name": "gelu", "d_ff": 48}  # the feed-forward, unless it is what is tested
STOPS_GRADIENT = {("norm", "ada")}  # by definition; its gradient is tested in parts/test_norm
OBJECTIVES = sorted(slots()["objective"])

Function = Callable[[], Tensor]


def derivatives(f: Function, parameters: Iterable[nn.Parameter]) -> tuple[float, float]:
    """Return the derivative of ``f`` in one random direction, by autograd and by differences."""
    parameters = list(parameters)
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    gradients = torch.autograd.grad(f(), parameters, allow_unused=True)
    pairs = zip(gradients, directions, strict=True)
    by_autograd = sum(float((g * d).sum()) for g, d in pairs if g is not None)
    return by_autograd, difference(f, parameters, directions)


@torch.no_grad()
def difference(f: Function, parameters: list[nn.Parameter], directions: list[Tensor]) -> float:
    """Return the central difference of ``f`` in a direction."""
    values = []
    for step in (H, -2 * H, H):  # the last one goes back
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.add_(direction, alpha=step)
        values.append(float(f()))
    return (values[0] - values[1]) / (2 * H)


OPTIONS = [
    pytest.param(slot, name, option, id=f"{slot}={name}" + (f".{option}" if option else ""))
    for slot, name in PARTS
    for option in ("", *lookup(slot, name).options.model_fields)
]


def model_with(slot: str, name: str, option: str) -> Transformer:
    """Return a model with a part, and with a value of its option that is not the default."""
    blocker = getattr(lookup(slot, name).cls, "layer_dropout_blocker", "")
    rates = dict.fromkeys(RATES, 0.2) | ({"layer": 0.0} if blocker else {})
    base = {"feed_forward": SMOOTH, "dropout": rates}
    base |= choices(slot, name) | ({"n_layers": 4} if slot == "sharing" else {})
    values = alternatives(lookup(slot, name), option) if option else [None]
    for value in values:
        choice = {"name": name, option: value} if option else {"name": name}
        model = accepted(**base | {slot: choice})
        if model is not None:
            return scrambled(model.double()).train()
    raise AssertionError(f"no value of {option} is accepted")


def output(model: Transformer) -> Tensor:
    """Return a weighted sum of logits and auxiliary losses in training, with fixed dropout."""
    src, tgt = ids(2, 6), ids(2, 5, seed=2)
    src[1, 4:] = tgt[1, 3:] = PAD
    generator = torch.Generator().manual_seed(1)
    losses: list[Tensor] = []
    torch.manual_seed(2)
    logits = model(src, tgt, losses)
    weights = torch.randn(logits.shape, generator=generator, dtype=torch.float64)
    logits = logits.masked_fill(logits == MASKED_LOGIT, 0.0)  # so large that they hide the others
    return (weights * logits).sum() + 50 * sum(losses)


@pytest.mark.full
@pytest.mark.parametrize(("slot", "name", "option"), OPTIONS)
def test_the_gradient_of_a_model_is_that_of_differences(slot: str, name: str, option: str) -> None:
    model = model_with(slot, name, option)
    by_autograd, by_differences = derivatives(lambda: output(model), model.parameters())
    is_near = by_autograd == pytest.approx(by_differences, rel=1e-5)
    assert is_near != ((slot, name) in STOPS_GRADIENT), (by_autograd, by_differences)


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(slots()["attention"]))
def test_the_gradient_of_an_attention_over_beams_is_that_of_differences(name: str) -> None:
    """With keys and values of one row for two rows of queries, and everything that adds to them."""
    dims = Dims.model_validate({"d_model": 8, "n_heads": 4, "max_len": 8})
    torch.manual_seed(0)
    scaling = build(Scaling, choose(Scaling, "learned"), dims)
    part = build(Attention, choose(Attention, name), dims, scaling, Dropout())
    part.add_head_scale()
    with contextlib.suppress(ValueError):  # one that has several maps of scores
        part.use_previous_scores()
    part.double()
    for parameter in part.parameters():
        nn.init.normal_(parameter)
    x, memory = (torch.randn(n, 3, 8, dtype=torch.float64) for n in (4, 2))
    below = nn.Parameter(torch.randn(2, 4, 6, 3, dtype=torch.float64))
    mask, where = torch.ones(1, dtype=torch.bool), torch.arange(3)

    def run() -> Tensor:
        memory_kv = part.keys_values(memory)
        context = AttentionContext(mask, where, where, memory_kv=memory_kv, previous_scores=[below])
        return part(x, context).sin().sum() + context.previous_scores[0].cos().sum()

    by_autograd, by_differences = derivatives(run, [*part.parameters(), below])
    assert by_autograd == pytest.approx(by_differences, rel=1e-5)


def batch_of(n_passes: int) -> tuple[Tensor, Tensor]:
    """Return logits (passes N, V) that differ between passes, and targets (passes N,)."""
    generator = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(n_passes * 4, 6, generator=generator, dtype=torch.float64)
    return logits, torch.tensor([4, PAD, 1, 5]).repeat(n_passes)


def log_p(logits: Tensor) -> Tensor:
    return logits - logits.exp().sum(dim=-1, keepdim=True).log()


def smoothed(row: Tensor, target: int, epsilon: float, others: list[int]) -> Tensor:
    """Return -sum_v q(v) log p(v), where q divides ``epsilon`` among ``others``."""
    q = torch.zeros_like(row)
    q[target] += 1 - epsilon
    q[others] += epsilon / len(others)
    return -(q * log_p(row)).sum()


def tokens(logits: Tensor, targets: Tensor) -> list[tuple[Tensor, int]]:
    return [(row, int(t)) for row, t in zip(logits, targets, strict=True) if t != PAD]


def label_smoothing(logits: Tensor, targets: Tensor, form: str, epsilon: float) -> Tensor:
    total = logits.new_zeros(())
    for row, target in tokens(logits, targets):
        left_out = {"others": {target}, "annotated": {target, PAD}}.get(form, set())
        others = sorted(set(range(len(row))) - left_out)
        total = total + smoothed(row, target, epsilon, others)
        if form == "annotated":
            total = total + (1 - epsilon) * math.log(1 - epsilon)
            total = total + epsilon * math.log(epsilon / len(others))
    return total


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return label_smoothing(logits, targets, "uniform", 0.0)


def z_loss(logits: Tensor, targets: Tensor, weight: float, epsilon: float) -> Tensor:
    drift = sum(row.exp().sum().log() ** 2 for row, _ in tokens(logits, targets))
    return label_smoothing(logits, targets, "uniform", epsilon) + weight * drift


def confidence_penalty(logits: Tensor, targets: Tensor, beta: float, epsilon: float) -> Tensor:
    entropy = sum(-(log_p(row).exp() * log_p(row)).sum() for row, _ in tokens(logits, targets))
    return label_smoothing(logits, targets, "uniform", epsilon) - beta * entropy


def r_drop(logits: Tensor, targets: Tensor, alpha: float, epsilon: float) -> Tensor:
    (one, other), (labels, _) = logits.chunk(2), targets.chunk(2)
    total = label_smoothing(logits, targets, "uniform", epsilon) / 2
    for (row1, _), (row2, _) in zip(tokens(one, labels), tokens(other, labels), strict=True):
        p1, p2 = log_p(row1).exp(), log_p(row2).exp()
        divergence = (p1 * (p1 / p2).log()).sum() + (p2 * (p2 / p1).log()).sum()
        total = total + alpha / 4 * divergence
    return total


def target_loss(logits: Tensor, targets: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the sum of a function of each target's probability."""
    losses = [loss((row.exp() / row.exp().sum())[t]) for row, t in tokens(logits, targets)]
    return torch.stack(losses).sum()


def focal(logits: Tensor, targets: Tensor, gamma: float) -> Tensor:
    return target_loss(logits, targets, lambda p: -((1 - p) ** gamma) * p.log())


def poly1(logits: Tensor, targets: Tensor, weight: float) -> Tensor:
    return target_loss(logits, targets, lambda p: -p.log() + weight * (1 - p))


def generalised_cross_entropy(logits: Tensor, targets: Tensor, q: float) -> Tensor:
    return target_loss(logits, targets, lambda p: (1 - p**q) / q)


def unlikelihood(logits: Tensor, targets: Tensor, alpha: float, epsilon: float) -> Tensor:
    """The tokens are those of one sentence."""
    total = label_smoothing(logits, targets, "uniform", epsilon)
    before: set[int] = set()
    for row, target in tokens(logits, targets):
        p = row.exp() / row.exp().sum()
        for word in sorted(before - {target}):
            total = total - alpha * (1 - p[word]).log()
        before.add(target)
    return total


PLAIN: dict[str, tuple[Callable[..., Tensor], list[dict[str, Any]]]] = {
    "focal": (focal, [{"gamma": 0.0}, {"gamma": 0.5}, {"gamma": 2.0}]),
    "poly1": (poly1, [{"weight": 1.0}, {"weight": -0.5}]),
    "generalised_cross_entropy": (generalised_cross_entropy, [{"q": 0.7}, {"q": 1.0}]),
    "cross_entropy": (cross_entropy, [{}]),
    "minimum_risk": (cross_entropy, [{}]),
    "label_smoothing": (
        label_smoothing,
        [{"form": form, "epsilon": 0.2} for form in ("uniform", "others", "annotated", "unmasked")],
    ),
    "z_loss": (z_loss, [{"weight": 0.3, "epsilon": 0.0}, {"weight": 0.3, "epsilon": 0.2}]),
    "confidence_penalty": (confidence_penalty, [{"beta": 0.7, "epsilon": 0.2}]),
    "unlikelihood": (unlikelihood, [{"alpha": 0.7, "epsilon": 0.2}]),
    "r_drop": (r_drop, [{"alpha": 3.0, "epsilon": 0.2}, {"alpha": 0.0, "epsilon": 0.0}]),
}
DRAWING = ("minimum_risk",)
"""Of which a step draws candidates: tests/training/test_minimum_risk.py."""
CASES = [(name, options) for name, (_, cases) in PLAIN.items() for options in cases]


def test_every_objective_has_a_plain_formula() -> None:
    assert sorted(PLAIN) == OBJECTIVES


@pytest.mark.parametrize(("name", "options"), CASES)
def test_the_gradient_of_an_objective_is_that_of_its_plain_formula(
    name: str, options: dict[str, Any]
) -> None:
    objective = build(Objective, choose(Objective, name, **options), PAD)
    logits, targets = batch_of(objective.n_passes)
    ours, plain = (logits.clone().requires_grad_() for _ in range(2))
    losses = objective.loss(ours, targets), PLAIN[name][0](plain, targets, **options)
    torch.testing.assert_close(*losses, atol=1e-12, rtol=1e-12)
    for loss in losses:
        loss.backward()
    torch.testing.assert_close(ours.grad, plain.grad, atol=1e-12, rtol=1e-12)


EMBEDDINGS: list[dict[str, Any]] = [
    {},
    {"fix_norm": True},
    {"rank": 2},
    {"fix_norm": True, "rank": 2},
    {"norm": True},
    {"norm": True, "fix_norm": True, "rank": 2},
    {"output_bias": True, "scale": "none"},
]


@pytest.mark.parametrize("options", EMBEDDINGS, ids=str)
@pytest.mark.parametrize("name", sorted(slots()["embedding"]))
def test_the_gradient_of_an_embedding_is_that_of_differences(
    name: str, options: dict[str, Any]
) -> None:
    """Of inputs and logits, each by itself, in every weight and in the decoder's output."""
    dims = Dims.model_validate({"d_model": 3, "n_heads": 1, "max_len": 4})
    choice = choose(Embedding, name, **options)
    torch.manual_seed(0)
    part = build(Embedding, choice, dims, Vocabulary(4, 4, is_joint=True)).double()
    part.output_multiplier = 0.7
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.copy_(torch.randn_like(parameter))
    paths = [path for path, _ in part.named_parameters()]
    words, states = torch.tensor([[1, 3, 1]]), torch.randn(1, 2, 3, dtype=torch.float64)

    def run(hook: str, argument: Tensor) -> Callable[..., Tensor]:
        def call(*weights: Tensor) -> Tensor:
            state = dict(zip(paths, weights, strict=True))
            part.forward = getattr(part, hook)  # which functional_call calls
            return torch.func.functional_call(part, state, (argument,))

        return call

    weights = tuple(p.detach().clone().requires_grad_() for p in part.parameters())
    for hook, argument in (("src", words), ("tgt", words), ("logits", states)):
        assert torch.autograd.gradcheck(run(hook, argument), weights), hook
    assert torch.autograd.gradcheck(part.logits, states.requires_grad_())


@pytest.mark.full
@pytest.mark.parametrize("feed_forward", [SMOOTH, {"name": "mixture_of_experts", "balance": 0.5}])
@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case[0] not in DRAWING])
def test_the_gradient_of_a_step_is_that_of_differences(
    name: str, options: dict[str, Any], feed_forward: dict[str, Any]
) -> None:
    """The loss of a step is that of all target tokens and, per token, the auxiliary losses."""
    objective = build(Objective, choose(Objective, name, **options), PAD)
    batch, n = some_batch(), objective.n_passes
    dropout = dict.fromkeys(("embedding", "residual"), 0.2)
    model = tiny(n_layers=1, feed_forward=feed_forward, dropout=dropout)
    model = scrambled(model.double()).train()
    parameters = list(model.parameters())

    def loss() -> Tensor:
        losses: list[Tensor] = []
        torch.manual_seed(4)
        logits = model(batch.src.repeat(n, 1), batch.tgt_in.repeat(n, 1), losses)
        total = loss_of_sentences(objective, logits, batch.tgt_out.repeat(n, 1))
        return (total + batch.n_tokens * sum(losses)) / 7

    torch.manual_seed(4)
    sums = forward_backward(model, StepConfig(objective), StepInputs.of(batch, 7))
    assert float(sums.sum()) / 7 == pytest.approx(loss().item(), rel=1e-12)
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    pairs = zip(parameters, directions, strict=True)
    by_step = sum(float((p.grad * d).sum()) for p, d in pairs if p.grad is not None)
    assert by_step == pytest.approx(difference(loss, parameters, directions), rel=1e-5)
