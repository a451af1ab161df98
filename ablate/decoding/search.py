"""What a search is, and how a whole test set goes through one.

B sentences, S source tokens, K beams per sentence, V target vocabulary. A translation ends in EOS,
which counts in its length and its probability and is left out of its tokens.
"""

from __future__ import annotations

import itertools
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ablate.data.batches import Ids
from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.model import State, Transformer
from ablate.registry import Part

_MANY = 0.75  # of the sentences: to drop fewer is not worth copying, where nothing is copied anyway

_GPU_SHARE = 1 / 16

_BLOCK = 64  # numbers
_FEWEST_BLOCKS = 8  # per number that is looked for, or it does not pay

Sources = Sequence[Sequence[int] | Ids]
"""Sentences as ids, each ending in EOS."""


@dataclass(frozen=True)
class Hypothesis:
    """One translation of one sentence.

    Attributes:
        tokens: without BOS and EOS.
        score: what the search ranks by.
        log_p: natural logarithm of its probability given the source, EOS included; the
            probabilities are the model's own, of all V tokens.
    """

    tokens: list[int]
    score: float
    log_p: float


@dataclass
class Frontier(ABC):
    """What a search has reached: K beams for each of B sentences.

    A subclass is a dataclass whose tensors all have the sentences as their first dimension.
    """

    @abstractmethod
    def last(self, n: int) -> Tensor:
        """Return the token before token number ``n``, from 1, of every beam, (B, K)."""

    @abstractmethod
    def advance(self, log_p: Tensor, tokens: Tensor, n: int) -> Tensor | None:
        """Write token number ``n``; sentences that are done must not change any more.

        Args:
            log_p: of the C likeliest tokens after every beam, likeliest first, (B, K, C).
            tokens: which they are, (B, K, C).
            n: which token, from 1.

        Returns:
            Which of its sentence's old beams each new one continues, (B, K); None if each
            continues itself.
        """

    @abstractmethod
    def is_done(self) -> Tensor:
        """Return whether each sentence has all that was searched for, (B,)."""

    @abstractmethod
    def hypotheses(self) -> list[list[Hypothesis]]:
        """Return what was found for each sentence, best first."""

    def select(self, sentences: list[int]) -> Self:
        """Return the frontier of some of the sentences."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        tensors = {name: x for name, x in held.items() if isinstance(x, Tensor)}
        rows = torch.tensor(sentences, device=next(iter(tensors.values())).device)
        return replace(self, **{name: x.index_select(0, rows) for name, x in tensors.items()})


class Search(Part, slot="decoding"):
    """The contract: a search says where it starts, and its `Frontier` how it goes on.

    A target is at most ``max_extra`` tokens longer than its source (Vaswani et al. 2017, sec. 6.1,
    allow 50), and never longer than the model; at the limit it ends in EOS, at the price of EOS.

    Args:
        max_extra: target tokens beyond those of the source.
        n_beams: K, rows per sentence.
        n_candidates: C, of how many tokens after a beam it wants to know; V if there are fewer.
    """

    def __init__(self, max_extra: int, n_beams: int = 1, n_candidates: int = 1) -> None:
        self.max_extra = max_extra
        self.n_beams = n_beams
        self.n_candidates = n_candidates

    def start(self, longest: Tensor) -> Frontier:
        """Return the frontier before the first token.

        Args:
            longest: the most tokens of each translation, EOS included, (B,).
        """
        raise NotImplementedError

    def search(
        self, model: Transformer, src: Tensor, n_tokens: Tensor | None = None
    ) -> list[list[Hypothesis]]:
        """Translate ``src`` (B, S); return the hypotheses of each sentence, best first.

        The host waits for the device once per token. Sentences that are done leave the batch.

        Args:
            model: in evaluation mode, on the device of ``src``.
            src: ids that end in EOS, padded at the end.
            n_tokens: target tokens, EOS included, that every hypothesis must have, (B,): the
                fixed amount of work that a measurement of speed needs.
        """
        longest = self._longest(model, src) if n_tokens is None else n_tokens
        limits = Limits(longest.tolist(), is_exact=n_tokens is not None)
        state = model.begin(model.encode(src), max(limits.longest))
        frontier = self.start(longest)
        found: list[list[Hypothesis]] = [[] for _ in limits.longest]
        places = list(range(len(found)))  # in ``found``, of the sentences still going
        for n in itertools.count(1):
            last = frontier.last(n)[:, : state.n_beams]  # at first all beams are alike
            hidden = model.feed(last.flatten(), state).unflatten(0, (-1, state.n_beams))
            log_p, tokens = self._candidates(model, hidden, limits, n)
            parents = frontier.advance(log_p, tokens, n)
            if state.n_beams < self.n_beams:
                state.widen(self.n_beams)
            is_done = frontier.is_done().tolist()
            going = [b for b, is_so in enumerate(is_done) if not is_so]
            if len(going) == len(places) or (parents is None and len(going) > _MANY * len(places)):
                _follow(state, parents)
                continue
            done = [b for b, is_so in enumerate(is_done) if is_so]
            for b, hypotheses in zip(done, frontier.select(done).hypotheses(), strict=True):
                found[places[b]] = hypotheses
            if not going:
                break
            _follow(state, parents, going)
            frontier, limits = frontier.select(going), limits.select(going)
            places = [places[b] for b in going]
        return found

    def _candidates(
        self, model: Transformer, hidden: Tensor, limits: Limits, n: int
    ) -> tuple[Tensor, Tensor]:
        """Return the likeliest as token number ``n``, and how likely they are, (B, K, C) each.

        Logits are made, looked at and forgotten a piece at a time.

        Args:
            model: makes logits.
            hidden: from these, (B, K, D); (B, 1, D) where all beams are alike.
            limits: of the sentences.
            n: which token, from 1.
        """
        n_candidates = min(self.n_candidates, model.embedding.n_tgt)
        at_once = max(1, model.embedding.rows_at_once(hidden.device) // hidden.size(1))
        found = []
        for begin, piece in enumerate(hidden.split(at_once)):
            log_p = model.embedding.logits(piece).float().log_softmax(dim=-1)  # (b, K, V)
            limits.forbid(log_p, n, begin * at_once)
            found.append(largest(log_p, n_candidates))
        log_p, tokens = (
            torch.cat(parts).expand(-1, self.n_beams, -1) for parts in zip(*found, strict=True)
        )
        return log_p, tokens

    def _longest(self, model: Transformer, src: Tensor) -> Tensor:
        return ((src != PAD).sum(dim=1) + self.max_extra).clamp(max=model.max_len)


def translate(
    model: Transformer,
    search: Search,
    sources: Sources,
    batch_tokens: int,
    device: torch.device,
    precision: str = "fp32",
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
        precision: ``fp32``, or ``bf16`` for autocast with fp32 weights.

    Raises:
        ValueError: if a source lacks even EOS, or is longer than the model's max_len.
    """
    found: list[list[Hypothesis]] = [[] for _ in sources]
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode(), autocast:
            for rows in by_length(sources, batch_tokens, _most_sentences(model, search, device)):
                src = padded([sources[row] for row in rows]).to(device)
                for row, hypotheses in zip(rows, search.search(model, src), strict=True):
                    found[row] = hypotheses
    finally:
        model.train(was_training)
    return found


