"""Races of contenders: start them, run them in turns, compare them, write the record.

The order is A B C A B C ..., so that a machine that slows down slows all of them down. The ratio
of two contenders' rates is taken within each turn; its spread is over the turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from records import RESULTS, ROOT, origin, say, write

from ablate import config
from ablate.config import RunSpec
from ablate.data.cache import cache_folder
from ablate.data.prepare import Prepared, prepare
from ablate.runner import devices
from peers.environment import python_of
from peers.protocol import Job, Sizes

OURS = "ours"
PRESETS: dict[str, tuple[str, ...]] = {
    "tiny": (),
    "d256": ("model.dims.d_model=256", "model.n_layers=3", "model.feed_forward.d_ff=1024"),
}
"""Changes of Transformer-Tiny: 4 + 4 layers, d_model 128, d_ff 256, 4 heads."""

BATCH = "training.batch_tokens=4096"
"""In target tokens; replaces the number of each preset."""

ONE_AT_A_TIME = "one at a time"
"""How the processes of contenders run; in records without this entry they ran all at once."""


@dataclass(frozen=True)
class Contender:
    """One program in one setting.

    Attributes:
        name: in tables.
        what: in a few words.
        module: its program, in the folder of this file.
        environment: the virtual environment that it runs in; None for the one that runs this.
        options: its own, such as the ``precision`` of training, fp32 unless given.
        n_runs: how many processes run side by side and share the threads, as runs do.
    """

    name: str
    what: str
    module: str
    environment: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    n_runs: int = 1

    @property
    def is_ours(self) -> bool:
        """Return whether the program is this package, in any setting."""
        return self.environment is None and self.module == OURS


@dataclass
class Entry:
    """The results of a contender.

    Attributes:
        contender: the program.
        facts: from the line that it sends when it is warm: versions, number of parameters.
        rounds: the line that it sends after each round: seconds, and what the benchmark measures.
        error: why it failed, or None.
    """

    contender: Contender
    facts: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    error: str | None = None

    @property
    def seconds(self) -> list[float]:
        """Return the seconds of each round."""
        return [of_round["seconds"] for of_round in self.rounds]


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as another, over the turns that both finished."""

    median: float
    lowest: float
    highest: float

    def __str__(self) -> str:
        return f"{self.median:.2f}x ({self.lowest:.2f} - {self.highest:.2f})"


def option_parser(doc: str | None, output: str, names: Sequence[str]) -> argparse.ArgumentParser:
    """Return a parser of the options that all races have."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument(
        "--corpus", choices=("multi30k", "synthetic"), help="multi30k if $ABLATE_CORPORA has it"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="of the CPU, for every contender")
    parser.add_argument("--repeats", type=int, default=5, help="rounds that are measured")
    parser.add_argument(
        "--only", action="append", choices=names, help="beside ours; may be given several times"
    )
    parser.add_argument(
        "--environments",
        type=Path,
        default=cache_folder("peers"),
        help="folder of the peers' virtual environments; by default in the user's cache",
    )
    parser.add_argument("--output", type=Path, default=RESULTS / output)
    return parser


def prepared(options: argparse.Namespace, *overrides: str) -> tuple[RunSpec, Prepared]:
    """Return the run that a preset stands for, and its corpus."""
    folder = os.environ.get("ABLATE_CORPORA")
    is_there = folder is not None and (Path(folder) / "multi30k").is_dir()
    corpus = options.corpus or ("multi30k" if is_there else "synthetic")
    file = {"multi30k": "multi30k_tiny.yaml", "synthetic": "tiny.yaml"}[corpus]
    changes = (BATCH, *PRESETS[options.preset], *overrides)
    experiment = config.load(ROOT / "experiments" / "presets" / file, changes)
    run = config.expand(experiment)[0].spec
    return run, prepare(run)


def sizes_of(run: RunSpec, corpus: Prepared) -> Sizes:
    """Return the sizes of the model of a run."""
    stack = run.model.stack("encoder")
    return Sizes(
        d_model=run.model.dims.d_model,
        d_ff=stack.feed_forward.options["d_ff"],
        n_heads=run.model.dims.n_heads,
        n_layers=stack.n_layers,
        vocab_size=corpus.tokenizers.vocabulary.n_tgt,
        max_len=run.model.dims.max_len,
    )


def chosen(contenders: Sequence[Contender], only: Sequence[str] | None) -> list[Contender]:
    """Return ours and the contenders that ``--only`` names."""
    return [c for c in contenders if only is None or c.is_ours or c.name in only]


def race(
    contenders: Sequence[Contender], job: Job, environments: Path, repeats: int
) -> list[Entry]:
    """Let all contenders run in turns, one at a time.

    The others' processes do not wait meanwhile, because the memory that they hold would slow down
    allocations, and most programs allocate anew at every step.

    The seed of a turn is its number. A contender that fails has no further turn; the others go on.
    """
    with tempfile.TemporaryDirectory() as name:
        runners = [Runner(contender, Path(name), environments) for contender in contenders]
        for number in range(1, repeats + 1):
            for runner in runners:
                if runner.entry.error is None:
                    runner.run(replace(job, seed=number))
                    report(runner.entry, number)
    return [runner.entry for runner in runners]


class Runner:
    """Starts the processes of one contender, one for each turn.

    Args:
        contender: the program.
        folder: for its job and its log.
        environments: the folder of virtual environments.
    """

    def __init__(self, contender: Contender, folder: Path, environments: Path) -> None:
        self.entry = Entry(contender)
        self._job = folder / f"{contender.name}.json"
        self._log = folder / f"{contender.name}.log"
        self._environments = environments

    def run(self, job: Job) -> None:
        """Start the contender, wait until it is warm, let it run one round, and end it."""
        with ExitStack() as ends:
            try:
                processes = [self._start(job) for _ in range(self.entry.contender.n_runs)]
            except RuntimeError as error:
                self.entry.error = str(error)
                return
            for process in processes:
                ends.enter_context(process)
                ends.callback(process.kill)
            self._one_round(processes)

    def _one_round(self, processes: Sequence[subprocess.Popen[str]]) -> None:
        warm = [self._receive(process) for process in processes]
        if self.entry.error is not None:
            return
        self.entry.facts = warm[0]
        for process in processes:
            assert process.stdin is not None, "it is a pipe"
            process.stdin.write("go\n")
            process.stdin.flush()
        of_round = [self._receive(process) for process in processes]
        if self.entry.error is None:
            self.entry.rounds.append(_combined(of_round))

    def _start(self, job: Job) -> subprocess.Popen[str]:
        contender = self.entry.contender
        n_threads = job.threads // contender.n_runs
        own = replace(job, options=dict(contender.options), threads=n_threads)
        self._job.write_text(own.to_json(), encoding="utf-8")
        python = (
            Path(sys.executable)
            if contender.environment is None
            else python_of(contender.environment, self._environments)
        )
        threads = str(own.threads)
        with self._log.open("w", encoding="utf-8") as log:
            return subprocess.Popen(
                [python, "-m", f"peers.{contender.module}", self._job],
                cwd=Path(__file__).parents[1],
                env=self._environment(job.device)
                | {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def _environment(self, device: str) -> dict[str, str]:
        """Return the environment of the process; ours has that of a run."""
        own = devices.find(device)[0].environment() if self.entry.contender.is_ours else {}
        return {**os.environ, **own}

    def _receive(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdout is not None, "it is a pipe"
        line = process.stdout.readline()
        if line:
            message: dict[str, Any] = json.loads(line)
            return message
        status = process.wait()
        end = self._log.read_text(encoding="utf-8", errors="replace")[-1500:]
        self.entry.error = f"ended with status {status}: {end.strip()}"
        return {}


def _combined(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a round of several processes: the longest of all seconds, the sums of all else."""
    if len(rounds) == 1:
        return rounds[0]
    return {
        name: (max if name.endswith("seconds") else sum)(each[name] for each in rounds)
        for name in rounds[0]
    }


