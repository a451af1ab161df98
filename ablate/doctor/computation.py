"""Checks that compute: precision, captures, engines, runs side by side, determinism, speed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ablate.cuda_graphs import GraphCapturer
from ablate.doctor.results import CheckResult, Figure, Target, broken, not_applicable, ok, warning
from ablate.doctor.workload import (
    LAPTOP,
    SMALL,
    TINY,
    batches,
    fresh_engine,
    weights,
)
from ablate.errors import first_line
from ablate.hashing import sha256
from ablate.measuring import count_flops
from ablate.measuring.probe import matrix_rate, timed
from ablate.runner import devices
from ablate.runner.devices import Device
from ablate.runner.streams import Interleaver
from ablate.training.engines import resolve

_N_PASSES = 3  # over the batches: an engine captures repeated shapes, and then replays them
_LOSS_TOLERANCE = 1e-4  # of losses and gradient norms, relative
_WEIGHT_TOLERANCE = 1e-3  # relative to the change of the weights in training
_CAPTURE_TOLERANCE = 1e-5
_BF16_TOLERANCE = 2**-6
_MIN_RELATIVE_SPEED = 0.9
_N_RUNS = 2
_N_ROUNDS = 5
_MATRIX_SECONDS = 0.2


def bf16(target: Target) -> CheckResult:
    """Check that bf16, if ``precision: auto`` means it, is correct and faster than fp32."""
    device, place = _device(target)
    fp32_rate = matrix_rate(device, torch.float32, _MATRIX_SECONDS)
    if devices.resolve("auto", place) == "fp32":
        return not_applicable(
            f"no arithmetic in bf16: precision auto means fp32, a matrix product reaches "
            f"{_rate(fp32_rate)}",
            fp32_flops_per_second=fp32_rate,
        )
    bf16_rate = matrix_rate(device, torch.bfloat16, _MATRIX_SECONDS)
    rates = {"fp32_flops_per_second": fp32_rate, "bf16_flops_per_second": bf16_rate}
    torch.manual_seed(1)
    a, b = (torch.rand(256, 256, device=device) for _ in range(2))
    exact = a @ b
    error = float(((a.bfloat16() @ b.bfloat16()).float() - exact).norm() / exact.norm())
    text = f"a matrix product reaches {_rate(bf16_rate)} in bf16, {_rate(fp32_rate)} in fp32"
    advice = "say training.precision: fp32"
    if not error < _BF16_TOLERANCE:
        return broken(f"a matrix product in bf16 is wrong by {error:.1%}; {advice}", **rates)
    if bf16_rate < _MIN_RELATIVE_SPEED * fp32_rate:
        return warning(f"precision auto means bf16, but {text}; {advice}", **rates)
    return ok(f"precision auto means bf16: {text}", **rates)


def capture(target: Target) -> CheckResult:
    """Check that two captures after one another replay correctly, with inputs that change."""
    device, _ = _device(target)
    torch.manual_seed(1)
    weight, x = torch.randn(64, 64, device=device), torch.zeros(64, 64, device=device)

    def work() -> Tensor:
        return torch.softmax(x @ weight, dim=-1) @ weight

    capturer = GraphCapturer(device)
    worst = 0.0
    for _ in range(2):  # captures of a run share a memory pool
        capturer.warm_up(work)
        replay = capturer.capture("a small product", work)
        for seed in (1, 2):
            torch.manual_seed(seed)
            x.copy_(torch.randn(64, 64, device=device))
            worst = max(worst, float((replay() - work()).abs().max()))
    if not worst < _CAPTURE_TOLERANCE:
        text = f"a replay differs from the same work done eagerly by {worst:.1e}"
        return broken(f"{text}; say --engine eager", largest_difference=worst)
    text = f"two CUDA graphs captured one after the other; replays differ by at most {worst:.1e}"
    return ok(text, largest_difference=worst)


def engines(target: Target) -> CheckResult:
    """Check that the engine that ``auto`` means computes the same steps as the eager one."""
    device, place = _device(target)
    name = resolve("auto", place.kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `note` reports the same
        expected, initial, final, _ = _train_steps("eager", device)
        measured, _, other_final, note = _train_steps(name, device)
    if note:
        return warning(f"runs are made eagerly, and slower: {note}", note=note)
    pairs = list(zip(expected, measured, strict=True))
    loss_error = max(abs(a - b) / abs(a) for a, b in pairs)
    weight_error = float((other_final - final).norm() / (final - initial).norm())
    text = (
        f"{len(expected) // 2} steps of {name} and eager: losses and gradient norms differ by at "
        f"most {loss_error:.1e} of their size, weights by {weight_error:.1e} of their way"
    )
    figures: dict[str, Figure] = {
        "engine": name,
        "loss_difference": loss_error,
        "weight_difference": weight_error,
    }
    if not (loss_error < _LOSS_TOLERANCE and weight_error < _WEIGHT_TOLERANCE):
        return broken(f"{text}; say --engine eager", **figures)
    return ok(text, **figures)


def side_by_side(target: Target) -> CheckResult:
    """Check that two runs in one process have the same numbers as each of them alone."""
    device, place = _device(target)
    name = resolve("auto", place.kind)
    alone = [_digest_of_steps(name, device, seed) for seed in range(_N_RUNS)]
    interleaver = Interleaver(device)
    together: dict[int, str] = {}

    def work(seed: int) -> None:
        together[seed] = _digest_of_steps(name, device, seed, interleaver.yield_turn)

    interleaver.run([partial(work, seed) for seed in range(_N_RUNS)])
    n_equal = sum(together[seed] == alone[seed] for seed in range(_N_RUNS))
    if n_equal < _N_RUNS:
        text = f"of {_N_RUNS} runs that share a process, {_N_RUNS - n_equal} had other weights than"
        return broken(f"{text} alone; say --jobs 1", equal=n_equal)
    text = f"{_N_RUNS} runs in one process have the weights they have alone, bit for bit"
    return ok(text, equal=n_equal)


def determinism(target: Target) -> CheckResult:
    """Check that a repeated run has the same numbers."""
    device, place = _device(target)
    name = resolve("auto", place.kind)
    first = _digest_of_steps(name, device, seed=1)
    spacer = torch.ones(1_000_003, device=device)  # shifts the addresses of what follows
    second = _digest_of_steps(name, device, seed=1)
    del spacer
    if first != second:
        return broken(
            f"the same steps of {name} gave other weights the second time: no run can be "
            "repeated exactly; say --engine eager, and see whether this goes"
        )
    return ok(f"the same steps of {name} give the same weights twice, bit for bit")


def speed(target: Target) -> CheckResult:
    """Compare a small step with the eager engine's, and with the rate of a matrix product."""
    device, place = _device(target)
    precision = devices.resolve("auto", place)
    name = resolve("auto", place.kind)
    size = TINY if device.type == "cuda" else LAPTOP
    batch = batches(size, 1, device)[0]
    options: dict[str, Any] = {"dropout": 0.1, "precision": precision, "cores": devices.n_cores()}
    with ExitStack() as stack:
        made = {
            each: stack.enter_context(fresh_engine(each, size, device, **options))
            for each in dict.fromkeys(("eager", name))
        }
        rounds = [
            {each: timed(partial(engine.step, [batch]), device) for each, engine in made.items()}
            for _ in range(_N_PASSES + _N_ROUNDS)
        ]
        eager, seconds = (min(r[each] for r in rounds[_N_PASSES:]) for each in ("eager", name))
        n_flops = count_flops(made[name].model, batch) * batch.n_tokens
        torch.set_num_threads(made[name].cores)  # the matrix product has as many cores
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    share = n_flops / seconds / matrix_rate(device, dtype, _MATRIX_SECONDS)
    text = (
        f"a small step takes {1e3 * seconds:.1f} ms with {name} and {1e3 * eager:.1f} ms eagerly "
        f"({precision}); {share:.0%} of the rate of a matrix product"
    )
    figures: dict[str, Figure] = {
        "engine": name,
        "precision": precision,
        "step_ms": round(1e3 * seconds, 3),
        "eager_step_ms": round(1e3 * eager, 3),
        "share_of_matrix_rate": round(share, 4),
    }
    if eager < _MIN_RELATIVE_SPEED * seconds:
        return warning(
            f"{text}; eager is faster: say --engine eager, unless others keep the machine busy",
            **figures,
        )
    return ok(text, **figures)


