"""Post-LN and its kin: the norm stands on the stream, after the sum.

B batch, T tokens, D d_model. f is a sub-layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ablate.parts.attention import Attention
from ablate.parts.dims import LayerInfo
from ablate.parts.feed_forward import FeedForward
from ablate.parts.residual.contract import NormMaker, OneByOne, Residual, Sublayer
from ablate.registry import register


@register(
    "post",
    formula="x <- norm(x + dropout(f(x)))",
    source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.1",
)
class PostNorm(OneByOne):
    """Norm after the sum (Post-LN).

    Args:
        layer_info: where the layer stands.
        norm: makes a fresh norm.
        dropout: of the sub-layers' outputs.
        final_norm: one more norm at the end of the stack, as in torch.nn.Transformer.
    """

    def __init__(
        self,
        layer_info: LayerInfo,
        norm: NormMaker,
        dropout: float,
        *,
        final_norm: bool = False,
    ) -> None:
        super().__init__(layer_info, norm, dropout)
        self.final_norm = final_norm

    def join(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return norm(x + self.dropout(sublayer(x)))

    def closing(self, norm: NormMaker) -> nn.Module:
        return norm() if self.final_norm else nn.Identity()


@register(
    "post_dropout_last",
    formula="x <- dropout(norm(x + f(x)))",
    source="A. Persson 2020, 'Transformers from scratch' (tutorial code); not in the literature",
)
class PostNormDropoutLast(OneByOne):
    """Dropout after the norm, on the stream itself."""

    def join(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return self.dropout(norm(x + sublayer(x)))


@register(
    "b2t",
    formula="as post, but the last norm of a layer that began with z: norm(z + x + dropout(f(x)))",
    source="Takase et al. 2022, arXiv:2206.00330, sec. 4",
)
class BottomToTop(Residual):
    """Post-LN in which a layer's input is added again before its last norm (B2T connection).

    The authors' code also draws smaller weights in deep models; that is left to the choice of
    initialisation.

    Raises:
        ValueError: if model.norm is none.
    """

    needs_norm = "b2t adds the layer's input twice, and the stream would double at every layer"

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        *attending, (last_norm, feed_forward) = zip(self.norms, sublayers, strict=True)
        bottom = x
        for norm, sublayer in attending:
            x = norm(x + self.dropout(sublayer(x)))
        return last_norm(bottom + x + self.dropout(feed_forward(x)))


@register(
    "residual_dual",
    formula="x <- norm(x + y), z <- z + y, y = dropout(f(x)); first z = x, last x <- x + norm(z)",
    source="Xie et al. 2023, arXiv:2304.14802, fig. 1 (ResiDual)",
)
class ResidualDual(OneByOne):
    """ResiDual: a Post-LN stream x feeds the sub-layers, beside it a plain sum z of all outputs.

    The two travel as one stream, (B, T, 2 D). Leaves out the authors' downscaling of z by a
    constant, which keeps half precision from overflowing and does not survive the norm.

    Raises:
        ValueError: if model.norm is none.
    """

    needs_norm = "residual_dual tells its two streams apart by their norms"

    def join(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        post, plain = x.chunk(2, dim=-1)
        y = self.dropout(sublayer(post))
        return torch.cat((norm(post + y), plain + y), dim=-1)

    def opening(self, norm: NormMaker) -> nn.Module:
        return _Doubled()

    def closing(self, norm: NormMaker) -> nn.Module:
        return _Rejoined(norm())


class _Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, x), dim=-1)  # (B, T, 2 D)


class _Rejoined(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        post, plain = x.chunk(2, dim=-1)
        return post + self.norm(plain)  # (B, T, D)


@register(
    "realformer",
    formula="as post; each attention adds to its scores those of the one like it a layer below",
    source="He et al. 2020, arXiv:2012.11747, sec. 3",
)
class RealFormer(PostNorm):
    """Post-LN whose attention scores have a residual connection of their own, before the softmax.

    Args:
        layer_info: where the layer stands.
        norm: makes a fresh norm.
        dropout: of the sub-layers' outputs.
        final_norm: one more norm at the end of the stack; the paper has none.
    """

    def modify_sublayers(
        self, attentions: Sequence[Attention], feed_forward: FeedForward, norm: NormMaker
    ) -> None:
        for attention in attentions:
            attention.add_up_scores()
