"""What is displayed while runs are going on."""

from __future__ import annotations

import io
import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from ablate.console import EventStream
from ablate.runner.devices import Device
from ablate.runner.display import Display, EventDisplay, LiveDisplay, PlainDisplay, display
from ablate.runner.task import WAITING, Heartbeat, Silence, Task
from ablate.training import Progress
from tests.runner.conftest import Clock, MakeTask, training_at

CPU = Device("cpu")
AT_WORK = {"n_steps": 100, "loss": 3.21, "dev_nll": None, "tokens_per_second": 12345.6}
AT_WORK |= {"seconds_left": 30.0}
SILENT = {"seconds": 130.0, "seconds_left": 120.0}


def _console(*, is_terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=is_terminal, width=120, color_system=None)


def _text(display: Display) -> str:
    assert isinstance(display.console.file, io.StringIO)
    return display.console.file.getvalue()


def _started(make: MakeTask, watch: Clock) -> tuple[PlainDisplay, Task]:
    """Return a display that was told of the start of a task."""
    display, job = PlainDisplay(_console(), watch), make("none")
    display.started(job, CPU)
    return display, job


@pytest.fixture
def watch() -> Clock:
    return Clock()


def test_a_terminal_gets_the_live_table_and_a_pipe_gets_lines() -> None:
    assert type(display(_console(is_terminal=True))) is LiveDisplay
    assert type(display(_console())) is PlainDisplay
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    assert type(display(dumb)) is PlainDisplay, "it cannot go back to a line"


def test_an_event_stream_gets_a_json_object_for_every_call(watch: Clock, task: MakeTask) -> None:
    out, job = io.StringIO(), task("none")
    shown = display(Console(file=EventStream(out)))  # type: ignore[arg-type]  # as sys.stderr is
    assert isinstance(shown, EventDisplay)
    shown = EventDisplay(EventStream(out), watch)
    shown.expect([job], "training 1 run, 1 at a time", 1)
    shown.started(job, CPU)
    for watch.now in (1.0, 1.2, 2.4):  # the second follows too closely
        shown.heartbeat(job, training_at(int(10 * watch.now)))
    shown.stalled(job, Silence(130.0, 120.0))
    for phase in ("reading", "reading", "measuring"):
        shown.heartbeat(job, Heartbeat("none", phase))
    shown.note("a remark\nof two lines")
    shown.ended(job, "done, BLEU test 34.50", is_good=True)
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    names = {"action": "train", "experiment": "pe", "row": "none", "seed": 1, "run": job.key}
    for event in events:
        assert event.pop("schema") == 1
        assert event.pop("time")[-6:] == "+00:00"
        if event["event"] not in ("tasks", "remark"):
            assert {key: event.pop(key) for key in names} == names
    expected: list[dict[str, Any]] = [
        {"event": "tasks", "text": "training 1 run, 1 at a time", "n_tasks": 1, "n_at_once": 1},
        {"event": "started", "device": "cpu"},
        *({"event": "progress", "phase": "training", "step": n, **AT_WORK} for n in (10, 24)),
        {"event": "stalled", "phase": "training", **SILENT, "log": str(job.log)},
        {"event": "progress", "phase": "reading"},
        {"event": "progress", "phase": "measuring"},
        {"event": "remark", "text": "a remark\nof two lines"},
        {"event": "ended", "text": "done, BLEU test 34.50", "is_good": True, "seconds": 2.4}
        | {"n_ended": 1, "n_tasks": 1},
    ]
    assert events == expected


def test_what_is_printed_to_an_event_stream_is_a_remark() -> None:
    out = io.StringIO()
    stream = EventStream(out)
    print("\x1b[1mbold\x1b[0m", "of two pieces", file=stream)
    print(file=stream)
    stream.write("no end")
    stream.emit("progress", loss=float("nan"), dev_nll=float("-inf"), step=3)
    events = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [event.get("text") for event in events] == ["bold of two pieces", None]
    assert [events[1][key] for key in ("loss", "dev_nll", "step")] == [None, None, 3]


def test_the_line_of_a_failure_names_the_log(watch: Clock, task: MakeTask) -> None:
    display, job = PlainDisplay(_console(), watch), task("none")
    display.started(job, CPU)
    display.ended(job, "failed: ValueError: no luck", is_good=False)
    expected = f"pe none seed 1: failed: ValueError: no luck (0:00); see {job.log}"
    assert _text(display).splitlines()[-1] == expected


