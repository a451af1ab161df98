"""Real worker processes: one group after another, each in a fork."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate.registry import Plugin
from ablate.runner.backends.local import WORKER, Local, LocalProcess, python_path
from ablate.runner.devices import Device, n_cores
from ablate.runner.schedule import schedule
from ablate.runner.task import WAITING, Heartbeat, Task
from ablate.store import Store
from tests.runner.conftest import MEASURED, SMALL, Diary, MakeTask, small_spec

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(sys.platform != "linux", reason="forks only there, looks in /proc"),
]
ENDLESS = {"training": {**SMALL["training"], "steps": 10**6}}


def _task(make: MakeTask, key: str, **changes: Any) -> Task:
    return make(key, spec=small_spec(**changes), probe="measured")


def _run(tasks: list[Task], diary: Diary, store: Store) -> None:
    store.save_probe("measured", MEASURED)
    schedule(tasks, Local([Device("cpu")]), store, diary)


def _children(process: int) -> list[int]:
    """Return the workers, or forks of a worker, that a process has started."""
    actual = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    return [int(child) for child in actual if b"ablate.runner" in _command(int(child))]


def _command(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def _at_work(act: Callable[[int, int], None]) -> Callable[[Heartbeat], None]:
    """Return what calls ``act`` once, with a worker and its fork, when that has begun to train."""
    done: list[bool] = []

    def on_sign(heartbeat: Heartbeat) -> None:
        if heartbeat.progress is not None and not done:
            done.append(True)
            (worker,) = _children(os.getpid())
            (fork,) = _children(worker)
            act(worker, fork)

    return on_sign


def _is_gone(process: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if not _command(process):  # it has ended, and its parent has not waited for it yet
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


def _outcomes(store: Store, *keys: str) -> list[tuple[str, str | None]]:
    records = [store.load(key) for key in keys]
    return [(record["status"], record["error"]) for record in records if record is not None]


def test_a_killed_fork_is_one_failed_run_and_its_worker_makes_the_next(
    task: MakeTask, diary: Diary, store: Store
) -> None:
    workers: list[int] = []
    n_threads: list[int] = []

    def kill(worker: int, fork: int) -> None:
        workers.append(worker)
        n_threads.append(len(list(Path(f"/proc/{worker}/task").iterdir())))
        os.kill(fork, signal.SIGUSR2)
        diary.on_sign = lambda _: workers.extend(_children(os.getpid()))

    diary.on_sign = _at_work(kill)
    _run([_task(task, "endless", **ENDLESS), _task(task, "short")], diary, store)
    killed = ("failed", f"killed by signal {signal.SIGUSR2}")
    assert _outcomes(store, "endless", "short") == [killed, ("done", None)]
    assert len(set(workers)) == 1
    assert n_threads == [1], "what other threads hold, a fork can never have"
    assert _is_gone(workers[0])


def test_a_fork_does_not_outlive_its_worker(task: MakeTask, diary: Diary, store: Store) -> None:
    forks: list[int] = []

    def kill(worker: int, fork: int) -> None:
        forks.append(fork)
        os.kill(worker, signal.SIGUSR2)

    diary.on_sign = _at_work(kill)
    _run([_task(task, "endless", **ENDLESS)], diary, store)
    assert _outcomes(store, "endless") == [("failed", f"killed by signal {signal.SIGUSR2}")]
    assert _is_gone(forks[0])


PARENT = """
import subprocess, sys
command = [sys.executable, "-P", "-m", "ablate.runner"]
worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
print(worker.pid, flush=True)
sys.stdin.read()
"""


def test_a_worker_that_still_imports_prints_where_it_waits(tmp_path: Path, task: MakeTask) -> None:
    (tmp_path / "torch.py").write_text("import time; time.sleep(60)", encoding="utf-8")
    job, environment = task("none"), {"PYTHONPATH": f"{tmp_path}{os.pathsep}{python_path()}"}
    job.log.parent.mkdir(parents=True)
    command = ["env", *(f"{name}={value}" for name, value in environment.items()), *WORKER]
    process = LocalProcess(Device("cpu"), job.log, command)
    try:
        while "torch.py" not in job.log.read_text(encoding="utf-8"):
            process.print_stacks()
            time.sleep(0.05)
    finally:
        process.kill()
        process.wait(10)
        process.close()
    assert '/torch.py", line 1 in <module>' in job.log.read_text(encoding="utf-8")


def test_a_worker_that_still_imports_does_not_outlive_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": python_path()},
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    time.sleep(0.1)
    parent.kill()
    parent.communicate()
    assert _is_gone(worker, within_s=2.0)


def test_a_stopped_worker_lets_its_fork_save_what_it_has(
    task: MakeTask, diary: Diary, store: Store
) -> None:
    forks: list[int] = []

    def interrupt(_: int, fork: int) -> None:
        forks.append(fork)
        os.kill(os.getpid(), signal.SIGINT)

    diary.on_sign = _at_work(interrupt)
    with pytest.raises(KeyboardInterrupt):
        _run([_task(task, "endless", **ENDLESS)], diary, store)
    assert _is_gone(forks[0])
    assert (store.path("endless") / "checkpoint.pt").exists()
    assert store.load("endless") is None


@pytest.mark.skipif(n_cores() < 2, reason="a second core is needed to help")
def test_a_run_alone_has_all_cores_and_takes_its_helpers_with_it(
    task: MakeTask, diary: Diary, store: Store
) -> None:
    training = {**SMALL["training"], "steps": 10**6, "batch_tokens": 7000}
    large = {"training": training, "corpus": {"name": "synthetic", "size": 2000}}
    helpers: list[int] = []

    def kill(_: int, fork: int) -> None:
        deadline = time.monotonic() + 10
        while not _children(fork) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)  # until all of them are there
        helpers.extend(_children(fork))
        os.kill(fork, signal.SIGUSR2)

    diary.on_sign = _at_work(kill)
    store.save_probe("measured", MEASURED)
    alone = replace(_task(task, "endless", **large), engine="data_parallel")
    schedule([alone], Local([Device("cpu")] * 4), store, diary)
    assert len(helpers) == (3 if n_cores() >= 4 else 1)
    assert all(map(_is_gone, helpers))
    assert _outcomes(store, "endless") == [("failed", f"killed by signal {signal.SIGUSR2}")]


def test_each_group_has_a_log_of_its_own(task: MakeTask, diary: Diary, store: Store) -> None:
    lost = replace(_task(task, "lost"), plugins=(Plugin("lost.py", sha256="0", module="lost"),))
    _run([lost, _task(task, "short")], diary, store)
    ((status, reason), short) = _outcomes(store, "lost", "short")
    logs = [(store.path(key) / "log.txt").read_text(encoding="utf-8") for key in ("lost", "short")]
    last = logs[0].splitlines()[-1]
    assert (status, reason) == ("failed", f"the worker ended with exit status 1: {last}")
    assert "lost.py" in last
    assert short == ("done", None)
    lines = [line.partition(" seed 1: ")[2] for line in logs[1].splitlines()]
    assert "short begins in process" in lines[0]
    of_cold_cache = "learning the vocabulary"  # by the first test that needs it
    phases = [line for line in lines[1:] if line != of_cold_cache]
    assert phases[:3] == [WAITING, "reading the corpus", "training"]
    assert any(line.startswith("training  step 12/12  loss ") for line in lines), lines
    assert lines[-1] == "ended"


def test_what_another_call_makes_comes_last_and_is_made_once(
    task: MakeTask, diary: Diary, store: Store
) -> None:
    made: dict[str, Any] = {"hash": "held", "status": "done", "error": None, "test": {}}
    endings: list[dict[str, str]] = []
    with ExitStack() as other_call:
        other_call.enter_context(store.lock("held"))

        def finish(_: Heartbeat) -> None:
            if diary.begun == ["held", "free", "held"] and not endings:
                endings.append(dict(diary.endings))
                store.save(made)
                other_call.close()

        diary.on_sign = finish
        _run([_task(task, "held"), _task(task, "free")], diary, store)
    assert endings[0]["held"] == "another call is at work on it: after the others"
    assert endings[0]["free"].startswith("done, BLEU")
    assert (store.load("held") or {}) | made == store.load("held")
    assert diary.endings["held"].startswith("done")
