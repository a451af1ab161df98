"""Where does the time of a training step go, and how far is it from the floor?

Run it:  ABLATE_CORPORA=FOLDER python benchmarks/step_profile.py [--preset d256] [--device cuda]
         [--precision fp32] [--cores 2] [--output results/benchmarks/step_profile.json]

Trains a preset with the engine and the precision that ``auto`` means here, and writes down

- seconds per step, the median of rounds over the first batches of an epoch, with as many cores of
  a CPU as ``--cores`` says;
- the floor: the floating-point operations that a step needs, over the rate that large matrix
  products reach on this device, and the bytes that it has to move, over the bandwidth that a large
  copy reaches. Bytes: of weights, gradients and moments in the update, and of the memory that the
  forward pass saves for the backward pass, weights aside, written once and read once. No program
  that computes the same numbers without recomputing any of them can be faster than the larger of
  the two;
- the ten operations (on CUDA: kernels) that take the most time, by ``torch.profiler``, which sees
  one process: always with one core.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peers.race import PRESETS, prepared
from records import RESULTS, origin, restart_with, say, write
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from ablate.data.batches import Batch, Batches
from ablate.data.tokenizer import PAD
from ablate.measuring import timed
from ablate.model import assemble
from ablate.runner import devices
from ablate.training.engines import Eager, Engine, make_engine, resolve
from ablate.training.step import StepConfig, make_optimizer, set_lr

TOP = 10
SIDE = 4096  # of the matrices whose product is timed
N_COPIED = 2**28  # bytes
LEARNING_RATE = 1e-6


def main() -> int:
    """Measure, print and write the results; return the exit status."""
    options = _options()
    first_device = devices.find(options.device)[0]
    restart_with(first_device.environment())
    torch.set_num_threads(1)  # as in a run, which gets cores, not threads
    device = torch.device(first_device.kind)
    if first_device.kind == "cuda":
        devices.compute_deterministically()
    run, corpus = prepared(options)
    precision = devices.resolve(options.precision, first_device)
    torch.manual_seed(1)
    model = assemble(run.model, corpus.tokenizers.vocabulary, PAD).to(device).train()
    optimizer = make_optimizer(run, model)
    set_lr(optimizer, LEARNING_RATE)
    step_config = StepConfig.of(run.training, precision)
    of_epoch = Batches(corpus.train, run.training.batch_tokens, PAD, device)
    batches = [of_epoch.make(rows) for rows in of_epoch.epoch(seed=1, epoch=0)[: options.steps]]
    engine = make_engine(resolve("auto", first_device.kind), model, step_config, optimizer)
    steps = measured(engine, batches, options.cores, options.repeats)
    n_parameters = sum(p.numel() for p in model.parameters())
    n_bytes = 2 * steps.n_saved + 4 * 8 * n_parameters  # w, m, v: read, written; g: written, read
    seconds, n_flops = steps.seconds, steps.n_flops
    torch.set_num_threads(options.cores)
    rate, bandwidth = matrix_rate(device, precision), copy_rate(device)
    floor = {"arithmetic": n_flops / rate, "memory": n_bytes / bandwidth}
    report = {
        "engine": engine.name,
        "precision": precision,
        "seconds_per_step": seconds,
        "target_tokens_per_step": sum(batch.n_tokens for batch in batches) / len(batches),
        "flops_per_step": n_flops,
        "bytes_per_step": n_bytes,
        "matrix_flops_per_second": rate,
        "bytes_per_second": bandwidth,
        "floor_seconds": floor,
        "times_the_floor": seconds / max(floor.values()),
        "share_of_matrix_rate": n_flops / seconds / rate,
        "top": steps.top,
    }
    _print(report)
    settings = {k: v for k, v in vars(options).items() if k != "output"}
    write(options.output, {**origin(options.device), "settings": settings, **report})
    return 0


@dataclass(frozen=True)
class Measured:
    """Measurements of steps.

    Attributes:
        seconds: per step.
        n_flops: of a step.
        n_saved: bytes that the forward pass of a step saves for the backward pass.
        top: the operations that take most of the time.
    """

    seconds: float
    n_flops: float
    n_saved: float
    top: list[dict[str, Any]]


def measured(engine: Engine, batches: list[Batch], n_cores: int, n_rounds: int) -> Measured:
    """Measure steps, and close the engine."""
    with closing(engine):
        engine.cores = n_cores
        seconds = per_step(engine, batches, n_rounds)
        engine.cores = 1
        top = operations(engine, batches)
    # Not before: eager steps free the gradients that captured graphs write to
    n_flops, n_saved = work(Eager(engine.model, engine.step_config, engine.optimizer), batches)
    return Measured(seconds, n_flops, n_saved, top)


def per_step(engine: Engine, batches: list[Batch], n_rounds: int) -> float:
    """Return the median seconds of a step, after two rounds, of which the second may capture."""

    def of_round() -> None:
        for batch in batches:
            engine.step([batch])

    device = batches[0].src.device
    for _ in range(2):
        of_round()
    return statistics.median(timed(of_round, device) for _ in range(n_rounds)) / len(batches)


def work(engine: Engine, batches: list[Batch]) -> tuple[float, float]:
    """Return the FLOPs of a step, and the bytes that its forward pass saves for the backward."""
    n_bytes = 0
    of_weights = {p.untyped_storage().data_ptr() for p in engine.model.parameters()}
    saved: dict[int, torch.UntypedStorage] = {}  # held, or another could get an address again

    def note(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        saved[storage.data_ptr()] = storage
        return x

    counter = FlopCounterMode(display=False)
    with counter, torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        for batch in batches:
            engine.step([batch])
            n_bytes += sum(saved[at].nbytes() for at in saved.keys() - of_weights)
            saved.clear()
    return counter.get_total_flops() / len(batches), n_bytes / len(batches)


def matrix_rate(device: torch.device, precision: str) -> float:
    """Return the FLOPs per second of a product of two large square matrices."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = (torch.randn(SIDE, SIDE, device=device, dtype=dtype) for _ in range(2))
    return 2 * SIDE**3 / _fastest(lambda: a @ b, device)


