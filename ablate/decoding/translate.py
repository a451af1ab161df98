"""Translation of a whole test set, batch by batch."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ablate.cuda_graphs import GraphCapturer
from ablate.data.sentences import Ids
from ablate.data.tokenizer import PAD
from ablate.decoding.search import Search
from ablate.decoding.search_state import Hypothesis
from ablate.model import Decodable

_CACHE_SHARE = 1 / 16  # of a GPU's memory, which the caches of a batch may fill

Sources = Sequence[Sequence[int] | Ids]
"""Sentences as ids, each ending in EOS."""


def translate(  # noqa: PLR0913 - the inputs, and how they are computed
    model: Decodable,
    search: Search,
    sources: Sources,
    batch_tokens: int,
    device: torch.device,
    capturer: GraphCapturer | None = None,
    goes_on: Callable[[], None] = lambda: None,
) -> list[list[Hypothesis]]:
    """Translate any number of sentences; return their hypotheses in the order of ``sources``.

    Sentences of about equal length share a batch of at most ``batch_tokens`` source tokens, padding
    included; the grouping does not change the hypotheses. The model's mode is left as it was.
    ``capturer`` captures a decoding step as a CUDA graph. ``goes_on`` is called with every batch.

    Raises:
        ValueError: if a source lacks even EOS, or is longer than the model's max_len.
        EngineError: if a decoding step cannot be captured.
    """
    translations: list[list[Hypothesis]] = [[] for _ in sources]
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode():
            max_rows = _max_batch_rows(model, search, device)
            for rows in batches_by_length(sources, batch_tokens, max_rows):
                goes_on()
                src = pad_sources([sources[row] for row in rows]).to(device)
                batch_hypotheses = search.search(model, src, capturer=capturer)
                for row, hypotheses in zip(rows, batch_hypotheses, strict=True):
                    translations[row] = hypotheses
    finally:
        for module, is_training in modes:
            module.training = is_training
    return translations


def _max_batch_rows(model: Decodable, search: Search, device: torch.device) -> int:
    """Return how many sentences may share a batch, so that their caches fit into a GPU's memory.

    The limit is a share of all memory, not of what is free now: rounding depends on the size of a
    batch, and must not depend on what else occupies the memory.
    """
    if device.type != "cuda":
        return sys.maxsize
    n_bytes = 4 * model.cache_width * model.max_len  # of float32 keys
    n_bytes *= 4 * search.n_beams  # keys and values, and second buffers to reorder both
    return max(1, int(_CACHE_SHARE * torch.cuda.mem_get_info(device)[1]) // n_bytes)


def batches_by_length(
    sources: Sources, batch_tokens: int, max_rows: int = sys.maxsize
) -> Iterator[list[int]]:
    """Yield the indices of ``sources`` batch by batch, longest first: a lack of memory shows early.

    A source longer than ``batch_tokens``, which count padding, is a batch by itself. ValueError if
    a source lacks even EOS.
    """
    lengths = [len(source) for source in sources]
    if 0 in lengths:
        raise ValueError(f"source {lengths.index(0)} has no ids; even an empty one ends in EOS")
    rows = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    while rows:
        n_rows = max(1, min(max_rows, batch_tokens // lengths[rows[0]]))
        yield rows[:n_rows]
        rows = rows[n_rows:]


def pad_sources(sources: Sources) -> Tensor:
    """Return ``sources`` as one tensor, (B, S)."""
    ids = [torch.from_numpy(np.asarray(source, dtype=np.int64)) for source in sources]
    return pad_sequence(ids, batch_first=True, padding_value=PAD)
