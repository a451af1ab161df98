"""Parameters, FLOPs and likelihoods, against counts made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from ablate.data.batches import Batch, Batches
from ablate.data.tokenizer import PAD
from ablate.measuring import count_flops, count_parameters, likelihood
from ablate.model import assemble
from ablate.registry import slots
from tests.tiny import MODEL_SLOTS, VOCABULARY, fitted, ids, spec, tiny
from tests.training.reversal import N_IDS, fresh, pairs, run_spec


def batch(n: int = 3, length: int = 6, device: str = "cpu") -> Batch:
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


def test_flops_need_no_memory() -> None:
    with torch.device("meta"):
        model = assemble(spec(), VOCABULARY, PAD)
    assert count_flops(model, batch(device="meta")) == count_flops(tiny(), batch())


def test_nll_by_hand() -> None:
    model, data = fresh(run_spec()).train(), pairs(20)
    actual = likelihood(model, Batches(data, 50, PAD).in_order(), "fp32")
    assert model.training
    model.eval()
    of_sentences = []
    for row in range(20):
        one = Batches(data, 50, PAD).make(torch.tensor([row]).numpy())
        log_p = model(one.src, one.tgt_in)[0].log_softmax(-1)
        tokens = enumerate(one.tgt_out[0].tolist())
        of_sentences.append(-sum(log_p[t, token].item() for t, token in tokens))
    n = data.tgt.lengths.sum()
    assert actual.n_tokens == n
    assert actual.nll == pytest.approx(sum(of_sentences) / n, abs=1e-5)
    assert actual.of_sentences.tolist() == pytest.approx(of_sentences, abs=1e-4)


def test_nll_of_a_uniform_guess_is_the_logarithm_of_the_vocabulary() -> None:
    model = fresh(run_spec())
    with torch.no_grad():
        model.embedding.tgt_table.weight.zero_()
    actual = likelihood(model, Batches(pairs(20), 50, PAD).in_order(), "fp32")
    assert actual.nll == pytest.approx(math.log(N_IDS), abs=1e-6)


def test_the_transforms_of_a_stack_count_as_its_residual_scheme() -> None:
    """Weights of 1, 2, ..., n outputs in n layers, and of n + 1 at the end."""
    model = tiny(residual="dlcl", n_layers=2)
    by_part = count_parameters(model)["by_part"]
    for side in ("encoder", "decoder"):
        assert by_part[f"{side}.residual"]["parameters"] == 1 + 2 + 3