def test_lines_tell_of_start_progress_and_end(watch: Clock, task: MakeTask) -> None:
    display = PlainDisplay(_console(), watch)
    job = task("none")
    display.expect([job], "training 1 run, 1 at a time", 1)
    display.started(job, CPU)
    display.heartbeat(job, Heartbeat("none", "reading the corpus"))
    watch.now = 60.0
    display.heartbeat(job, training_at(55))
    display.ended(job, "done, BLEU test 34.50", is_good=True)
    assert _text(display).splitlines() == [
        "training 1 run, 1 at a time",
        "pe none seed 1: started on cpu",
        "pe none seed 1: step  55/100  loss 3.210  12,346 tok/s  0:30 left",
        "pe none seed 1: done, BLEU test 34.50 (1:00)",
    ]


def test_a_line_has_the_loss_on_dev_once_there_is_one(watch: Clock, task: MakeTask) -> None:
    display, job = _started(task, watch)
    watch.now = 60.0
    progress = Progress(55, 100, 3.21, 1.2345, 12_345.6, 30.0)
    display.heartbeat(job, Heartbeat("none", "training", progress))
    figures = "step  55/100  loss 3.210  dev nll 1.234  12,346 tok/s  0:30 left"
    assert _text(display).splitlines()[-1] == f"pe none seed 1: {figures}"


def test_lines_are_few(watch: Clock, task: MakeTask) -> None:
    display, job = _started(task, watch)
    for step in range(1, 101):  # a minute: at most one line every 15 seconds
        watch.now = 0.6 * step
        display.heartbeat(job, training_at(step))
    assert _text(display).count("step") == 4
    for minute in range(1, 61):  # an hour in which it gets on by little: one every two minutes
        watch.now = 60.0 + 60.0 * minute
        display.heartbeat(job, training_at(100))
    assert _text(display).count("step") == 4 + 30


def test_a_silent_run_is_named_until_there_is_news(watch: Clock, task: MakeTask) -> None:
    display, job = _started(task, watch)
    display.heartbeat(job, training_at(4))
    watch.now = 120.0
    display.stalled(job, Silence(120.0, 120.0))
    watch.now = 150.0
    display.heartbeat(job, training_at(5))
    display.heartbeat(job, training_at(6))
    assert _text(display).splitlines()[1:3] == [
        "pe none seed 1: training, no news for 2:00; its process is killed after another 2:00; "
        f"see {job.log}",
        "pe none seed 1: goes on after 2:30 without news",
    ]


def test_the_live_table_has_a_line_per_running_run(watch: Clock, task: MakeTask) -> None:
    display = LiveDisplay(_console(is_terminal=True), watch)
    tasks = [task("one"), task("two"), task("three")]
    with display:
        display.console.print(display._render())
        assert not re.search("0 of 0|left", _text(display))
        display.expect(tasks, "training", 2)
        for job in tasks[:2]:
            display.started(job, CPU)
        display.heartbeat(tasks[0], training_at(50))
        display.console.print(display._render())
    text = _text(display)
    assert "one seed 1" in text
    assert "12,346 tok/s" in text
    assert "starting" in text
    assert "three" not in text
    assert "0 of 3" in text


@pytest.mark.parametrize(
    ("width", "figures"),
    [
        (120, "━━━━━━╌╌╌╌╌╌   0:30 left  step  50/100  loss 3.210  dev nll 1.234  12,346 tok/s"),
        (90, "━━╌╌╌   0:30 left  step  50/100  loss 3.210  12,346 tok/s"),
        (70, " 0:30 left  step  50/100  loss 3.210"),
    ],
)
def test_a_line_of_the_live_table_has_the_share_that_is_done_and_then_the_silence(
    width: int, figures: str, watch: Clock, task: MakeTask
) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    display, job = LiveDisplay(console, watch), task("none")
    display.started(job, Device("cuda", 1))
    progress = Progress(50, 100, 3.21, 1.2345, 12_345.6, 30.0)
    display.heartbeat(job, Heartbeat("none", "training", progress))
    console.print(display._render())
    watch.now = 130.0
    display.stalled(job, Silence(130.0, 120.0))
    console.print(display._render())
    lines = [line.rstrip() for line in _text(display).splitlines()]
    assert lines[0] == f"none seed 1 on cuda:1  {figures}"
    assert "none seed 1 on cuda:1  training, no news for 2:10" in lines


