"""Masks: which tokens of its own sequence a token may attend to.

B batch, T queries, S keys. A mask is True where attention is allowed. The mask of cross-attention
is not an option: every source token is visible, and padding is not.
"""

from __future__ import annotations

from pydantic import PositiveInt
from torch import Tensor

from ablate.parts.dims import AtLeastTwo, StackInfo
from ablate.registry import Part, register


class Mask(Part, slot="mask"):
    """The contract: which keys the self-attention of one stack may attend to.

    Args:
        stack_info: which stack; the mask of the decoder is causal.
    """

    def __init__(self, stack_info: StackInfo) -> None:
        self.is_causal = stack_info.side == "decoder"

    def at_layer(self, layer: int) -> Mask:
        """Return the mask of a layer, 0 first."""
        return self

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

    Padding is at the end, so that no target token attends to it. The queries of padding are
    computed, and the loss leaves them out.
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
        window: the largest distance, in tokens, on either side.
    """

    def __init__(self, stack_info: StackInfo, *, window: PositiveInt = 8) -> None:
        super().__init__(stack_info)
        self.window = window

    def allowed(self, query_positions: Tensor, key_positions: Tensor, is_token: Tensor) -> Tensor:
        distance = (query_positions[:, None] - key_positions[None, :]).abs()
        is_near = distance <= self.window
        return super().allowed(query_positions, key_positions, is_token) & is_near


@register(
    "local_sink",
    formula="as local, or as causal and key position < n_first",
    source="Xiao et al. 2024, arXiv:2309.17453, sec. 3 (StreamingLLM)",
)
class LocalSink(Local):
    """A sliding window and the first tokens of the sequence, which attract attention (sinks).

    Positions are those in the sentence; in the paper they are those in the cache.

    Args:
        n_first: how many of the first tokens all others may attend to; 4 in the paper.
    """

    def __init__(
        self, stack_info: StackInfo, *, window: PositiveInt = 8, n_first: PositiveInt = 4
    ) -> None:
        super().__init__(stack_info, window=window)
        self.n_first = n_first

    def allowed(self, query_positions: Tensor, key_positions: Tensor, is_token: Tensor) -> Tensor:
        without_window = Mask.allowed(self, query_positions, key_positions, is_token)
        is_first = key_positions < self.n_first
        in_window = super().allowed(query_positions, key_positions, is_token)
        return in_window | (without_window & is_first)


@register(
    "local_global",
    formula="layer l = 1, 2, ...: causal if every divides l, else local",
    source="Gemma Team 2024, arXiv:2408.00118, sec. 2 (local and global attention)",
)
class LocalGlobal(Local):
    """Layers with a sliding window; every n-th layer attends to the whole sentence.

    Args:
        window: the largest distance, in tokens, on either side, in layers with a window.
        every: n; 2 in Gemma 2, 6 in Gemma 3. If a stack has fewer layers, all of them have a
            window, as with `local`.
    """

    def __init__(
        self, stack_info: StackInfo, *, window: PositiveInt = 8, every: AtLeastTwo = 2
    ) -> None:
        super().__init__(stack_info, window=window)
        self.every = every
        self.causal = Causal(stack_info)

    def at_layer(self, layer: int) -> Mask:
        return self if (layer + 1) % self.every else self.causal
