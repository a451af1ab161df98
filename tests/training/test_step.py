"""One step, and how many of them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.config import RunSpec
from ablate.data.batches import Batches
from ablate.data.tokenizer import PAD
from ablate.registry import slots
from ablate.training.engines import Eager, Engine
from ablate.training.engines.cuda_graph import CudaGraph
from ablate.training.step import BatchStream, StepResult, make_optimizer, set_lr
from tests.training.reversal import fresh, make_step_config, pairs, run_spec


def step(**options: Any) -> tuple[StepResult, Any]:
    model = fresh(run_spec(dropout=0.0))
    batches = Batches(pairs(n=32), 64, PAD)
    chosen = [batches.make(batches.epoch(0, 0)[0])]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return Eager(model, make_step_config(**options), optimizer).step(chosen), model


@pytest.mark.parametrize("engine", [Eager, CudaGraph])
@pytest.mark.parametrize("loss_per", ["token", "sentence"])
def test_a_step_is_that_of_pytorchs_cross_entropy(engine: type[Engine], loss_per: str) -> None:
    """Its loss is the mean over tokens, its gradient that of the mean over what is chosen."""
    model, model_of_pytorch = (fresh(run_spec(dropout=0.0)) for _ in range(2))
    batches = Batches(pairs(n=32), 40, PAD)
    chosen = [batches.make(rows) for rows in batches.epoch(0, 0)[:3]]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    made = engine(model, make_step_config("cross_entropy", loss_per=loss_per), optimizer)
    result = made.step(chosen)
    logits = [model_of_pytorch(each.src, each.tgt_in).flatten(0, 1) for each in chosen]
    targets = torch.cat([each.tgt_out.flatten() for each in chosen])
    total = torch.nn.functional.cross_entropy(
        torch.cat(logits), targets, ignore_index=PAD, reduction="sum"
    )
    n_tokens, n_sentences = int((targets != PAD).sum()), sum(len(each.src) for each in chosen)
    assert n_tokens > n_sentences == sum(len(rows) for rows in batches.epoch(0, 0)[:3])
    (total / (n_tokens if loss_per == "token" else n_sentences)).backward()
    weights = list(model_of_pytorch.parameters())
    gradient = torch.cat([weight.grad.flatten() for weight in weights if weight.grad is not None])
    assert result.n_tokens == n_tokens
    torch.testing.assert_close(result.loss, total.detach() / n_tokens)
    torch.testing.assert_close(result.gradient_norm, gradient.norm())
    for moved, weight in zip(model.parameters(), weights, strict=True):
        assert weight.grad is not None
        torch.testing.assert_close(moved, weight - weight.grad, atol=1e-6, rtol=1e-5)


def test_the_loads_of_a_step_are_those_of_all_its_batches() -> None:
    """Biases move once in a step, and as by one large batch, whatever the engine is."""
    offsets = []
    for engine, batch_tokens in ((Eager, 10_000), (Eager, 40), (CudaGraph, 40)):
        model = fresh(run_spec(dropout=0.0, feed_forward="loss_free_experts")).train()
        batches = Batches(pairs(n=32), batch_tokens, PAD)
        chosen = [batches.make(rows) for rows in batches.epoch(0, 0)]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        engine(model, make_step_config(), optimizer).step(chosen)
        offsets.append(model.get_buffer("encoder.layers.0.feed_forward.offset"))
    assert offsets[0].abs().max() == pytest.approx(0.001)
    assert torch.equal(offsets[0], offsets[1])
    assert torch.equal(offsets[0], offsets[2])


def test_losses_that_parts_add_weigh_the_same_in_graphs() -> None:
    """With another number of tokens in each batch, and with losses divided by that of sentences."""
    results: list[list[Tensor]] = []
    for engine in (Eager, CudaGraph):
        model = fresh(run_spec(dropout=0.0, feed_forward="mixture_of_experts")).train()
        batches = Batches(pairs(n=32), 40, PAD)
        chosen = [batches.make(rows) for rows in batches.epoch(0, 0)[:3]]
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        result = engine(model, make_step_config(loss_per="sentence"), optimizer).step(chosen)
        results.append([result.aux_loss, result.gradient_norm, *model.parameters()])
    assert len({batch.n_tokens for batch in chosen}) > 1
    assert results[0][0] > 0
    torch.testing.assert_close(results[1], results[0])


def test_clipping_bounds_the_whole_gradient() -> None:
    before = fresh(run_spec(dropout=0.0))
    result, after = step(clip=0.01)
    moved = [(a - b).detach() for a, b in zip(after.parameters(), before.parameters(), strict=True)]
    assert math.sqrt(sum(float(m.square().sum()) for m in moved)) == pytest.approx(0.01, rel=1e-3)
    assert result.gradient_norm > 0.01


def test_bf16_is_near_fp32() -> None:
    full, _ = step()
    half, _ = step(precision="bf16")
    assert full.loss != half.loss
    torch.testing.assert_close(full.loss, half.loss, rtol=0.02, atol=0)


def test_a_stream_goes_on_anywhere() -> None:
    batches = Batches(pairs(), 64, PAD)
    n = 2 * batches.n_per_epoch + 3
    whole = [batch.index.tolist() for batch in BatchStream(batches, seed=4).take(n)]
    stream = BatchStream(batches, seed=4)
    pieces: list[list[int]] = []
    while len(pieces) < n:
        stream = BatchStream(batches, 4, stream.epoch, stream.index)
        pieces += [batch.index.tolist() for batch in stream.take(min(3, n - len(pieces)))]
    assert pieces == whole
    assert sorted(itertools.chain(*whole[: batches.n_per_epoch])) == list(range(96))


def test_epochs_are_counted_when_they_end() -> None:
    batches = Batches(pairs(), 64, PAD)
    stream = BatchStream(batches, seed=4)
    list(stream.take(batches.n_per_epoch - 1))
    assert stream.finished_epochs == 0
    list(stream.take(1))
    assert stream.finished_epochs == 1
    list(stream.take(1))
    assert stream.finished_epochs == 1


def test_the_rate_of_a_group_is_its_own_multiple_of_the_schedules() -> None:
    """As the groups of muP have them."""
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "rate": rate} for rate in (1, 0.25)]
    optimizer = torch.optim.SGD(groups, lr=1.0)
    set_lr(optimizer, 0.02)
    assert [group["lr"] for group in optimizer.param_groups] == [0.02, 0.005]


def test_matrices_of_the_layers_have_a_rate_of_their_own_under_mup() -> None:
    """A quarter at four times the width: the matrices of attention and feed-forward, no others."""
    plain = run_spec(dropout=0.0).model_dump(mode="json")
    plain["model"]["initialisation"] = {"name": "mup", "base_d_model": 4}
    spec = RunSpec.model_validate(plain)
    model = fresh(spec)
    rates = {
        id(weight): group["rate"]
        for group in make_optimizer(spec, model).param_groups
        for weight in group["params"]
    }
    for path, parameter in model.named_parameters():
        is_matrix = ".layers." in path and parameter.ndim == 2
        assert rates[id(parameter)] == (0.25 if is_matrix else 1.0), path


@pytest.mark.parametrize("name", sorted(slots()["optimizer"]))
def test_weight_decay_can_spare_all_but_the_matrices_of_the_stacks(name: str) -> None:
    """With the same gradients, those parameters move as they do without weight decay."""

    def moved(decay: str, weight_decay: float) -> dict[str, Tensor]:
        optimizer_choice = {"name": name, "weight_decay": weight_decay}
        spec = run_spec(dropout=0.0, optimizer=optimizer_choice, decay=decay)
        model = fresh(spec)
        optimizer = make_optimizer(spec, model)
        set_lr(optimizer, 0.01)
        for _ in range(2):
            for seed, parameter in enumerate(model.parameters()):
                generator = torch.Generator().manual_seed(seed)
                parameter.grad = torch.randn(parameter.shape, generator=generator)
            optimizer.step()
        return dict(model.named_parameters())

    without, everything, sparing = moved("all", 0.0), moved("all", 0.5), moved("matrices", 0.5)
    for path, parameter in sparing.items():
        is_matrix = ".layers." in path and parameter.ndim == 2
        expected = everything[path] if is_matrix else without[path]
        torch.testing.assert_close(parameter, expected, msg=path)
        if is_matrix or path == "embedding.tgt_table.weight":
            assert not torch.allclose(everything[path], without[path]), path
