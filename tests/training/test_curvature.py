"""Estimates of curvature: their labels, their expectation, and when they are made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.data.tokenizer import PAD
from ablate.parts.optimizer import Group, Optimizer
from ablate.registry import build, choose
from ablate.training.engines import Eager
from ablate.training.engines.contract import estimate_curvature, with_sampled_labels
from ablate.training.step import count_passes
from tests.tiny import scrambled, some_batch, tiny
from tests.training.reversal import make_step_config, run_spec


def engine_of(model: Any, **options: Any) -> Eager:
    """Return an engine with `sophia` for all weights of a model."""
    group = Group(list(model.parameters()), is_matrix=False)
    optimizer = build(Optimizer, choose(Optimizer, "sophia", **options)).make([group])
    return Eager(model, make_step_config(), optimizer)


def test_labels_are_drawn_from_the_predictions() -> None:
    """Where no label was, there is none; a certain prediction is the label."""
    model, batch = scrambled(tiny(n_layers=1)), some_batch()
    torch.manual_seed(0)
    counts = torch.zeros(*batch.tgt_out.shape, 50)
    n = 400
    for _ in range(n):
        labels = with_sampled_labels(model, batch, "fp32").tgt_out
        assert torch.equal(labels == PAD, batch.tgt_out == PAD)
        counts.scatter_add_(2, labels[..., None], torch.ones_like(counts[..., :1]))
    p = model(batch.src, batch.tgt_in).detach()
    p[..., PAD] = -torch.inf
    p = p.softmax(dim=-1)
    is_token = batch.tgt_out != PAD
    off = (counts / n - p)[is_token] / (p * (1 - p) / n).sqrt()[is_token].clamp(min=1e-9)
    likely = p[is_token] > 0.02
    assert likely.sum() > 100
    assert off[likely].square().mean().sqrt() == pytest.approx(1.0, abs=0.2)


def test_the_expectation_is_the_diagonal_of_gauss_newton() -> None:
    """Of the bias of the output, where it is the mean of p (1 - p) over all labels."""
    embedding = {"name": "tied", "output_bias": True}
    model, batch = scrambled(tiny(n_layers=1, embedding=embedding)), some_batch()
    bias = model.get_parameter("embedding.bias")
    with torch.no_grad():
        bias[PAD] = -50.0  # which is never drawn
    engine = engine_of(model.train(), betas=(0.9, 0.0))
    torch.manual_seed(0)
    n, total = 150, torch.zeros_like(bias)
    for _ in range(n):
        assert estimate_curvature(engine, 1, batch)
        total += engine.optimizer.state[bias]["curvature"]
    p = model.eval()(batch.src, batch.tgt_in).detach().softmax(dim=-1)[batch.tgt_out != PAD]
    expected = (p * (1 - p)).mean(dim=0)
    assert (total / n).sum().item() == pytest.approx(expected.sum().item(), rel=0.05)
    often = expected > 0.02
    torch.testing.assert_close((total / n)[often], expected[often], rtol=0.5, atol=0)


def test_an_estimate_leaves_all_but_the_curvature() -> None:
    dropout = {"embedding": 0.3, "residual": 0.3}
    feed_forward = {"name": "loss_free_experts", "rate": 0.5}
    model = tiny(n_layers=1, dropout=dropout, feed_forward=feed_forward).train()
    engine, batch = engine_of(model, every=3), some_batch()
    weights = [w.detach().clone() for w in model.parameters()]
    for w in model.parameters():
        w.grad = torch.ones_like(w)
    gradients = [w.grad for w in model.parameters()]
    assert [step for step in range(1, 9) if estimate_curvature(engine, step, batch)] == [1, 4, 7]
    assert all(torch.equal(w, old) for w, old in zip(model.parameters(), weights, strict=True))
    assert all(w.grad is g for w, g in zip(model.parameters(), gradients, strict=True))
    assert all(g is not None and bool(g.eq(1).all()) for g in gradients)
    assert model.training
    loads = [b for name, b in model.named_buffers() if name.endswith("loads")]
    assert loads
    assert not any(load.any() for load in loads)
    states = []
    for _ in range(2):  # dropout draws nothing
        fresh_engine = engine_of(model)
        torch.manual_seed(1)
        estimate_curvature(fresh_engine, 1, batch)
        states.append([s["curvature"] for s in fresh_engine.optimizer.state.values()])
    assert all(torch.equal(a, b) for a, b in zip(*states, strict=True))


def test_other_optimizers_want_none() -> None:
    model = tiny(n_layers=1).train()
    engine = Eager(model, make_step_config(), torch.optim.SGD(model.parameters(), lr=0.1))
    assert not estimate_curvature(engine, 1, some_batch())


def test_what_estimates_cost_counts() -> None:
    """A third of a step for the labels and a step for the gradient, every so many steps."""
    optimizer = {"name": "sophia", "every": 4}
    assert count_passes(run_spec(optimizer=optimizer).training) == pytest.approx(1 + 1 / 3)
    assert count_passes(run_spec().training) == 1
    both = run_spec(optimizer=optimizer, objective={"name": "r_drop"}).training
    assert count_passes(both) == pytest.approx(2 + 1 / 3)
    accumulated = run_spec(optimizer=optimizer, accumulate=5).training
    assert count_passes(accumulated) == pytest.approx(1 + 1 / 3 / 5)  # on one of five batches