def compiler(target: Target) -> CheckResult:
    """Check that the compilers that ``--engine compile`` needs are installed and work."""
    device, _ = _device(target)
    x = torch.randn(8, 8, device=device)

    def work(x: Tensor) -> Tensor:
        return torch.relu(x) * 2 + x.sum(dim=-1, keepdim=True)

    start = time.perf_counter()
    try:
        result = torch.compile(work)(x)
    except Exception as error:  # whatever the compilers raise
        reason = first_line(error)
        return warning(f"--engine compile cannot be used ({reason}); the other engines can")
    seconds = time.perf_counter() - start
    if not torch.allclose(result, work(x), atol=_CAPTURE_TOLERANCE):
        return warning("--engine compile gives wrong numbers; use another engine")
    text = f"--engine compile can be used; a first small function took {seconds:.1f} s"
    return ok(text, compile_seconds=round(seconds, 2))


def _device(target: Target) -> tuple[torch.device, Device]:
    """Return the only device that this process sees, and set it up as for runs."""
    kind = target.device.partition(":")[0]
    if kind == "cuda":
        devices.compute_deterministically()
        return torch.device("cuda"), Device("cuda", 0)
    return torch.device("cpu"), Device("cpu")


def _train_steps(name: str, device: torch.device) -> tuple[list[float], Tensor, Tensor, str]:
    """Train; return losses and gradient norms, the weights before and after, and the note."""
    numbers: list[float] = []
    with fresh_engine(name, SMALL, device) as engine:
        initial = weights(engine)
        for batch in batches(SMALL, 2, device) * _N_PASSES:
            step = engine.step([batch])
            numbers += [float(step.loss), float(step.gradient_norm)]
        return numbers, initial, weights(engine), engine.note


def _digest_of_steps(
    name: str, device: torch.device, seed: int, between: Callable[[], None] = lambda: None
) -> str:
    with fresh_engine(name, SMALL, device, dropout=0.1) as engine:
        torch.manual_seed(seed)
        for batch in batches(SMALL, 2, device) * _N_PASSES:
            engine.step([batch])
            between()
        return sha256([weights(engine).numpy().tobytes()])


def _rate(flops_per_second: float) -> str:
    return f"{flops_per_second / 1e12:.2f} TFLOP/s"
