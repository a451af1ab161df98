"""How do time and memory grow with sizes: of model, batch, vocabulary, corpus, experiment?

Run it:  python benchmarks/scaling.py [--axis d_model --axis corpus ...] [--repeats 3]
         [--device cuda] [--output results/benchmarks/scaling.json]

One size grows at a time, the others are those of `SMALL`:

- batch_tokens, d_model, n_layers, vocabulary, length: seconds of a training step and peak memory,
  by the probe of `ablate run` in a fresh process, on random sentences of equal length;
- seeds, variants: wall time of `ablate run` from nothing to the table, runs of 20 steps;
- corpus: pairs of the synthetic corpus; seconds and peak memory until a run has its ids, for the
  first run, which makes text, tokenizer and ids, and for the second, which reads the ids.

Every point is the median of the repeats, which take turns over all points of an axis; a corpus,
which takes many minutes, is made once. The exponent is that of the last two sizes: 1 is
proportional. Writes a figure beside the JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from presets import preset
from records import RESULTS, origin, say, write

from ablate import measuring
from ablate.data.batches import Encoded
from ablate.data.prepare import Prepared, prepare
from ablate.data.ragged import Ragged
from ablate.data.tokenizer import EOS
from ablate.parts.embedding import Vocabulary
from ablate.runner import devices
from ablate.training.engines import resolve

SMALL = {"batch_tokens": 1024, "d_model": 128, "n_layers": 2, "vocabulary": 2000, "length": 16}
"""The sizes that do not grow."""

AXES: dict[str, tuple[int, ...]] = {
    "batch_tokens": (512, 1024, 2048, 4096, 8192),
    "d_model": (64, 128, 256, 512),
    "n_layers": (1, 2, 4, 8),
    "vocabulary": (1000, 4000, 16_000, 32_000),
    "length": (8, 16, 32, 64, 128),
    "seeds": (1, 2, 4, 8),
    "variants": (1, 2, 4, 8),
    "corpus": (10_000, 100_000, 1_000_000, 4_500_000),
}
UNITS = {"seconds": "s", "mib": "MiB", "seconds_again": "s, again", "mib_again": "MiB, again"}
N_STEPS = 20

Point = dict[str, float]


@dataclass(frozen=True)
class Location:
    """Where a point is measured: the kind of device, and a folder for files."""

    device: str
    folder: Path


def main() -> int:
    """Measure all axes, print and write the results; return the exit status."""
    options = _options()
    if options.one is not None:
        axis, size = options.one.split("=")
        sys.stdout.write(json.dumps(IN_PROCESS[axis](axis, int(size), options.device)) + "\n")
        return 0
    results: dict[str, Any] = {}
    for axis in options.axis or AXES:
        results[axis] = grown(axis, options)
        for key, exponent in results[axis]["exponents"].items():
            say(f"{axis}: {key} grows with the power {exponent:.2f}")
    write(options.output, {**origin(options.device), "small": SMALL, "axes": results})
    draw(results, options.output.with_suffix(".png"))
    return 0


def grown(axis: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return time and memory at every size of an axis."""
    sizes = _sizes(axis, options.largest)
    turns: list[dict[int, Point]] = []
    for number in range(1, (1 if axis == "corpus" else options.repeats) + 1):
        turns.append({})
        for size in sizes:
            turns[-1][size] = measured(axis, size, options.device)
            say(f"{axis} {size}, turn {number}: {_formatted(turns[-1][size])}")
    points = [
        {key: statistics.median(turn[size][key] for turn in turns) for key in turns[0][size]}
        for size in sizes
    ]
    return {
        "sizes": sizes,
        "points": points,
        "exponents": {key: _exponent(sizes, [p[key] for p in points]) for key in points[0]},
        "turns": [[turn[size] for size in sizes] for turn in turns],
    }


