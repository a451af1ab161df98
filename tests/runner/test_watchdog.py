"""Workers that stop working without having ended: a fake clock, then stopped processes."""

from __future__ import annotations

import errno
import io
import os
import queue
import re
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from ablate.processes import descendants
from ablate.runner import pool as pool_module
from ablate.runner import worker as worker_module
from ablate.runner.backends.local import Local
from ablate.runner.devices import Device
from ablate.runner.failures import TaskOutcome
from ablate.runner.pool import Pool
from ablate.runner.schedule import Limits, schedule
from ablate.runner.task import (
    Heartbeat,
    Message,
    ProcessExited,
    Silence,
    Task,
    TaskFinished,
    one_per_process,
)
from ablate.runner.watchdog import END_S, FACTOR, FEWEST_S, FIRST_S, Overdue, Watchdog
from ablate.runner.worker import Reporter
from ablate.store import Store
from tests.runner.conftest import (
    MEASURED,
    SMALL,
    Clock,
    Diary,
    FakeProcess,
    MakeTask,
    assert_same,
    small_spec,
    training_at,
)

CPU = Device("cpu")


class Watch:
    """A watchdog of some tasks of the worker a, whose clock is moved in steps of a second."""

    def __init__(self, *tasks: str, stall_after: float | None = None) -> None:
        self.clock = Clock()
        self.dog: Watchdog[str] = Watchdog(stall_after, self.clock)
        self.dog.watch("a", tasks or ["run"])

    def hear(self, *phases: str, worker: str = "a", task: str = "run") -> None:
        for phase in phases:
            self.dog.heard(worker, task, phase)

    def wait(self, seconds: float) -> list[Overdue[str]]:
        """Wait; return what was overdue meanwhile."""
        due = []
        for _ in range(round(seconds)):
            self.clock.now += 1.0
            due += self.dog.overdue()
        return due


def test_a_silent_worker_is_reported_then_killed_then_abandoned() -> None:
    watch = Watch(stall_after=30.0)
    watch.hear("training")
    assert watch.wait(29) == []
    assert watch.wait(1) == [Overdue("a", "report", 30.0, 30.0, ("training",))]
    assert watch.wait(29) == []
    assert watch.wait(1) == [Overdue("a", "kill", 60.0, 0.0, ("training",))]
    watch.hear("training")  # sent before it was killed
    assert watch.wait(END_S - 1) == []
    assert [due.action for due in watch.wait(1)] == ["abandon"]
    assert watch.wait(10_000) == []


def test_a_heartbeat_begins_the_wait_anew() -> None:
    watch = Watch(stall_after=30.0)
    for _ in range(3):
        assert [due.action for due in watch.wait(59)] == ["report"]
        watch.hear("training")
    watch.dog.forget("a")
    assert watch.wait(100) == []


@pytest.mark.parametrize(
    ("phases", "limit"),
    [
        (["reading the corpus"], FIRST_S),
        (["reading the corpus", "training"], FIRST_S),  # in which the first step compiles
        (["training"] * 2, FEWEST_S),
        (["training", "training", "translating test"], FIRST_S),
    ],
)
def test_the_first_silence_of_a_phase_may_be_long_and_any_other_lasts_two_minutes(
    phases: list[str], limit: float
) -> None:
    watch = Watch()
    watch.hear(*phases)
    assert watch.wait(limit - 1) == []
    assert [(due.action, due.seconds) for due in watch.wait(1)] == [("report", limit)]


def test_the_limit_follows_the_longest_silence_of_the_phase_in_any_worker() -> None:
    watch = Watch()
    watch.dog.watch("b", ["run"])
    for worker in "ab":
        watch.hear("training", "training", worker=worker)
    watch.wait(100)
    watch.hear("training", "training")  # the second at once
    limit = FACTOR * 100
    due = watch.wait(limit + 1)
    assert [(each.worker, each.seconds) for each in due] == [("b", limit), ("a", limit)]
    watch.hear("translating test", "translating test")
    assert [due.seconds for due in watch.wait(FEWEST_S)] == [FEWEST_S], "another phase has its own"


def test_a_process_may_be_silent_as_long_as_any_of_its_tasks() -> None:
    watch = Watch("one", "two")
    watch.hear("training", "training", task="one")
    watch.hear("reading the corpus", task="two")
    assert watch.wait(FIRST_S - 1) == []
    watch.dog.ended("a", "two")
    assert [due.action for due in watch.wait(FEWEST_S)] == ["report"]
    watch.dog.ended("a", "one")
    assert watch.wait(FEWEST_S)[0].phases == ()


