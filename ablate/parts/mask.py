"""Masks: which tokens of its own sequence a token may look at.

B batch, T queries, S keys. A mask is True where attention is allowed. Cross-attention has no
choice of masks: it always sees every source token, and never padding.
"""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor

from ablate.parts.dims import StackInfo
from ablate.registry import Part, register


class Mask(Part, slot="mask"):
    """The contract: the rule of one stack's self-attention.

    Args:
        stack_info: which stack; the decoder must never look ahead.
    """

    def __init__(self, stack_info: StackInfo) -> None:
        self.is_causal = stack_info.side == "decoder"

    def allowed(self, queries: Tensor, keys: Tensor, real: Tensor) -> Tensor:
        """Return who may look at whom, broadcastable to (B, H, T, S).

        Args:
            queries: positions of the queries, (T,).
            keys: positions of the keys, (S,).
            real: True where there is a token and not padding, (B or 1, 1, 1, S).
        """
        return queries[:, None] >= keys[None, :] if self.is_causal else real


@register(
    "causal",
    formula="encoder: key is a token; decoder: key position <= query position",
    source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.3",
)
class Causal(Mask):
    """The encoder sees every token; the decoder sees what stands before, and itself.

    Padding stands at the end, so that no target token ever looks at it; the rows of padding itself
    are computed and left out of the loss.
    """


@register(
    "causal_padding",
    formula="encoder: key is a token; decoder: that, and key position <= query position",
    source="Rush 2018, The Annotated Transformer (Batch.make_std_mask)",
)
class CausalPadding(Mask):
    """Like `causal`, but target padding is hidden too.

    The logits of real tokens are the same to the last bit; only those of padding, which no loss
    counts, differ. It is here so that this can be seen rather than believed.
    """

    def allowed(self, queries: Tensor, keys: Tensor, real: Tensor) -> Tensor:
        return super().allowed(queries, keys, real) & real


@register(
    "local",
    formula="as causal, and |query position - key position| <= window",
    source="Luong et al. 2015, arXiv:1508.04025, sec. 3.2; Beltagy et al. 2020, arXiv:2004.05150",
)
class Local(Mask):
    """A token sees its neighbourhood alone: a sliding window in both stacks.

    Args:
        stack_info: which stack; the decoder's window reaches back only.
        window: how many tokens away, on either side.
    """

    def __init__(self, stack_info: StackInfo, *, window: PositiveInt = 8) -> None:
        super().__init__(stack_info)
        self.window = window

    def allowed(self, queries: Tensor, keys: Tensor, real: Tensor) -> Tensor:
        near = (queries[:, None] - keys[None, :]).abs() <= self.window
        return super().allowed(queries, keys, real) & near
