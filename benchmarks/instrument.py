"""How sharp an instrument is a recipe: what does it cost to find a small difference with it?

    python benchmarks/instrument.py [--only NAME ...] [--rows NAME ...] [--jobs 2] [--costs 2]

A recipe is what experiments do not vary: steps, batches, schedule, averaging, test sentences. Each
trains the same rows with the same seeds, which no study uses. Of the pooled error of a run follows
how many seeds four rows need until a difference of 1% of the baseline's BLEU is found with 80%
power; times the processor time of a run, this is the recipe's figure of merit. Measured recipes are
read from the record (results/benchmarks/instrument.json), and others added to it: an interrupted
call goes on, also in the middle of a recipe, whose runs are kept in --results. What a run costs is
measured of all recipes in turns, as often as --costs says, so that a new recipe asks for it again.
Of the recipe "same start" all runs begin with the same weights: what its error lacks is what the
start contributes.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import records
import yaml

from ablate import api
from ablate.analysis import power
from ablate.analysis.comparison import compare
from ablate.analysis.sentences import bleu, influences
from ablate.data.cache import cache_folder
from ablate.measuring import SentenceStatistics
from ablate.store import Store

SEEDS = tuple(range(901, 913))
HALF = {"training.batch_tokens": 320, "training.steps": 1000, "training.schedule.warmup": 200}
QUARTER = {"training.batch_tokens": 160, "training.steps": 2000, "training.schedule.warmup": 400}
CHOSEN = {**QUARTER, "training.schedule.lr": 3e-3}
"""The laptop preset."""
EIGHTH = {
    "training.batch_tokens": 80,
    "training.steps": 4000,
    "training.schedule.warmup": 800,
    "training.schedule.lr": 3e-3,
}
RECIPES: Mapping[str, Mapping[str, Any]] = {
    "640 x 500": {},
    "320 x 1000": HALF,
    "320 x 750": {**HALF, "training.steps": 750, "training.schedule.warmup": 150},
    "160 x 2000": QUARTER,
    "160 x 1500": {**QUARTER, "training.steps": 1500, "training.schedule.warmup": 300},
    "320 x 1000, EMA 0.99": {**HALF, "training.average": {"ema": 0.99}},
    "320 x 1000, lr 3e-3": {**HALF, "training.schedule.lr": 3e-3},
    "160 x 2000, 2000 sentences": {**QUARTER, "corpus.test_size": 2000},
    "160 x 2000, lr 3e-3": CHOSEN,
    "80 x 3000, lr 3e-3": {**EIGHTH, "training.steps": 3000, "training.schedule.warmup": 600},
    "80 x 4000, lr 3e-3": EIGHTH,
    "160 x 2000, lr 3e-3, same start": {**CHOSEN, "model.initialisation": "same_start"},
}
ROWS: Mapping[str, Mapping[str, Any]] = {
    "literal": {"model.position": {"name": "sinusoidal", "exponent": "literal_2i"}},
    "pre": {"model.residual": "pre"},
    "rms": {"model.norm": "rms"},
    "learned": {"model.position": "learned"},
    "none": {"model.position": "none"},
    "one head": {"model.dims.n_heads": 1},
    "unscaled": {"model.scaling": "none"},
}
FEW = ("literal", "pre", "rms")
"""Rows with small effects, whose runs err as those of the baseline do."""

POWER_ROWS = 4
SHARE = 0.01  # of the baseline's BLEU, the difference that is to be found


def main() -> None:
    """Measure the recipes that are lacking, and print all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="*", default=list(RECIPES), choices=RECIPES)
    parser.add_argument(
        "--rows", nargs="*", default=(), choices=ROWS, help=f"beside {', '.join(FEW)}"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--costs", type=int, default=0, help="runs of each recipe, in turns")
    parser.add_argument("--results", type=Path, default=cache_folder("instrument"))
    parser.add_argument("--output", type=Path, default=records.RESULTS / "instrument.json")
    chosen = parser.parse_args()
    measured: dict[str, Any] = {}
    if chosen.output.exists():
        measured = json.loads(chosen.output.read_text(encoding="utf-8"))["recipes"]
    rows = list(dict.fromkeys([*FEW, *chosen.rows]))
    for name in chosen.only:
        if not set(rows) <= set(measured.get(name, {}).get("rows", ())):
            scores = measure(name, rows, chosen.results, chosen.jobs)
            measured[name] = measured.get(name, {}) | scores
            _keep(measured, chosen.output)
    for seed in SEEDS[: chosen.costs]:
        for name, recipe in measured.items():
            recipe.setdefault("of_runs", {})[seed] = round(cpu_seconds(name, seed), 2)
    if chosen.costs:
        for recipe in measured.values():
            recipe["cpu_seconds"] = round(statistics.mean(recipe.pop("of_runs").values()), 2)
        _keep(measured, chosen.output)
    print_table({name: of for name, of in measured.items() if "cpu_seconds" in of})


def _keep(measured: Mapping[str, Any], file: Path) -> None:
    records.write(file, {"seeds": SEEDS, "recipes": measured, **records.origin("cpu")})


def run(name: str, rows: Sequence[str], seeds: Sequence[int], results: Path, jobs: int) -> Path:
    """Train rows of a recipe with seeds; return the file of the experiment."""
    preset = records.ROOT / "experiments" / "presets" / "laptop_500.yaml"
    layer: dict[str, Any] = {"extends": str(preset), "seeds": list(seeds)}
    if "same_start" in RECIPES[name].values():
        layer["plugins"] = [str(Path(__file__).with_name("same_start.py"))]
    if rows:
        layer["variants"] = {row: dict(ROWS[row]) for row in rows}
    results.mkdir(parents=True, exist_ok=True)
    file = results / f"{name.replace(' ', '_').replace(',', '')}.yaml"
    file.write_text(yaml.safe_dump(layer), encoding="utf-8")
    words = [word for each in _overrides(name) for word in ("--set", each)]
    command = [sys.executable, "-m", "ablate.cli", "run", str(file), *words, "--results"]
    options = ["--device", "cpu", "--no-probe", "--no-figures", "--jobs", str(jobs)]
    subprocess.run([*command, str(results), *options], check=True, stdout=subprocess.DEVNULL)
    return file


def _overrides(name: str) -> list[str]:
    return [f"{path}={json.dumps(value)}" for path, value in RECIPES[name].items()]


def measure(name: str, rows: Sequence[str], results: Path, jobs: int) -> dict[str, Any]:
    """Train all rows of a recipe with all seeds; return their scores."""
    file = run(name, rows, SEEDS, results, jobs)
    outcome = api.report(file, overrides=_overrides(name), results=results)
    scores: dict[str, dict[int, float]] = {}
    of_sentences = []
    for (row, seed), record in outcome.records.items():
        scores.setdefault(row, {})[seed] = record["test"]["test"]["bleu"]
        sentences = Store(results).path(record["hash"]) / record["test"]["test"]["sentences"]
        counts = SentenceStatistics.from_csv(sentences.read_text(encoding="utf-8")).bleu
        of_sentences.append(influences(counts, bleu))
    influence = np.array([x.var(ddof=1) / len(x) for x in of_sentences])
    return {
        "overrides": dict(RECIPES[name]),
        "rows": scores,
        "sd_of_sentences": round(math.sqrt(float(influence.mean())), 3),
    }


def cpu_seconds(name: str, seed: int) -> float:
    """Return the processor time of a run of a recipe's baseline, without that of the command."""
    spent = []
    with tempfile.TemporaryDirectory() as results:
        for _ in ("trained", "read"):
            before = _seconds()
            run(name, (), [seed], Path(results), 1)
            spent.append(_seconds() - before)
    return spent[0] - spent[1]


def _seconds() -> float:
    """Return the processor time of the processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def lines(measured: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return what is known of each recipe, as a line of a table, the best first."""
    of_merit = []
    for name, recipe in measured.items():
        rows = {row: {int(s): x for s, x in each.items()} for row, each in recipe["rows"].items()}
        of_few = compare({row: rows[row] for row in ("baseline", *FEW)})
        mean = float(np.mean(list(rows["baseline"].values())))
        assert of_few.sd is not None
        n_seeds = power.seeds_for(SHARE * mean, of_few.sd, POWER_ROWS)
        assert n_seeds is not None, "a thousand seeds are enough"
        minutes = n_seeds * recipe["cpu_seconds"] / 60
        effects = compare(rows).differences
        words = ", ".join(f"{row} {each.estimate:+.1f}" for row, each in effects.items())
        figures = f"{mean:.1f}", f"{of_few.sd:.2f}", f"{recipe['cpu_seconds']:.0f}"
        of_merit.append((minutes, (name, *figures, str(n_seeds), f"{minutes:.0f}", words)))
    return [line for _, line in sorted(of_merit)]


def print_table(measured: Mapping[str, Any]) -> None:
    """Print a table in Markdown."""
    records.say("| recipe | BLEU | sd of a run | CPU s a run | seeds | CPU min a row | effects |")
    records.say("|---|---:|---:|---:|---:|---:|---|")
    for line in lines(measured):
        records.say(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()
