"""How many operations does a step consist of, and how many of them does Python start?

Run it:  python benchmarks/launches.py [--output results/benchmarks/launches.json]

On a GPU each operation that computes something is a kernel or a few, and where models are small a
step takes as long as it takes to start them: from Python one at a time, or as a graph. Counted on a
CPU, as PyTorch dispatches them, with a batch so small that all its logits are one piece; a GPU has
fewer for dropout (two in place of five) and for the softmax in bf16, which casts by itself there.
Views are not counted, and one operation on a list of tensors, such as the update of all weights, is
one. The step that is counted is the third, after the steps in which an engine captures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from peers.race import PRESETS
from presets import preset
from records import RESULTS, origin, say, write
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.config import RunSpec
from ablate.cuda_graphs import GraphCapturer
from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.model import assemble
from ablate.parts.embedding import Vocabulary
from ablate.training.engines import make_engine
from ablate.training.step import StepConfig, make_optimizer, set_lr

N_IDS = 10_000
ROWS, LENGTH = 8, 8
ENGINES = ("eager", "cuda_graph")


def main() -> int:
    """Count, print and write; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=RESULTS / "launches.json")
    options = parser.parse_args()
    counts = []
    for name, changes in PRESETS.items():
        run = preset("tiny", *changes)
        for precision in ("fp32", "bf16"):
            for engine in ENGINES:
                launches = count(run, engine, precision)
                counts.append(
                    {"preset": name, "precision": precision, "engine": engine, **launches}
                )
                say(f"{name}, {precision}, {engine}: {launches}")
    write(options.output, {**origin("cpu"), "counts": counts})
    return 0


def count(run: RunSpec, name: str, precision: str) -> dict[str, int]:
    """Return the operations of the third step, and how many of them, and of graphs, are started."""
    model = assemble(run.model, Vocabulary(N_IDS, N_IDS, is_joint=True), PAD).train()
    optimizer = make_optimizer(run, model)
    set_lr(optimizer, 1e-6)
    ids = torch.randint(PAD + 4, N_IDS, (ROWS, LENGTH))
    batch = Batch(ids, ids, ids, ids.numel(), torch.arange(ROWS))
    counter = Counter()
    with patch.object(GraphCapturer, "capture", counter.capture):
        engine = make_engine(name, model, StepConfig.of(run.training, precision), optimizer)
        for _ in range(2):
            engine.step([batch])
        with counter:
            engine.step([batch])
    return {"operations": counter.n, "started": counter.n - counter.n_inside + counter.n_graphs}


class Counter(TorchDispatchMode):
    """Counts operations, and those of graphs apart.

    Attributes:
        n: all of them.
        n_inside: those that a graph holds.
        n_graphs: graphs that were replayed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.n = self.n_inside = self.n_graphs = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.n += computes(func)
        return func(*args, **(kwargs or {}))

    def capture(self, name: str, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Stand in for `GraphCapturer.capture`: a replay is the work, counted."""

        def replay() -> Tensor:
            before = self.n
            result = work()
            self.n_graphs += self.n > before
            self.n_inside += self.n - before
            return result

        return replay


def computes(func: Any) -> bool:
    """Return whether an operation does more than to view memory, or to allocate some."""
    schema = func._schema
    if schema.name.startswith(("aten::empty", "aten::new_empty", "aten::promote_types")):
        return False
    if schema.name in ("aten::_unsafe_view", "aten::detach"):
        return False
    results = [result.alias_info for result in schema.returns]
    return not any(alias is not None and not alias.is_write for alias in results)


if __name__ == "__main__":
    sys.exit(main())
