"""What would padding cost, if seeds were batched into one model?

Run it:  python benchmarks/padded_seeds.py [--experiment experiments/multi30k/pe.yaml]
         [--output results/benchmarks/padded_seeds.json]

Replicas of one model can make their steps together (`torch.func.stack_module_state` and `vmap`), if
their batches are of one shape. Seeds with data orders of their own have batches of other rows and
lengths at every step, so each would be padded to the largest of them. Counted over an epoch: the
tokens, source and target, that all seeds would compute, over those that they compute each for
themselves. Runs that take turns on streams of their own (`ablate.runner.streams`) pay nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from records import RESULTS, ROOT, origin, say, write

from ablate import config
from ablate.data.batches import Batches
from ablate.data.prepare import prepare
from ablate.data.tokenizer import PAD

N_SEEDS = (2, 4, 8, 16)


def main() -> int:
    """Count, print and write; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--experiment", type=Path, default=ROOT / "experiments/multi30k/pe.yaml")
    parser.add_argument("--output", type=Path, default=RESULTS / "padded_seeds.json")
    options = parser.parse_args()
    run = config.expand(config.load(options.experiment, ()))[0].spec
    train = prepare(run).train
    batches = Batches(train, run.training.batch_tokens, PAD)

    def shapes(seed: int) -> np.ndarray:
        """Return rows, longest source and longest target of every batch of an epoch, (n, 3)."""
        return np.array(
            [
                (len(rows), train.src.lengths[rows].max(), train.tgt.lengths[rows].max())
                for rows in batches.epoch(seed, 0)
            ]
        )

    times = {}
    for n_seeds in N_SEEDS:
        together = np.stack([shapes(seed) for seed in range(1, n_seeds + 1)])  # (seeds, n, 3)
        times[n_seeds] = n_seeds * _tokens(together.max(axis=0)) / _tokens(together)
        say(f"{n_seeds} seeds in one model: {times[n_seeds]:.2f} times the tokens")
    write(
        options.output,
        {
            **origin("cpu"),
            "experiment": run.corpus.model_dump() | {"batch_tokens": run.training.batch_tokens},
            "n_batches": batches.n_per_epoch,
            "times_the_tokens": times,
        },
    )
    return 0


def _tokens(shapes: np.ndarray) -> float:
    rows, src, tgt = np.moveaxis(shapes, -1, 0)
    return float((rows * (src + tgt)).sum())


if __name__ == "__main__":
    sys.exit(main())