def copy_rate(device: torch.device) -> float:
    """Return the bytes per second, read and written, of a large copy."""
    source = torch.zeros(N_COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * N_COPIED / _fastest(lambda: target.copy_(source), device)


def operations(engine: Engine, batches: list[Batch]) -> list[dict[str, Any]]:
    """Return the operations that take most of the time, with their share of all."""
    is_cuda = batches[0].src.is_cuda
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_cuda else [])]
    with profile(activities=activities) as profiler:
        for batch in batches:
            engine.step([batch])
    return _longest(profiler.key_averages(), len(batches), is_cuda=is_cuda)


def _longest(events: Iterable[Any], n_steps: int, *, is_cuda: bool) -> list[dict[str, Any]]:
    """Return the operations that take most of the time; none if no kernel could be observed.

    On CUDA the time of a kernel is counted twice, by itself and with the operation that has
    launched it, so that only kernels are returned.
    """

    def own(event: Any) -> float:
        return float(event.self_device_time_total if is_cuda else event.self_cpu_time_total)

    if is_cuda:
        of_device = (event for event in events if event.device_type.name == "CUDA")
        events = [event for event in of_device if not event.is_user_annotation]
    longest = sorted(events, key=own, reverse=True)
    whole = sum(map(own, longest))
    return [
        {"name": event.key, "share": own(event) / whole, "calls_per_step": event.count / n_steps}
        for event in longest[:TOP]
        if whole > 0
    ]


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    work()
    return min(timed(work, device) for _ in range(5))


def _print(report: dict[str, Any]) -> None:
    seconds_per_step = f"{report['seconds_per_step']:.4f} s per step"
    say(f"{report['engine']} engine, {report['precision']}: {seconds_per_step}")
    for name, seconds in report["floor_seconds"].items():
        say(f"floor by {name}: {seconds:.4f} s")
    say(
        f"{report['times_the_floor']:.2f} times the floor; "
        f"{report['share_of_matrix_rate']:.0%} of the rate of large matrix products"
    )
    for operation in report["top"]:
        say(f"{operation['share']:>6.1%} {operation['name']} ({operation['calls_per_step']:.0f})")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--corpus", choices=("multi30k", "synthetic"))
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("auto", "fp32", "bf16"), default="auto")
    parser.add_argument("--cores", type=int, default=1, help="of the CPU, that a step may use")
    parser.add_argument("--steps", type=int, default=8, help="of a round, one batch each")
    parser.add_argument("--repeats", type=int, default=5, help="rounds that are measured")
    parser.add_argument("--output", type=Path, default=RESULTS / "step_profile.json")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
