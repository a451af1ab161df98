"""How long does a step take, by engine, size and precision? Answered by `first_hour`.

Eight batches of different lengths, again and again: the first pass is eager, in the second shapes
are captured, from the third on they are replayed; medians are of the passes after that.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial

from gpu.script import Item, Result, Setting, answer
from gpu.work import (
    N_WARM_PASSES,
    Work,
    memory_in_use,
    n_captures,
    pass_over,
    seconds_of,
    size,
)

_N_BATCHES = 8


def steps(name: str, engine_name: str, precision: str, setting: Setting) -> Result:
    """Time the steps of one engine."""
    work = Work(size(name, setting), setting)
    batches = work.some(setting.pick(_N_BATCHES, 2))
    with work.engine(engine_name, precision) as engine:
        one_pass = pass_over(engine, batches)
        warm = [seconds_of(one_pass, setting.device)[1] for _ in range(N_WARM_PASSES)]
        measured = [seconds_of(one_pass, setting.device) for _ in range(setting.pick(10, 2))]
        host, whole = (statistics.median(column) for column in zip(*measured, strict=True))
        n_tokens = sum(batch.n_tokens for batch in batches)
        per_step = 1e3 / len(batches)
        figures = {
            "step_ms": whole * per_step,
            "host_ms": host * per_step,
            "warm_pass_step_ms": [seconds * per_step for seconds in warm],
            "target_tokens_per_second": n_tokens / whole,
            "target_tokens_per_step": n_tokens / len(batches),
            "parameters": sum(p.numel() for p in engine.model.parameters()),
            "engine": engine.name,
            "note": engine.note,
            "captures": n_captures(engine),
            "preparing_seconds": engine.seconds_preparing,
            **memory_in_use(setting),
        }
    line = (
        f"{figures['step_ms']:.2f} ms a step ({figures['host_ms']:.2f} of the host), "
        f"{figures['target_tokens_per_second'] / 1e3:,.1f}k tokens/s"
    )
    return Result(f"{line}; {engine.note}" if engine.note else line, figures)


def items() -> dict[str, Item]:
    """Return all items: those that a CPU has too come first, those that take long last."""
    is_cpu = "cpu" in sys.argv
    engines = ("cuda_graph", "eager", "data_parallel" if is_cpu else "compile")
    precisions = ("fp32",) if is_cpu else ("bf16", "fp32")
    return {
        f"{name} {engine} {precision}": partial(steps, name, engine, precision)
        for engine in engines
        for name in ("tiny", "base")
        for precision in precisions
    }


if __name__ == "__main__":
    sys.exit(answer(items(), in_fresh_processes=True))
