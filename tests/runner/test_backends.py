"""Backends: how one is chosen, and what the pool does when a machine is lost."""

from __future__ import annotations

import queue
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ablate.errors import RunError, SpecError, StoreError
from ablate.runner.backends import registry
from ablate.runner.backends.contract import BackendRequest
from ablate.runner.backends.registry import BackendEntry, open_backend
from ablate.runner.devices import Device
from ablate.runner.pool import Pool
from ablate.runner.task import (
    Message,
    ProcessExited,
    Task,
    TaskFinished,
    TaskGroup,
    one_per_process,
)
from ablate.store import Store
from tests.runner.conftest import Diary, FakeProcess, MakeTask

CLOUD = BackendEntry(("zone",), "cloud_client")


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, BackendEntry]:
    """Return the backends, with one more, for which a package is missing."""
    known = {**registry.BACKENDS, "cloud": CLOUD}
    monkeypatch.setattr(registry, "BACKENDS", known)
    return known


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("locl", {}, "no backend is called 'locl'; did you mean 'local'"),
        ("local", {"zone": "a"}, "--zone is an option of --backend cloud, not of --backend local"),
        ("local", {"detach": "yes"}, "--detach is an option of --backend slurm, not of"),
        ("cloud", {"zoom": "a"}, "--zoom is an option of no backend, not of --backend cloud"),
    ],
)
def test_what_a_backend_does_not_have_is_refused(
    name: str, options: dict[str, str], expected: str, backends: Mapping[str, BackendEntry]
) -> None:
    with pytest.raises(SpecError, match=expected):
        open_backend(name, BackendRequest("cpu", options=options))


