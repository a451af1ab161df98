"""The work that is measured: how much of it there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ablate.config import RunSpec
from ablate.config.experiment import TrainingSpec
from ablate.data.batches import Batches, Encoded
from ablate.data.prepare import prepare
from ablate.data.ragged import Ragged
from ablate.data.tokenizer import PAD
from ablate.decoding import Search
from ablate.measuring import Workload, workload
from ablate.model import Transformer


def test_each_sentence_is_decoded_to_the_length_of_its_reference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = RunSpec.model_validate(
        {
            "corpus": {"name": "synthetic", "size": 200},
            "tokenizer": "word",
            "model": {"dims": {"d_model": 16, "n_heads": 2, "max_len": 64}, "n_layers": 1},
            "decoding": "greedy",
        }
    )
    prepared = prepare(spec)
    work = Workload(spec, prepared, torch.device("cpu"))
    asked: list[list[int]] = []

    def search(self: Search, model: Transformer, src: Any, lengths: Any, capturer: Any) -> None:
        asked.append(lengths.tolist())

    monkeypatch.setattr(Search, "search", search)
    work.decoding(work.model())()
    n = len(work.sentences.src)
    assert asked == [[len(prepared.dev.tgt[row]) for row in range(n)]]
    assert asked != [[len(prepared.dev.src[row]) for row in range(n)]]


def test_steps_are_spread_over_the_lengths_of_targets_and_the_largest_is_the_largest() -> None:
    """Sources have an order of their own here."""
    lengths = np.arange(2, 18)
    src = Ragged.of([[3] * (2 + 7 * int(n) % 17) for n in lengths])
    tgt = Ragged.of([[3] * int(n) for n in lengths])
    train = Encoded(src, tgt)
    training = TrainingSpec.model_validate({"steps": 1, "batch_tokens": 17, "accumulate": 2})
    steps, largest = workload._steps(train, training, torch.device("cpu"))
    assert [len(step) for step in steps] == [2, 2]
    longest = sorted(int(batch.tgt_out.size(1)) for step in steps for batch in step)
    assert longest[0] < 10 < 12 < longest[-1]
    assert longest == sorted(set(longest)), "each is of another length"
    sizes = [
        len(rows) * int(src.lengths[rows].max() + tgt.lengths[rows].max())
        for rows in Batches(train, 17, PAD).epoch(0, 0)
    ]
    assert len(largest) == 2
    (batch, again) = largest
    assert batch is again
    assert len(batch.src) * (batch.src.size(1) + batch.tgt_out.size(1)) == max(sizes)
