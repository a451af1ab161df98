"""Residual schemes in whole models, against the same Transformer in plain tensor algebra.

Single layers are tested in test_residual.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.model import Transformer
from ablate.parts.attention import Attention
from ablate.parts.dims import LayerInfo
from ablate.parts.feed_forward import FeedForward
from ablate.parts.norm import Norm
from ablate.parts.residual import Residual
from ablate.registry import build, choose
from tests.tiny import PAD, ids, scrambled, spec, tiny

Step = Callable[[Tensor], Tensor]
D, HEADS = 32, 4
DEPTHS = {"encoder": 3, "decoder": 2}


def ln(part: Any, x: Tensor) -> Tensor:
    """LayerNorm, with the parameters of ``part``."""
    centred = x - x.mean(dim=-1, keepdim=True)
    std = (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
    return part.norm.weight * centred / std + part.norm.bias


def affine(linear: Any, x: Tensor) -> Tensor:
    return torch.einsum("bti,oi->bto", x, linear.weight) + linear.bias


def attend(part: Any, x: Tensor, source: Tensor, mask: Tensor, below: list[Tensor]) -> Tensor:
    """Multi-head attention; adds the scores in ``below``, if any, and puts its own there."""
    q, k, v = (
        affine(linear, y).view(*y.shape[:2], HEADS, D // HEADS)
        for linear, y in ((part.q, x), (part.k, source), (part.v, source))
    )
    scores = torch.einsum("bthk,bshk->bhts", q, k) / (D // HEADS) ** 0.5
    if below:
        scores = scores + below.pop()
    below.append(scores)
    weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
    y = torch.einsum("bhts,bshk->bthk", weights, v)
    if part.head_scale is not None:
        y = y * part.head_scale.view(HEADS, 1)
    return affine(part.out, y.reshape(x.shape))


def feed_forward(part: Any, x: Tensor) -> Tensor:
    hidden = affine(part.up, x).clamp(min=0)
    if isinstance(part.hidden_norm, Norm):
        hidden = ln(part.hidden_norm, hidden)
    return affine(part.down, hidden)


def post(layer: Any, x: Tensor, fs: Sequence[Step]) -> Tensor:
    for norm, f in zip(layer.norms, fs, strict=True):
        x = ln(norm, x + f(x))
    return x


def dual(layer: Any, x: Tensor, fs: Sequence[Step]) -> Tensor:
    x, total = x.split(D, dim=-1)
    for norm, f in zip(layer.norms, fs, strict=True):
        output = f(x)
        total = total + output
        x = ln(norm, x + output)
    return torch.cat((x, total), dim=-1)


def normformer(layer: Any, x: Tensor, fs: Sequence[Step]) -> Tensor:
    for i, f in enumerate(fs[:-1]):
        x = x + ln(layer.after[i], f(ln(layer.norms[i], x)))
    return x + fs[-1](ln(layer.norms[-1], x))


def two_streams(_: Any, x: Tensor) -> Tensor:
    return x.repeat(1, 1, 2)


def join_streams(part: Any, x: Tensor) -> Tensor:
    return x[..., :D] + ln(part.norm, x[..., D:])


def identity(_: Any, x: Tensor) -> Tensor:
    return x


PLAIN: dict[str, tuple[Callable[..., Tensor], ...]] = {
    "post": (identity, post, identity),
    "realformer": (identity, post, identity),
    "residual_dual": (two_streams, dual, join_streams),
    "normformer": (identity, normformer, ln),
}


def plain(model: Transformer, name: str, src: Tensor, tgt: Tensor) -> Tensor:
    """Return the last hidden states (B, T, D) with the residual scheme of that name."""
    input_transform, layer, output_transform = PLAIN[name]

    def run(stack: Any, x: Tensor, mask: Tensor, memory: Any = None, source: Any = None) -> Tensor:
        positions = torch.arange(x.size(1))
        x = input_transform(stack.opening, stack.position.embed(x, positions))
        self_scores: list[Tensor] = []
        cross_scores: list[Tensor] = []
        for block in stack.blocks:
            fs = [lambda y, b=block: attend(b.attention, y, y, mask, self_scores)]
            if memory is not None:
                fs.append(
                    lambda y, b=block: attend(b.cross_attention, y, memory, source, cross_scores)
                )
            fs.append(lambda y, b=block: feed_forward(b.feed_forward, y))
            x = layer(block.residual, x, fs)
            if name != "realformer":
                self_scores.clear()
                cross_scores.clear()
        return output_transform(stack.closing, x)

    is_token = (src != PAD)[:, None, None, :]
    memory = run(model.encoder, model.embedding.src(src), is_token)
    causal = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).tril()
    return run(model.decoder, model.embedding.tgt(tgt), causal, memory, is_token)


def batch() -> tuple[Tensor, Tensor]:
    src, tgt = ids(2, 7), ids(2, 5)
    src[1, 4:] = PAD
    return src, tgt


@pytest.mark.parametrize("name", PLAIN)
def test_a_model_equals_its_plain_algebra(name: str) -> None:
    model = scrambled(tiny(residual=name, n_layers=DEPTHS).double())
    src, tgt = batch()
    expected = plain(model, name, src, tgt)
    actual = model.hidden(tgt, model.encode(src))
    torch.testing.assert_close(actual, expected, atol=1e-11, rtol=1e-11)


def test_normformer_refuses_heads_that_are_scaled_already() -> None:
    model = tiny()
    attentions, ff = model.decoder.blocks[0].attentions, model.decoder.blocks[0].feed_forward
    attentions[1].add_head_scale()
    dims = spec().dims
    layer = build(
        Residual,
        choose(Residual, "normformer"),
        LayerInfo(side="decoder", layer=0, n_encoder_layers=2, n_decoder_layers=2),
        lambda width=None: build(Norm, choose(Norm, "layer"), dims),
        0.0,
    )
    with pytest.raises(ValueError, match="scales the heads, and so does this attention already"):
        layer.modify_sublayers(
            attentions, ff, lambda width=None: build(Norm, choose(Norm, "layer"), dims)
        )


@pytest.mark.parametrize("name", ["relu", "swiglu", "mixture_of_experts"])
@pytest.mark.parametrize("attention", ["full", "per_head_shared"])
def test_deepnorm_draws_smaller_weights(name: str, attention: str) -> None:
    """All but queries, keys, embeddings and routers, by (12 M)^-1/4 and .87 (N^4 M)^-1/16."""
    choices: dict[str, Any] = {"feed_forward": name, "attention": attention, "n_layers": DEPTHS}
    deep = dict(tiny(residual="deepnorm", **choices).named_parameters())
    usual = dict(tiny(residual="post", **choices).named_parameters())
    assert deep.keys() == usual.keys()
    factors = {"encoder": 0.87 * (3**4 * 2) ** (-1 / 16), "decoder": 24 ** (-1 / 4)}
    n_smaller = 0
    for key, weight in usual.items():
        side, *_, module, kind = key.split(".")
        smaller = kind == "weight" and (module in {"v", "out", "up", "down", "gate"})
        factor = factors[side] if smaller else 1.0
        n_smaller += smaller
        torch.testing.assert_close(deep[key], weight * factor, atol=1e-7, rtol=1e-6)
    per_layer = {"relu": 2, "swiglu": 3, "mixture_of_experts": 8}[name]
    assert n_smaller == 5 * per_layer + 2 * 3 + 4 * 2


@pytest.mark.parametrize("name", ["post", "pre", "normformer", "admin"])
def test_other_schemes_do_not_change_the_initial_weights(name: str) -> None:
    drawn, usual = tiny(residual=name).state_dict(), tiny(residual="post").state_dict()
    keys = [key for key in usual if "residual" not in key]
    assert all(torch.equal(drawn[key], usual[key]) for key in keys)


def test_admin_is_profiled_in_each_stack_separately() -> None:
    """The square of each weight is the variance of the sum below it in the same stack."""
    model = tiny(residual="admin", n_layers=DEPTHS).double()
    src, tgt = batch()
    calls: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def watch(stack: int) -> Callable[..., None]:
        return lambda _, args, output: calls.setdefault(stack, []).append((args[0], output))

    handles = []
    for number, stack in enumerate((model.encoder, model.decoder)):
        for block in stack.blocks:
            for sublayer in (*block.attentions, block.feed_forward):
                assert isinstance(sublayer, (Attention, FeedForward))
                handles.append(sublayer.register_forward_hook(watch(number)))
    model.calibrate(src, tgt)
    for handle in handles:
        handle.remove()
    for number, stack in enumerate((model.encoder, model.decoder)):
        assert len(calls[number]) == len(stack.blocks) * (2 + number)
        layers: list[Any] = [block.residual for block in stack.blocks]
        omegas = list(itertools.chain.from_iterable(layer.omegas for layer in layers))
        accumulated = 1.0
        for omega, (x, y) in zip(omegas, calls[number], strict=True):
            expected = torch.full((D,), accumulated**0.5, dtype=torch.float64)
            torch.testing.assert_close(omega.detach(), expected, atol=1e-12, rtol=1e-12)
            accumulated = accumulated * float(x.var(correction=0)) + float(y.var(correction=0))
        assert accumulated > 1.1
        assert all(layer.calibration is None for layer in layers)