def test_times_in_which_the_scheduler_was_stopped_do_not_count() -> None:
    watch = Watch(stall_after=30.0)
    for _ in range(5):  # as under Ctrl-Z
        watch.clock.now += 3600.0
        assert watch.dog.overdue() == []
    assert [due.action for due in watch.wait(5)] == ["report"]


class Silent(FakeProcess):
    """A worker process that trains a little and then stops."""

    def __init__(self, *, dies: bool = True, places: int = 0) -> None:
        self._dies = dies  # by signal 9
        self._places = places  # how often it still waits for a place when it is asked
        self._sent: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.calls: list[str] = []

    @property
    def is_waiting(self) -> bool:  # type: ignore[override]
        self._places -= 1
        if self._places == 0:
            self._sent.put(TaskFinished("run"))
            self._sent.put(ProcessExited(0))
        return self._places >= 0

    def begin(self, group: tuple[Task, ...]) -> None:
        self._sent.put(Heartbeat("run", "training", largest_batch=3))

    def messages(self) -> Iterator[Message]:
        while True:
            yield self._sent.get()

    def print_stacks(self) -> None:
        self.calls.append("print_stacks")

    def abort(self) -> None:
        self.calls.append("abort")
        if self._dies:
            self.is_running = False
            self._sent.put(ProcessExited(-signal.SIGKILL))

    def kill(self) -> None:
        self.calls.append("kill")


class Stalls(Diary):
    """Records silences, too."""

    def __init__(self) -> None:
        super().__init__()
        self.silences: list[tuple[str, Silence]] = []
        self.notes: list[str] = []

    def stalled(self, task: Task, silence: Silence) -> None:
        self.silences.append((task.variant, silence))

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> Stalls:
    """Return a listener; the clock of pools moves on by five seconds at every look."""
    clock = Clock()

    def tick() -> float:
        clock.now += 5.0
        return clock.now

    monkeypatch.setattr(pool_module, "Watchdog", lambda stall_after: Watchdog(stall_after, tick))
    monkeypatch.setattr(pool_module, "_CHECK_S", 0.001)
    monkeypatch.setattr(pool_module, "_KILL_S", 0.0)
    return Stalls()


def _outcomes(process: FakeProcess, stalls: Stalls, task: Task) -> list[TaskOutcome]:
    pool = Pool([CPU], stalls, lambda *_: process, stall_after=60.0)
    return list(pool.run(one_per_process([task])))


@pytest.mark.parametrize("dies", [True, False])
def test_a_stalled_worker_leaves_an_outcome_whether_it_dies_or_not(
    dies: bool, stalls: Stalls, task: MakeTask
) -> None:
    process, run = Silent(dies=dies), task("run")
    (outcome,) = _outcomes(process, stalls, run)
    reason = "no news for 2:00 (training); its process was killed"
    assert (outcome.failure, outcome.reason, outcome.largest_batch) == ("stalled", reason, 3)
    assert stalls.silences == [("run", Silence(60.0, 60.0))]
    assert process.calls[:2] == ["print_stacks", "abort"]
    assert ("kill" in process.calls) != dies
    log = run.log.read_text(encoding="utf-8")
    assert "no news for 1:00 (training)\n" in log
    assert reason in log


def test_a_crash_after_another_group_has_stalled_is_a_crash(stalls: Stalls, task: MakeTask) -> None:
    class Crashing(Silent):
        def begin(self, group: tuple[Task, ...]) -> None:
            self._sent.put(ProcessExited(1))

    processes = iter([Silent(), Crashing()])
    pool = Pool([CPU], stalls, lambda *_: next(processes), stall_after=60.0)
    outcomes = list(pool.run(one_per_process([task("run"), task("next")])))
    assert [each.failure for each in outcomes] == ["stalled", "other"]


def test_a_worker_that_waits_for_a_place_is_not_killed(stalls: Stalls, task: MakeTask) -> None:
    process = Silent(places=3)
    (outcome,) = _outcomes(process, stalls, task("run"))
    assert outcome.failure is None
    assert process.calls == []
    assert stalls.silences == []


