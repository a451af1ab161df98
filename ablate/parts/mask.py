"""Masks: which tokens of its own sequence a token may attend to.

B batch, T queries, S keys. A mask is True where attention is allowed. The mask of cross-attention
is not an option: every source token is visible, and padding is not.
"""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor

from ablate.parts.dims import StackInfo
from ablate.registry import Part, register


class Mask(Part, slot="mask"):
    """The contract: the rule of one stack's self-attention.

    Args:
        stack_info: which stack; that of the decoder is causal.
    """

    def __init__(self, stack_info: StackInfo) -> None:
        self.is_causal = stack_info.side == "decoder"

    def allowed(self, query_positions: Tensor, key_positions: Tensor, is_token: Tensor) -> Tensor:
        """Return the mask, broadcastable to (B, H, T, S).

        Args:
            query_positions: positions of the queries, (T,).
            key_positions: positions of the keys, (S,).
            is_token: True where a key is a token and not padding, (B or 1, 1, 1, S).
        """
        if not self.is_causal:
            return is_token
        return query_positions[:, None] >= key_positions[None, :]


@register(
    "causal",
    formula="encoder: key is a token; decoder: key position <= query position",
    source="Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.3",
    is_contract=True,
)
class Causal(Mask):
    """Encoder tokens attend to all tokens, decoder tokens to earlier ones and to themselves.

    Padding is at the end, so that no target token attends to it; the rows of padding itself are
    computed and left out of the loss.
    """


@register(
    "causal_padding",
    formula="encoder: key is a token; decoder: that, and key position <= query position",
    source="Rush 2018, The Annotated Transformer (Batch.make_std_mask)",
)
class CausalPadding(Mask):
    """Like `causal`, but target padding is masked too.

    The logits of tokens are the same to the last bit; only those of padding, which no loss counts,
    differ. The part exists to demonstrate that.
    """

    def allowed(self, query_positions: Tensor, key_positions: Tensor, is_token: Tensor) -> Tensor:
        return super().allowed(query_positions, key_positions, is_token) & is_token


@register(
    "local",
    formula="as causal, and |query position - key position| <= window",
    source="Luong et al. 2015, arXiv:1508.04025, sec. 3.2; Beltagy et al. 2020, arXiv:2004.05150",
)
class Local(Mask):
    """A token attends only to its neighbourhood: a sliding window in both stacks.

    Args:
        stack_info: which stack; the decoder's window contains earlier tokens only.
        window: the largest distance, in tokens, on either side.
    """

    def __init__(self, stack_info: StackInfo, *, window: PositiveInt = 8) -> None:
        super().__init__(stack_info)
        self.window = window

    def allowed(self, query_positions: Tensor, key_positions: Tensor, is_token: Tensor) -> Tensor:
        distance = (query_positions[:, None] - key_positions[None, :]).abs()
        is_near = distance <= self.window
        return super().allowed(query_positions, key_positions, is_token) & is_near
