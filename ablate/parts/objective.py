"""Objectives: what training minimises.

N target tokens, V vocabulary size. Losses are sums over tokens, in nats.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ablate.registry import Part, register

Epsilon = Annotated[float, Field(ge=0.0, lt=1.0)]


class Objective(Part, slot="objective"):
    """The contract: logits and targets in, the sum of the tokens' losses out.

    Args:
        pad: the id of padding, whose loss is 0.
    """

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, (), of ``logits`` (N, V), summed over ``targets`` (N,) but padding."""
        raise NotImplementedError


@register("cross_entropy", source="Sutskever et al. 2014, arXiv:1409.3215, sec. 3.2")
class CrossEntropy(Objective):
    """-log p(target)."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(_precise(logits), targets, reduction="sum", ignore_index=self.pad)


@register("label_smoothing", source="Szegedy et al. 2016, arXiv:1512.00567, sec. 7")
class LabelSmoothing(Objective):
    """Cross-entropy against a target that keeps 1 - epsilon and spreads epsilon.

    Three forms are published under one name. They differ in where epsilon goes, and so in the
    value of the loss and, a little, in its gradient.

    Args:
        pad: the id of padding.
        epsilon: the probability that is spread.
        form: ``uniform``: over all V tokens, the target among them (Szegedy et al.;
            torch.nn.CrossEntropyLoss; fairseq to 2020). ``others``: over the V - 1 others, as
            tensor2tensor, and so the paper's experiments, and fairseq since. ``annotated``: over
            the V - 2 others that are not padding, with the entropy of the target subtracted (a
            Kullback-Leibler divergence), as in The Annotated Transformer.
    """

    def __init__(
        self,
        pad: int,
        *,
        epsilon: Epsilon = 0.1,
        form: Literal["uniform", "others", "annotated"] = "uniform",
    ) -> None:
        super().__init__(pad)
        self.epsilon = epsilon
        self.form = form

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.form == "uniform":
            return F.cross_entropy(
                _precise(logits),
                targets,
                reduction="sum",
                ignore_index=self.pad,
                label_smoothing=self.epsilon,
            )
        log_p = _precise(logits).log_softmax(dim=-1)  # (N, V)
        own = log_p.gather(1, targets[:, None])[:, 0]  # (N,)
        others = log_p.sum(dim=-1) - own
        n_others = logits.size(-1) - 1
        if self.form == "annotated":
            others, n_others = others - log_p[:, self.pad], n_others - 1
        loss = -(1 - self.epsilon) * own - self.epsilon / n_others * others  # (N,)
        if self.form == "annotated":
            loss = loss - self._entropy(n_others)
        return loss.masked_fill(targets == self.pad, 0.0).sum()

    def _entropy(self, n_others: int) -> float:
        own, share = 1 - self.epsilon, self.epsilon / n_others
        return -sum(n * p * math.log(p) for n, p in ((1, own), (n_others, share)) if p > 0)


def _precise(logits: Tensor) -> Tensor:
    """Return ``logits`` in single precision at least: sums over a vocabulary need it."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
