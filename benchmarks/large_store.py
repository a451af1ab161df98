"""How long do commands take that read a folder of results with thousands of runs?

    python benchmarks/large_store.py [--runs 2000] [--output FILE]

The runs are made up: nothing is trained. Each command is a process of its own, start of Python
included; an experiment of 30 of the runs is planned, reported, run again and listed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import records

sys.path.insert(0, str(records.ROOT))  # for tests.made_up_runs

from tests import made_up_runs

N_ROWS, N_SEEDS = 3, 10


def main() -> None:
    """Make runs up, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="a file for the record, as JSON")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ablate-store-") as folder:
        spec, results = Path(folder) / "made_up.yaml", Path(folder) / "results"
        text = made_up_runs.EXPERIMENT.replace("[1, 2]", str([*range(1, N_SEEDS + 1)]))
        spec.write_text(text, encoding="utf-8")
        seeds = range(1, -(-chosen.runs // N_ROWS) + 1)
        made_up_runs.finish(spec, results, seeds=seeds)
        n_runs = len(list(results.glob("runs/*/record.json")))
        folder_options = ["--results", str(results)]
        of_spec = [str(spec), *folder_options]
        commands = {
            "plan": ["plan", *of_spec],
            "status": ["status", *folder_options],
            "report": ["report", *of_spec],
            "run": ["run", *of_spec, "--device", "cpu", "--no-probe", "--no-figures"],
            "runs list": ["runs", "list", *folder_options],
            "runs list --experiment": ["runs", "list", *folder_options, "--experiment", str(spec)],
            "runs show": [
                "runs",
                "show",
                f"{Path(folder).name}/{spec.stem}:rms:7",
                *folder_options,
            ],
        }
        measured = {
            name: [_seconds(words, folder) for _ in range(chosen.repeats)]
            for name, words in commands.items()
        }
    records.say(
        f"{n_runs} runs in the store; seconds, the fastest of {chosen.repeats} calls and all"
    )
    for name, seconds in measured.items():
        every = ", ".join(f"{each:.2f}" for each in seconds)
        records.say(f"{min(seconds):6.2f}  {name} ({every})")
    if chosen.output:
        result = {"runs": n_runs, "seconds": measured}
        records.write(chosen.output, {**result, **records.origin("cpu")})


def _seconds(words: list[str], folder: str) -> float:
    began = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "ablate.cli", *words],
        check=True,
        capture_output=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(records.ROOT)},
    )
    return round(time.perf_counter() - began, 3)


if __name__ == "__main__":
    main()
