"""Chaos: does an experiment give the same results after its processes and files were damaged?

    python benchmarks/chaos.py [--rounds 200] [--first 0] [--seed 1] [--output FILE]

Each round calls ``ablate run`` several times on a small experiment and an empty folder of results.
In every call there is a fault at a random moment: a signal to the call, a worker, its fork, a
process that computes gradients or the whole process group (after SIGSTOP the call and the group are
continued, and the others are left to the watchdog); a full disk (a small tmpfs, which needs root;
without root a signal takes its place, and the record says so); files of the store cut short or
garbled; a second and a third call on the same folder. Then the experiment is run to its end
undisturbed, and the round is lost

- if that call fails, or any call hangs or prints a traceback,
- if a number differs from those of an undisturbed experiment (speeds and memory only have to be
  there),
- if a run that was finished and whole was made again,
- if a checkpoint, a half-written file or a session is left.

A process that lives two seconds longer than the call that started it is an orphan.

The calls are forks of this process, which has imported PyTorch; workers are started as usual. The
faults of a round follow from ``--seed`` and its number; the moment at which a signal reaches a
program depends on the machine.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import records
from calls import Call
from faults import KINDS, Play, Round, can_mount, small_disk

from ablate import api

EXPERIMENT = """\
question: Does the table survive?
corpus: {name: synthetic, size: 300}
tokenizer: word
model:
  dims: {d_model: 16, n_heads: 2, max_len: 32}
  n_layers: 1
  feed_forward: {name: relu, d_ff: 16}
training:
  steps: 24
  batch_tokens: 3500
  evaluate_every: 8
  average: {last: 2}
  schedule: {name: constant, lr: 0.01}
decoding: greedy
seeds: [1]
variants:
  none: {model.position: none}
  rms: {model.norm: rms}
  beam: {decoding: beam}
"""
"""Batches large enough to be computed by several processes where a core is free."""

WHOLE = {"baseline", "none", "rms", "beam", "table"}
"""The names of `numbers` where nothing is lost."""

PROBED_SHARE = 0.15  # of the rounds, which measure speed and memory too, and take twice as long
TWO_FAULTS_SHARE = 0.2  # of the rounds, which have two faults, one after the other
STALL_AFTER_S = 10.0  # in rounds with SIGSTOP


class Chaos:
    """Plays rounds.

    Args:
        root: a folder for them.
        seed: of the faults.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.seed = root, seed
        (root / "chaos.yaml").write_text(EXPERIMENT, encoding="utf-8")
        self.can_mount = can_mount(root)
        began = time.monotonic()
        folder = self._folder("undisturbed")
        if not Call(folder, "undisturbed", 0, "--no-probe", "--jobs", "1").wait():
            raise SystemExit("the undisturbed call hangs")
        self.seconds = time.monotonic() - began
        self.expected = numbers(folder)
        if self.expected.keys() != WHOLE:
            raise SystemExit((folder / "call 0.txt").read_text(encoding="utf-8"))

    def play(self, number: int) -> Round:
        """Play one round; its folder is removed if it was not lost."""
        rng, result = random.Random(f"{self.seed} {number}"), Round()
        folder = self._folder(str(number))
        kinds = [KINDS[number % len(KINDS)]]
        if rng.random() < TWO_FAULTS_SHARE:
            kinds.append(rng.choice(KINDS))
        options = [] if rng.random() < PROBED_SHARE else ["--no-probe"]
        if not any("grad" in kind for kind in kinds):  # which need a core to spare
            options += ["--jobs", "1"]
        if any("SIGSTOP" in kind for kind in kinds):
            options += ["--stall-after", str(STALL_AFTER_S)]
        results = folder / "results"
        results.mkdir()
        with small_disk(results, is_mounted=self.can_mount and "full disk" in kinds):
            Play(folder, tuple(options), rng, result, self.seconds, self.can_mount).all(kinds)
            result.losses += self._judge(folder, is_measured="--no-probe" not in options)
        if result.losses:
            losses = "\n  ".join(result.losses)
            records.say(f"round {number} is lost, see {folder}:\n  {losses}")
        elif not result.n_orphans:
            shutil.rmtree(folder)
        return result

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir()
        shutil.copy(self.root / "chaos.yaml", folder)
        return folder

    def _judge(self, folder: Path, *, is_measured: bool) -> Iterator[str]:
        """Yield the differences of the results from those of an undisturbed experiment."""
        now = numbers(folder)
        for name, value in self.expected.items():
            if now.get(name) != value:
                yield f"{name} differs: {now.get(name)} in place of {value}"
        for file in (folder / "results" / "runs").glob("*/record.json"):
            record = json.loads(file.read_bytes())
            if is_measured and not (record.get("speed") and record.get("memory")):
                yield f"{record['variant']} has no speed or memory"
        yield from self._left_behind(folder)

    def _left_behind(self, folder: Path) -> Iterator[str]:
        for path in (folder / "results").rglob("*"):
            if path.name.startswith(".") or path.name in ("checkpoint.pt", "snapshots"):
                yield f"{path.relative_to(folder)} is left"
        if any((folder / "results" / "sessions").glob("*.json")) and any(
            call.is_alive for call in api.status(folder / "results")
        ):
            yield "a session is left that seems alive"


