"""What do captures take of the memory, and what do probes measure? Answered by `first_hour`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from ablate import measuring
from ablate.training.engines import resolve
from gpu.script import Item, Result, Setting, answer
from gpu.work import Work, memory_in_use, n_captures, pass_over, seconds_of, size

_N_PASSES = 3


def captures(name: str, setting: Setting) -> Result:
    """Train over an epoch three times; return the memory that is used after each."""
    work = Work(size(name, setting), setting)
    batches = work.some(setting.pick(400, 2))
    passes: list[dict[str, Any]] = []
    with work.engine(resolve("auto", setting.device.type), setting.precision) as engine:
        for _ in range(_N_PASSES):
            seconds = seconds_of(pass_over(engine, batches), setting.device)[1]
            passes.append(
                {
                    "seconds": seconds,
                    "captures": n_captures(engine),
                    "preparing_seconds": engine.seconds_preparing,
                    **memory_in_use(setting),
                }
            )
        note = engine.note
    last = passes[-1]
    line = (
        f"{last['captures']} captures in {last['preparing_seconds']:.1f} s; "
        f"{last.get('reserved_mib', 0):,.0f} MiB reserved, "
        f"{last.get('used_mib', 0):,.0f} used on the device"
    )
    return Result(line, {"batches": len(batches), "passes": passes, "note": note})


def probe(name: str, setting: Setting) -> Result:
    """Measure a row as `ablate run` does."""
    work = Work(size(name, setting), setting)
    engine = resolve("auto", setting.device.type)
    figures = measuring.probe(work.run, work.prepared(), setting.device, setting.precision, engine)
    line = (
        f"{figures['train_target_tokens_per_second'] / 1e3:,.1f}k tokens/s, "
        f"{figures['decode_sentences_per_second']:,.0f} sentences/s, "
        f"{figures['train_peak_mib']:,.0f} MiB; {figures.get('runs_at_once', 1):.0f} runs at once"
    )
    return Result(line, {**figures, "engine": engine})


ITEMS: dict[str, Item] = {
    "probe tiny": partial(probe, "tiny"),
    "captures tiny": partial(captures, "tiny"),
    "probe base": partial(probe, "base"),
    "captures base": partial(captures, "base"),
}

if __name__ == "__main__":
    sys.exit(answer(ITEMS, in_fresh_processes=True))
