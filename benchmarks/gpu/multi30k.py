"""Does Transformer-Tiny come to its BLEU on Multi30k, and how soon? Answered by `first_hour`.

Runs are stored in ``multi30k/`` below the folder of the answers: an item that was interrupted
continues when it is called again. A reduced run trains a few steps, on the synthetic corpus where
Multi30k is not there.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from records import ROOT

from ablate.api.completion import RunOptions, complete, opened
from ablate.api.selection import select
from gpu.script import Item, Result, Setting, WrongError, answer

_SEEDS = (1, 2, 3, 4, 5)
_PUBLISHED = 41.02  # of Wu et al. 2021, as their repository prints it (README-baseline.md)
_FEW_STEPS = (
    "training.steps=2",
    "training.batch_tokens=256",
    "training.evaluate_every=2",
    "training.schedule.warmup=1",
    "training.average.last=1",
    "decoding=greedy",
    "decoding.max_extra=0",
    "model.n_layers=1",
)


def trained(file: str, setting: Setting) -> Result:
    """Train the missing runs of an experiment; return their BLEU and the wall time."""
    path, overrides = ROOT / "experiments" / file, list(setting.pick((), _FEW_STEPS))
    folder = os.environ.get("ABLATE_CORPORA")
    if folder is None or not (Path(folder) / "multi30k").is_dir():
        if not setting.reduced:
            raise WrongError("Multi30k is not there: ABLATE_CORPORA must name a folder with it")
        overrides += ["corpus={name: synthetic, size: 300}", "tokenizer=word"]
    elif setting.reduced:
        overrides += ["corpus.tests=[test2016]"]
    seeds: Sequence[int] = setting.pick(_SEEDS, (1,))
    only = setting.pick((), ("baseline", "none")) if "pe" in file else ()
    selection = select(path, overrides, seeds, only)
    options = RunOptions(
        device="cuda:0" if setting.is_cuda else "cpu",
        jobs=None if setting.is_cuda else 1,
        results=setting.output / "multi30k",
    )
    began = time.perf_counter()
    with opened(options) as options:
        records, is_new = complete(selection, options)
    seconds = time.perf_counter() - began
    failed = [f"{k}: {r['error']}" for k, r in records.items() if r["status"] != "done"]
    if failed or len(records) < len(selection.runs):
        raise WrongError("; ".join(failed) or "some runs have left no record")
    rows: dict[str, list[float]] = {}
    for (variant, _), record in sorted(records.items()):
        of_first = next(iter(record["test"].values()))
        rows.setdefault(variant, []).append(of_first.get("bleu_lc_tok") or of_first["bleu"])
    means = {variant: statistics.fmean(values) for variant, values in rows.items()}
    line = ", ".join(f"{variant} {mean:.2f}" for variant, mean in means.items())
    figures = {
        "bleu": rows,
        "mean_bleu": means,
        "published_bleu": _PUBLISHED,
        "wall_seconds": seconds,
        "is_new": is_new,
        "runs": [_facts(record) for record in records.values()],
    }
    return Result(f"BLEU {line}; {len(records)} runs in {seconds:.0f} s", figures)


def _facts(record: dict[str, object]) -> dict[str, object]:
    keys = ("hash", "variant", "seed", "engine", "engine_note", "n_together", "train", "speed")
    return {key: record[key] for key in (*keys, "memory", "timings") if key in record}


ITEMS: dict[str, Item] = {
    "tiny": partial(trained, "presets/multi30k_tiny.yaml"),
    "four variants": partial(trained, "multi30k/pe.yaml"),
}

if __name__ == "__main__":
    sys.exit(answer(ITEMS))
