"""Parameters, FLOPs and likelihoods, against counts made by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from ablate import api
from ablate.data.batches import Batch, Batches
from ablate.data.tokenizer import PAD
from ablate.measuring import FlopCounter, count_flops, count_parameters, likelihood
from ablate.model import Transformer, assemble
from ablate.registry import slots
from tests.tiny import MODEL_SLOTS, PARTS, VOCABULARY, companion, fitted, ids, spec, tiny
from tests.training.reversal import fresh, pairs, run_spec

N, LENGTH = 3, 6
COUNTED = [slot for slot in MODEL_SLOTS if slot not in ("initialisation", "mask", "sharing")]


def batch(n: int = N, length: int = LENGTH, device: str = "cpu") -> Batch:
    src, tgt = ids(n, length), ids(n, length + 1, seed=2)
    whole = Batch(src, tgt[:, :-1], tgt[:, 1:].contiguous(), n * length, torch.arange(n))
    return whole.to(device)


@pytest.mark.parametrize("slot", MODEL_SLOTS)
def test_parameters_of_the_parts_add_up(slot: str) -> None:
    for name in slots()[slot]:
        model = fitted(slot, name)
        counts = count_parameters(model)
        assert counts["total"] == sum(p.numel() for p in model.parameters())
        by_part = counts["by_part"].values()
        assert sum(part["parameters"] for part in by_part) == counts["total"]
        if issubclass(slots()[slot][name].cls, nn.Module):
            assert name in {part["part"] for part in by_part}


def test_parts_are_listed_with_their_parameters() -> None:
    by_part = count_parameters(tiny(n_layers=3, decoder={"norm": "rms"}))["by_part"]
    assert by_part["embedding"] == {"part": "tied", "parameters": 50 * 32}
    assert by_part["encoder.attention"] == {"part": "full", "parameters": 3 * 4 * (32 * 32 + 32)}
    assert by_part["encoder.residual.norms"] == {"part": "layer", "parameters": 3 * 2 * 64}
    assert by_part["decoder.residual.norms"] == {"part": "rms", "parameters": 3 * 3 * 32}
    assert by_part["decoder.position"] == {"part": "sinusoidal", "parameters": 0}


def test_flops_are_those_of_the_matrix_products() -> None:
    """Each product costs 2 operations a multiplication forward, and twice that backward."""
    n, length, d, d_ff, v = 3, 6, 32, 48, VOCABULARY.n_tgt
    tokens = n * length
    attention = 4 * tokens * d * d + 2 * n * length * length * d
    feed_forward = 2 * tokens * d * d_ff
    multiplications = 2 * (3 * attention + 2 * feed_forward) + tokens * d * v
    assert count_flops(tiny(), batch()) == 3 * 2 * multiplications / tokens


def test_flops_of_padding_are_shared_by_the_tokens_that_are_none() -> None:
    whole = batch()
    padded = dataclasses.replace(whole, n_tokens=10)
    assert count_flops(tiny(), padded) * 10 == pytest.approx(count_flops(tiny(), whole) * 18)


def test_counting_flops_needs_no_memory_and_leaves_no_trace() -> None:
    model = tiny(dropout={"embedding": 0.5, "residual": 0.5}).train()
    before = {name: p.clone() for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    with torch.device("meta"):
        meta = assemble(spec(), VOCABULARY, PAD)
    assert count_flops(meta, batch(device="meta")) == count_flops(model, batch()) > 0
    assert torch.equal(torch.get_rng_state(), state), "no random number may be drawn"
    assert model.training
    for name, parameter in model.named_parameters():
        assert parameter.grad is None
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)


@pytest.mark.parametrize("shares_module", [True, False])
def test_what_modules_share_is_counted_as_often_as_it_is_used(shares_module: bool) -> None:
    """And stays what it is, under all of its names: such as one projection for queries and keys."""
    model, expected = tiny(), count_flops(tiny(), batch())
    for layer in model.encoder.blocks:
        attention = layer.attention
        if shares_module:
            attention.k = attention.q
        else:
            attention.k.weight = attention.q.weight
    before = {name: x.clone() for name, x in model.state_dict().items()}
    assert count_flops(model, batch()) == expected
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("batch_tokens", [8, 50, 999])
def test_nll_by_hand(batch_tokens: int) -> None:
    """Of one sentence after the other, whatever their batches were."""
    model, data = fresh(run_spec()).train(), pairs(20)
    actual = likelihood(model, Batches(data, batch_tokens, PAD).in_order(), "fp32")
    assert model.training
    model.eval()
    of_sentences = []
    for row in range(20):
        one = Batches(data, 50, PAD).make(torch.tensor([row]).numpy())
        log_p = model(one.src, one.tgt_in)[0].log_softmax(-1)
        tokens = enumerate(one.tgt_out[0].tolist())
        of_sentences.append(-sum(log_p[t, token].item() for t, token in tokens))
    n = data.tgt.lengths.sum()
    assert actual.nll == pytest.approx(sum(of_sentences) / n, abs=1e-5)
    assert actual.of_sentences.tolist() == pytest.approx(of_sentences, abs=1e-4)


def test_a_likelihood_in_bf16_is_that_of_a_softmax_in_fp32_over_logits_in_bf16() -> None:
    model, data = fresh(run_spec()).eval(), pairs(20)
    batches, expected = Batches(data, 50, PAD), torch.zeros(20)
    for batch in batches.in_order():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            logits = model(batch.src, batch.tgt_in)
        log_p = logits.float().log_softmax(-1).gather(-1, batch.tgt_out[..., None])[..., 0]
        expected[batch.index] = -(log_p * (batch.tgt_out != PAD)).sum(dim=1)
    wide, narrow = (likelihood(model, batches.in_order(), each) for each in ("fp32", "bf16"))
    close = pytest.approx(expected.tolist(), abs=5e-3)
    assert narrow.of_sentences.tolist() == close
    assert wide.of_sentences.tolist() != close


def test_the_transforms_of_a_stack_count_as_its_residual_scheme() -> None:
    """Weights of 1, 2, ..., n outputs in n layers, and of n + 1 at the end."""
    model = tiny(residual="dlcl", n_layers=2)
    by_part = count_parameters(model)["by_part"]
    for side in ("encoder", "decoder"):
        assert by_part[f"{side}.residual"]["parameters"] == 1 + 2 + 3


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
        assert counter.count(model, batch(device="meta")) == by_pytorch(
            model, batch(device="meta")
        ), name


def test_the_cache_distinguishes_shapes() -> None:
    counter, model = FlopCounter(), on_meta()
    for length in (LENGTH, 5, LENGTH):
        assert counter.count(model, batch(length=length, device="meta")) == by_pytorch(
            model, batch(length=length, device="meta")
        )


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
        actual = counter.count(Sums(), batch(device="meta"))  # type: ignore[arg-type]
        assert actual == 2 * 2 * LENGTH * N / (N * LENGTH)  # forward, and the weight's gradient


def test_every_pass_of_an_objective_is_counted(tmp_path: Path) -> None:
    """A step of ``r_drop`` sends each batch through the model twice, forward and backward."""
    model = on_meta()
    assert count_flops(model, batch(device="meta"), 2) == 2 * by_pytorch(
        model, batch(device="meta")
    )
    file = tmp_path / "passes.yaml"
    file.write_text("variants: {twice: {training.objective: r_drop}}", encoding="utf-8")
    once, twice = api.plan(file, device="cpu", results=tmp_path).rows
    assert twice.flops_per_target_token == 2 * once.flops_per_target_token
