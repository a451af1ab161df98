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
from ablate.errors import EngineError
from gpu.script import Item, Result, Setting, WrongError, answer
from gpu.work import captured, median_ms

_N_REPLAYS = 30
_TOLERANCE = 1e-5


def captured_again(setting: Setting) -> Result:
    """Capture anew after all captures were destroyed, as decoding does for each batch."""
    capturer, x = GraphCapturer(setting.device), torch.zeros(64, device=setting.device)
    sums = []
    for _ in range(3):
        sums.append(float(captured(capturer, lambda: x + 1)().sum()))
        capturer.clear()
    _expect(sums == [64.0] * 3, f"replays gave {sums} in place of 64")
    return Result("three captures, one after the other, from one pool", {"sums": sums})


def after_a_failure(setting: Setting) -> Result:
    """List what a process can still do after a capture that failed."""
    device = setting.device
    capturer, x = GraphCapturer(device), torch.ones(64, 64, device=device)

    def asks_for_number() -> Tensor:
        return F.dropout(x, 0.5) * x.sum().item()

    attempts: dict[str, Callable[[], object]] = {
        "the capture that asks for a number": lambda: captured(capturer, asks_for_number),
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
    impossible = [name for name, outcome in outcomes.items() if outcome != "ok"]
    return Result(f"not possible after a failed capture: {', '.join(impossible) or '-'}", outcomes)


def collected_during_a_capture(setting: Setting) -> Result:
    """Collect garbage with a graph in it while another graph is captured.

    Our captures keep the collector from running by itself, and do not rely on the outcome.
    """
    x, collects, n_collected = torch.zeros(64, device=setting.device), False, 0

    def work() -> Tensor:
        nonlocal n_collected
        y = x + 2
        n_collected += gc.collect() if collects else 0
        return y + 1

    class Cycle:
        replay: Callable[[], Tensor]
        itself: Cycle

    capturer = GraphCapturer(setting.device)
    for _ in range(2):
        capturer.warm_up(work)
    gc.collect()
    gc.disable()
    try:
        cycle = Cycle()
        cycle.itself, cycle.replay = cycle, captured(GraphCapturer(setting.device), lambda: x + 1)
        del cycle
        collects = True
        replay = capturer.capture("the work", work)
        total = float(replay().sum())
    except EngineError as error:
        what = "a graph must not be collected during a capture"
        return Result(f"{what}: {error}", {"error": str(error)})
    finally:
        gc.enable()
    _expect(n_collected > 0, "there was nothing to collect")
    _expect(total == 3 * 64, f"the sum is {total} in place of 192")
    figures = {"sum": total, "collected": n_collected}
    return Result("a graph may be collected during a capture", figures)


def no_longer_used(setting: Setting) -> Result:
    """Delete the replay of one of several matrix products: the others keep their workspace."""
    replays, works = _products(GraphCapturer(setting.device), setting.device)
    del replays[0]
    return _replayed(replays, works[1:], setting.device)


def destroyed_beside_others(setting: Setting) -> Result:
    """See whether the end of one graph still harms the others on its stream.

    Source: https://github.com/pytorch/pytorch/issues/193402. Our captures do not rely on the
    outcome: graphs are destroyed all together.
    """
    capturer = GraphCapturer(setting.device)
    replays, works = _products(capturer, setting.device)
    try:
        if setting.is_cuda:
            capturer._graphs[0].reset()
        result = _replayed(replays[1:], works[1:], setting.device)
    except (RuntimeError, WrongError) as error:
        first = str(error).strip().partition("\n")[0]
        return Result(f"the end of a graph harms others: {first}", {"error": first})
    return Result(f"the end of a graph harms no other: {result.line}", result.figures)


def _products(
    capturer: GraphCapturer, device: torch.device
) -> tuple[list[Callable[[], Tensor]], list[Callable[[], Tensor]]]:
    """Return the replays of some matrix products, and the functions that compute them eagerly."""
    a = torch.randn(256, 256, device=device)

    def product(n: int) -> Tensor:
        return (a @ a) * n

    works: list[Callable[[], Tensor]] = [partial(product, n) for n in range(4)]
    replays = [captured(capturer, work) for work in works]
    for replay in replays:
        replay()
    return replays, works


def _replayed(
    replays: list[Callable[[], Tensor]], works: list[Callable[[], Tensor]], device: torch.device
) -> Result:
    """Compare replays with eager work, once others had the chance to get freed memory."""
    gc.collect()
    noise = [torch.randn(1 << 20, device=device) for _ in range(8)]
    differences = [replay() - work() for replay, work in zip(replays, works, strict=True)]
    worst = max(float(difference.abs().max()) for difference in differences)
    _expect(worst < _TOLERANCE * len(noise) * 256, f"replays differ by {worst:.1e}")
    return Result(f"replays differ by {worst:.1e}", {"largest_difference": worst})


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
    """Capture an operation with deterministic algorithms and without, and time both."""
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
    """Time a thousand kernels with hardly any work: the cost of a launch."""
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


def _expect(is_met: bool, reason: str) -> None:
    if not is_met:
        raise WrongError(reason)


ITEMS: dict[str, Item] = {
    "captured_again": captured_again,
    "after_a_failure": after_a_failure,
    "collected_during_a_capture": collected_during_a_capture,
    "no_longer_used": no_longer_used,
    "destroyed_beside_others": destroyed_beside_others,
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
