"""Chaos: does an experiment give the same results after its processes and files were damaged?

    python benchmarks/chaos.py [--rounds 200] [--first 0] [--seed 1] [--output FILE]

Each round calls ``ablate run`` several times on a small experiment and an empty folder of results.
In every call there is a fault at a random moment: a signal to the call, a worker, its fork, a
process that computes gradients or the whole process group (after SIGSTOP the call and the group are
continued, and the others are left to the watchdog); a full disk (a small tmpfs, which needs root;
without root a signal takes its place, and the record says so); files of the store cut short or
garbled; a second and a third call on the same folder. Then the experiment is run to its end
undisturbed, and the round is lost

- if that call fails, hangs or prints a traceback, or if any call before it did,
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
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import records

from ablate import api
from ablate.cli import main
from ablate.processes import die_with_parent

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

MARK = "ABLATE_CHAOS"
"""A variable of the environment that marks the processes of a round."""

WHOLE = {"baseline", "none", "rms", "beam", "table"}
"""The names of `numbers` where nothing is lost."""

HANGS_AFTER_S = 240.0
DIES_WITHIN_S = 2.0
PROBED_SHARE = 0.15  # of the rounds, which measure speed and memory too, and take twice as long
TWO_FAULTS_SHARE = 0.2  # of the rounds, which have two faults, one after the other
DISK_MIB = 16
STALL_AFTER_S = 10.0  # in rounds with SIGSTOP
STOPPED_S = 25.0  # of a call or a group, longer than a worker may be silent
CONTINUED = ("call", "group")

SIGNALS = ("KILL", "TERM")
TARGETS = ("call", "worker", "fork", "grad worker", "group")
KINDS = (
    *(f"SIG{name} to the {target}" for target in TARGETS for name in SIGNALS),
    "SIGINT to the group",
    "full disk",
    "files cut short",
    "files garbled",
    "second call",
    "third call",
    *(f"SIGSTOP to the {target}" for target in TARGETS),
)


@dataclass
class Round:
    """The result of a round.

    Attributes:
        faults: how many of each kind reached their target.
        losses: the failures, in sentences.
        n_orphans: processes that outlived the call that started them.
        n_calls: of ``ablate run``.
    """

    faults: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    n_orphans: int = 0
    n_calls: int = 0


class Call:
    """A call of ``ablate run``, in a process group of its own.

    Args:
        folder: where the experiment lies, and the folder of results.
        mark: of the round.
        number: of the call.
        options: of the command.
    """

    def __init__(self, folder: Path, mark: str, number: int, *options: str) -> None:
        self.output = folder / f"call {number}.txt"
        self.pid = os.fork()
        if self.pid == 0:
            _run_call(folder, mark, self.output, options)
        self.status: int | None = None

    def has_ended(self) -> bool:
        """Return whether the call has ended, and set its status."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None

    def wait(self, seconds: float = HANGS_AFTER_S) -> bool:
        """Wait for the end; return whether it came in time, and kill the call otherwise."""
        deadline = time.monotonic() + seconds
        while not self.has_ended():
            if time.monotonic() > deadline:
                os.killpg(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                self.status = -signal.SIGKILL
                return False
            time.sleep(0.02)
        return True

    def processes(self, target: str) -> list[int]:
        """Return the processes of one kind that the call has at this moment.

        A worker is one once it is a program of its own: until then the call that starts it is
        inside of a system call, where SIGSTOP to the worker stops the call, too.
        """
        level = [self.pid]
        for name in TARGETS[:-1]:
            if name == "worker":
                level = [pid for pid in level if _command(pid) != _command(self.pid)]
            if name == target:
                return level
            level = [child for pid in level for child in _children(pid)]
        return []


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _run_call(folder: Path, mark: str, output: Path, options: tuple[str, ...]) -> NoReturn:
    """Become ``ablate run`` in a fork, which saves the seconds of its imports."""
    status = 1
    try:
        die_with_parent()
        os.setsid()
        os.chdir(folder)
        os.environ[MARK] = mark
        with output.open("wb") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        sys.argv = ["ablate", "run", "chaos.yaml", "--device", "cpu", "--no-figures", *options]
        main()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _children(pid: int) -> list[int]:
    try:
        return [int(n) for n in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:  # it has ended
        return []


def processes_of(mark: str) -> list[int]:
    """Return the living processes that a round has started."""
    variable, alive = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if variable in (folder / "environ").read_bytes().split(b"\0"):
                alive.append(int(folder.name))
    return alive


class Chaos:
    """Plays rounds.

    Args:
        root: a folder for them.
        seed: of the faults.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.seed = root, seed
        (root / "chaos.yaml").write_text(EXPERIMENT, encoding="utf-8")
        self.can_mount = _can_mount(root)
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
        with _small_disk(results, is_mounted=self.can_mount and "full disk" in kinds):
            _Play(folder, tuple(options), rng, result, self.seconds, self.can_mount).all(kinds)
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


class _Play:
    """The calls of one round."""

    def __init__(
        self,
        folder: Path,
        options: tuple[str, ...],
        rng: random.Random,
        result: Round,
        seconds: float,
        can_mount: bool,
    ) -> None:
        self.folder, self.options, self.rng, self.result = folder, options, rng, result
        self.seconds = seconds * (1 if "--no-probe" in options else 2.5)
        self.can_mount = can_mount
        self.mark = f"{os.getpid()}-{folder.name}"
        self.finished: dict[str, str] = {}
        self.damaged: set[str] = set()  # runs that have lost a file, and may be made again

    def all(self, kinds: list[str]) -> None:
        """Make a call with each kind of fault, then one with none."""
        for kind in kinds:
            self._note_finished()
            self._play(kind)
        self._note_finished()
        call = self._call()
        self._end(call)
        if call.status != 0:
            self.result.losses.append(f"the last call ended with {call.status}")
        for name, finished in self.finished.items():
            if name not in self.damaged and self._finished().get(name) != finished:
                self.result.losses.append(f"{name} was finished, and has been made again")

    def _play(self, kind: str) -> None:
        if kind.startswith("SIG") or (kind == "full disk" and not self.can_mount):
            self._send(kind)
        elif kind == "full disk":
            self._fill(kind)
        elif kind.startswith("files"):
            self._damage(kind)
        else:
            self._call_again(kind)

    def _call(self) -> Call:
        self.result.n_calls += 1
        return Call(self.folder, self.mark, self.result.n_calls, *self.options)

    def _sleep(self, call: Call) -> None:
        """Wait until a random moment of the call."""
        deadline = time.monotonic() + self.rng.uniform(0, self.seconds)
        while time.monotonic() < deadline and not call.has_ended():
            time.sleep(0.01)

    def _end(self, call: Call) -> None:
        """Wait until the call and all processes that it has started have ended."""
        if not call.wait():
            self.result.losses.append(f"call {self.result.n_calls} hangs")
        deadline = time.monotonic() + DIES_WITHIN_S
        while (alive := processes_of(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.result.n_orphans += len(alive)
        for pid in alive:
            name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            records.say(f"round {self.folder.name}: {pid} is an orphan: {name}")
            os.kill(pid, signal.SIGKILL)
        self._check_output(call)

    def _check_output(self, call: Call) -> None:
        loss = f"{call.output.name} has a traceback"
        if loss in self.result.losses:  # the call has been ended before
            return
        if "Traceback" in call.output.read_text(encoding="utf-8", errors="replace"):
            self.result.losses.append(loss)

    def _send(self, kind: str) -> None:
        """Send a signal to a process of a call."""
        name, _, target = kind.partition(" to the ")
        if kind == "full disk":
            name, target = "SIGKILL", "call"
        call = self._call()
        self._sleep(call)
        number = signal.Signals[name]
        deadline = time.monotonic() + self.seconds
        while not call.has_ended() and time.monotonic() < deadline:
            pids = call.processes("call" if target == "group" else target)
            if pids:
                with suppress(ProcessLookupError):
                    self._signal(call, target, number, pids)
                    self.result.faults[f"{name} to the {target}"] += 1
                break
            time.sleep(0.002)
        is_continued = number == signal.SIGSTOP and target in CONTINUED
        if is_continued:
            time.sleep(STOPPED_S)
            with suppress(ProcessLookupError):
                self._signal(call, target, signal.SIGCONT, [call.pid])
        self._end(call)
        if is_continued and "its process was killed" in call.output.read_text(encoding="utf-8"):
            self.result.losses.append(f"{call.output.name}: a worker was killed in vain")

    def _signal(self, call: Call, target: str, number: signal.Signals, pids: list[int]) -> None:
        if target == "group":
            os.killpg(call.pid, number)
        else:
            os.kill(self.rng.choice(pids), number)

    def _fill(self, kind: str) -> None:
        """Fill the disk at a random moment, and make room again when the call has ended."""
        call, ballast = self._call(), self.folder / "results" / "ballast"
        self._sleep(call)
        with suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
        self.result.faults[kind] += not call.has_ended()
        self._end(call)
        ballast.unlink()

    def _damage(self, kind: str) -> None:
        """Damage files, half of the time in the middle of a call, else between calls."""
        call = self._call()
        self._sleep(call)
        if self.rng.random() < 0.5:
            self._end(call)
        files = [path for path in (self.folder / "results").rglob("*") if path.is_file()]
        for path in self.rng.sample(sorted(files), min(len(files), self.rng.randint(1, 4))):
            with suppress(OSError):
                _damage_file(path, self.rng, is_cut=kind == "files cut short")
                same = (file for file in files if file.exists() and file.samefile(path))
                self.damaged |= {file.parent.name for file in same}  # weights are hard links
                self.result.faults[kind] += 1
        self._end(call)

    def _call_again(self, kind: str) -> None:
        """Make further calls at random moments."""
        calls = [self._call()]
        for _ in range(1 if kind == "second call" else 2):
            self._sleep(calls[0])
            self.result.faults[kind] += any(not call.has_ended() for call in calls)
            calls.append(self._call())
        for call in calls:
            if not call.wait():
                self.result.losses.append(f"one of {len(calls)} calls hangs")
        for call in calls:
            self._end(call)

    def _finished(self) -> dict[str, str]:
        ended = {}
        for file in (self.folder / "results" / "runs").glob("*/record.json"):
            with suppress(ValueError, KeyError, TypeError, AttributeError):
                record = json.loads(file.read_bytes())
                if record["status"] == "done":
                    ended[file.parent.name] = record["finished"]
        return ended

    def _note_finished(self) -> None:
        """Note which runs are finished."""
        self.finished |= {k: v for k, v in self._finished().items() if k not in self.finished}


def _damage_file(path: Path, rng: random.Random, *, is_cut: bool) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        if is_cut:
            file.truncate(rng.randint(0, max(0, size - 1)))
            return
        for _ in range(rng.randint(1, 8)):
            file.seek(rng.randint(0, max(0, size - 1)))
            file.write(bytes([rng.randrange(256)]))


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
    return any(word in column for word in ("speed", "memory", "second", "per_second", "mib"))


def _can_mount(root: Path) -> bool:
    folder = root / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
    except FileNotFoundError:
        return False
    subprocess.run(["umount", str(folder)], check=True)
    return True


@contextmanager
def _small_disk(folder: Path, *, is_mounted: bool) -> Iterator[None]:
    """Mount a small tmpfs on a folder, or do nothing."""
    if not is_mounted:
        yield
        return
    size = f"size={DISK_MIB}m"
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def _folder_unless_lost(total: Round) -> Iterator[Path]:
    """Yield a temporary folder, which stays if something was lost there."""
    root = Path(tempfile.mkdtemp(prefix="ablate-chaos-"))
    yield root
    if not (total.losses or total.n_orphans):
        shutil.rmtree(root)


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
