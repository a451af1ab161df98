"""What does each part cost in time and memory, everything else being equal?

Run it:  python benchmarks/parts_cost.py [--slot position --slot norm ...] [--rounds 15]
         [--preset tiny] [--device cuda] [--output results/benchmarks/parts_cost.json]

Every part of a slot replaces the preset's own, with its default options and with the companion that
it requires, if any (a residual scheme without norms requires ``norm: none``). All of them run the
same attention kernel, so that methods are compared, not kernels.

Time: both models in one process, on the work of the probe of `ablate run`, one after the other in
every round; a ratio is taken within a round, so that a machine that slows down slows both. Memory:
the probe's own peaks, each from a fresh process. `benchmarks/speed_page.py` makes the table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from presets import preset
from records import RESULTS, in_a_process, origin, say, write

from ablate import measuring
from ablate.data.prepare import prepare
from ablate.data.tokenizer import PAD
from ablate.errors import AblateError
from ablate.model import assemble
from ablate.parts.embedding import Vocabulary
from ablate.registry import slots
from ablate.runner import devices
from ablate.training.engines import resolve

SLOTS = ("position", "residual", "norm", "attention", "scaling", "feed_forward")
COMPANIONS: tuple[tuple[str, ...], ...] = ((), ("model.norm=none",), ("model.norm=layer",))
SPEEDS = ("training", "decoding")


@dataclass(frozen=True)
class Row:
    """A part in its slot; ``changes`` are the values that it changes in the preset."""

    slot: str
    name: str
    changes: tuple[str, ...]


def main() -> int:
    """Measure all parts in turns, print and write the results; return the exit status."""
    options = _options()
    if options.one is not None:
        measure = peak if options.memory else speeds
        sys.stdout.write(json.dumps(measure(options)) + "\n")
        return 0
    rows = [row for slot in options.slot or SLOTS for row in parts_of(slot, options)]
    own = in_a_fresh_process(Row("", "baseline", ()), options, "--memory")
    costs = []
    for row in rows:
        ratios = in_a_fresh_process(row, options)
        mib = in_a_fresh_process(row, options, "--memory")["mib"]
        costs.append(entry(row, ratios, mib / own["mib"]))
        say(f"{row.slot} {row.name}: {_note(costs[-1])}")
    write(
        options.output,
        {
            **origin(options.device),
            "preset": options.preset,
            "rounds": options.rounds,
            "baseline_mib": own["mib"],
            "parts": costs,
        },
    )
    return 0


def parts_of(slot: str, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the parts of a slot that the preset can be built with, with their companions."""
    for name in sorted(slots()[slot]):
        choices = [(f"model.{slot}={name}", *companion) for companion in COMPANIONS]
        fitting = [changes for changes in choices if _fits(changes, options)]
        if fitting:
            yield Row(slot, name, fitting[0])
        else:
            say(f"{slot} {name}: left out, it does not fit the preset")


def _fits(changes: Sequence[str], options: argparse.Namespace) -> bool:
    try:
        with torch.device("meta"):
            assemble(preset(options.preset, *changes).model, Vocabulary(99, 99, is_joint=True), PAD)
    except AblateError:
        return False
    return True


def in_a_fresh_process(row: Row, options: argparse.Namespace, *words: str) -> dict[str, Any]:
    """Measure a part in a fresh process."""
    command = [__file__, "--preset", options.preset, "--device", options.device]
    command += ["--rounds", str(options.rounds), "--one", json.dumps(row.changes), *words]
    environment = devices.find(options.device)[0].environment()
    return in_a_process(command, {**os.environ, **environment})


@dataclass(frozen=True)
class Rival:
    """One of two models that take turns."""

    train: Callable[[], None]
    decode: Callable[[], None]


def speeds(options: argparse.Namespace) -> dict[str, list[float]]:
    """Return how fast the preset is with the changes of ``--one``, as a ratio in every round."""
    device = set_up(options)
    torch_device = torch.device(device.kind)
    own, other = (rival(changes, device, options) for changes in ((), json.loads(options.one)))
    ratios: dict[str, list[float]] = {name: [] for name in SPEEDS}
    for number in range(options.rounds + 1):
        for name, works in (
            ("training", (own.train, other.train)),
            ("decoding", (own.decode, other.decode)),
        ):
            turns = works if number % 2 else works[::-1]  # the first may have a cold cache
            seconds = {work: measuring.timed(work, torch_device) for work in turns}
            if number:  # the first round warms up
                ratios[name].append(seconds[works[0]] / seconds[works[1]])
    return ratios


def rival(changes: Sequence[str], device: devices.Device, options: argparse.Namespace) -> Rival:
    """Return the preset with some changes, ready to run."""
    run = preset(options.preset, *changes)
    precision = devices.resolve(run.training.precision, device)
    engine = resolve("auto", device.kind)
    work = measuring.Workload(run, prepare(run), torch.device(device.kind), engine)
    model = work.model()
    training = work.training(model, precision)
    training.warm_up(work.steps)
    return Rival(lambda: training.run(work.steps), work.decoding(model))


def peak(options: argparse.Namespace) -> dict[str, float]:
    """Return the peak memory of training the preset with the changes of ``--one``."""
    device = set_up(options)
    run = preset(options.preset, *json.loads(options.one))
    precision = devices.resolve(run.training.precision, device)
    engine = resolve("auto", device.kind)
    probe = measuring.probe(run, prepare(run), torch.device(device.kind), precision, engine)
    return {"mib": probe["train_peak_mib"]}


def set_up(options: argparse.Namespace) -> devices.Device:
    """Set this process up as that of a run; return its device."""
    torch.set_num_threads(1)
    device = devices.find(options.device)[0]
    if device.kind == "cuda":
        devices.compute_deterministically()
    return device


def entry(row: Row, ratios: Mapping[str, Sequence[float]], memory: float) -> dict[str, Any]:
    """Return what a part costs, as ratios to the preset's own: medians, and the middle half."""
    of_part: dict[str, Any] = {"slot": row.slot, "name": row.name, "changes": row.changes}
    for name, values in ratios.items():
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        of_part[name] = {"median": median, "lower": low, "upper": high}
    return {**of_part, "memory": memory}


def _note(part: Mapping[str, Any]) -> str:
    speeds = []
    for name in SPEEDS:
        ratio = part[name]
        middle = f"{ratio['lower']:.2f} to {ratio['upper']:.2f}"
        speeds.append(f"{name} {ratio['median']:.2f} ({middle})")
    return ", ".join([*speeds, f"memory {part['memory']:.2f}"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--slot", action="append", choices=SLOTS, help="several times; else all")
    parser.add_argument("--preset", default="laptop_500", help="of experiments/presets")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=15, help="in which both models take turns")
    parser.add_argument("--output", type=Path, default=RESULTS / "parts_cost.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
