"""Speed and memory, measured in the same way for every row: alone, on the same work, warmed up.

Nothing else may run on the device, and memory is right only in a new process.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import torch

from ablate.config import RunSpec
from ablate.data.prepare import Prepared
from ablate.measuring.counts import count_flops
from ablate.measuring.workload import Workload
from ablate.processes import give_back_free_memory
from ablate.training.ranks import ALONE, Ranks
from ablate.training.step import count_passes

_FEWEST_REPEATS, _MOST_REPEATS = 2, 50
_MIB = 2**20
_MOST_RUNS = 8
_MATRIX_WIDTH = 8192  # of a square matrix whose product uses all of a GPU


def probe(  # noqa: PLR0913 - what is measured, and how it is executed
    spec: RunSpec,
    prepared: Prepared,
    device: torch.device,
    precision: str,
    engine: str = "eager",
    micro_batch_factor: int = 1,
    before_training: Callable[[], None] = lambda: None,
    seconds: float = 0.25,
    ranks: Ranks = ALONE,
) -> dict[str, Any]:
    """Build the model of ``spec`` and measure decoding, then training.

    Times are medians of repeats on the same work (`Workload`), after a warm-up: one repeat, and for
    training as many as it takes until nothing is captured or compiled any more. The largest batch
    comes first, for the peak of memory. Estimates of the curvature (Sophia) are timed by themselves
    and count as often as a run makes them: the median of steps would leave rare ones out.

    ``micro_batch_factor`` is how many times smaller than usual the parts of a batch are. Each
    measurement is repeated for about ``seconds``. Of several ``ranks`` the first one decodes.

    Returns:
        ``train_target_tokens_per_second``, padding not counted; ``decode_sentences_per_second``;
        ``train_peak_mib`` and ``decode_peak_mib``: on CUDA the most that PyTorch reserved, because
        between replays no memory of captured graphs counts as allocated; on a CPU the growth of the
        process, with the model and without interpreter and libraries; ``engine``, the one of the
        measured steps, which is not the one asked for if a part rules that out; and on CUDA
        ``runs_at_once``, see the function of that name.
    """
    work = Workload(spec, prepared, device, engine, micro_batch_factor)
    _load_libraries(device)
    memory = _PeakMemory(device)
    model = work.model()
    decode_seconds = math.inf
    if ranks.is_first:
        decode = work.decoding(model)
        decode()
        decode_seconds = _median_seconds(decode, device, seconds)
        del decode  # ends its captures, so that training has their memory
    decode_peak_mib = memory.peak_mib()
    before_training()
    training = work.training(model, precision)
    with closing(training.engine):
        training.warm_up([work.largest])
        training.warm_up(work.steps)
        train_seconds = _median_seconds(lambda: training.run(work.steps), device, seconds, ranks)
        if training.estimates_per_step:
            estimate_seconds = _median_seconds(
                lambda: training.estimate(work.steps), device, seconds, ranks
            )
            train_seconds += training.estimates_per_step * estimate_seconds
        train_peak_mib = memory.peak_mib()
    results: dict[str, Any] = {
        "engine": training.engine.name,
        "train_target_tokens_per_second": work.n_target_tokens / train_seconds,
        "decode_sentences_per_second": len(work.sentences.index) / decode_seconds,
        "train_peak_mib": train_peak_mib,
        "decode_peak_mib": decode_peak_mib,
    }
    if device.type == "cuda":
        batches = [batch for step in work.steps for batch in step]
        n_passes = count_passes(spec.training)
        n_flops = sum(count_flops(model, batch, n_passes) * batch.n_tokens for batch in batches)
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        share = n_flops / train_seconds / matrix_rate(device, dtype, seconds)
        n_fitting = torch.cuda.mem_get_info(device)[1] / _MIB / train_peak_mib
        results["runs_at_once"] = runs_at_once(share, n_fitting)
    return results


def runs_at_once(share: float, n_fitting: float) -> int:
    """Return how many runs a GPU should make side by side, at most 8.

    They use at most half of its rate of matrix products, which only a matrix product reaches, and
    half of its memory, since a run with longer sentences than the probe's needs more.
    ``share`` of the device's rate of matrix products is what one run reaches; ``n_fitting`` runs
    would fill the memory.
    """
    return int(max(1, min(_MOST_RUNS, 0.5 / share, 0.5 * n_fitting)))


def matrix_rate(device: torch.device, dtype: torch.dtype, seconds: float) -> float:
    """Return the floating-point operations per second of a product of large matrices."""
    width = _MATRIX_WIDTH if device.type == "cuda" else _MATRIX_WIDTH // 8
    x = torch.ones(width, width, dtype=dtype, device=device)
    torch.mm(x, x)
    return 2 * width**3 / _median_seconds(lambda: torch.mm(x, x), device, seconds)


def _load_libraries(device: torch.device) -> None:
    """Take a step with a tiny layer, so that libraries that PyTorch loads for it do not count."""
    layer = torch.nn.Linear(8, 8, device=device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.0, fused=True)
    optimizer.zero_grad(set_to_none=True)
    hidden = layer(torch.zeros(4, 8, device=device)).softmax(dim=-1)
    log_p = hidden.log_softmax(dim=-1)
    log_p.backward(torch.zeros_like(log_p))  # for a given gradient PyTorch loads sympy
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()


def _median_seconds(
    work: Callable[[], object], device: torch.device, budget: float, ranks: Ranks = ALONE
) -> float:
    """Return the median wall time of ``work``, repeated at least twice.

    All ranks repeat it as often as the first, for about ``budget`` seconds.
    """
    _wait(device)
    seconds = [timed(work, device)]
    n_own = min(max(_FEWEST_REPEATS, int(budget / seconds[0])), _MOST_REPEATS)
    n_repeats = int(ranks.from_first(lambda: n_own))
    seconds += [timed(work, device) for _ in range(n_repeats - 1)]
    return statistics.median(seconds)


def timed(work: Callable[[], object], device: torch.device) -> float:
    """Return the wall time of ``work`` in seconds, until the device has finished it."""
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _PeakMemory:
    """The peak since the last call of `peak_mib`; on a CPU relative to the start."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reset()
        self._before = 0.0 if device.type == "cuda" else _resident_mib("VmRSS")

    def peak_mib(self) -> float:
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_reserved(self._device) / _MIB
        else:
            peak = _resident_mib("VmHWM") - self._before
        self._reset()
        return peak

    def _reset(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # or what was reserved before would count again
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        give_back_free_memory()  # so that its later use counts as growth
        with suppress(OSError):  # not Linux, or forbidden: the second peak then includes the first
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # see proc(5)


def _resident_mib(field: str) -> float:
    """Return the process' resident memory, now (VmRSS) or at its peak (VmHWM)."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:  # not Linux: the peak alone, which macOS counts in bytes
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / (_MIB if sys.platform == "darwin" else 1024)
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024
