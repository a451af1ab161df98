"""The work that is measured: how much of it there is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.config import RunSpec
from ablate.data.prepare import prepare
from ablate.decoding import Search
from ablate.measuring import Workload
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
