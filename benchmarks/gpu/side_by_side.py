"""What do 1, 2, 4 and 8 runs in one process come to? Answered by `first_hour`.

Each run has its own model, engine and stream, and they take turns step by step, as the runner has
it. Target tokens per second of all together, over steps that are replayed.
"""

from __future__ import annotations

import sys
import time
from functools import partial

from ablate.runner.streams import Interleaver
from ablate.training.engines import resolve
from gpu.script import Item, Result, Setting, answer
from gpu.work import N_WARM_PASSES, Work, size, wait

_N_BATCHES = 8
_READ_LOSS_EVERY = 20  # steps, as runs do; reading waits for the device


def together(n_runs: int, setting: Setting) -> Result:
    """Measure ``n_runs`` runs."""
    interleaver = Interleaver(setting.device)
    engine_name = resolve("auto", setting.device.type)
    work = Work(size("tiny", setting), setting)
    n_steps = setting.pick(160, 4)
    warm: list[int] = []
    spans: list[tuple[float, float, int]] = []

    def run(seed: int) -> None:
        batches = work.some(setting.pick(_N_BATCHES, 2))
        with work.engine(engine_name, setting.precision, seed) as engine:
            for batch in batches * N_WARM_PASSES:
                engine.step([batch])
                interleaver.yield_turn()
            warm.append(seed)
            while len(warm) < n_runs:
                interleaver.yield_turn()
            wait(setting.device)
            began, n_tokens = time.perf_counter(), 0
            for number in range(n_steps):
                result = engine.step([batches[number % len(batches)]])
                n_tokens += result.n_tokens
                if number % _READ_LOSS_EVERY == _READ_LOSS_EVERY - 1:
                    float(result.loss)
                interleaver.yield_turn()
            wait(setting.device)
            spans.append((began, time.perf_counter(), n_tokens))

    interleaver.run([partial(run, seed) for seed in range(n_runs)])
    seconds = max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
    rate = sum(n_tokens for _, _, n_tokens in spans) / seconds
    figures = {
        "runs": n_runs,
        "engine": engine_name,
        "precision": setting.precision,
        "target_tokens_per_second": rate,
    }
    return Result(
        f"{rate / 1e3:,.1f}k tokens/s together, {rate / n_runs / 1e3:,.0f}k each", figures
    )


ITEMS: dict[str, Item] = {f"{n} runs": partial(together, n) for n in (1, 2, 4, 8)}

if __name__ == "__main__":
    sys.exit(answer(ITEMS, in_fresh_processes=True))
