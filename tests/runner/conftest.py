"""Small runs, and a fake worker, for tests of the schedule in milliseconds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from ablate.config import RunSpec
from ablate.runner.backends.local import Local
from ablate.runner.devices import Device
from ablate.runner.probe import FEWEST_ROUNDS
from ablate.runner.run import run_one
from ablate.runner.schedule import Limits, schedule
from ablate.runner.task import Heartbeat, Message, ProgressListener, Task, TaskGroup
from ablate.store import Store
from ablate.training import Progress

MakeTask = Callable[..., Task]
FEW_ROUNDS = Limits(runs_per_process=1, probe_seconds=0.0)

SMALL: dict[str, Any] = {
    "corpus": {"name": "synthetic", "size": 200},
    "tokenizer": "word",
    "model": {
        "dims": {"d_model": 16, "n_heads": 2, "max_len": 32},
        "n_layers": 1,
        "feed_forward": {"name": "relu", "d_ff": 16},
    },
    "training": {
        "steps": 12,
        "batch_tokens": 200,
        "evaluate_every": 5,
        "schedule": {"name": "constant", "lr": 0.01},
    },
    "decoding": "greedy",
}
"""A run of a second."""


def small_spec(**changes: Any) -> dict[str, Any]:
    """Return the whole spec of `SMALL`, as plain data."""
    return RunSpec.model_validate({**SMALL, **changes}).model_dump(mode="json")


def training_at(step: int, seconds_left: float = 30.0) -> Heartbeat:
    """Return a heartbeat of a training of 100 steps."""
    progress = Progress(step, 100, 3.21, None, 12_345.6, seconds_left)
    return Heartbeat("none", "training", progress)


def finish(task: Task, store: Store) -> dict[str, Any]:
    """Make a run in this process; return its record."""
    return run_one(task, store, lambda *_: None, lambda: False)


def scores_of(store: Store, key: str) -> tuple[pd.DataFrame, Any]:
    """Return the curve of a run that is done, without its times, and its scores."""
    record = store.load(key)
    assert record is not None
    assert record["status"] == "done", record["error"]
    return curve_of(store, key), (record["dev"], record["test"])


def assert_same(store: Store, key: str, other: str) -> None:
    """Check that two runs have the same curve and scores, to the last bit."""
    (curve, scores), (expected, of_other) = scores_of(store, key), scores_of(store, other)
    pd.testing.assert_frame_equal(curve, expected, check_exact=True)
    assert scores == of_other


def curve_of(store: Store, key: str) -> pd.DataFrame:
    """Return the curve of a run without its times."""
    return pd.read_csv(store.path(key) / "curve.csv").drop(columns="seconds")


def numbers_of(results: Path) -> dict[str, Any]:
    """Return all of the runs that must not depend on where they are made: bits, not digits."""
    numbers: dict[str, Any] = {}
    for folder in sorted((results / "runs").iterdir()):
        record = Store(results).load(folder.name) or {}
        curve = (folder / "curve.csv").read_text(encoding="utf-8").splitlines()
        numbers[folder.name] = {
            "scores": {key: record[key] for key in ("status", "variant", "dev", "test", "params")},
            "losses": [line.split(",")[:-1] for line in curve],  # without the time
            "weights": (folder / "model.safetensors").read_bytes(),
            "translations": [file.read_bytes() for file in sorted(folder.glob("hypotheses.*.txt"))],
        }
    return numbers


EXPERIMENT = """\
corpus: {name: synthetic, size: 200}
tokenizer: word
model:
  dims: {d_model: 16, n_heads: 2, max_len: 32}
  n_layers: 1
  feed_forward: {name: relu, d_ff: 16}
  dropout: {embedding: 0.1, residual: 0.1}
training: {steps: 12, batch_tokens: 200, evaluate_every: 5, schedule: {name: constant, lr: 0.01}}
decoding: greedy
seeds: [1]
"""
"""The file of such a run, with dropout."""

PLUGIN = """\
from torch import Tensor

from ablate.parts.position import Position
from ablate.registry import register


@register("ramp", formula="x_p = e_p + SLOPE p", source="this test, 2026, sec. 1")
class Ramp(Position):
    \"\"\"Add the position itself.\"\"\"

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + SLOPE * positions[:, None]
"""
"""A plugin with one part; a number takes the place of SLOPE."""

WORKER = """
import sys

import torch
from ablate import lazy_dynamo
from ablate.runner import worker
{change}
lazy_dynamo.install()
sys.exit(worker.main())
"""


def changed_worker(change: str) -> list[str]:
    """Return the command of a worker that first executes some code."""
    return [sys.executable, "-c", WORKER.replace("{change}", change)]


SPEEDS = ("train_target_tokens_per_second", "decode_sentences_per_second")
MEASURED: dict[str, Any] = {"rounds": {name: [1.0] * FEWEST_ROUNDS for name in SPEEDS}}
"""What is kept of a row that needs no probe any more."""

FAKE_WORKER = r"""
import json, os, signal, sys, time
from pathlib import Path

tasks = [json.loads(line) for line in iter(sys.stdin.readline, "\n")]
task = tasks[0]
results = Path(task["results"])
with (results / "journal").open("a") as journal:
    for each in tasks:
        words = [each["action"], each["variant"], str(each["spec"]["seed"])]
        words += [f"1/{n}" for n in [each["micro_batch_factor"]] if n > 1]
        words += [each["engine"]] if each["engine_note"] else []
        journal.write(" ".join(words) + "\n")

def send(kind, **fields):
    print(json.dumps({"message": kind, **fields}), flush=True)

def heartbeat(phase, **fields):
    send("Heartbeat", key=task["key"], phase=phase, **fields)

