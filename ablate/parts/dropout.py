"""Dropout of single elements that is fast on a CPU too."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_STEPS = 2**16


class ElementDropout(nn.Dropout):
    """Zero each element with probability p and divide the others by 1 - p, in training.

    As torch.nn.Dropout, whose random draws on a CPU take more time than the layers around them. On
    a CPU this class draws one 64-bit integer for four elements, so p is rounded to a multiple of
    2^-16.

    Source: Srivastava et al. 2014, JMLR 15, sec. 4, in the inverted form.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - PyTorch's name
        n_dropped = round(self.p * _STEPS)
        uses_pytorch = input.device.type != "cpu" or n_dropped == _STEPS
        if uses_pytorch or not self.training or n_dropped == 0:
            return super().forward(input)
        n = math.prod(input.shape)
        words = torch.empty((n + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        numbers = words.view(torch.int16)[:n].view(input.shape)
        # Compare into the input's dtype: converting booleans takes longer than comparing
        mask = torch.empty_like(input)
        torch.ge(numbers, n_dropped - _STEPS // 2, out=mask)
        return input * mask.mul_(_STEPS / (_STEPS - n_dropped))
