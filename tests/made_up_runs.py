"""Finished runs that nothing has trained: made-up records under the hashes of an experiment."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ablate.api.selection import RunLookup, Selection, select, tasks
from ablate.data.corpus import Bitext, Corpus
from ablate.measuring import SentenceStatistics
from ablate.registry import build
from ablate.runner import devices
from ablate.store import Store
from ablate.training import engines
from tests.report import made_up

BASE = """\
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
"""
EXPERIMENT = f"""\
{BASE}variants:
  none: {{model.position: none}}
  rms: {{model.norm: rms}}
"""
MATCHED_ON_TIME = f"""\
{BASE}variants:
  wide: {{model.feed_forward.d_ff: 32}}
match: {{on: time, via: training.steps}}
"""


def finished(folder: Path, text: str = EXPERIMENT, **options: Any) -> Path:
    """Write ``pe.yaml`` into a folder, and made-up runs of it into ``results`` there."""
    path = folder / "pe.yaml"
    path.write_text(text, encoding="utf-8")
    finish(path, folder / "results", **options)
    return path


def finish(  # noqa: PLR0913 - as many as make other runs
    path: Path,
    results: Path,
    overrides: Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    only: Sequence[str] = (),
    *,
    has_files: bool = False,
    place: str = "",
) -> Selection:
    """Store a made-up record of every run of a selection, as if ``ablate run`` had made it.

    With ``has_files`` curves and translations are made up too; each ``place`` has its own numbers.
    """
    store = Store(results)
    selection = select(path, overrides, seeds, only, RunLookup(store))
    tests = build(Corpus, selection.corpus, at="corpus").load().tests if has_files else {}
    slot = devices.worker_slots(devices.find("cpu"), 1)[0]
    engine = engines.resolve("auto", slot.kind)
    for task in tasks(selection.tabulated, slot, results, engine=engine):
        record = made_up.record(f"{place}{task.variant}", task.seed)
        record["corpus"]["fingerprint"] = task.corpus_fingerprint
        for name in tests:
            record["test"][name]["sentences"] = f"sentences.{name}.csv"
        store.save(task.record("done", None, **{k: record[k] for k in _KEPT}))
        if has_files:
            _write_files(store.path(task.key), f"{task.variant} {task.seed}", tests)
    return selection


def _write_files(folder: Path, name: str, tests: Mapping[str, Bitext]) -> None:
    """Write a curve, and translations of which words are left out, with their statistics."""
    draw = random.Random(name)
    curve = [f"{step},{2 + 5 / step},{'' if step % 3 else 1 + 4 / step}\n" for step in range(1, 61)]
    header = "step,train_loss,dev_nll\n"
    (folder / "curve.csv").write_text(header + "".join(curve), encoding="utf-8")
    for test_set, bitext in tests.items():
        lines = [" ".join(w for w in s.split() if draw.random() < 0.9) for s in bitext.tgt]
        lengths = np.array([len(s.split()) for s in bitext.tgt])
        statistics = SentenceStatistics.of(lines, [bitext.tgt], lengths, np.ones(len(lines)))
        text = "".join(f"{line}\n" for line in lines)
        (folder / f"hypotheses.{test_set}.txt").write_text(text, encoding="utf-8")
        (folder / f"sentences.{test_set}.csv").write_text(statistics.to_csv(), encoding="utf-8")


_KEPT = "params flops train speed memory dev test corpus tokenizer hardware versions git".split()
