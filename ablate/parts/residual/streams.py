"""Residual schemes in which layers read several streams, or all outputs below.

B batch, T tokens, D d_model, n streams. f is a sub-layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ablate.parts.dims import AtLeastTwo, LayerInfo
from ablate.parts.residual.contract import Copies, NormMaker, Residual, Sublayer
from ablate.registry import register


@register(
    "dlcl",
    formula="z = sum_k w_k norm_k(y_k) over all outputs y_k below, then as pre; at the end alike",
    source="Wang et al. 2019, arXiv:1906.01787, sec. 3 (dynamic linear combination of layers, pre)",
)
class LinearCombination(Residual):
    """Every layer reads a trained combination of the normalised outputs of all layers below it.

    The embeddings are y_0. Each layer, and the end of the stack, has its own weights, at first
    1 / (number of outputs), and its own norms of the outputs; in the authors' code each output has
    one norm, for all its readers, and the embeddings have none. After the combination at the end
    there is one more norm, as after Pre-LN. The stream holds all outputs, (n_layers + 1) D, newest
    last. A block that serves several layers combines as many of the newest outputs as its lowest
    layer has. Layers cannot be dropped (dropout.layer).
    """

    needs_norm = "dlcl combines the normalised outputs of layers"
    layer_dropout_blocker = (
        "weights the outputs of the layers below by their place in the stream, and a dropped layer "
        "would move them"
    )

    def __init__(self, layer_info: LayerInfo, norm: NormMaker, dropout: float) -> None:
        super().__init__(layer_info, norm, dropout)
        self.n_outputs = layer_info.n_layers + 1
        self.combination = _Combination(norm, layer_info.layer + 1, self.n_outputs)

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        y = self.combination(x)
        for norm, sublayer in zip(self.norms, sublayers, strict=True):
            y = y + self.dropout(sublayer(norm(y)))
        return torch.cat((x[..., y.size(-1) :], y), dim=-1)

    def input_transform(self, norm: NormMaker) -> nn.Module:
        return _NewestLast(self.n_outputs)

    def output_transform(self, norm: NormMaker) -> nn.Module:
        return nn.Sequential(_Combination(norm, self.n_outputs, self.n_outputs), norm())


class _NewestLast(nn.Module):
    """Makes a stream for ``n`` outputs, of which the embeddings are the newest and others 0."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.pad(x, ((self.n - 1) * x.size(-1), 0))  # (B, T, n D)


class _Combination(nn.Module):
    """Combines the newest ``n`` of the ``n_outputs`` outputs in a stream."""

    def __init__(self, norm: NormMaker, n: int, n_outputs: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm() for _ in range(n))
        self.weights = nn.Parameter(torch.full((n,), 1 / n))
        self.n_outputs = n_outputs

    def forward(self, x: Tensor) -> Tensor:
        newest = x.chunk(self.n_outputs, dim=-1)[-len(self.norms) :]
        terms = [w * norm(y) for w, norm, y in zip(self.weights, self.norms, newest, strict=True)]
        return torch.stack(terms).sum(dim=0)


@register(
    "hyper_connections",
    formula="h = A_m^T H, H <- A_r^T H + B^T dropout(f(norm(h))) for streams H; dynamic: A_m + "
    "s tanh(norm(H) W_m), A_r and B alike; first H = x ... x, at the end norm(sum of H)",
    source="Zhu et al. 2024, arXiv:2409.19606, sec. 2 and eq. 14",
)
class HyperConnections(Residual):
    """Several residual streams, which every sub-layer reads and writes with trained weights.

    At first sub-layer k of a stack, counted from 0, reads stream k mod n, its output is added to
    all streams, and streams are not mixed. A block that serves several layers has the numbers of
    the lowest. If dynamic, the weights also depend on the streams, by matrices that are 0 at first
    and scales that are 0.01 at first. In bf16 the matrix product A_r^T H rounds the streams at
    every sub-layer; other schemes keep theirs in fp32.

    Args:
        n_streams: n, the expansion rate.
        dynamic: whether the weights depend on the streams (DHC) or not (SHC).
    """

    needs_norm = "hyper_connections normalises what a sub-layer reads"

    def __init__(
        self,
        layer_info: LayerInfo,
        norm: NormMaker,
        dropout: float,
        *,
        n_streams: AtLeastTwo = 4,
        dynamic: bool = True,
    ) -> None:
        super().__init__(layer_info, norm, dropout)
        self.n_streams = n_streams
        first = layer_info.layer * layer_info.n_sublayers
        self.connections = nn.ModuleList(
            _Connection(norm, n_streams, (first + k) % n_streams, dynamic=dynamic)
            for k in range(layer_info.n_sublayers)
        )

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        streams = x.unflatten(-1, (self.n_streams, -1))  # (B, T, n, D)
        for norm, connection, sublayer in zip(self.norms, self.connections, sublayers, strict=True):
            a_m, a_r, b = connection(streams)
            h = (a_m * streams).sum(dim=-2)  # (B, T, D)
            y = self.dropout(sublayer(norm(h)))
            streams = a_r.mT @ streams + b * y[..., None, :]
        return streams.flatten(-2)

    def input_transform(self, norm: NormMaker) -> nn.Module:
        return Copies(self.n_streams)

    def output_transform(self, norm: NormMaker) -> nn.Module:
        return nn.Sequential(_Sum(self.n_streams), norm())


class _Connection(nn.Module):
    """Computes the weights with which a sub-layer reads (at first ``first``), mixes and writes."""

    def __init__(self, norm: NormMaker, n: int, first: int, *, dynamic: bool) -> None:
        super().__init__()
        self.read = nn.Parameter(torch.eye(n)[:, first : first + 1].clone())  # A_m, (n, 1)
        self.keep = nn.Parameter(torch.eye(n))  # A_r, (n, n)
        self.write = nn.Parameter(torch.ones(n, 1))  # B, (n, 1)
        self.norm = norm() if dynamic else None
        if self.norm is not None:
            width = self.norm.width
            self.reader = nn.Parameter(torch.zeros(width, 1))
            self.keeper = nn.Parameter(torch.zeros(width, n))
            self.writer = nn.Parameter(torch.zeros(width, 1))
            self.scales = nn.Parameter(torch.full((2,), 0.01))  # of reading and keeping; of writing

    def forward(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return A_m (..., n, 1), A_r (..., n, n) and B (..., n, 1) for (B, T, n, D)."""
        if self.norm is None:
            return self.read, self.keep, self.write
        normed = self.norm(streams)
        input_scale, output_scale = self.scales
        return (
            self.read + input_scale * (normed @ self.reader).tanh(),
            self.keep + input_scale * (normed @ self.keeper).tanh(),
            self.write + output_scale * (normed @ self.writer).tanh(),
        )


class _Sum(nn.Module):
    def __init__(self, n: int) -> None:
        super().__init__()
        self.n = n

    def forward(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.n, -1)).sum(dim=-2)  # (B, T, D)