def measured(axis: str, size: int, device: str) -> Point:
    """Measure one size of an axis in a fresh process with an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        location = Location(device, Path(folder))
        if axis in WHOLE:
            return WHOLE[axis](size, location)
        one = f"{axis}={size}"
        if axis != "corpus":
            return _in_a_process(one, location)
        first, second = _in_a_process(one, location), _in_a_process(one, location)
        return {**first, **{f"{key}_again": value for key, value in second.items()}}


def _in_a_process(one: str, location: Location) -> Point:
    environment = devices.find(location.device)[0].environment()
    done = subprocess.run(
        [sys.executable, __file__, "--device", location.device, "--one", one],
        env={**os.environ, **environment, "ABLATE_CACHE": str(location.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{one}: {done.stderr.strip()}")
    point: Point = json.loads(done.stdout.splitlines()[-1])
    return point


def a_step(axis: str, size: int, device: str) -> Point:
    """Return the seconds of a training step and its peak memory."""
    sizes = {**SMALL, axis: size}
    run = preset(
        "laptop",
        f"model.dims.d_model={sizes['d_model']}",
        f"model.n_layers={sizes['n_layers']}",
        f"model.feed_forward.d_ff={4 * sizes['d_model']}",
        f"model.dims.max_len={2 * sizes['length']}",
        f"training.batch_tokens={sizes['batch_tokens']}",
    )
    torch.set_num_threads(1)
    first_device = devices.find(device)[0]
    if first_device.kind == "cuda":
        devices.compute_deterministically()  # as runs do
    precision = devices.resolve(run.training.precision, first_device)
    data = random_pairs(sizes["vocabulary"], sizes["length"], 8 * sizes["batch_tokens"])
    engine = resolve("auto", first_device.kind)
    probe = measuring.probe(run, data, torch.device(first_device.kind), precision, engine)
    seconds = probe["target_tokens_per_step"] / probe["train_target_tokens_per_second"]
    return {"seconds": seconds, "mib": probe["train_peak_mib"]}


def random_pairs(vocabulary: int, length: int, n_tokens: int) -> Prepared:
    """Return pairs of ``length`` tokens a side, ``n_tokens`` a side in all."""
    random = np.random.default_rng(0)
    n = max(64, n_tokens // length)

    def side() -> Ragged:
        ids = random.integers(4, vocabulary, (n, length), dtype=np.int32)
        ids[:, -1] = EOS
        return Ragged(ids.reshape(-1), np.full(n, length, dtype=np.int64))

    pairs = Encoded(side(), side())
    tokenizers = SimpleNamespace(vocabulary=Vocabulary(vocabulary, vocabulary, is_joint=True))
    return cast(Prepared, SimpleNamespace(tokenizers=tokenizers, train=pairs, dev=pairs))


def until_ids(_axis: str, size: int, _device: str) -> Point:
    """Return how long it takes until a run has its ids, and the most memory on the way."""
    began = time.perf_counter()
    prepared = prepare(preset("laptop", f"corpus.size={size}"))
    seconds = time.perf_counter() - began
    assert len(prepared.train) == size, "synthetic sentences are never too long"
    return {"seconds": seconds, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def of_seeds(size: int, location: Location) -> Point:
    """Return the wall time of an experiment of one row with ``size`` seeds."""
    return _experiment({}, list(range(1, size + 1)), location)


def of_variants(size: int, location: Location) -> Point:
    """Return the wall time of an experiment of ``size`` rows with one seed."""
    rows = {f"clip_{n}": {"training.clip": 1 + n} for n in range(1, size)}
    return _experiment(rows, [1], location)


def _experiment(variants: Mapping[str, Any], seeds: Sequence[int], location: Location) -> Point:
    file = location.folder / "grows.yaml"
    experiment = {
        "extends": "ablate:presets/laptop",
        "seeds": seeds,
        "training": {"steps": N_STEPS, "evaluate_every": N_STEPS},
        **({"variants": variants} if variants else {}),
    }
    file.write_text(json.dumps(experiment), encoding="utf-8")  # which is YAML too
    began = time.perf_counter()
    command = [sys.executable, "-m", "ablate.cli", "run", str(file), "--device", location.device]
    results = str(location.folder / "results")
    subprocess.run([*command, "--results", results], check=True, capture_output=True)
    return {"seconds": time.perf_counter() - began}


IN_PROCESS: Mapping[str, Callable[[str, int, str], Point]] = {
    **dict.fromkeys(SMALL, a_step),
    "corpus": until_ids,
}
WHOLE: Mapping[str, Callable[[int, Location], Point]] = {
    "seeds": of_seeds,
    "variants": of_variants,
}


def draw(results: Mapping[str, Any], file: Path) -> None:
    """Draw every axis, both scales logarithmic, so that a power is a straight line."""
    from matplotlib import pyplot as plt

    n_columns = 4
    n_rows = -(-len(results) // n_columns)
    figure, all_axes = plt.subplots(
        n_rows, n_columns, figsize=(4 * n_columns, 3.2 * n_rows), squeeze=False
    )
    for axes in all_axes.flat[len(results) :]:
        axes.set_axis_off()
    for axes, (axis, growth) in zip(all_axes.flat, results.items(), strict=False):
        for key, exponent in growth["exponents"].items():
            values = [point[key] for point in growth["points"]]
            axes.loglog(growth["sizes"], values, "o-", label=f"{UNITS[key]}, power {exponent:.2f}")
        axes.set_title(axis)
        axes.set_xticks(
            growth["sizes"], [f"{size:,}" for size in growth["sizes"]], fontsize="small"
        )
        axes.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        axes.legend(fontsize="small")
        axes.grid(visible=True, alpha=0.2)
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    say(str(file))


def _exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the power with which ``values`` grow at the end."""
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])


def _sizes(axis: str, largest: int | None) -> list[int]:
    return [size for size in AXES[axis] if largest is None or size <= largest]


def _formatted(point: Point) -> str:
    return ", ".join(f"{value:.3g} {UNITS[key]}" for key, value in point.items())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--axis", action="append", choices=tuple(AXES), help="else all")
    parser.add_argument("--largest", type=int, help="leave larger sizes out")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--repeats", type=int, default=3, help="turns over the sizes of an axis")
    parser.add_argument("--output", type=Path, default=RESULTS / "scaling.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    alone = [axis for axis in options.axis or AXES if len(_sizes(axis, options.largest)) < 2]
    if alone:
        parser.error(
            f"--largest {options.largest} leaves fewer than two sizes of {', '.join(alone)}, and "
            "one does not grow; raise it, or name other axes by --axis"
        )
    return options


if __name__ == "__main__":
    sys.exit(main())
