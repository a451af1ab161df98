"""A task that a tiny Transformer learns in a few steps: write the source backwards."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ablate.config import RunSpec
from ablate.data.batches import Batches, Encoded
from ablate.data.sentences import Ragged
from ablate.data.tokenizer import EOS, PAD
from ablate.model import Transformer, assemble
from ablate.parts.embedding import Vocabulary
from ablate.parts.objective import Objective
from ablate.registry import build, choose
from ablate.training import Progress, TrainingResult, train
from ablate.training.loop import Job
from ablate.training.step import StepConfig

N_IDS = 12


def pairs(n: int = 96, seed: int = 0) -> Encoded:
    """Return ``n`` sentences of 2 to 6 ids and their reversals."""
    random = np.random.default_rng(seed)
    src = [random.integers(4, N_IDS, random.integers(2, 7)).tolist() for _ in range(n)]
    return Encoded(
        Ragged.of([[*s, EOS] for s in src]), Ragged.of([[*reversed(s), EOS] for s in src])
    )


def run_spec(dropout: float = 0.1, feed_forward: str = "relu", **training: Any) -> RunSpec:
    """Return a run of a model of width 16; keys of ``training`` that are None are left out."""
    usual = {
        "steps": 30,
        "batch_tokens": 64,
        "schedule": {"name": "constant", "lr": 1e-2},
        "evaluate_every": 10,
    }
    return RunSpec.model_validate(
        {
            "model": {
                "dims": {"d_model": 16, "n_heads": 2, "max_len": 16},
                "n_layers": 1,
                "feed_forward": {"name": feed_forward, "d_ff": 32},
                "dropout": {"embedding": dropout, "residual": dropout},
            },
            "training": {k: v for k, v in (usual | training).items() if v is not None},
        }
    )


def make_step_config(objective: str = "label_smoothing", **options: Any) -> StepConfig:
    """Return a step with an objective and other options of `StepConfig`."""
    return StepConfig(build(Objective, choose(Objective, objective), PAD), **options)


def fresh(spec: RunSpec) -> Transformer:
    """Return the model of ``spec`` with its initial weights."""
    torch.manual_seed(spec.seed)
    return assemble(spec.model, Vocabulary(N_IDS, N_IDS, is_joint=True), PAD)


def nll(model: Transformer) -> float:
    """Return the NLL per token on sentences not trained on."""
    batches = Batches(pairs(24, seed=9), 64, PAD)
    total, n = 0.0, 0
    model.eval()
    with torch.inference_mode():
        for batch in batches.in_order():
            log_p = model(batch.src, batch.tgt_in).log_softmax(-1)
            own = log_p.gather(-1, batch.tgt_out[..., None])[..., 0]
            total -= own[batch.tgt_out != PAD].sum().item()
            n += batch.n_tokens
    return total / n


def job(spec: RunSpec, folder: Path) -> Job:
    """Return the job of a run on a CPU."""
    folder.mkdir(parents=True, exist_ok=True)
    return Job(
        spec=spec,
        batches=Batches(pairs(), spec.training.batch_tokens, PAD),
        n_target_ids=N_IDS,
        evaluate=nll,
        device=torch.device("cpu"),
        precision="fp32",
        folder=folder,
    )


def run(
    spec: RunSpec,
    folder: Path,
    stops: Iterable[bool] = (),
    progress: Callable[[Progress], None] = lambda _: None,
    **changes: Any,
) -> tuple[TrainingResult, Transformer]:
    """Train a fresh model, with ``changes`` of the job; return the result and the model.

    Args:
        spec: the run.
        folder: its own.
        stops: whether to stop after each step; not after those that follow.
        progress: called at every row of the curve.
        changes: of the job.
    """
    model, should_stop = fresh(spec), itertools.chain(stops, itertools.repeat(False))
    changed_job = replace(job(spec, folder), **changes)
    return train(model, changed_job, progress, lambda: next(should_stop)), model
