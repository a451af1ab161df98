"""Which tokens may come next, and which of them are likeliest.

B sentences, K beams per sentence, C candidates per beam, D d_model, V target vocabulary. Nothing
here asks the device for a number, so that all of it can be captured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.model import Output

_BLOCK = 64  # numbers
_FEWEST_BLOCKS = 8  # per number that is asked for, or it does not pay


@dataclass(frozen=True)
class Limits:
    """How long the translation of each sentence may become.

    PAD and BOS are never written, and at the limit EOS alone is. The others keep their
    probabilities: they are not made to sum to 1 again.

    Attributes:
        max_lens: the most tokens of each translation, EOS included, (B,).
        is_exact: whether fewer are too few.
    """

    max_lens: Tensor
    is_exact: bool = False

    def select(self, sentences: Tensor | slice) -> Limits:
        """Return the limits of some of the sentences."""
        return Limits(self.max_lens[sentences], self.is_exact)

    def likeliest(self, log_p: Tensor, step: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the ``k`` likeliest as token number ``step``: how likely, and which, (B, K, k).

        Args:
            log_p: of every token, (B, K, V); overwritten.
            step: number of the token, from 1, on the device, (1,).
            k: how many.
        """
        at_limit = log_p[..., EOS, None].expand(-1, -1, k).clone()
        at_limit[..., 1:].fill_(-torch.inf)
        log_p[..., PAD].fill_(-torch.inf)
        log_p[..., BOS].fill_(-torch.inf)
        if self.is_exact:
            log_p[..., EOS].masked_fill_((step < self.max_lens)[:, None], -torch.inf)
        best, tokens = largest(log_p, k)
        is_last = (step >= self.max_lens)[:, None, None]
        return torch.where(is_last, at_limit, best), tokens.masked_fill(is_last, EOS)


def candidates(
    output: Output, hidden: Tensor, limits: Limits, step: Tensor, n_candidates: int
) -> tuple[Tensor, Tensor]:
    """Return the likeliest as token number ``step``: their log-probabilities, and which, (B, K, C).

    Logits are made, used and freed a part at a time.

    Args:
        output: makes logits.
        hidden: from these, (B, K, D).
        limits: of the sentences.
        step: number of the token, from 1, on the device, (1,).
        n_candidates: C; V if there are fewer.
    """
    at_once = max(1, output.rows_at_once(hidden.device) // hidden.size(1))
    n_candidates = min(n_candidates, output.n_tgt)
    of_chunks = []
    for begin, chunk in zip(range(0, len(hidden), at_once), hidden.split(at_once), strict=True):
        log_p = output.logits(chunk).float().log_softmax(dim=-1)  # (b, K, V)
        some = limits.select(slice(begin, begin + at_once))
        of_chunks.append(some.likeliest(log_p, step, n_candidates))
    log_p, tokens = (torch.cat(parts) for parts in zip(*of_chunks, strict=True))
    return log_p, tokens


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k`` largest of each row of ``x`` (..., V), and their indices, both (..., k).

    `torch.topk` with less work: rows are cut into blocks, and only the k blocks with the largest
    maxima are searched, since nothing else can be among the k largest.
    """
    n_blocks = x.size(-1) // _BLOCK
    if n_blocks < _FEWEST_BLOCKS * k:
        top = x.topk(k)
        return top.values, top.indices
    blocks = x[..., : n_blocks * _BLOCK].unflatten(-1, (n_blocks, _BLOCK))
    chosen = blocks.amax(dim=-1).topk(k).indices[..., None]  # (..., k, 1)
    index = torch.arange(x.size(-1), device=x.device)
    rest = index[n_blocks * _BLOCK :].expand(*x.shape[:-1], -1)
    candidates = torch.cat(((chosen * _BLOCK + index[:_BLOCK]).flatten(-2), rest), dim=-1)
    top = x.gather(-1, candidates).topk(k)
    return top.values, candidates.gather(-1, top.indices)
