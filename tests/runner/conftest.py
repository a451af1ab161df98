"""Small runs, and a worker that only pretends, for tests of the queue in milliseconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate.runner.devices import Device
from ablate.runner.schedule import FEWEST_ROUNDS
from ablate.runner.task import Heartbeat, Task
from ablate.store import Store

MakeTask = Callable[..., Task]

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
        journal.write(f"{each['action']} {each['variant']} {each['spec']['seed']}\n")

def say(**sign):
    print(json.dumps({"key": task["key"], "progress": None, **sign}), flush=True)

def save(status, error=None):
    folder = results / "runs" / task["key"]
    record = {"hash": task["key"], "status": status, "error": error, "test": {}}
    (folder / "record.json").write_text(json.dumps(record))

for task in tasks:
    kind = task["variant"].partition(" ")[0]
    if kind == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "crashes":
        sys.exit("the last words")
    if task["action"] == "probe":
        if kind == "unprobed" or (kind == "tires" and task["round"] == 1):
            sys.exit("no memory")
        speeds = ("train_target_tokens_per_second", "decode_sentences_per_second")
        probe = {"rounds": {name: [1.0] * (task["round"] + 1) for name in speeds}}
        probe |= {"train_peak_mib": 1.0, "occasion": task["occasion"]}
        (results / "probes" / f"{task['key']}.json").write_text(json.dumps(probe))
        sys.exit()
    print("not a sign of life", flush=True)
    say(phase="training")
    if kind == "meets":  # ends only when another one is at work at the same time
        (results / task["key"]).touch()
        deadline = time.monotonic() + 10
        while len(list(results.glob("meet*"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        save("done" if time.monotonic() < deadline else "failed")
    elif kind == "granted":  # ends when it hears how many cores it may keep busy
        save("done", sys.stdin.readline().strip())
    elif kind == "hangs":
        say(phase=f"hanging {os.getpid()}")
        if task["variant"] == "hangs stubbornly":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say(phase=f"ready {os.getpid()}")
        time.sleep(60)
    elif kind in ("unprobed", "tires"):
        save("done")
    elif kind == "lies":
        pass
    elif kind == "shy":  # can do it alone
        if len(tasks) > 1:
            os.kill(os.getpid(), signal.SIGKILL)
        save("done")
    elif kind == "large":  # likewise
        save("oom" if len(tasks) > 1 else "done")
    elif kind == "environment":
        save("done", json.dumps({name: os.environ.get(name) for name in task["spec"]["names"]}))
    else:
        save(kind, None if kind == "done" else "a reason")
    if len(tasks) > 1:
        say(phase="done", is_over=True)
"""


class Diary:
    """A display that remembers."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.signs: list[str] = []
        self.endings: dict[str, str] = {}
        self.on_sign: Callable[[Heartbeat], None] = lambda _: None

    def expect(self, tasks: object, what: str, n_at_once: int) -> None:
        return

    def started(self, task: Task, device: Device) -> None:
        self.begun.append(task.variant)

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


@pytest.fixture
def task(tmp_path: Path) -> MakeTask:
    """Make a task; the first word of its variant is what the fake worker does."""
    example = Task(
        action="train",
        key="",
        experiment="pe",
        variant="",
        spec={"seed": 1},
        device="cpu",
        precision="fp32",
        results=tmp_path,
        probe="",
    )

    def make(variant: str, **changes: Any) -> Task:
        name = variant.replace(" ", "-")
        return replace(example, **{"variant": variant, "key": name, "probe": name, **changes})

    return make