def test_a_missing_package_is_named_with_what_installs_it(
    backends: Mapping[str, BackendEntry], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(_: str) -> None:
        raise ModuleNotFoundError("No module named 'cloud_client'", name="cloud_client")

    monkeypatch.setattr(registry, "import_module", lacking)
    with pytest.raises(SpecError, match=r"pip install 'ablate-transformer\[cloud\]'"):
        open_backend("cloud", BackendRequest())


def test_the_names_of_backends_are_known_without_importing_one() -> None:
    code = "import sys, ablate.cli; print(*{'torch', 'ray', 'submitit'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert done.stdout.strip() == ""


class Node(FakeProcess):
    """A `WorkerProcess` on a machine that may be lost."""

    def __init__(self, device: Device, lost: str) -> None:
        self.lost = lost
        self._sent: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def begin(self, group: TaskGroup) -> None:
        self.is_running = not self.lost
        if not self.lost:
            self._sent.put(TaskFinished(group[0].key))
        self._sent.put(ProcessExited(0, self.lost))

    def messages(self) -> Iterator[Message]:
        while True:
            yield (message := self._sent.get())
            if isinstance(message, ProcessExited) and message.lost:
                return

    def terminate(self) -> None:
        self.kill()

    def kill(self) -> None:
        self.is_running = False
        self._sent.put(ProcessExited(-9, "killed"))


def _pool(diary: Diary, **lost: str) -> Pool:
    slots = [Device("cpu", node=name) for name in lost]
    return Pool(slots, diary, lambda device, _: Node(device, lost[device.node]))


def test_what_was_at_work_on_a_lost_machine_can_be_repeated_on_another(
    task: MakeTask, diary: Diary, tmp_path: Path
) -> None:
    with _pool(diary, a="node a is gone", b="") as pool:
        (first,) = pool.run(one_per_process([task("one")]))
        assert (first.failure, first.reason) == ("process_lost", "node a is gone")
        again = list(pool.run(one_per_process([task("one"), task("two")])))
    assert [each.failure for each in again] == [None, None]


def test_a_run_on_two_devices_has_the_only_process_on_them(task: MakeTask, diary: Diary) -> None:
    started: list[Node] = []

    def start(device: Device, _: TaskGroup) -> Node:
        started.append(Node(device, ""))
        return started[-1]

    with Pool([Device("cpu", node="a")] * 2, diary, start) as pool:
        assert len(list(pool.run(one_per_process([task("one"), task("two")])))) == 2
        both = task("both", spec={"seed": 1, "devices_per_run": 2})
        assert [each.failure for each in pool.run([(both,)])] == [None]
        assert [node.is_running for node in started] == [False, False, True]


def test_runs_at_work_on_one_device_at_a_time_share_it(task: MakeTask, diary: Diary) -> None:
    """One that is out of memory is then repeated alone, and not divided."""
    slots = [Device("cpu", node=node) for node in "aab"]
    with Pool(slots, diary, lambda device, _: Node(device, "")) as pool:
        outcomes = pool.run(one_per_process([task(name) for name in ("one", "two", "other")]))
        shared = {each.task.variant: each.shared_device for each in outcomes}
    assert shared == {"one": True, "two": True, "other": False}


@pytest.mark.parametrize(("action", "granted"), [("train", [3]), ("probe", [])])
def test_training_alone_gets_the_cores_of_idle_workers(
    action: str, granted: list[int], task: MakeTask, diary: Diary
) -> None:
    grants: list[int] = []

    class Granted(Node):
        def grant(self, n_cores: int) -> None:
            grants.append(n_cores)

    with Pool([Device("cpu")] * 3, diary, lambda device, _: Granted(device, "")) as pool:
        assert len(list(pool.run(one_per_process([task("one", action=action)])))) == 1
    assert grants == granted


def test_a_log_that_cannot_be_written_ends_the_call_and_what_is_at_work_is_asked_to_stop(
    task: MakeTask, diary: Diary, store: Store
) -> None:
    asked: list[str] = []

    class Asked(FakeProcess):
        def __init__(self, _: Device, group: TaskGroup) -> None:
            self._name = group[0].variant

        def terminate(self) -> None:
            asked.append(self._name)

    (store.results / "runs").mkdir()
    store.path("blocked").write_text("a file where the folder should be", encoding="utf-8")
    pool = Pool([Device("cpu")] * 2, diary, Asked)
    with pytest.raises(StoreError, match=r"blocked.*cannot be written"), pool:
        list(pool.run(one_per_process([task("good"), task("blocked")])))
    assert asked == ["good"]


class Failing(FakeProcess):
    """Writes its last words into the log of its group, and ends with status 1."""

    def __init__(self, last_words: str, mode: str = "a") -> None:
        self._last_words, self._mode = last_words, mode

    def begin(self, group: TaskGroup) -> None:
        with group[0].log.open(self._mode, encoding="utf-8") as log:
            log.write(self._last_words)

    def messages(self) -> Iterator[Message]:
        yield ProcessExited(1)


def test_what_ended_one_group_is_no_reason_for_the_end_of_the_next(
    task: MakeTask, diary: Diary
) -> None:
    """Else a run that fails by itself would count as lost, and be repeated without end."""

    class OutOfMemory(FakeProcess):
        is_running = False

        def messages(self) -> Iterator[Message]:
            yield TaskFinished("first", "memory", "no room")
            yield ProcessExited(1)

    processes = iter([OutOfMemory(), Failing("")])
    with Pool([Device("cpu")], diary, lambda *_: next(processes)) as pool:
        outcomes = list(pool.run(one_per_process([task("first"), task("next")])))
    assert [each.failure for each in outcomes] == ["memory", "other"]


@pytest.fixture
def logged(task: MakeTask) -> Task:
    """A task whose log another attempt has begun."""
    job = task("none")
    job.log.parent.mkdir(parents=True)
    job.log.write_text("of another attempt\n", encoding="utf-8")
    return job


@pytest.mark.parametrize(
    ("last_words", "mode", "quoted"),
    [
        ("", "a", "it printed nothing"),
        ("what is this\n", "a", "what is this"),
        ("what is this\n", "w", "what is this"),  # a machine with a folder of its own
    ],
)
def test_a_failure_quotes_the_lines_that_its_own_process_has_added_to_the_log(
    last_words: str, mode: str, quoted: str, logged: Task, diary: Diary
) -> None:
    with Pool([Device("cpu")], diary, lambda *_: Failing(last_words, mode)) as pool:
        (outcome,) = pool.run(one_per_process([logged]))
    assert outcome.reason == f"the worker ended with exit status 1: {quoted}"
    before = "of another attempt\n" if mode == "a" else ""
    assert logged.log.read_text(encoding="utf-8") == before + last_words


def test_a_process_that_dies_after_its_log_was_removed_is_a_failed_run(
    logged: Task, diary: Diary
) -> None:
    class Removing(Failing):
        def begin(self, group: TaskGroup) -> None:
            group[0].log.unlink()

    pool = Pool([Device("cpu")], diary, lambda *_: Removing(""))
    with pool:
        (outcome,) = pool.run(one_per_process([logged]))
    assert outcome.failure == "other"


def test_when_every_machine_is_lost_the_rest_waits_for_the_next_call(
    task: MakeTask, diary: Diary
) -> None:
    with (
        _pool(diary, a="gone") as pool,
        pytest.raises(RunError, match="every machine that was at work is lost"),
    ):
        list(pool.run(one_per_process([task("one"), task("two")])))
