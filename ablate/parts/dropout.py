"""Dropout of elements, words and heads.

B batch, T tokens, D d_model, H n_heads.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ablate.parts.dims import Dropout

_STEPS = 2**16


class ElementDropout(nn.Dropout):
    """Zero each element with probability p and divide the others by 1 - p, in training.

    Replaces torch.nn.Dropout, whose random draws on a CPU take more time than the layers around
    them. On a CPU this class draws one 64-bit integer for four elements, so p is rounded to a
    multiple of 2^-16.

    Source: Srivastava et al. 2014, JMLR 15, sec. 4, in the inverted form.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        if not self.training or self.p == 0:
            return input
        n_dropped = round(self.p * _STEPS)
        if input.device.type != "cpu" or n_dropped in (0, _STEPS):
            return super().forward(input)
        n = math.prod(input.shape)
        words = torch.empty((n + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        numbers = words.view(torch.int16)[:n].view(input.shape)
        # The comparison writes the dtype of the input: to convert booleans would take longer
        mask = torch.empty_like(input)
        torch.ge(numbers, n_dropped - _STEPS // 2, out=mask)
        return input * mask.mul_(_STEPS / (_STEPS - n_dropped))


class WordDropout(nn.Module):
    """Embeds tokens and, in training, drops words in one of the forms of `Dropout.word_form`.

    Padding never becomes the unknown word. ``unknown`` and ``pad`` are ids.
    """

    def __init__(self, dropout: Dropout, *, unknown: int, pad: int) -> None:
        super().__init__()
        self.form = dropout.word_form
        self.rate = dropout.word
        self.unknown = unknown
        self.pad = pad
        self.tokens = nn.Dropout1d(dropout.word)

    def forward(self, ids: Tensor, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the embeddings (B, T, D) of ``ids`` (B, T), some of them dropped."""
        if not (self.training and self.rate):
            return embed(ids)
        if self.form == "token":
            return self.tokens(embed(ids))
        draws = torch.rand(ids.shape, device=ids.device)
        if self.form == "unknown":
            is_dropped = (draws < self.rate) & (ids != self.pad)
            return embed(ids.masked_fill(is_dropped, self.unknown))
        first = (ids[:, :, None] == ids[:, None, :]).byte().argmax(dim=-1)  # token of the same id
        is_kept = draws.gather(1, first) >= self.rate
        x = embed(ids)
        return x * (is_kept / (1 - self.rate))[:, :, None].to(x.dtype)


class HeadDropout(nn.Module):
    """Drops, in training, whole heads of a sentence, in one of the forms of `Dropout.head_form`."""

    def __init__(self, dropout: Dropout) -> None:
        super().__init__()
        self.form = dropout.head_form
        self.rate = dropout.head
        self.heads = nn.Dropout2d(dropout.head)

    def forward(self, y: Tensor) -> Tensor:
        """Return the heads' outputs ``y`` (B, H, T, V), some of them 0."""
        if not (self.training and self.rate):
            return y
        if self.form == "independent":
            return self.heads(y)
        is_kept = self._draw(y.size(0), y.size(1), y.device)
        factors = is_kept * (y.size(1) / is_kept.sum(dim=1, keepdim=True))
        return y * factors[:, :, None, None].to(y.dtype)

    def _draw(self, n_rows: int, n_heads: int, device: torch.device) -> Tensor:
        """Draw which heads are kept, (B, H), on the condition that at least one is.

        To draw again where none is kept would make the host wait for the device. Instead, the
        number of the first head that is kept is drawn from a truncated geometric distribution; the
        heads after it are independent.
        """
        draws = torch.rand(n_rows, n_heads + 1, device=device, dtype=torch.float64)
        survival = 1 - draws[:, :1] * (1 - self.rate**n_heads)
        first = (survival.log() / math.log(self.rate)).floor().clamp(max=n_heads - 1)
        head = torch.arange(n_heads, device=device)
        return (head == first) | ((head > first) & (draws[:, 1:] >= self.rate))
