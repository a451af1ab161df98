"""Several models that write one translation: the mean of their probabilities.

N decoded rows, D_m the width of model m, V target vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from ablate.model.decodable import Decodable, DecoderState, Output
from ablate.model.transformer import Transformer


class Ensemble(Decodable):
    """Models with the same vocabularies, whose probabilities are averaged at every token.

    Sutskever et al. 2014, arXiv:1409.3215, sec. 3.6; the mean is that of the probabilities, as in
    fairseq (sequence_generator.py, EnsembleModel). ValueError if their target vocabularies differ
    in size.
    """

    def __init__(self, members: Sequence[Transformer]) -> None:
        super().__init__()
        sizes = {member.output.n_tgt for member in members}
        if len(sizes) > 1:
            raise ValueError(f"the target vocabularies have {sorted(sizes)} entries, not one size")
        self.members = nn.ModuleList(members)
        self.max_len = min(member.max_len for member in members)

    @property
    def output(self) -> Output:
        return _MeanOutput(self._members)

    @property
    def cache_width(self) -> int:
        return sum(member.cache_width for member in self._members)

    def start(self, src: Tensor, length: int) -> DecoderState:
        return _EnsembleState([member.start(src, length) for member in self._members])

    def register_cross_attention_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """See `Decodable`; the weights are those of the first member."""
        return self._members[0].register_cross_attention_hook(hook)

    def feed(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Feed one token per row, ``tokens`` (N,); return the hidden states of all, (N, ΣD_m)."""
        assert isinstance(state, _EnsembleState), "made by `start`"
        pairs = zip(self._members, state.members, strict=True)
        hidden = [member.feed(tokens, of_member) for member, of_member in pairs]
        state.count_token()
        return torch.cat(hidden, dim=-1)

    @property
    def _members(self) -> list[Transformer]:
        return [cast(Transformer, member) for member in self.members]


class _MeanOutput:
    """Logits whose softmax is the mean of the members' probabilities."""

    def __init__(self, members: Sequence[Transformer]) -> None:
        self._members = members
        self._widths = [member.embedding.tgt_table.d_model for member in members]
        self.n_tgt = members[0].output.n_tgt

    def rows_at_once(self, device: torch.device) -> int:
        return max(1, self._members[0].output.rows_at_once(device) // len(self._members))

    def logits(self, x: Tensor) -> Tensor:
        parts = zip(self._members, x.split(self._widths, dim=-1), strict=True)
        log_p = [member.output.logits(part).float().log_softmax(dim=-1) for member, part in parts]
        return torch.stack(log_p).logsumexp(dim=0)


class _EnsembleState(DecoderState):
    """The states of all members, whose rows move together."""

    def __init__(self, members: list[DecoderState]) -> None:
        self.members = members
        super().__init__([], members[0].mask)

    @property
    def length(self) -> int:
        """How many tokens were fed to each row."""
        return self.members[0].length

    @length.setter
    def length(self, length: int) -> None:
        for member in self.members:
            member.length = length

    def count_token(self) -> None:
        if self.capacity is not None:  # the members have counted it
            self._next_position += 1

    def fix_buffers(self, capacity: int) -> None:
        super().fix_buffers(capacity)
        for member in self.members:
            member.fix_buffers(capacity)

    def shallow_copy(self) -> DecoderState:
        other = cast(_EnsembleState, super().shallow_copy())
        other.members = [member.shallow_copy() for member in self.members]
        return other

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        for member in self.members:
            member.select(rows, sentences)
        self.mask = self.members[0].mask
