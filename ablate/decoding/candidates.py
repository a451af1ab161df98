"""Which tokens may come next, and which of them are likeliest.

B sentences, K beams per sentence, C candidates per beam, D d_model, V target vocabulary. Nothing in
this module waits for the device (no `Tensor.item`), so that all of it can be captured.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.model import Output

_BLOCK = 64  # elements
_MIN_BLOCKS = 8  # per element of the result; with fewer, `torch.topk` on the whole row is faster


@dataclass(frozen=True)
class LengthLimits:
    """How long the translation of each sentence may become.

    PAD and BOS are never generated, and at the limit only EOS is. The other tokens keep their
    probabilities, which are not renormalized to sum to 1.
    """

    max_lens: Tensor  # the most tokens of each translation, EOS included, (B,)
    is_exact: bool = False  # whether every translation must have exactly that many tokens

    def select(self, sentences: Tensor | slice) -> LengthLimits:
        return LengthLimits(self.max_lens[sentences], self.is_exact)

    def topk(self, log_p: Tensor, step: Tensor, k: int | None) -> tuple[Tensor, Tensor]:
        """Return the ``k`` likeliest tokens at ``step``: log-probabilities and ids, (B, K, k).

        If it is None, all are returned, in the order of their ids, (B, K, V). ``step`` (1,) counts
        from 1, on the device. ``log_p`` (B, K, V) is overwritten.
        """
        n_tokens = log_p.size(-1)
        at_limit = log_p[..., EOS, None].expand(-1, -1, k or n_tokens).clone()
        at_limit[..., 1:].fill_(-torch.inf)
        log_p[..., PAD].fill_(-torch.inf)
        log_p[..., BOS].fill_(-torch.inf)
        if self.is_exact:
            log_p[..., EOS].masked_fill_((step < self.max_lens)[:, None], -torch.inf)
        if k is None:
            best, tokens = log_p, torch.arange(n_tokens, device=log_p.device).expand_as(log_p)
        else:
            best, tokens = blockwise_topk(log_p, k)
        is_last = (step >= self.max_lens)[:, None, None]
        return torch.where(is_last, at_limit, best), tokens.masked_fill(is_last, EOS)


def candidates(
    output: Output, hidden: Tensor, limits: LengthLimits, step: Tensor, n_candidates: int | None
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and ids of the likeliest tokens at ``step``, both (B, K, C).

    Without ``n_candidates``, those of all tokens, in the order of their ids.

    Logits are computed, used and freed for a few sentences at a time. ``hidden`` are the last
    hidden states, (B, K, D); ``step`` (1,) counts from 1, on the device; C is at most V.
    """
    chunk_size = max(1, output.rows_at_once(hidden.device) // hidden.size(1))
    if n_candidates is not None:
        n_candidates = min(n_candidates, output.n_tgt)
    chunks = []
    for start, chunk in zip(
        range(0, len(hidden), chunk_size), hidden.split(chunk_size), strict=True
    ):
        log_p = output.logits(chunk).float().log_softmax(dim=-1)  # (b, K, V)
        chunk_limits = limits.select(slice(start, start + chunk_size))
        chunks.append(chunk_limits.topk(log_p, step, n_candidates))
    log_p, tokens = map(torch.cat, zip(*chunks, strict=True))
    return log_p, tokens


def blockwise_topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k`` largest of each row of ``x`` (..., V), and their indices, both (..., k).

    `torch.topk` with less work: rows are cut into blocks, and only the k blocks with the largest
    maxima are searched, since no element of another block can be among the k largest.
    """
    n_blocks = x.size(-1) // _BLOCK
    if n_blocks < _MIN_BLOCKS * k:
        top = x.topk(k)
        return top.values, top.indices
    blocks = x[..., : n_blocks * _BLOCK].unflatten(-1, (n_blocks, _BLOCK))
    top_blocks = blocks.amax(dim=-1).topk(k).indices[..., None]  # (..., k, 1)
    index = torch.arange(x.size(-1), device=x.device)
    rest = index[n_blocks * _BLOCK :].expand(*x.shape[:-1], -1)
    candidates = torch.cat(((top_blocks * _BLOCK + index[:_BLOCK]).flatten(-2), rest), dim=-1)
    top = x.gather(-1, candidates).topk(k)
    return top.values, candidates.gather(-1, top.indices)
