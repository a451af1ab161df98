"""Does PyTorch keep the rules that our captures rely on? Answered by `first_hour`.

On a CPU a capture is the work itself, so that a dry run shows that the script works, and no more.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.cuda_graphs import GraphCapturer
from gpu.script import Item, Result, Setting, WrongError, answer
from gpu.work import captured, median_ms

_N_REPLAYS = 30
_TOLERANCE = 1e-5


def captured_again(setting: Setting) -> Result:
    """Capture anew after the only graph was dropped, as decoding does for each batch."""
    capturer, x = GraphCapturer(setting.device), torch.zeros(64, device=setting.device)
    sums = []
    for _ in range(3):
        replay = captured(capturer, lambda: x + 1)
        sums.append(float(replay().sum()))
        del replay
    _expect(sums == [64.0] * 3, f"replays gave {sums} in place of 64")
    return Result("three captures, one after the other, from one pool", {"sums": sums})


def after_a_failure(setting: Setting) -> Result:
    """Tell what a process can still do after a capture that failed."""
    device = setting.device
    capturer, x = GraphCapturer(device), torch.ones(64, 64, device=device)

    def bad() -> Tensor:
        return F.dropout(x, 0.5) * x.sum().item()

    attempts: dict[str, Callable[[], object]] = {
        "the capture that asks for a number": lambda: captured(capturer, bad),
        "dropout": lambda: F.dropout(x, 0.5).sum().item(),
        "a capture from the same pool": lambda: captured(capturer, lambda: x + 1)(),
        "a capture from a new pool": lambda: captured(GraphCapturer(device), lambda: x + 1)(),
        "dropout once more": lambda: F.dropout(x, 0.5).sum().item(),
        "memory given back": torch.cuda.empty_cache,
    }
    outcomes: dict[str, str] = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            outcomes[name] = "ok"
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            outcomes[name] = f"{type(error).__name__}: {first}"
    bad_ones = [name for name, outcome in outcomes.items() if outcome != "ok"]
    return Result(f"not possible after a failed capture: {', '.join(bad_ones) or '-'}", outcomes)


def collected_during_a_capture(setting: Setting) -> Result:
    """Let the garbage collector destroy a graph while another is captured."""
    x = torch.zeros(64, device=setting.device)

    class Cycle:
        replay: Callable[[], Tensor]
        itself: Cycle

    gc.disable()
    cycle = Cycle()
    cycle.itself, cycle.replay = cycle, captured(GraphCapturer(setting.device), lambda: x + 1)
    del cycle

    def work() -> Tensor:
        y = x + 2
        gc.collect()
        return y + 1

    total = float(captured(GraphCapturer(setting.device), work)().sum())
    gc.enable()
    _expect(total == 3 * 64, f"the sum is {total} in place of 192")
    return Result("a graph may be collected during a capture", {"sum": total})


def dropped_beside_others(setting: Setting) -> Result:
    """Drop one graph of a matrix product, and replay the others: their workspace must live on."""
    capturer = GraphCapturer(setting.device)
    a = torch.randn(256, 256, device=setting.device)
    works = [lambda n=n: (a @ a) * n for n in range(4)]
    replays = [captured(capturer, work) for work in works]
    for replay in replays:
        replay()
    del replays[0]
    gc.collect()
    noise = [torch.randn(1 << 20, device=setting.device) for _ in range(8)]
    worst = max(
        float((replay() - work()).abs().max())
        for replay, work in zip(replays, works[1:], strict=True)
    )
    _expect(worst < _TOLERANCE * len(noise) * 256, f"replays differ by {worst:.1e}")
    return Result(f"replays differ by {worst:.1e} after a drop", {"largest_difference": worst})


def dropout_draws(setting: Setting) -> Result:
    """See that each replay draws anew, and that a seed gives the same draws again."""
    x = torch.ones(1000, device=setting.device)
    replay = captured(GraphCapturer(setting.device), lambda: F.dropout(x, 0.5))

    def draws(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return [replay().clone() for _ in range(2)]

    first, second = draws(1)
    _expect(not torch.equal(first, second), "two replays drew the same")
    again = draws(1)
    _expect(torch.equal(first, again[0]), "the same seed drew otherwise")
    _expect(torch.equal(second, again[1]), "the same seed drew otherwise the second time")
    return Result("each replay draws anew, and the same from the same seed", {})


def captured_beside_work(setting: Setting) -> Result:
    """Capture in one thread while another launches work: ``thread_local`` allows it."""
    capturer, x = GraphCapturer(setting.device), torch.ones(64, 64, device=setting.device)
    is_over = threading.Event()
    n_launched = 0

    def other() -> None:
        nonlocal n_launched
        y = torch.ones(64, 64, device=setting.device)
        while not is_over.is_set():
            y = (y @ y).clamp(max=1)
            n_launched += 1

    thread = threading.Thread(target=other)
    thread.start()
    try:
        for _ in range(10):
            total = float(captured(capturer, lambda: x @ x)().sum())
            _expect(total == 64.0**3, f"the sum is {total} in place of {64**3}")
    finally:
        is_over.set()
        thread.join()
    line = f"10 captures while another thread launched {n_launched} products"
    return Result(line, {"launched": n_launched})


def _operation(name: str, setting: Setting) -> Result:
    """Capture an operation as deterministic algorithms have it and as it comes, and time both."""
    device, n_ids = setting.device, setting.pick(10_000, 500)
    ids = torch.randint(n_ids, (setting.pick(4096, 256),), device=device)
    logits = torch.randn(len(ids), n_ids, device=device, requires_grad=True)
    table = torch.randn(n_ids, 128, device=device, requires_grad=True)
    cache = torch.zeros(setting.pick(5000, 50), 4, 32, 32, device=device)
    new, position = torch.ones(len(cache), 4, 1, 32, device=device), torch.tensor([3]).to(device)

    def gradient(loss: Tensor, of: Tensor) -> Tensor:
        return torch.autograd.grad(loss, of)[0]

    works: dict[str, Callable[[], Tensor]] = {
        "gather": lambda: gradient(logits.gather(1, ids[:, None]).sum(), logits),
        "embedding": lambda: gradient(F.embedding(ids, table).sum(), table),
        "index": lambda: gradient(table[ids].sum(), table),
        "index_copy": lambda: cache.index_copy_(2, position, new),
        "cross_entropy": lambda: gradient(
            F.cross_entropy(logits, ids, label_smoothing=0.1), logits
        ),
    }
    ms: dict[str, Any] = {}
    try:
        for is_deterministic in (False, True):
            torch.use_deterministic_algorithms(is_deterministic, warn_only=True)
            replay = captured(GraphCapturer(device), works[name])
            key = "deterministic_ms" if is_deterministic else "free_ms"
            ms[key] = median_ms(replay, device, _N_REPLAYS)
    finally:
        torch.use_deterministic_algorithms(setting.is_cuda, warn_only=True)
    line = f"{ms['deterministic_ms']:.3f} ms deterministic, {ms['free_ms']:.3f} ms as it comes"
    return Result(line, ms)


def launches(setting: Setting) -> Result:
    """Time a thousand kernels with next to nothing to do: what launching costs."""
    x, n = torch.zeros(64, device=setting.device), setting.pick(1000, 100)

    def work() -> Tensor:
        y = x
        for _ in range(n):
            y = y + 1
        return y

    eager_ms = median_ms(work, setting.device, 10)
    replay_ms = median_ms(captured(GraphCapturer(setting.device), work), setting.device, 10)
    per_kernel = {"eager_us": 1e3 * eager_ms / n, "replay_us": 1e3 * replay_ms / n}
    line = f"a kernel costs {per_kernel['eager_us']:.2f} us eagerly, " + (
        f"{per_kernel['replay_us']:.2f} us in a replay"
    )
    return Result(line, {"kernels": n, **per_kernel})


def _expect(is_so: bool, otherwise: str) -> None:
    if not is_so:
        raise WrongError(otherwise)


ITEMS: dict[str, Item] = {
    "captured_again": captured_again,
    "after_a_failure": after_a_failure,
    "collected_during_a_capture": collected_during_a_capture,
    "dropped_beside_others": dropped_beside_others,
    "dropout_draws": dropout_draws,
    "captured_beside_work": captured_beside_work,
    **{
        f"deterministic_{name}": partial(_operation, name)
        for name in ("gather", "embedding", "index", "index_copy", "cross_entropy")
    },
    "launches": launches,
}

if __name__ == "__main__":
    sys.exit(answer(ITEMS, in_fresh_processes=True))
