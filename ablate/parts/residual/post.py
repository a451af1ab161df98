"""Post-LN and related schemes: the norm is on the stream, after the sum.

B batch, T tokens, D d_model. f is a sub-layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ablate.parts.attention import Attention
from ablate.parts.dims import LayerInfo
from ablate.parts.feed_forward import FeedForward
from ablate.parts.residual.contract import Copies, NormMaker, PerSublayer, Residual, Sublayer
from ablate.registry import register


@register(
    "post",
    formula="x <- norm(x + dropout(f(x)))",
    source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.1",
)
class PostNorm(PerSublayer):
    """Norm after the sum (Post-LN).

    Args:
        final_norm: one more norm at the end of the stack, as in torch.nn.Transformer.
    """

    def __init__(
        self, layer_info: LayerInfo, norm: NormMaker, dropout: float, *, final_norm: bool = False
    ) -> None:
        super().__init__(layer_info, norm, dropout)
        self.final_norm = final_norm

    def apply_sublayer(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return norm(x + self.dropout(sublayer(x)))


@register(
    "post_dropout_last",
    formula="x <- dropout(norm(x + f(x)))",
    source="A. Persson 2020, 'Transformers from scratch' (tutorial code); not in the literature",
)
class PostNormDropoutLast(PerSublayer):
    """Dropout after the norm, on the stream itself."""

    def apply_sublayer(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return self.dropout(norm(x + sublayer(x)))


@register(
    "b2t",
    formula="as post, but the last norm of a layer that began with z: norm(z + x + dropout(f(x)))",
    source="Takase et al. 2022, arXiv:2206.00330, sec. 4",
)
class BottomToTop(Residual):
    """Post-LN in which a layer's input is added again before its last norm (B2T connection).

    The authors' code also initialises deep models with smaller weights; here that is an option of
    `initialisation`.
    """

    needs_norm = "b2t adds the layer's input twice, which doubles the stream at every layer"

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        *attentions, (last_norm, feed_forward) = zip(self.norms, sublayers, strict=True)
        layer_input = x
        for norm, attention in attentions:
            x = norm(x + self.dropout(attention(x)))
        return last_norm(layer_input + x + self.dropout(feed_forward(x)))


@register(
    "residual_dual",
    formula="x <- norm(x + y), z <- z + y, y = dropout(f(x)); first z = x, last x <- x + norm(z)",
    source="Xie et al. 2023, arXiv:2304.14802, fig. 1 (ResiDual)",
)
class ResidualDual(PerSublayer):
    """ResiDual: a Post-LN stream x, which the sub-layers read, and the sum z of all outputs.

    Both are stored in one tensor, (B, T, 2 D). Leaves out the authors' division of z by a constant,
    which prevents overflow in half precision and has no effect after the norm.
    """

    needs_norm = "residual_dual has two streams that differ by their norms"

    def apply_sublayer(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        stream, total = x.chunk(2, dim=-1)
        y = self.dropout(sublayer(stream))
        return torch.cat((norm(stream + y), total + y), dim=-1)

    def input_transform(self, norm: NormMaker) -> nn.Module:
        return Copies(2)

    def output_transform(self, norm: NormMaker) -> nn.Module:
        return _JoinStreams(norm())


class _JoinStreams(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        stream, total = x.chunk(2, dim=-1)
        return stream + self.norm(total)  # (B, T, D)


@register(
    "realformer",
    formula="as post; each attention adds to its scores those of its counterpart one layer below",
    source="He et al. 2020, arXiv:2012.11747, sec. 3",
)
class RealFormer(PostNorm):
    """Post-LN with a residual connection between the attention scores of successive layers.

    The scores include position biases and come after a soft cap: a bias that all layers share, as
    of alibi and t5, is l times as large in layer l, and so is the bound of soft_cap. The paper's
    positions are absolute.

    Args:
        final_norm: one more norm at the end of the stack; the paper has none.
    """

    def modify_sublayers(
        self, attentions: Sequence[Attention], feed_forward: FeedForward, norm: NormMaker
    ) -> None:
        for attention in attentions:
            attention.use_previous_scores()