def numbers(folder: Path) -> dict[str, Any]:
    """Return the numbers that must not differ after a round: scores, and the table but speeds."""
    known: dict[str, Any] = {}
    for file in (folder / "results" / "runs").glob("*/record.json"):
        record = json.loads(file.read_bytes())
        train = {k: v for k, v in record.get("train", {}).items() if k != "seconds"}
        fields = {key: record.get(key) for key in ("status", "error", "dev", "test", "params")}
        known[record["variant"]] = {**fields, "train": train}
    for file in (folder / "results").rglob("table.csv"):
        rows = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8")))
        known["table"] = [
            {k: v for k, v in row.items() if k and not _is_measured(k)} for row in rows
        ]
    return known


def _is_measured(column: str) -> bool:
    """Return whether a column is measured anew in every round: speed, memory, seconds."""
    return any(word in column for word in ("speed", "memory", "second", "mib"))


def play(
    numbers_of_rounds: range,
    seed: int,
    report: Callable[[str], None],
    max_seconds: float = float("inf"),
) -> dict[str, Any]:
    """Play rounds until the time is over; return their totals."""
    began, total, n_rounds = time.monotonic(), Round(), 0
    with _folder_unless_lost(total) as root:
        chaos = Chaos(root, seed)
        for number in numbers_of_rounds:
            if time.monotonic() - began > max_seconds:
                break
            result = chaos.play(number)
            n_rounds += 1
            total.faults += result.faults
            total.losses += [f"round {number}: {loss}" for loss in result.losses]
            total.n_orphans += result.n_orphans
            total.n_calls += result.n_calls
            n_lost = len({loss.partition(":")[0] for loss in total.losses})
            report(
                f"round {number}, {n_rounds} of {len(numbers_of_rounds)}: "
                f"{total.faults.total()} faults, "
                f"{n_lost} lost, {total.n_orphans} orphans, {time.monotonic() - began:.0f} s"
            )
        return {
            "rounds": n_rounds,
            "rounds_wanted": len(numbers_of_rounds),
            "seed": seed,
            "calls": total.n_calls,
            "faults": total.faults.total(),
            "faults_by_kind": {kind: total.faults[kind] for kind in KINDS},
            "small_disk": chaos.can_mount,
            "losses": total.losses,
            "orphans": total.n_orphans,
            "seconds": round(time.monotonic() - began, 1),
        }


@contextmanager
def _folder_unless_lost(total: Round) -> Iterator[Path]:
    """Yield a temporary folder, which stays if something was lost there."""
    root = Path(tempfile.mkdtemp(prefix="ablate-chaos-"))
    yield root
    if not (total.losses or total.n_orphans):
        shutil.rmtree(root)


def _main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round after")
    parser.add_argument("--output", type=Path, help="a file for the record, as JSON")
    chosen = parser.parse_args()
    rounds = range(chosen.first, chosen.first + chosen.rounds)
    totals = play(rounds, chosen.seed, records.say, 60 * chosen.minutes)
    for kind, n in totals["faults_by_kind"].items():
        records.say(f"{n:6}  {kind}")
    records.say(
        f"{totals['rounds']} rounds, {totals['calls']} calls, {totals['faults']} faults: "
        f"{len(totals['losses'])} losses, {totals['orphans']} orphans"
    )
    if chosen.output:
        records.write(chosen.output, {**totals, **records.origin("cpu")})
    return int(bool(totals["losses"] or totals["orphans"]))


if __name__ == "__main__":
    sys.exit(_main())