def test_a_worker_that_does_not_end_after_its_tasks_is_killed(
    stalls: Stalls, task: MakeTask
) -> None:
    class Endless(Silent):
        def begin(self, group: tuple[Task, ...]) -> None:
            self._sent.put(TaskFinished("run"))

    process = Endless()
    (outcome,) = _outcomes(process, stalls, task("run"))
    assert outcome.failure is None
    assert process.calls == ["print_stacks", "abort"]
    assert stalls.notes == ["a worker on cpu: no news for 1:00 (ending)"]


def test_a_worker_sends_its_last_heartbeat_again_while_it_goes_on(task: MakeTask) -> None:
    sent: list[Message] = []
    clock, job = Clock(), task("none")
    reporter = Reporter(job, sent.append, clock)
    training = training_at(10)
    reporter("training", training.progress, 9)
    for tenth in range(1, 36):
        clock.now = tenth / 10
        reporter.goes_on()
    again = Heartbeat("none", "training", training.progress)
    assert sent == [Heartbeat("none", "training", training.progress, 9), again, again, again]


def test_every_step_and_every_batch_that_is_evaluated_is_a_sign_of_life(
    task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the curve, which are sent too, may be minutes apart."""
    sent: list[Message] = []
    n_sent: list[int] = []

    def run_one(_: Task, __: Store, ___: Reporter, *calls: Callable[[], object]) -> None:
        for call in calls:
            n_sent.append(len(sent))
            call()
        n_sent.append(len(sent))

    monkeypatch.setattr(worker_module, "run_one", run_one)
    monkeypatch.setattr(worker_module, "_HEARTBEAT_S", 0.0)
    worker_module._execute_task(task("run"), sent.append, lambda: False, lambda: 1)
    should_stop, cores, goes_on = (later - n for n, later in pairwise(n_sent))
    assert (should_stop, cores, goes_on) == (1, 0, 1)


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="forks only there, looks in /proc")
@pytest.mark.parametrize("is_fork", [True, False], ids=["fork", "worker"])
def test_a_stopped_process_is_reported_and_changes_no_number(
    is_fork: bool, task: MakeTask, store: Store
) -> None:
    store.save_probe("measured", MEASURED)
    spec = small_spec(training={**SMALL["training"], "steps": 100})
    stalls, stopped = Stalls(), list[int]()

    def stop(heartbeat: Heartbeat) -> None:
        if heartbeat.progress is not None and not stopped:
            worker, fork = descendants(os.getpid())[:2]
            stopped.append(fork if is_fork else worker)
            os.kill(stopped[0], signal.SIGSTOP)

    stalls.on_sign = stop
    runs = [task(name, spec=spec, probe="measured") for name in ("run", "next")]
    limits = Limits(runs_per_process=1, probes=False)
    schedule(runs, Local([CPU], stall_after=10.0), store, stalls, limits)
    assert_same(store, "run", "next")
    assert stalls.begun == (["run", "next", "run"] if is_fork else ["run", "next"])
    assert ("run" in dict(stalls.silences)) == is_fork
    assert len(stalls.notes) == (0 if is_fork else 1)
    assert not set(stopped) & set(descendants(os.getpid()))


def test_phases_are_dated_and_progress_comes_every_half_minute(
    task: MakeTask, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = [0.0]
    log = Reporter(task("none"), lambda _: None, lambda: seconds[0])
    log("reading the corpus")
    log("training")
    for step in range(1, 101):
        seconds[0] += 1.0
        log("training", training_at(step).progress)
    log("translating test")
    log.line("ended")
    lines = capsys.readouterr().out.splitlines()
    date = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
    assert all(re.match(rf"{date}  pe none seed 1: ", line) for line in lines)
    texts = [line.partition(" seed 1: ")[2] for line in lines]
    assert re.fullmatch(r"none begins in process \d+ on \S+, cpu, fp32, engine eager", texts[0])
    figures = "loss 3.210  12,346 tok/s  0:30 left"
    assert texts[1:] == [
        "reading the corpus",
        "training",
        f"training  step  30/100  {figures}",
        f"training  step  60/100  {figures}",
        f"training  step  90/100  {figures}",
        f"training  step 100/100  {figures}",
        "translating test",
        "ended",
    ]


def test_a_full_disk_stops_no_run(task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    Reporter(task("none"), lambda _: None).line("ended")