def ratio(ours: Entry, other: Entry, rates: str) -> Ratio | None:
    """Return how many times as fast ours is, by the rate ``rates`` of each round."""
    pairs = zip(ours.rounds, other.rounds, strict=False)
    ratios = [a[rates] / b[rates] for a, b in pairs]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios)) if ratios else None


def summary(
    options: argparse.Namespace, entries: Sequence[Entry], rates: str, more: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the record of a race.

    Args:
        options: of the command.
        entries: one for each contender; each round has the rate ``rates``.
        rates: the name of the rate that is compared.
        more: settings beside the options.
    """
    torch.set_num_threads(options.threads)  # for the record: provenance reads it
    ours = next(entry for entry in entries if entry.contender.name == OURS)
    contenders = []
    for entry in entries:
        values = [of_round[rates] for of_round in entry.rounds]
        of_ours = ratio(ours, entry, rates)
        contenders.append(
            {
                "name": entry.contender.name,
                "what": entry.contender.what,
                f"median_{rates}": statistics.median(values) if values else None,
                "ours_over_it": None if of_ours is None else asdict(of_ours),
                "error": entry.error,
                **entry.facts,
                "rounds": entry.rounds,
            }
        )
    settings = {
        k: v.name if isinstance(v, Path) else v
        for k, v in vars(options).items()
        if k not in ("output", "environments")
    }
    return {
        **origin(options.device),
        "settings": {**settings, **more},
        "processes": ONE_AT_A_TIME,
        "contenders": contenders,
    }


def finish(options: argparse.Namespace, record: Mapping[str, Any], rates: str, unit: str) -> int:
    """Print the table, write the file; return the exit status: 1 if a contender failed."""
    columns = f"{'contender':<24}{'parameters':>12}{unit:>18}{'ours / it (lowest - highest)':>34}"
    say(f"\n{columns}")
    for entry in record["contenders"]:
        rate, of_ours = entry[f"median_{rates}"], entry["ours_over_it"]
        if rate is None:
            reason = (entry["error"] or "no round").splitlines()[-1]
            say(f"{entry['name']:<24}not measured: {reason}")
            continue
        speedup = Ratio(**of_ours) if entry["name"] != OURS else "1"
        say(f"{entry['name']:<24}{entry['n_parameters']:>12,}{rate:>18,.1f}{speedup!s:>34}")
    write(options.output, record)
    return 1 if any(entry["error"] for entry in record["contenders"]) else 0


def report(entry: Entry, number: int) -> None:
    """Print the seconds of a round."""
    if entry.error is None and len(entry.rounds) == number:
        say(f"round {number}: {entry.contender.name}, {entry.seconds[-1]:.2f} s")
