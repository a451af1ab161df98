"""What does each part cost in time and memory, everything else being equal?

Run it:  python benchmarks/parts_cost.py [--slot position --slot norm ...] [--repeats 3]
         [--preset tiny] [--device cuda] [--output results/benchmarks/parts_cost.json]

Every part of a slot takes the place of the preset's own, with its default options and, where it
needs company (a wiring without a norm wants ``norm: none``), with that. All of them run the same
attention kernel, so that what is compared is the method and not somebody's kernel. A measurement is
the probe of `ablate run`, in a fresh process with nothing beside it. The parts take turns and the
ratio to the preset's own part is taken within a turn, so that a machine that slows down slows all
of them down. Writes the table as Markdown too, beside the JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from records import RESULTS, ROOT, origin, say, write

from ablate import measuring, spec
from ablate.data.prepare import prepare
from ablate.data.tokenizer import PAD
from ablate.errors import AblateError
from ablate.model import assemble
from ablate.parts.embedding import Vocabulary
from ablate.registry import slots
from ablate.runner import devices
from ablate.spec import RunSpec
from ablate.store import write_whole
from ablate.training.engines import resolve

SLOTS = ("position", "residual", "norm", "attention", "scaling", "feed_forward")
COMPANY: tuple[tuple[str, ...], ...] = ((), ("model.norm=none",), ("model.norm=layer",))
MEASURES = (
    ("train_target_tokens_per_second", "training"),
    ("decode_sentences_per_second", "decoding"),
    ("train_peak_mib", "memory"),
)


@dataclass(frozen=True)
class Row:
    """A part in its slot; ``changes`` is what makes it of the preset."""

    slot: str
    name: str
    changes: tuple[str, ...]


def main() -> int:
    """Measure all parts in turns, print and write what came of it; return the exit status."""
    options = _options()
    if options.one is not None:
        sys.stdout.write(json.dumps(measured(options)) + "\n")
        return 0
    rows = [row for slot in options.slot or SLOTS for row in parts_of(slot, options)]
    baseline = Row("", "baseline", ())
    turns: list[dict[Row, dict[str, float]]] = []
    for number in range(1, options.repeats + 1):
        turns.append({})
        for row in (baseline, *rows):
            turns[-1][row] = in_a_fresh_process(row, options)
            say(f"turn {number}: {row.slot} {row.name}")
    found = [entry(row, baseline, turns) for row in rows]
    write(
        options.output,
        {
            **origin(options.device),
            "preset": options.preset,
            "repeats": options.repeats,
            "baseline": {key: [turn[baseline][key] for turn in turns] for key, _ in MEASURES},
            "parts": found,
        },
    )
    table = markdown(found)
    write_whole(options.output.with_suffix(".md"), table)
    say(f"\n{table}")
    return 0


def parts_of(slot: str, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the parts of a slot that the preset can be built with, with the company they need."""
    for name in sorted(slots()[slot]):
        choices = [(f"model.{slot}={name}", *company) for company in COMPANY]
        fitting = [changes for changes in choices if _fits(changes, options)]
        if fitting:
            yield Row(slot, name, fitting[0])
        else:
            say(f"{slot} {name}: left out, it does not fit the preset")


def _fits(changes: Sequence[str], options: argparse.Namespace) -> bool:
    try:
        with torch.device("meta"):
            assemble(run_spec(changes, options).model, Vocabulary(99, 99, is_joint=True), PAD)
    except AblateError:
        return False
    return True


def run_spec(changes: Sequence[str], options: argparse.Namespace) -> RunSpec:
    """Return the preset with some changes.

    Raises:
        SpecError: if a change is none.
    """
    file = ROOT / "experiments" / "presets" / f"{options.preset}.yaml"
    return spec.expand(spec.load(file, tuple(changes)))[0].spec


def in_a_fresh_process(row: Row, options: argparse.Namespace) -> dict[str, float]:
    """Measure a part where nothing else has been."""
    command = [sys.executable, __file__, "--preset", options.preset, "--device", options.device]
    device = devices.find(options.device)[0]
    done = subprocess.run(
        [*command, "--one", json.dumps(row.changes)],
        env={**os.environ, **device.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{row.slot} {row.name}: {done.stderr.strip()}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(options: argparse.Namespace) -> dict[str, float]:
    """Return the probe of the preset with the changes of ``--one``."""
    torch.set_num_threads(1)
    run = run_spec(json.loads(options.one), options)
    place = devices.find(options.device)[0]
    precision = devices.resolve(run.training.precision, place)
    engine = resolve("auto", place.kind)
    return measuring.probe(run, prepare(run), torch.device(place.kind), precision, engine)


def entry(row: Row, baseline: Row, turns: Sequence[dict[Row, dict[str, float]]]) -> dict[str, Any]:
    """Return what a part costs, as ratios to the preset's own."""
    of_part: dict[str, Any] = {"slot": row.slot, "name": row.name, "changes": row.changes}
    for key, name in MEASURES:
        ratios = [turn[row][key] / turn[baseline][key] for turn in turns]
        of_part[name] = {
            "median": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
    return of_part


def markdown(found: Sequence[dict[str, Any]]) -> str:
    """Return the table; every number is a ratio to the preset's own part."""
    names = [name for _, name in MEASURES]
    lines = [f"| slot | part | {' | '.join(names)} |", f"|---|---|{'---:|' * len(names)}"]
    for part in found:
        cells = [
            f"{part[n]['median']:.2f}x ({part[n]['lowest']:.2f} to {part[n]['highest']:.2f})"
            for n in names
        ]
        lines.append(f"| {part['slot']} | {part['name']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    made.add_argument("--slot", action="append", choices=SLOTS, help="several times; else all")
    made.add_argument("--preset", default="laptop", help="of experiments/presets")
    made.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    made.add_argument("--repeats", type=int, default=3, help="turns")
    made.add_argument("--output", type=Path, default=RESULTS / "parts_cost.json")
    made.add_argument("--one", help=argparse.SUPPRESS)
    return made.parse_args()


if __name__ == "__main__":
    sys.exit(main())