def test_the_time_left_counts_what_waits(watch: Clock, task: MakeTask) -> None:
    display = Display(_console(), watch)
    tasks = [task(str(number)) for number in range(4)]
    display.expect(tasks, "training", 2)
    for job in tasks[:2]:
        display.started(job, CPU)
    assert display._seconds_left() is None
    watch.now = 10.0
    for job in tasks[:2]:
        display.heartbeat(job, training_at(50, seconds_left=10.0))
    assert display._seconds_left() == pytest.approx((10 + 10 + 20 + 20) / 2)
    for job in tasks[:2]:
        display.ended(job, "done", is_good=True)
    assert display._seconds_left() == pytest.approx((10 + 10) / 2)


def test_the_time_left_is_not_that_of_runs_which_another_call_makes(
    watch: Clock, task: MakeTask
) -> None:
    display = Display(_console(), watch)
    left, ours, *others = tasks = [task(str(number)) for number in range(5)]
    display.expect(tasks, "training", 1)
    display.started(left, CPU)
    display.heartbeat(left, Heartbeat(left.key, WAITING))
    watch.now = 1.0
    display.ended(left, "another call is at work on it: after the others", is_good=True)
    display.started(ours, CPU)
    assert display._seconds_left() is None
    watch.now = 11.0
    display.heartbeat(ours, training_at(50, seconds_left=10.0))
    assert display._seconds_left() == pytest.approx(10 + 20 * len(others))


def test_a_phase_without_heartbeats_is_not_silent(watch: Clock, task: MakeTask) -> None:
    display, job = PlainDisplay(_console(), watch), task("none")
    display.expect([job], "training 1 run", 1)
    display.started(job, CPU)
    watch.now = 30.0
    display.heartbeat(job, training_at(50))
    assert display.remind() == 120.0 + 30.0
    for watch.now in (149.0, 150.0, 200.0, 269.0, 270.0):
        display.remind()
    watch.now = 280.0
    display.heartbeat(job, Heartbeat("none", "translating test"))
    for watch.now in (389.0, 390.0):
        display.remind()
    figures = "step  50/100  loss 3.210  12,346 tok/s  0:30 left"
    assert _text(display).splitlines()[2:] == [
        f"pe none seed 1: {figures}",
        f"pe none seed 1: {figures}  no news for 2:00",
        f"pe none seed 1: {figures}  no news for 4:00",
        "pe none seed 1: translating test for 1:50",
    ]


def test_waiting_and_short_tasks_are_not_silent(watch: Clock, task: MakeTask) -> None:
    display = PlainDisplay(_console(), watch)
    jobs = [replace(task(name), action="probe", round=5, n_rounds=9) for name in ("one", "two")]
    display.expect(jobs, "measuring", 1)
    watch.now = 125.0  # nothing begins, as where a cluster is full
    display.remind()
    watch.now = 200.0
    display.started(jobs[0], CPU)
    watch.now = 230.0
    display.ended(jobs[0], "done", is_good=True)
    display.started(jobs[1], CPU)
    watch.now = 246.0
    assert display.remind() == 246.0 + 104.0
    assert _text(display).splitlines()[1:] == [
        "0 of 2 tasks done, 0 at work (2:05)",
        "round 6 of 9, row 1 of 2 tasks done, 1 at work (4:06)",
    ]


def test_a_thread_sees_to_it_that_lines_come(task: MakeTask) -> None:
    display, job = PlainDisplay(_console(), silent_at_most_s=0.02), task("none")
    deadline = time.monotonic() + 10.0
    with display:
        display.started(job, CPU)
        while _text(display).count("starting for 0:00") < 3 and time.monotonic() < deadline:
            time.sleep(0.005)
    n_lines = len(_text(display).splitlines())
    time.sleep(0.05)
    assert 4 <= n_lines == len(_text(display).splitlines()), "it ends with the display"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("row", ["objective generalised_cross_entropy", "位置 " * 40, "x" * 90])
def test_the_time_left_and_the_seed_are_in_sight_beside_a_long_name(
    row: str, width: int, watch: Clock, task: MakeTask
) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    display, jobs = LiveDisplay(console, watch), [task(row), task("short")]
    display.expect(jobs, "training", 2)
    for job in jobs:
        display.started(job, CPU)
        display.heartbeat(job, training_at(50))
    console.print(display._render())
    _, *lines, total = _text(display).splitlines()
    for line, start in zip(lines, (row[:5], "short"), strict=True):
        assert line.startswith(start)
        assert " seed 1 " in line
        assert "0:30 left  step  50/100" in line
    first, second = (cell_len(line.partition("0:30")[0]) for line in lines)
    assert first == second, "one below the other"
    assert "0 of 2" in total
    assert max(map(cell_len, [*lines, total])) <= width
