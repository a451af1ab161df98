"""Finished runs that nothing has trained: made-up records under the hashes of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ablate.api.selecting import Selection, select, tasks
from ablate.runner import devices
from ablate.store import Store
from ablate.training import engines
from tests.report import made_up

EXPERIMENT = """\
question: Does anything happen?
corpus: {name: synthetic, size: 1000}
tokenizer: word
model:
  dims: {d_model: 16, n_heads: 2, max_len: 64}
  n_layers: 1
  feed_forward: {name: relu, d_ff: 16}
training: {steps: 6, batch_tokens: 512, schedule: {name: constant, lr: 1e-3}}
decoding: greedy
seeds: [1, 2]
variants:
  none: {model.position: none}
  rms: {model.norm: rms}
"""


def finish(
    path: Path,
    results: Path,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
) -> Selection:
    """Store a made-up record of every run of a selection, as if ``ablate run`` had made it."""
    selection, store = select(path, overrides, seeds, only), Store(results)
    slot = devices.worker_slots(devices.find("cpu"), 1)[0]
    engine = engines.resolve("auto", slot.kind)
    for task in tasks(selection.shown, slot, results, engine=engine):
        record = made_up.record(task.variant, task.seed)
        store.save(task.record("done", None, **{k: record[k] for k in _KEPT}))
    return selection


_KEPT = "params flops train speed memory dev test corpus tokenizer hardware versions git".split()
