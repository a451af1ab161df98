"""Runs in jobs that get Slurm's signals, of processes that stand for jobs; `pytest -m slurm`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ablate.processes import descendants
from ablate.runner.backends.task_queue import JobMessage, TaskQueue
from ablate.store import Store
from tests.runner.conftest import SMALL, numbers_of

pytest.importorskip("submitit", reason="needs submitit: pip install '.[slurm]'")

pytestmark = pytest.mark.slurm

ROOT = Path(__file__).parents[2]
RUN = ("run", "study.yaml", "--device", "cpu")
ONE = ("--no-probe", "--only", "baseline")
SLURM = (
    *"--backend slurm --slurm array_parallelism=2 --jobs 1".split(),
    *("--slurm", "cluster=local"),
)

EXPERIMENT = f"""
corpus: {{name: synthetic, size: 200}}
tokenizer: word
model: {json.dumps(SMALL["model"])}
training: {{steps: 600, batch_tokens: 200, evaluate_every: 50,
  schedule: {{name: constant, lr: 0.01}}}}
decoding: greedy
seeds: [1]
variants: {{none: {{model.position: none}}}}
"""
"""Long enough to be interrupted twice."""


@contextmanager
def _ablate(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Yield a command at work; what it prints is in ``output``, which jobs may hold open longer."""
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "ablate.cli", *arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "ABLATE_CACHE": str(folder / "cache")},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
            process.wait(timeout=600)
        finally:
            process.terminate()
            process.wait()


def _output(folder: Path, *arguments: str) -> str:
    """Return what a command prints, which must succeed."""
    with _ablate(folder, *arguments) as process:
        pass
    text = (folder / "output").read_text(encoding="utf-8")
    assert process.returncode == 0, text
    return text


def _messages(results: Path) -> list[JobMessage]:
    files = (results / "slurm").glob("*/messages/*.jsonl")
    lines = [line for file in files for line in file.read_bytes().splitlines() if line]
    return [JobMessage.from_line(line) for line in lines]


def _step(results: Path) -> int:
    """Return how far the run is since it began or went on."""
    step = 0
    for message in _messages(results):
        if message.kind == "started":
            step = 0
        elif message.heartbeat is not None and message.heartbeat.progress is not None:
            step = message.heartbeat.progress.step
    return step


def _wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert process.poll() is None, "it has ended before its time"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Return the table and the numbers of the runs without Slurm."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "study.yaml").write_text(EXPERIMENT)
    text = _output(folder, *RUN, *ONE)
    return text[text.index("━") :], numbers_of(folder / "results")


def _signal(jobs: list[str]) -> None:
    """Send what Slurm sends before a time limit, to every process of some jobs."""
    for job in jobs:
        for process in descendants(int(job)):
            os.kill(process, signal.SIGUSR2)


def test_two_signals_of_slurm_change_no_bit(
    alone: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    """As before a time limit: the job saves what it has, and is put into the queue again."""
    (tmp_path / "study.yaml").write_text(EXPERIMENT)
    results = tmp_path / "results"
    with _ablate(tmp_path, *RUN, *ONE, *SLURM) as process:
        for after in (60, 150):
            _wait_for(lambda: _step(results) > after, process)  # noqa: B023 - used at once
            (queue,) = [TaskQueue(file.parent) for file in results.glob("slurm/*/jobs.json")]
            _signal(queue.jobs()[0])
            _wait_for(lambda: _step(results) == 0, process)
    table = (tmp_path / "output").read_text(encoding="utf-8")
    assert process.returncode == 0, table
    logs = "".join(file.read_text() for file in results.glob("slurm/logs/*.out"))
    assert logs.count("Requeued job") == 2
    assert not list(results.glob("slurm/*/jobs.json"))
    assert numbers_of(results) == alone[1]
    assert table[table.index("━") :] == alone[0]


def test_a_stopped_worker_of_a_job_is_repeated_to_the_same_numbers(
    alone: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "study.yaml").write_text(EXPERIMENT)
    results = tmp_path / "results"
    command = (*RUN, *ONE, *SLURM, "--stall-after", "10")
    with _ablate(tmp_path, *command) as process:
        _wait_for(lambda: _step(results) > 60, process)
        (queue,) = [TaskQueue(file.parent) for file in results.glob("slurm/*/jobs.json")]
        (job,) = queue.jobs()[0]
        os.kill(descendants(int(job))[-1], signal.SIGSTOP)  # the fork of the worker
    printed = (tmp_path / "output").read_text(encoding="utf-8")
    assert process.returncode == 0, printed
    assert "no news for 0:10" in printed
    assert "its process was killed; once more, in another process" in printed
    assert numbers_of(results) == alone[1]
    assert printed[printed.index("━") :] == alone[0]


def test_a_call_that_leaves_is_followed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(EXPERIMENT)
    slurm_command = (*RUN, "--set", "training.steps=300", *SLURM)
    assert "6 tasks submitted: 2 jobs" in _output(tmp_path, *slurm_command, "--detach")
    assert "all tasks are running: 2 jobs" in _output(tmp_path, *slurm_command, "--detach")
    _output(tmp_path, "status", "--json")
    sessions = json.loads((tmp_path / "output").read_text(encoding="utf-8"))
    assert {Path(session["experiment"]).name for session in sessions} == {"study"}
    table = _output(tmp_path, *slurm_command)
    assert "of an earlier call: 2 jobs" in table
    assert "none seed 1: done" in table
    assert "submitted" not in table
    store = Store(tmp_path / "results")
    records = [store.load(folder.name) or {} for folder in (store.results / "runs").iterdir()]
    assert [record["status"] for record in records] == ["done", "done"]
    assert all("speed" in record for record in records)
    again = _output(tmp_path, *slurm_command)
    assert "seed 1: done" not in again
    assert again[again.index("━") :] == table[table.index("━") :]
