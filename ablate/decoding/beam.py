"""Beam search, for all sentences of a batch at once and on the device.

B sentences still going, K beams, T target tokens at most, V target vocabulary.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeInt, PositiveInt
from torch import Tensor

from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.decoding.search import Hypothesis, Search, next_log_p
from ablate.model import State, Transformer
from ablate.registry import register


@register("beam", source="Wu et al. 2016, arXiv:1609.08144, sec. 7, without coverage penalty")
class Beam(Search):
    """Keep the ``size`` likeliest beginnings at every step.

    An end counts when it is among the ``size`` best continuations. A sentence is done when it has
    ``size`` ends, or when none of its beams can still beat the ``n_best`` best of them. With a size
    of 1 this is greedy search.

    Args:
        size: beams per sentence.
        length_penalty: alpha in score = log p / ((5 + length) / 6)^alpha, of eq. 14, where the
            length counts EOS; ``none`` ranks by log p.
        n_best: hypotheses to return per sentence, at most ``size``.
        max_extra: target tokens beyond those of the source.

    Raises:
        ValueError: if more hypotheses are asked for than there are beams.
    """

    def __init__(
        self,
        *,
        size: PositiveInt = 5,
        length_penalty: Annotated[float, Field(ge=0.0)] | Literal["none"] = 0.6,
        n_best: PositiveInt = 1,
        max_extra: NonNegativeInt = 50,
    ) -> None:
        super().__init__(max_extra)
        if n_best > size:
            raise ValueError(f"n_best ({n_best}) is more than the beam's size ({size})")
        self.size = size
        self.alpha = 0.0 if length_penalty == "none" else length_penalty
        self.n_best = n_best

    def search(
        self, model: Transformer, src: Tensor, n_tokens: Tensor | None = None
    ) -> list[list[Hypothesis]]:
        limits = self.limits(model, src) if n_tokens is None else n_tokens
        beams = _Beams(self, limits, is_exact=n_tokens is not None)
        state = model.begin(model.encode(src), self.size, beams.length)
        while beams.is_going:
            beams.advance(model.step(beams.last, state), state)
        return beams.found

    def penalty(self, length: Tensor | int) -> Tensor:
        """Return what log p is divided by for targets of ``length`` tokens, EOS included."""
        return ((5 + torch.as_tensor(length)) / 6) ** self.alpha


class _Beams:
    """The beams and the ends of every sentence still going."""

    def __init__(self, beam: Beam, limits: Tensor, *, is_exact: bool) -> None:
        n, k, device = limits.size(0), beam.size, limits.device
        self.beam, self.limits, self.is_exact = beam, limits, is_exact
        self.length = int(limits.max())  # T
        self.step = 0
        self.found: list[list[Hypothesis]] = [[] for _ in range(n)]
        self.sentences = torch.arange(n, device=device)
        self.last = torch.full((n * k,), BOS, device=device)
        self.log_p = torch.full((n, k), -torch.inf, device=device)
        self.log_p[:, 0] = 0.0  # all beams begin alike, so only one may go on
        self.tokens = torch.full((n, k, self.length), PAD, device=device)
        self.ends = torch.full((n, k, self.length), PAD, device=device)
        self.end_scores = torch.full((n, k), -torch.inf, device=device)
        self.end_log_p = torch.full((n, k), -torch.inf, device=device)
        self.n_ends = torch.zeros(n, dtype=torch.long, device=device)

    @property
    def is_going(self) -> bool:
        return len(self.sentences) > 0

    def advance(self, logits: Tensor, state: State) -> None:
        """Take the next step with ``logits`` (B * K, V), and drop the sentences that are done."""
        k, n = self.beam.size, len(self.sentences)
        self.step += 1
        step_log_p = next_log_p(
            logits.view(n, k, -1),
            self.limits == self.step,
            self.limits > self.step if self.is_exact else None,
        )
        n_ids = step_log_p.size(-1)
        best, place = (self.log_p[..., None] + step_log_p).flatten(1).topk(2 * k)  # (B, 2K)
        origin, token = place // n_ids, place % n_ids
        is_end = token == EOS
        self._keep_ends(best[:, :k], origin[:, :k], is_end[:, :k] & best[:, :k].isfinite())
        goes_on = is_end.int().sort(dim=1, stable=True).indices[:, :k]  # the best that do not end
        origin, token = origin.gather(1, goes_on), token.gather(1, goes_on)
        self.log_p = best.gather(1, goes_on).masked_fill(token == EOS, -torch.inf)
        self.tokens = self.tokens.gather(1, origin[..., None].expand_as(self.tokens))
        self.tokens[..., self.step - 1] = token
        self._drop_done(origin, token, state)

    def _keep_ends(self, log_p: Tensor, origin: Tensor, is_end: Tensor) -> None:
        """Merge the new ends, (B, K), into the best so far."""
        k = self.beam.size
        new = log_p.masked_fill(~is_end, -torch.inf)
        ended = self.tokens.gather(1, origin[..., None].expand_as(self.tokens))
        ended[..., self.step - 1] = EOS
        penalty = self.beam.penalty(self.step).to(new)
        scores = torch.cat((self.end_scores, new / penalty), dim=1)  # (B, 2K)
        self.end_scores, place = scores.topk(k)
        self.end_log_p = torch.cat((self.end_log_p, new), dim=1).gather(1, place)
        tokens = torch.cat((self.ends, ended), dim=1)
        self.ends = tokens.gather(1, place[..., None].expand_as(self.ends))
        self.n_ends = self.n_ends + is_end.sum(dim=1)

    def _drop_done(self, origin: Tensor, token: Tensor, state: State) -> None:
        """Hand over the sentences that are done; reorder the rest."""
        k, n = self.beam.size, len(self.sentences)
        hope = self.log_p[:, 0] / self.beam.penalty(self.limits).to(self.log_p)
        is_won = self.end_scores[:, self.beam.n_best - 1] >= hope
        is_done = is_won | (self.n_ends >= k)
        rows = origin + k * torch.arange(n, device=origin.device)[:, None]  # (B, K)
        going = (~is_done).nonzero()[:, 0]
        if len(going) < n:
            self._hand_over(is_done.nonzero()[:, 0])
            for name in _PER_SENTENCE:
                setattr(self, name, getattr(self, name)[going])
            rows, token = rows[going], token[going]
        self.last = token.flatten()
        state.select(rows.flatten(), same_sources=len(going) == n)

    def _hand_over(self, done: Tensor) -> None:
        n = self.beam.n_best
        columns = (self.sentences, self.ends, self.end_log_p, self.end_scores)
        for sentence, tokens, log_p, scores in zip(
            *(column[done].tolist() for column in columns), strict=True
        ):
            self.found[sentence] = [
                Hypothesis(row[: row.index(EOS)], p, score)
                for row, p, score in zip(tokens[:n], log_p[:n], scores[:n], strict=True)
                if EOS in row
            ]


_PER_SENTENCE = (
    "sentences", "limits", "log_p", "tokens", "ends", "end_scores", "end_log_p", "n_ends",
)  # fmt: skip