def end(failure=None, reason=None):
    send("TaskFinished", key=task["key"], failure=failure, reason=reason)
    if failure in ("memory", "engine") and len(tasks) > 1:
        sys.exit(1)

def save(status, error=None, failure=None):
    record = {"hash": task["key"], "status": status, "error": error, "test": {}}
    (results / "runs" / task["key"] / "record.json").write_text(json.dumps(record))
    end({"oom": "memory", "failed": "other"}.get(status, failure), error)

for task in tasks:
    kind, factor = task["variant"].partition(" ")[0], task["micro_batch_factor"]
    if kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "crashes":
        sys.exit("the last words")
    if task["action"] == "probe":
        if kind == "large" and factor < 2:
            heartbeat("measuring", largest_batch=3)
            end("memory", "no room")
            sys.exit()
        if kind == "uncompiled" and task["engine"] != "eager":
            end("engine", "no capture")
            sys.exit()
        speeds = ("train_target_tokens_per_second", "decode_sentences_per_second")
        probe = {"rounds": {name: [1.0] * (task["round"] + 1) for name in speeds}}
        probe |= {"train_peak_mib": 1.0, "session": task["session"]}
        probe |= {"micro_batch_factor": factor} if factor > 1 else {}
        if task["engine_note"]:
            probe |= {name: task[name] for name in ("engine", "engine_note")}
        (results / "probes" / f"{task['key']}.json").write_text(json.dumps(probe))
        sys.exit()
    print("no message", flush=True)
    heartbeat("training", largest_batch=3)
    if kind == "granted":  # ends when it is granted more cores
        save("done", sys.stdin.readline().strip())
    elif kind == "hangs":
        heartbeat(f"hanging {os.getpid()}")
        if task["variant"] == "hangs stubbornly":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        heartbeat(f"ready {os.getpid()}")
        time.sleep(60)
    elif kind == "uncompiled":
        save("done")
    elif kind == "lies":
        end()
    elif kind == "shy":  # can do it alone
        if len(tasks) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        save("done")
    elif kind == "greedy":  # likewise
        save("oom" if len(tasks) > 1 else "done", "no room")
    elif kind == "large":  # fits in halves
        fits = factor >= 2
        save("done" if fits else "oom", None if fits else "no room")
    elif kind == "uncaptured":
        if task["engine"] == "eager":
            save("done")
        else:
            end("engine", "no capture")
            sys.exit(1)
    elif kind == "held":  # by another call, which has ended when it is waited for
        save("done") if task["waits"] else end("held", "another call is at work on it")
    elif kind == "finishes":  # and is killed before it says so
        record = {"hash": task["key"], "status": "done", "error": None, "test": {}}
        (results / "runs" / task["key"] / "record.json").write_text(json.dumps(record))
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "environment":
        save("done", json.dumps({name: os.environ.get(name) for name in task["spec"]["names"]}))
    else:
        save(kind, None if kind == "done" else "a reason")
"""


class FakeProcess:
    """A `WorkerProcess` that does nothing."""

    is_running = True
    is_waiting = False

    def begin(self, group: TaskGroup) -> None: ...
    def grant(self, n_cores: int) -> None: ...
    def messages(self) -> Iterator[Message]:
        yield from ()

    def print_stacks(self) -> None: ...
    def abort(self) -> None: ...
    def terminate(self) -> None: ...
    def wait(self, timeout: float) -> bool:
        return True

    def kill(self) -> None: ...
    def close(self) -> None: ...


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Diary(ProgressListener):
    """Records its calls."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.runs_per_process: list[int] = []
        self.signs: list[str] = []
        self.endings: dict[str, str] = {}
        self.on_sign: Callable[[Heartbeat], None] = lambda _: None

    def started(self, task: Task, device: Device) -> None:
        self.begun.append(task.variant)
        self.runs_per_process.append(task.runs_per_process)

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        self.signs.append(heartbeat.phase)
        self.on_sign(heartbeat)

    def ended(self, task: Task, outcome: str, *, is_good: bool) -> None:
        self.endings[task.variant] = outcome


@pytest.fixture
def diary() -> Diary:
    return Diary()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    file = tmp_path / "worker.py"
    file.write_text(FAKE_WORKER, encoding="utf-8")
    return [sys.executable, str(file)]


@dataclass
class FakeWorkers:
    """A store, a listener, and the command of the fake worker."""

    store: Store
    diary: Diary
    command: list[str]

    def run(self, tasks: Sequence[Task], n_slots: int = 1, limits: Limits = FEW_ROUNDS) -> None:
        backend = Local([Device("cpu")] * n_slots, self.command)
        schedule(tasks, backend, self.store, self.diary, limits)

    def journal(self) -> list[str]:
        """Return what the workers were asked to do."""
        file = self.store.results / "journal"
        return file.read_text(encoding="utf-8").splitlines() if file.exists() else []

    def trained(self) -> list[str]:
        return [line for line in self.journal() if line.startswith("train")]

    def status(self, key: str) -> str:
        record = self.store.load(key)
        assert record is not None
        return record["status"]


@pytest.fixture
def fake(store: Store, diary: Diary, command: list[str]) -> FakeWorkers:
    return FakeWorkers(store, diary, command)


@pytest.fixture
def task(tmp_path: Path) -> MakeTask:
    """Make a task; the first word of its variant is what the fake worker does."""
    return partial(task_of, tmp_path)


def task_of(folder: Path, variant: str, /, **changes: Any) -> Task:
    """Return a task whose results are in a folder."""
    name = variant.replace(" ", "-")
    fields: dict[str, Any] = {"action": "train", "key": name, "experiment": "pe", "probe": name}
    fields |= {"variant": variant, "spec": {"seed": 1}, "device": "cpu", "precision": "fp32"}
    return Task(**{**fields, "results": folder, **changes})
