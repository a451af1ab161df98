"""Notebook 4's Transformer in plain tensor algebra, over weights that are called as it calls them.

Independent of the package: nothing here is a module, and nothing is imported from it.

N sentences, S source tokens, T target tokens, D embed_size, H heads, K head width, V vocabulary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Sizes:
    """The notebook's hyperparameters, at its own defaults."""

    n_src: int = 10
    n_tgt: int = 10
    width: int = 256
    n_layers: int = 6
    expansion: int = 4
    n_heads: int = 8
    max_length: int = 100
    pad: int = 0


def shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight in the notebook's state_dict, by its name there."""
    d, k, wide = sizes.width, sizes.width // sizes.n_heads, sizes.width * sizes.expansion
    attention = {f"{name}.weight": (k, k) for name in ("values", "keys", "queries")}
    attention["fc_out.weight"] = (d, d)
    norm: dict[str, tuple[int, ...]] = {"weight": (d,), "bias": (d,)}
    block: dict[str, tuple[int, ...]] = {
        **{f"attention.{name}": shape for name, shape in attention.items()},
        **{f"norm{i}.{name}": shape for i in (1, 2) for name, shape in norm.items()},
        "feed_forward.0.weight": (wide, d),
        "feed_forward.0.bias": (wide,),
        "feed_forward.2.weight": (d, wide),
        "feed_forward.2.bias": (d,),
    }
    actual: dict[str, tuple[int, ...]] = {}
    for side, n_words in (("encoder", sizes.n_src), ("decoder", sizes.n_tgt)):
        actual[f"{side}.word_embeddings.weight"] = (n_words, d)
        actual[f"{side}.position_embeddings.weight"] = (sizes.max_length, d)
    for i in range(sizes.n_layers):
        actual |= {f"encoder.layers.{i}.{name}": shape for name, shape in block.items()}
        layer = f"decoder.layers.{i}"
        actual |= {f"{layer}.attention.{name}": shape for name, shape in attention.items()}
        actual |= {f"{layer}.norm.{name}": shape for name, shape in norm.items()}
        actual |= {f"{layer}.transformer_block.{name}": shape for name, shape in block.items()}
    return {
        **actual,
        "decoder.fc_out.weight": (sizes.n_tgt, d),
        "decoder.fc_out.bias": (sizes.n_tgt,),
    }


def drawn(sizes: Sizes, seed: int = 0) -> Weights:
    """Return weights of ordinary size, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * (shape[-1] ** -0.5 if len(shape) > 1 else 1)
        for name, shape in shapes(sizes).items()
    }


def logits(weights: Weights, sizes: Sizes, src: Tensor, tgt: Tensor) -> Tensor:
    """Return what the notebook's forward does in evaluation mode, of (N, S) and (N, T): (N, T, V).

    The weights have the names of the notebook's state_dict.
    """
    source_mask = (src != sizes.pad)[:, None, None, :]
    future_mask = torch.ones(tgt.size(1), tgt.size(1), dtype=torch.bool).tril()[None, None]
    memory = _embedded(weights, "encoder", src)
    for i in range(sizes.n_layers):
        memory = _block(weights, f"encoder.layers.{i}", sizes.n_heads, memory, memory, source_mask)
    x = _embedded(weights, "decoder", tgt)
    for i in range(sizes.n_layers):
        layer = f"decoder.layers.{i}"
        attended = _attended(weights, f"{layer}.attention", sizes.n_heads, x, x, future_mask)
        query = _normalised(weights, f"{layer}.norm", attended + x)
        x = _block(weights, f"{layer}.transformer_block", sizes.n_heads, query, memory, source_mask)
    return x @ weights["decoder.fc_out.weight"].T + weights["decoder.fc_out.bias"]


_RENAMED = (
    (r"^encoder\.word_embeddings", "embedding.src_table"),
    (r"^decoder\.word_embeddings", "embedding.tgt_table"),
    (r"^decoder\.fc_out", "embedding.output"),
    (r"position_embeddings\.weight", "position.table"),
    (r"^(decoder\.layers\.\d+)\.norm\.", r"\1.residual.norms.0.norm."),
    (r"^(decoder\.layers\.\d+)\.transformer_block\.attention", r"\1.cross_attention"),
    (r"^(decoder\.layers\.\d+)\.transformer_block\.norm1", r"\1.residual.norms.1.norm"),
    (r"^(decoder\.layers\.\d+)\.transformer_block\.norm2", r"\1.residual.norms.2.norm"),
    (r"\.transformer_block", ""),
    (r"\.norm1", ".residual.norms.0.norm"),
    (r"\.norm2", ".residual.norms.1.norm"),
    (r"feed_forward\.0", "feed_forward.up"),
    (r"feed_forward\.2", "feed_forward.down"),
    (r"\.values\.", ".v."),
    (r"\.keys\.", ".k."),
    (r"\.queries\.", ".q."),
    (r"\.fc_out\.", ".out."),
)


def renamed(weights: Weights) -> Weights:
    """Return the notebook's weights under the names that the preset's model gives them."""
    actual: Weights = {}
    for name, weight in weights.items():
        for theirs, ours in _RENAMED:
            name = re.sub(theirs, ours, name)
        actual[name] = weight
    return actual


def _embedded(weights: Weights, side: str, ids: Tensor) -> Tensor:
    words = weights[f"{side}.word_embeddings.weight"][ids]
    return words + weights[f"{side}.position_embeddings.weight"][: ids.size(1)]


def _block(
    weights: Weights, at: str, n_heads: int, query: Tensor, source: Tensor, mask: Tensor
) -> Tensor:
    attended = _attended(weights, f"{at}.attention", n_heads, query, source, mask)
    x = _normalised(weights, f"{at}.norm1", attended + query)
    first, second = (f"{at}.feed_forward.{i}" for i in (0, 2))
    hidden = (x @ weights[f"{first}.weight"].T + weights[f"{first}.bias"]).clamp_min(0)
    y = hidden @ weights[f"{second}.weight"].T + weights[f"{second}.bias"]
    return _normalised(weights, f"{at}.norm2", y + x)


def _attended(
    weights: Weights, at: str, n_heads: int, query: Tensor, source: Tensor, mask: Tensor
) -> Tensor:
    def heads(x: Tensor, name: str) -> Tensor:
        pieces = x.reshape(*x.shape[:2], n_heads, -1)  # (N, S, H, K)
        return pieces @ weights[f"{at}.{name}.weight"].T

    q, k, v = heads(query, "queries"), heads(source, "keys"), heads(source, "values")
    energy = torch.einsum("nqhd,nkhd->nhqk", q, k).masked_fill(~mask, float("-inf"))
    share = (energy / query.size(-1) ** 0.5).softmax(dim=-1)  # by the root of embed_size
    actual = torch.einsum("nhqk,nkhd->nqhd", share, v).flatten(-2)
    return actual @ weights[f"{at}.fc_out.weight"].T


def _normalised(weights: Weights, at: str, x: Tensor) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    spread = (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
    return weights[f"{at}.weight"] * centred / spread + weights[f"{at}.bias"]
