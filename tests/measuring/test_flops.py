"""The cached counter of FLOPs, against PyTorch's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ablate import api
from ablate.data.batches import Batch
from ablate.measuring.counts import FlopCounter, count_flops
from ablate.model import Transformer, assemble
from tests.tiny import MODEL_SLOTS, PAD, PARTS, VOCABULARY, companion, ids, spec, tiny

N, LENGTH = 3, 6
COUNTED = [slot for slot in MODEL_SLOTS if slot not in ("initialisation", "mask", "sharing")]


def batch(length: int = LENGTH) -> Batch:
    src, tgt = ids(N, length), ids(N, length, seed=2)
    return Batch(src, tgt, tgt, N * length, torch.arange(N)).to("meta")


def on_meta(**changes: object) -> Transformer:
    with torch.device("meta"):
        return assemble(spec(n_layers=1, **changes), VOCABULARY, PAD)


def by_pytorch(model: Transformer, of: Batch) -> float:
    with FlopCounterMode(display=False) as counter:
        model(of.src, of.tgt_in).sum().backward()
    return counter.get_total_flops() / of.n_tokens


@pytest.mark.full
@pytest.mark.parametrize("slot", COUNTED)
def test_every_part_counts_as_pytorch_counts_it(slot: str) -> None:
    """One counter for all: what it caches for one part must hold for the next."""
    counter = FlopCounter()
    for name in (name for of_slot, name in PARTS if of_slot == slot):
        model = on_meta(**companion(slot, name), **{slot: name})
        assert counter.count(model, batch()) == by_pytorch(model, batch()), name


def test_the_cache_distinguishes_shapes() -> None:
    counter, model = FlopCounter(), on_meta()
    for length in (LENGTH, 5, LENGTH):
        assert counter.count(model, batch(length)) == by_pytorch(model, batch(length))


def test_the_cache_distinguishes_types_of_numbers() -> None:
    """``x + 1`` and ``x + 1.0`` are different types for whole x; equal keys would mix them up."""

    class Sums(torch.nn.Module):
        def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
            assert (src + 1).dtype == torch.long
            assert (src + 1.0).dtype == torch.get_default_dtype()
            assert (src + True).dtype == torch.long
            return self.weight @ (src + 1.0).T

        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1, LENGTH))

    counter = FlopCounter()
    for _ in range(2):
        actual = counter.count(Sums(), batch())  # type: ignore[arg-type]
        assert actual == 2 * 2 * LENGTH * N / (N * LENGTH)  # forward, and the weight's gradient


def test_a_counter_leaves_no_trace_on_a_real_model() -> None:
    model = tiny()
    before = {name: p.clone() for name, p in model.named_parameters()}
    assert count_flops(model, batch()) > 0
    assert not model.training
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)


def test_every_pass_of_an_objective_is_counted(tmp_path: Path) -> None:
    """A step of ``r_drop`` sends each batch through the model twice, forward and backward."""
    model = on_meta()
    assert count_flops(model, batch(), 2) == 2 * by_pytorch(model, batch())
    file = tmp_path / "passes.yaml"
    file.write_text("variants: {twice: {training.objective: r_drop}}", encoding="utf-8")
    once, twice = api.plan(file, device="cpu", results=tmp_path).rows
    assert twice.flops_per_target_token == 2 * once.flops_per_target_token
