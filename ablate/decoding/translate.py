"""Translation of a whole test set, batch by batch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ablate.cuda_graphs import GraphCapturer
from ablate.data.ragged import Ids
from ablate.data.tokenizer import PAD
from ablate.decoding.search import Search
from ablate.decoding.search_state import Hypothesis
from ablate.model import Decodable

_GPU_SHARE = 1 / 16

Sources = Sequence[Sequence[int] | Ids]
"""Sentences as ids, each ending in EOS."""


def translate(
    model: Decodable,
    search: Search,
    sources: Sources,
    batch_tokens: int,
    device: torch.device,
    capturer: GraphCapturer | None = None,
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
        capturer: of the device; captures the work of a token. Without one every operation is
            launched by itself.

    Raises:
        ValueError: if a source lacks even EOS, or is longer than the model's max_len.
        EngineError: if the work of a token cannot be captured.
    """
    best: list[list[Hypothesis]] = [[] for _ in sources]
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            for rows in by_length(sources, batch_tokens, _most_sentences(model, search, device)):
                src = padded([sources[row] for row in rows]).to(device)
                of_batch = search.search(model, src, capturer=capturer)
                for row, hypotheses in zip(rows, of_batch, strict=True):
                    best[row] = hypotheses
    finally:
        model.train(was_training)
    return best


def _most_sentences(model: Decodable, search: Search, device: torch.device) -> int:
    """Return how many sentences may share a batch: on a GPU their caches fill a part of the memory.

    It is always the same part: how numbers are rounded must not depend on what else is there.
    """
    if device.type != "cuda":
        return sys.maxsize
    n_bytes = 4 * model.cache_width * model.max_len  # keys and values, and room to reorder both
    n_bytes *= 4 * search.n_beams
    return max(1, int(_GPU_SHARE * torch.cuda.mem_get_info(device)[1]) // n_bytes)


def by_length(
    sources: Sources, batch_tokens: int, n_most: int = sys.maxsize
) -> Iterator[list[int]]:
    """Yield the rows of ``sources`` batch by batch, longest first, so that memory runs out at once.

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
