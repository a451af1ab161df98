"""How much time do commands take as rows and stored runs grow?

    python benchmarks/scale.py [--rows 100 200 400 800 1600 3200] [--runs 20000] [--output FILE]

`ablate plan` of experiments whose rows differ in training, and of one with as many models as rows;
then commands on a folder of made-up runs (nothing is trained), of which an experiment has a
twentieth in its table. Each command is a process of its own: CPU seconds, start of Python included,
and peak memory. It runs the package beside it: two checkouts are compared with a copy in each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from multiprocessing import Process
from pathlib import Path
from typing import Any

import records

sys.path.insert(0, str(records.ROOT))  # for tests.made_up_runs

from tests import made_up_runs

BASE = made_up_runs.EXPERIMENT.partition("seeds:")[0]
N_ROWS, N_SEEDS = 40, 25
"""The experiment in the store; the other runs have other seeds."""


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    sizes = (100, 200, 400, 800, 1600, 3200)
    parser.add_argument("--rows", type=int, nargs="*", default=sizes)
    parser.add_argument("--models", type=int, nargs="*", default=(400,), help="rows with a model")
    parser.add_argument("--runs", type=int, default=20_000, help="in the store; 0 for none")
    parser.add_argument("--output", type=Path, help="a file for the record, as JSON")
    chosen = parser.parse_args()
    measured: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory(prefix="ablate-scale-") as folder:
        for path, all_sizes in (
            ("training.clip", chosen.rows),
            ("model.feed_forward.d_ff", chosen.models),
        ):
            for n_rows in all_sizes:
                spec = _experiment(Path(folder) / f"rows_{n_rows}.yaml", path, n_rows, n_seeds=1)
                _measure(measured, f"plan, {n_rows} rows of {path}", ["plan", str(spec)], folder)
        if chosen.runs:
            _measure_store(measured, Path(folder), chosen.runs)
    if chosen.output:
        records.write(chosen.output, {"commands": measured, **records.origin("cpu")})


def _measure_store(measured: dict[str, dict[str, float]], folder: Path, n_runs: int) -> None:
    """Measure the commands that read a store of so many runs."""
    n_seeds = n_runs // N_ROWS
    spec = _experiment(
        folder / "made_up.yaml", "training.clip", N_ROWS, n_seeds=min(N_SEEDS, n_seeds)
    )
    results = folder / "results"
    seeds = range(1, n_seeds + 1)
    maker = Process(target=made_up_runs.finish, args=(spec, results), kwargs={"seeds": seeds})
    maker.start()  # in a process of its own, as commands inherit the peak memory of this one
    maker.join()
    for run in (results / "runs").iterdir():
        (run / "lock").touch()  # as every run leaves it
    label = f"{folder.name}/made_up:v7:{n_seeds}"
    commands: Mapping[str, Sequence[str]] = {
        "runs list": ["runs", "list"],
        "runs list, again": ["runs", "list"],
        "runs list --json": ["runs", "list", "--json"],
        "runs gc": ["runs", "gc", str(spec)],
        "runs show by label": ["runs", "show", label],
        "status": ["status"],
        "plan": ["plan", str(spec)],
        "report": ["report", str(spec)],
        "report --format html": ["report", str(spec), "--format", "html"],
        "run, all done": ["run", str(spec), "--device", "cpu", "--no-probe", "--no-figures"],
    }
    elsewhere = folder / "elsewhere"  # where no file describes the run of the label
    elsewhere.mkdir()
    for name, words in commands.items():
        command = [*words, "--results", str(results)]
        _measure(measured, f"{n_runs} runs: {name}", command, str(elsewhere))


def _experiment(file: Path, path: str, n_rows: int, n_seeds: int) -> Path:
    rows = {f"v{n}": {path: 100 + n} for n in range(1, n_rows)}
    lines = f"seeds: {[*range(1, n_seeds + 1)]}\nvariants: {json.dumps(rows)}\n"
    file.write_text(BASE + lines, encoding="utf-8")
    return file


def _measure(
    measured: dict[str, dict[str, float]], name: str, words: Sequence[str], folder: str
) -> None:
    """Run a command; print and add its CPU seconds and its peak memory."""
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": str(records.ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-m", "ablate.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=environment,
    )
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{name}: {errors}")
    seconds, mib = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    measured[name] = {"cpu_seconds": round(seconds, 2), "mib": round(mib)}
    records.say(f"{seconds:7.1f} s {mib:6.0f} MiB  {name}")


if __name__ == "__main__":
    main()
