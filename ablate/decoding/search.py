"""What a search is, and how a whole test set goes through one.

B sentences, S source tokens, V target vocabulary. A hypothesis ends in EOS, which counts in its
length and its probability and is left out of its tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ablate.data.batches import Ragged
from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.model import Transformer
from ablate.registry import Part


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence.

    Attributes:
        tokens: without BOS and EOS.
        log_p: natural logarithm of its probability, EOS included.
        score: what the search ranks by: log_p over the length penalty.
    """

    tokens: list[int]
    log_p: float
    score: float


class Search(Part, slot="decoding"):
    """The contract: source ids in, hypotheses out, best first.

    A target is at most ``max_extra`` tokens longer than its source (Vaswani et al. 2017, sec. 6.1,
    allow 50), and never longer than the model; at the limit it ends in EOS, at the price of EOS.

    Args:
        max_extra: target tokens beyond those of the source.
    """

    def __init__(self, max_extra: int) -> None:
        self.max_extra = max_extra

    def search(
        self, model: Transformer, src: Tensor, n_tokens: Tensor | None = None
    ) -> list[list[Hypothesis]]:
        """Translate ``src`` (B, S); return the hypotheses of each sentence, best first.

        Args:
            model: in evaluation mode, on the device of ``src``.
            src: ids, padded at the end.
            n_tokens: target tokens, EOS included, that every hypothesis must have, (B,): the
                fixed amount of work that a measurement of speed needs.
        """
        raise NotImplementedError

    def limits(self, model: Transformer, src: Tensor) -> Tensor:
        """Return the most target tokens of each sentence, EOS included, (B,)."""
        return ((src != PAD).sum(dim=1) + self.max_extra).clamp(max=model.max_len)


def next_log_p(logits: Tensor, is_last: Tensor, is_early: Tensor | None) -> Tensor:
    """Return the log-probabilities (B, ..., V) of what may come next.

    PAD and BOS never come. Probabilities are those of the model, not made to sum to 1 again.

    Args:
        logits: (B, ..., V).
        is_last: the sentences that must end now, (B,).
        is_early: the sentences that must not end yet, (B,), or None.
    """
    log_p = logits.float().log_softmax(dim=-1)
    log_p[..., [PAD, BOS]] = -torch.inf
    ends = torch.arange(log_p.size(-1), device=log_p.device) == EOS
    shape = (-1, *(1,) * (log_p.ndim - 1))
    log_p = log_p.masked_fill(is_last.view(shape) & ~ends, -torch.inf)
    if is_early is not None:
        log_p = log_p.masked_fill(is_early.view(shape) & ends, -torch.inf)
    return log_p


@torch.inference_mode()
def translate(
    model: Transformer,
    search: Search,
    sources: Ragged,
    batch_tokens: int,
    device: torch.device,
) -> list[list[Hypothesis]]:
    """Translate any number of sentences; return their hypotheses in the order of ``sources``.

    Sentences of about equal length share a batch; which ones do makes no difference to what comes
    out. The model's mode is left as it was.

    Args:
        model: on ``device``.
        search: how to look for translations.
        sources: ids that end in EOS.
        batch_tokens: source tokens of a batch, padding included, at most.
        device: where to compute.
    """
    was_training = model.training
    model.eval()
    found: list[list[Hypothesis]] = [[]] * len(sources)
    for rows in _batches(sources.lengths, batch_tokens):
        src = torch.from_numpy(sources.padded(rows, PAD)).to(device)
        for row, hypotheses in zip(rows.tolist(), search.search(model, src), strict=True):
            found[row] = hypotheses
    model.train(was_training)
    return found


def _batches(lengths: np.ndarray, batch_tokens: int) -> Sequence[np.ndarray]:
    """Split sentences into batches, longest first, so that a lack of memory shows at once."""
    order = np.argsort(-lengths, kind="stable")
    batches, start = [], 0
    while start < len(order):
        n = max(1, batch_tokens // max(1, int(lengths[order[start]])))
        batches.append(order[start : start + n])
        start += n
    return batches
