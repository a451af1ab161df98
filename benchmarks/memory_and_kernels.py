"""How much faster is a step with huge pages, and with a cache for the kernels of a whole epoch?

Run it:  ABLATE_CORPORA=FOLDER python benchmarks/memory_and_kernels.py [--batches 150] [--turns 3]

Trains the baseline of experiments/multi30k/atlas.yaml in bf16 on one core of a CPU. A process sees
``--batches`` batches of an epoch, nearly all of different shapes, and is timed when it sees them
again, as in the second epoch of a run. Processes take turns: without both settings, with each, and
with both, which is the environment of a run (`ablate.runner.devices`).

A benchmark that repeats a few batches cannot see what this one measures: their kernels stay in the
cache.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch
from records import RESULTS, ROOT, in_a_process, origin, say, write

from ablate import config
from ablate.data.batches import Batches
from ablate.data.prepare import prepare
from ablate.data.tokenizer import PAD
from ablate.model import assemble
from ablate.runner import devices
from ablate.training.engines import make_engine, resolve
from ablate.training.step import StepConfig, make_optimizer, set_lr

SPEC = ROOT / "experiments" / "multi30k" / "atlas.yaml"
PAGES, KERNELS = "GLIBC_TUNABLES", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
CONTENDERS = {
    "neither": (PAGES, KERNELS),
    "huge pages": (KERNELS,),
    "kernels": (PAGES,),
    "both": (),
}
"""By name the settings that are taken away."""


def main() -> int:
    """Measure, print and write the results; return the exit status."""
    options = _options()
    if options.one:
        sys.stdout.write(json.dumps(measured(options.batches)) + "\n")
        return 0
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(options.turns):
        for name, removed in CONTENDERS.items():
            rounds[name].append(_in_a_process(removed, options))
            say(f"{name}: {rounds[name][-1]}")
    for name, of_name in rounds.items():
        pairs = zip(rounds["neither"], of_name, strict=True)
        ratio = statistics.median(a["seconds_per_step"] / b["seconds_per_step"] for a, b in pairs)
        say(f"{name}: {ratio:.2f} times as fast as with neither")
    settings = {"batches": options.batches, "turns": options.turns}
    write(options.output, {**origin("cpu"), "settings": settings, "rounds": rounds})
    return 0


def measured(n_batches: int) -> dict[str, float]:
    """Return the seconds of a step on batches that were seen once, and the resident MiB then."""
    torch.set_num_threads(1)
    run = config.expand(config.load(SPEC))[0].spec
    corpus = prepare(run)
    torch.manual_seed(1)
    model = assemble(run.model, corpus.tokenizers.vocabulary, PAD).train()
    optimizer = make_optimizer(run, model)
    set_lr(optimizer, 1e-6)
    epoch = Batches(corpus.train, run.training.batch_tokens, PAD, torch.device("cpu"))
    rows = epoch.epoch(seed=1, epoch=0)[:n_batches]
    step_config = StepConfig.of(run.training, "bf16")
    with closing(make_engine(resolve("auto", "cpu"), model, step_config, optimizer)) as engine:
        engine.cores = 1
        for of_batch in rows:
            engine.step([epoch.make(of_batch)])
        start = time.perf_counter()
        for of_batch in rows:
            engine.step([epoch.make(of_batch)])
        seconds = (time.perf_counter() - start) / len(rows)
    n_pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
    return {"seconds_per_step": seconds, "mib": n_pages * os.sysconf("SC_PAGE_SIZE") / 2**20}


def _in_a_process(removed: tuple[str, ...], options: argparse.Namespace) -> dict[str, Any]:
    environment = {**os.environ, **devices.find("cpu")[0].environment()}
    kept = {name: value for name, value in environment.items() if name not in removed}
    return in_a_process([__file__, "--batches", str(options.batches), "--one"], kept)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=150, help="of an epoch, that are seen twice")
    parser.add_argument("--turns", type=int, default=3, help="of each process")
    parser.add_argument("--one", action="store_true", help="measure in this environment alone")
    parser.add_argument("--output", type=Path, default=RESULTS / "memory_and_kernels.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
