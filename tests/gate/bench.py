"""An experiment in a folder of its own, with runs that nothing has trained, and its reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablate import api
from ablate.api import Blessed, Gated, RunOptions
from ablate.api.selection import select, tasks
from ablate.runner import provenance
from ablate.runner.devices import Device
from ablate.store import Store

EXPERIMENT = """\
corpus: {name: synthetic, size: 200}
tokenizer: word
model:
  dims: {d_model: 16, n_heads: 2, max_len: 64}
  n_layers: 1
  feed_forward: {name: relu, d_ff: 16}
training:
  steps: 24
  batch_tokens: 512
  schedule: {name: inverse_sqrt, lr: 1e-2, warmup: 10}
  precision: fp32
decoding: greedy
seeds: [1, 2, 3]
published: {source: Nobody 2026, rows: {baseline: {bleu: 41.0}}}
variants:
  none: {model.position: none}
"""
ASKED = """\
checks:
  losses: {kind: exact, steps: 2}
  bleu: {kind: statistical, measure: test.test.bleu}
  none: {kind: finding, row: none, measure: test.test.bleu, claim: worse, margin: 3}
"""
BLEU = {"baseline": (40.9, 41.1, 41.0, 40.8, 41.2), "none": (28.0, 28.3, 28.1, 27.9, 28.2)}
LOSSES = (6.997361183166504, 6.894534111022949)
SEEDS = range(1, 6)
NEW = {row: values[2::-1] for row, values in BLEU.items()}
"""Of the seeds 6, 7 and 8, which bless nothing."""


class Bench:
    """An experiment whose runs are made up, in a folder that holds nothing else."""

    def __init__(self, folder: Path) -> None:
        self.spec, self.reference = folder / "tiny.yaml", folder / "reference.yaml"
        self.store = Store(folder / "results")
        self.spec.write_text(EXPERIMENT, encoding="utf-8")
        self.reference.write_text(ASKED, encoding="utf-8")

    def store_runs(
        self,
        bleu: Mapping[str, Sequence[float]],
        losses: Sequence[float] = LOSSES,
        overrides: Sequence[str] = (),
        first: int = 1,
        **changes: Any,
    ) -> None:
        """Store a record for each BLEU of a row, with seeds from ``first`` on."""
        for row, values in bleu.items():
            seeds = range(first, first + len(values))
            selection = select(self.spec, overrides, seeds, [row])
            todo = tasks(selection.runs, Device("cpu"), self.store.results)
            for task, value in zip(todo, values, strict=True):
                known = {
                    "test": {"test": {"bleu": value, "bleu_signature": "nrefs:1"}},
                    "hardware": {**provenance.hardware("cpu"), "threads": 1},
                    "versions": provenance.versions(),
                    "git": {
                        "commit": "9839b24aa1bb",
                        "is_clean": True,
                        "code": provenance.code_digest(),
                    },
                }
                self.store.save(task.record("done", **{**known, **changes}))
                lines = [f"{step},{loss!r}" for step, loss in enumerate(losses, start=1)]
                curve = self.store.path(task.key) / "curve.csv"
                curve.write_text("\n".join(["step,train_loss", *lines, "9,1.0"]), encoding="utf-8")

    def bless(self, seeds: Sequence[int] = SEEDS, engine: str = "auto", **choices: Any) -> Blessed:
        options = RunOptions(seeds=seeds, engine=engine, results=self.store.results)
        return api.bless(self.spec, self.reference, options, **{"is_stored": True, **choices})

    def gate(self, is_stored: bool = True, **options: Any) -> Gated:
        run_options = RunOptions(**{"results": self.store.results, **options})
        return api.gate(self.spec, self.reference, run_options, is_stored=is_stored)

    def edit(self, old: str, new: str) -> None:
        content = self.reference.read_text(encoding="utf-8")
        assert content.count(old) >= 1
        self.reference.write_text(content.replace(old, new, 1), encoding="utf-8")
