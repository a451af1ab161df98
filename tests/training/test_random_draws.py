"""Which engines draw other dropout masks than the eager one."""

from __future__ import annotations

import pytest
import torch

from ablate.data.batches import Batch
from ablate.training.engines import NAMES, random_draws
from ablate.training.engines.shards import max_n_shards, n_shards
from tests.training.reversal import run_spec


@pytest.mark.parametrize("name", [name for name in NAMES if name != "auto"])
def test_every_engine_has_a_scheme(name: str) -> None:
    known = {
        "data_parallel": "micro_batches",
        "cuda_graph": "padded_batch",
        "fully_sharded": "ranks",
    }
    training = run_spec(batch_tokens=4096).training
    assert random_draws(name, training) == known.get(name, "whole_batch")


@pytest.mark.parametrize(
    ("n_tokens", "scheme"),
    [(640, "whole_batch"), (2999, "whole_batch"), (3000, "micro_batches")],
)
def test_batches_that_are_never_split_draw_as_the_eager_engine_does(
    n_tokens: int, scheme: str
) -> None:
    training = run_spec(batch_tokens=n_tokens).training
    assert random_draws("data_parallel", training) == scheme


@pytest.mark.parametrize("n_tokens", [10, 2990, 3000, 4090, 6000, 12_000, 100_000])
def test_no_batch_is_split_into_more_shards_than_its_limit_says(n_tokens: int) -> None:
    ids = torch.ones(n_tokens // 10, 10, dtype=torch.long)
    batch = Batch(ids, ids, ids, n_tokens=ids.numel(), index=ids[:, 0])
    assert n_shards(batch) == max_n_shards(ids.numel())
