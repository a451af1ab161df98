"""A small model and random batches, for checks that train; nothing is read from disk.

The tokens are random, since the checks compare steps and do not need a model that learns.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
import torch

import ablate.data
import ablate.decoding
import ablate.parts  # noqa: F401 - with the two above, every part is registered
from ablate.config import RunSpec
from ablate.data.batches import Batch, Batches, Encoded
from ablate.data.sentences import Ragged
from ablate.data.tokenizer import EOS, PAD
from ablate.model import assemble
from ablate.parts.embedding import Vocabulary
from ablate.training.engines import Engine, make_engine
from ablate.training.step import StepConfig, make_optimizer, set_lr

_N_PAIRS = 2000
_EPS = 1e-4  # of Adam; large, or gradients that are only rounding errors would move weights
_FIRST_ID = 4  # after the special tokens
_LR = 1e-3


@dataclass(frozen=True)
class Size:
    """The size of a model and of its batches."""

    d_model: int
    n_layers: int
    n_ids: int
    batch_tokens: int


SMALL = Size(d_model=32, n_layers=1, n_ids=200, batch_tokens=3072)
"""For comparisons of numbers; the batch is so large that a CPU computes it in two shards."""

TINY = Size(d_model=128, n_layers=4, n_ids=10_000, batch_tokens=4096)
"""For speeds on a GPU: Transformer-Tiny, as in `experiments/presets/tiny.yaml`."""

LAPTOP = Size(d_model=64, n_layers=2, n_ids=2000, batch_tokens=4096)
"""For speeds on a CPU, which takes about half a second for a step of Transformer-Tiny."""


def _spec(size: Size, dropout: float) -> RunSpec:
    return RunSpec.model_validate(
        {
            "corpus": "synthetic",
            "tokenizer": "word",
            "model": {
                "dims": {"d_model": size.d_model, "n_heads": 4, "max_len": 64},
                "n_layers": size.n_layers,
                "feed_forward": {"name": "relu", "d_ff": 2 * size.d_model},
                "dropout": {"embedding": dropout, "residual": dropout},
            },
            "training": {
                "steps": 1,
                "batch_tokens": size.batch_tokens,
                "clip": 1.0,
                "optimizer": {"name": "adam", "eps": _EPS},
            },
        }
    )


def batches(size: Size, n: int, device: torch.device) -> list[Batch]:
    """Return ``n`` batches of random sentences of 8 to 19 tokens, the same at every call."""
    random = np.random.default_rng(0)

    def side() -> Ragged:
        lengths = random.integers(8, 20, _N_PAIRS)
        flat = random.integers(_FIRST_ID, size.n_ids, int(lengths.sum()), dtype=np.int32)
        flat[np.cumsum(lengths) - 1] = EOS
        return Ragged(flat, lengths)

    batches = Batches(Encoded(side(), side()), size.batch_tokens, PAD, device)
    return [batches.make(rows) for rows in batches.epoch(1, 0)[:n]]


@contextmanager
def fresh_engine(
    name: str,
    size: Size,
    device: torch.device,
    *,
    dropout: float = 0.0,
    precision: str = "fp32",
    cores: int = 1,
) -> Iterator[Engine]:
    """Yield an engine with a fresh model, the same at every call, and close it."""
    torch.manual_seed(1)
    run = _spec(size, dropout)
    model = assemble(run.model, Vocabulary(size.n_ids, size.n_ids, is_joint=True), PAD)
    model = model.to(device).train()
    optimizer = make_optimizer(run, model)
    set_lr(optimizer, _LR)
    with closing(make_engine(name, model, StepConfig.of(run.training, precision), optimizer)) as it:
        it.cores = cores
        yield it


def weights(engine: Engine) -> torch.Tensor:
    """Return all weights as one vector, on the CPU in double precision."""
    return torch.cat([p.detach().flatten().double().cpu() for p in engine.model.parameters()])
