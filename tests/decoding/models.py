"""Models whose every translation can be listed, and the list."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from ablate.data.tokenizer import BOS, EOS, PAD
from ablate.decoding import Hypothesis
from ablate.model import DecoderState, Memory, Transformer
from ablate.parts.embedding import Embedding, Vocabulary
from tests.tiny import scrambled, tiny

V = 6
"""PAD, BOS, EOS, UNK and two more."""

SMALL = Vocabulary(n_src=V, n_tgt=V, is_joint=True)


class Markov(Transformer):
    """The next token depends on the last one and on the first of the source, at random."""

    def __init__(self, seed: int = 0, *, spread: float = 1.5, n_ids: int = V) -> None:
        nn.Module.__init__(self)
        self.pad, self.max_len = PAD, 16
        generator = torch.Generator().manual_seed(seed)
        shape = n_ids, n_ids, n_ids  # first of the source, last, next
        logits = SimpleNamespace(n_tgt=n_ids, logits=lambda x: x, rows_at_once=lambda device: 1000)
        self.embedding = cast(Embedding, logits)
        self.table = torch.randn(shape, generator=generator) * spread

    def encode(self, src: Tensor, losses: list[Tensor] | None = None) -> Memory:
        return Memory(src[:, :1, None], (src != PAD)[:, None, None, :])

    def start(self, src: Tensor, length: int) -> DecoderState:
        return _First(self.encode(src))

    def feed(self, tokens: Tensor, state: DecoderState) -> Tensor:
        assert isinstance(state, _First)
        state.count_token()
        return self.table[state.first, tokens]

    def forward(self, src: Tensor, tgt: Tensor, losses: list[Tensor] | None = None) -> Tensor:
        return self.table[src[:, :1], tgt]


class _First(DecoderState):
    """Remembers the first token of every row's source."""

    def __init__(self, memory: Memory) -> None:
        super().__init__([], memory.mask)
        self.first = memory.states[:, 0, 0]

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        if sentences is None and len(rows) == self.n_rows:
            assert torch.equal(self.first[rows], self.first)
        super().select(rows, sentences)
        self.first = self.first[rows]


def small(max_len: int = 16, vocabulary: Vocabulary = SMALL, **changes: Any) -> Transformer:
    """Return a scrambled Transformer of one layer whose translations differ in length."""
    dims = {"d_model": 16, "n_heads": 2, "max_len": max_len}
    embedding = {"name": "tied", "output_bias": True}
    choices: dict[str, Any] = {"dims": dims, "n_layers": 1, "embedding": embedding} | changes
    model = scrambled(tiny(vocabulary, **choices))
    assert model.embedding.bias is not None
    with torch.no_grad():
        model.embedding.bias[EOS] = -4.0
    return model


def every_translation(
    model: Transformer, source: list[int], most: int, alpha: float
) -> list[Hypothesis]:
    """List all translations of at most ``most`` tokens, EOS included, best score first."""
    listed = []
    for tokens in _sentences(most):
        log_p = log_likelihood(model, source, tokens)
        penalty = ((5 + len(tokens) + 1) / 6) ** alpha
        listed.append(Hypothesis(tokens, score=log_p / penalty, log_p=log_p))
    return sorted(listed, key=lambda hypothesis: -hypothesis.score)


def log_likelihood(model: Transformer, source: list[int], tokens: list[int]) -> float:
    """Return ln p(tokens, EOS | source), from one pass over the whole sentence."""
    with torch.no_grad():
        logits = model(torch.tensor([source]), torch.tensor([[BOS, *tokens]]))
    written = torch.tensor([*tokens, EOS])
    return float(logits[0].double().log_softmax(dim=-1).gather(1, written[:, None]).sum())


def _sentences(most: int) -> Iterator[list[int]]:
    ids = [i for i in range(V) if i not in (PAD, BOS, EOS)]
    for length in range(most):
        yield from map(list, itertools.product(ids, repeat=length))
