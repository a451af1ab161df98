"""The contract of searches.

B sentences, S source tokens, K beams per sentence, C candidates per beam, V target vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from ablate.cuda_graphs import GraphCapturer, usual_kernels
from ablate.data.tokenizer import PAD
from ablate.decoding.candidates import LengthLimits
from ablate.decoding.decode_loop import CapturedDecodeLoop, DecodeLoop
from ablate.decoding.search_state import Hypothesis, SearchSetup, SearchState
from ablate.model import Decodable
from ablate.registry import Part


class Search(Part, slot="decoding"):
    """The contract: a search gives the initial `SearchState`, which defines every further step.

    A target is at most ``max_extra`` tokens longer than its source (Vaswani et al. 2017, sec. 6.1,
    allow 50), and never longer than the model's max_len; at the limit the next token is EOS, with
    the log-probability that the model gives it.

    Args:
        max_extra: target tokens beyond those of the source.
        n_beams: K, rows per sentence.
        n_candidates: C, candidate tokens per beam, reduced to V where it is larger; None: all V, in
            the order of their ids.
    """

    needs_attention = False
    """Whether its `SearchState` gets the cross-attention weights of every step."""

    def __init__(self, max_extra: int, n_beams: int = 1, n_candidates: int | None = 1) -> None:
        self.max_extra = max_extra
        self.n_beams = n_beams
        self.n_candidates = n_candidates

    @abstractmethod
    def initial_state(self, src: Tensor, max_lens: Tensor) -> SearchState:
        """Return the state before the first token, of ``src`` (B, S).

        ``max_lens`` are the most tokens of each translation, EOS included, (B,).
        """

    def search(
        self,
        model: Decodable,
        src: Tensor,
        n_tokens: Tensor | None = None,
        capturer: GraphCapturer | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate ``src`` (B, S); return the hypotheses of each sentence, best first.

        Args:
            model: in evaluation mode, on the device of ``src``.
            src: ids that end in EOS, padded at the end.
            n_tokens: target tokens, EOS included, that every hypothesis must have, (B,): the
                fixed amount of work that a measurement of speed needs.
            capturer: captures a decoding step as a CUDA graph, after it has destroyed its earlier
                captures; without one steps run eagerly.

        Raises:
            EngineError: if a decoding step cannot be captured.
        """
        max_lens = n_tokens
        if max_lens is None:
            max_lens = ((src != PAD).sum(dim=1) + self.max_extra).clamp(max=model.max_len)
        limits = LengthLimits(max_lens, is_exact=n_tokens is not None)
        initial_state = self.initial_state(src, max_lens)
        shape = self.n_beams, self.n_candidates
        setup = SearchSetup(initial_state, limits, *shape, self.needs_attention)
        if capturer is None or self.capture_blocker:
            loop = DecodeLoop(setup, model, src)
        else:
            loop = CapturedDecodeLoop(setup, model, src, capturer)
        with usual_kernels():  # no step writes two numbers to one address
            return loop.run()
