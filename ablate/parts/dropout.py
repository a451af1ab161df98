"""Dropout of single numbers, drawn quickly on a CPU too."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_STEPS = 2**16


class ElementDropout(nn.Dropout):
    """Zero each number with probability p and divide the others by 1 - p, while training.

    As torch.nn.Dropout, whose draws on a CPU cost more than the layers around them: four numbers
    are decided by one random word there, so p is rounded to a multiple of 2^-16.

    Source: Srivastava et al. 2014, JMLR 15, sec. 4, in the inverted form.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        n_dropped = round(self.p * _STEPS)
        is_usual = input.device.type != "cpu" or n_dropped == _STEPS
        if is_usual or not self.training or n_dropped == 0:
            return super().forward(input)
        n = math.prod(input.shape)
        words = torch.empty((n + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        drawn = words.view(torch.int16)[:n].view(input.shape)
        # Straight into the input's dtype: to make numbers of bools takes longer than to compare
        kept = torch.empty_like(input)
        torch.ge(drawn, n_dropped - _STEPS // 2, out=kept)
        return input * kept.mul_(_STEPS / (_STEPS - n_dropped))