def _most_sentences(model: Transformer, search: Search, device: torch.device) -> int:
    """Return how many sentences may share a batch: on a GPU their caches fill a part of the memory.

    It is always the same part: what else is there must not decide how numbers are rounded.
    """
    if device.type != "cuda":
        return sys.maxsize
    width = model.embedding.tgt_table.d_model * len(model.decoder.order)
    n_bytes = 4 * width * model.max_len * search.n_beams * 4  # keys, values, and room to reorder
    return max(1, int(_GPU_SHARE * torch.cuda.mem_get_info(device)[1]) // n_bytes)


def by_length(
    sources: Sources, batch_tokens: int, n_most: int = sys.maxsize
) -> Iterator[list[int]]:
    """Yield the rows of ``sources`` batch by batch, longest first: a lack of memory shows at once.

    Args:
        sources: ids that end in EOS.
        batch_tokens: rows times longest source is at most so much, or the batch is one row.
        n_most: rows of a batch.

    Raises:
        ValueError: if a source lacks even EOS.
    """
    lengths = [len(source) for source in sources]
    if 0 in lengths:
        raise ValueError(f"source {lengths.index(0)} has no ids; even an empty one ends in EOS")
    rows = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while rows:
        n_rows = max(1, min(n_most, batch_tokens // lengths[rows[0]]))
        yield rows[:n_rows]
        rows = rows[n_rows:]


def padded(sources: Sources) -> Tensor:
    """Return ``sources`` as one tensor, (B, S)."""
    ids = [torch.from_numpy(np.asarray(source, dtype=np.int64)) for source in sources]
    return pad_sequence(ids, batch_first=True, padding_value=PAD)


@dataclass(frozen=True)
class Limits:
    """How long the translation of each sentence may become.

    Attributes:
        longest: the most tokens of each of B translations, EOS included.
        is_exact: whether fewer are too few.
    """

    longest: list[int]
    is_exact: bool = False

    def forbid(self, log_p: Tensor, n: int, begin: int = 0) -> None:
        """Rule out, in place, what may not be token number ``n``, from 1.

        PAD and BOS never are; EOS alone is at the limit. The others keep their probabilities:
        they are not made to sum to 1 again.

        Args:
            log_p: of every token, (b, K, V), for b of the sentences.
            n: which token.
            begin: the first of these sentences.
        """
        longest = self.longest[begin : begin + len(log_p)]
        log_p[..., PAD] = -torch.inf
        log_p[..., BOS] = -torch.inf
        if self.is_exact and n < max(longest):
            is_early = torch.tensor([n < most for most in longest], device=log_p.device)
            log_p[..., EOS].masked_fill_(is_early[:, None], -torch.inf)
        if n >= min(longest):
            is_last = torch.tensor([n >= most for most in longest], device=log_p.device)
            eos = log_p[..., EOS].clone()
            log_p.masked_fill_(is_last[:, None, None], -torch.inf)
            log_p[..., EOS] = eos

    def select(self, sentences: list[int]) -> Limits:
        """Return the limits of some of the sentences."""
        return Limits([self.longest[b] for b in sentences], self.is_exact)


def _follow(state: State, parents: Tensor | None, going: list[int] | None = None) -> None:
    """Let the rows of ``state`` follow their beams, and those that are not ``going`` go."""
    if parents is None and going is None:
        return
    device = state.mask.device
    rows = torch.arange(state.n_rows, device=device).unflatten(0, (-1, state.n_beams))
    if parents is not None:
        rows = rows[:, :1] + parents  # (B, K)
    if going is None:
        state.select(rows.flatten())
        return
    sentences = torch.tensor(going, device=device)
    state.select(rows.index_select(0, sentences).flatten(), sentences)


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the ``k`` largest of each row of ``x`` (..., V), and where they stand, both (..., k).

    `torch.topk` with less work: rows are cut into blocks, and only the k blocks with the largest
    maxima are looked at, since nothing else can be among the k largest.
    """
    n_blocks = x.size(-1) // _BLOCK
    if n_blocks < _FEWEST_BLOCKS * k:
        return x.topk(k)
    blocks = x[..., : n_blocks * _BLOCK].unflatten(-1, (n_blocks, _BLOCK))
    chosen = blocks.amax(dim=-1).topk(k).indices[..., None]  # (..., k, 1)
    place = torch.arange(x.size(-1), device=x.device)
    rest = place[n_blocks * _BLOCK :].expand(*x.shape[:-1], -1)
    places = torch.cat(((chosen * _BLOCK + place[:_BLOCK]).flatten(-2), rest), dim=-1)
    found, at = x.gather(-1, places).topk(k)
    return found, places.gather(-1, at)
