"""What another process can read about a call of ``ablate run``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ablate.cli.status import print_sessions
from ablate.errors import StoreError
from ablate.runner import sessions as module
from ablate.runner.devices import Device
from ablate.runner.display import Display
from ablate.runner.sessions import Session, session_file, sessions, update
from ablate.runner.task import Heartbeat, Silence
from tests.runner.conftest import Clock, MakeTask, training_at

CPU = Device("cpu")


@pytest.fixture
def quiet() -> Display:
    return Display(Console(quiet=True))


def _session() -> Session:
    return Session("here", 1, "pe", "then", "then")


def test_the_session_tells_what_is_at_work(tmp_path: Path, task: MakeTask, quiet: Display) -> None:
    good, bad = task("none"), task("learned", action="probe")
    quiet.expect([good, bad], "training 2 runs", 2)
    quiet.started(good, CPU)
    quiet.started(bad, CPU)
    quiet.ended(bad, "failed: no luck", is_good=False)
    with session_file(tmp_path, "pe", quiet):
        while not (read := sessions(tmp_path)):
            time.sleep(0.001)
        (session,) = read
        assert session.is_alive
        assert (session.experiment, session.stage) == ("pe", "training 2 runs")
        assert (session.n_tasks, session.n_ended) == (2, 1)
        (running,) = session.running
        assert (running.task, running.run, running.device, running.phase, running.step) == (
            "pe:none:1",
            good.key,
            "cpu",
            "starting",
            None,
        )
        assert session.failures == ["pe:learned:1 (probe): failed: no luck"]
    assert sessions(tmp_path) == []
    assert not list((tmp_path / "sessions").iterdir())


def test_the_last_failures_are_kept(task: MakeTask, quiet: Display) -> None:
    session = _session()
    for number in range(25):
        failing = task(f"row {number}")
        quiet.started(failing, CPU)
        quiet.ended(failing, "failed: no luck", is_good=False)
    update(session, quiet, 1.0)
    assert session.failures == [f"pe:row {number}:1: failed: no luck" for number in range(5, 25)]


def test_the_file_is_written_again_and_again(
    tmp_path: Path, task: MakeTask, quiet: Display, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_EVERY_S", 0.001)
    with session_file(tmp_path, "pe", quiet):
        for name in ("none", "learned"):
            quiet.started(task(name), CPU)
            while not any(name in each.task for s in sessions(tmp_path) for each in s.running):
                time.sleep(0.001)


def test_a_task_is_timed_and_keeps_its_last_step(task: MakeTask) -> None:
    clock, job, session = Clock(), task("none"), _session()
    display = Display(Console(quiet=True), clock)
    display.started(job, CPU)
    for clock.now in (1.0, 15.0):
        update(session, display, clock.now)
        assert (session.seconds, session.running[0].seconds) == (clock.now, clock.now)
    for heartbeat, left in ((training_at(40), 30.0), (Heartbeat("none", "measuring dev"), None)):
        display.heartbeat(job, heartbeat)
        update(session, display, clock.now)
        (running,) = session.running
        assert (running.step, running.n_steps, running.seconds_left) == (40, 100, left)


def test_status_names_a_silent_run_until_there_is_news(
    tmp_path: Path, task: MakeTask, capsys: pytest.CaptureFixture[str]
) -> None:
    clock, job, session = Clock(), task("none"), _session()
    display = Display(Console(quiet=True), clock)

    def printed() -> str:
        update(session, display, clock.now)
        print_sessions([session], tmp_path)
        return capsys.readouterr().out.splitlines()[1].rpartition(": ")[2]

    display.started(job, CPU)
    display.heartbeat(job, training_at(4))
    clock.now = 120.0
    display.stalled(job, Silence(120.0, 120.0))
    assert printed().endswith("training, no news for 2:00")
    clock.now = 232.0
    assert printed().endswith("no news for 3:52")
    display.heartbeat(job, training_at(5))
    assert printed().endswith("step 5 of 100, 0:30 left")


def test_a_killed_call_is_told_once(tmp_path: Path, quiet: Display) -> None:
    with session_file(tmp_path, "pe", quiet):
        while not (files := list((tmp_path / "sessions").glob("*.json"))):
            time.sleep(0.001)
        (file,) = files
        content = file.read_text()
    file.write_text(content)  # as a call leaves it that could not remove it
    (session,) = sessions(tmp_path)
    assert not session.is_alive
    assert sessions(tmp_path) == []


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"running": 1}', '{"running": [{"a": 1}]}'])
def test_a_garbled_session_is_left_out(content: str, tmp_path: Path) -> None:
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "here-1.json").write_text(content)
    assert sessions(tmp_path) == []


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path, quiet: Display) -> None:
    (tmp_path / "sessions").write_text("a file where the folder should be")
    with (
        pytest.raises(StoreError, match=r"sessions.*cannot be written"),
        session_file(tmp_path, "pe", quiet),
    ):
        pass


def test_a_call_that_ends_while_it_is_read_was_not_killed(
    tmp_path: Path, quiet: Display, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = session_file(tmp_path, "pe", quiet)
    call.__enter__()
    while not list((tmp_path / "sessions").glob("*.json")):
        time.sleep(0.001)
    actual = module.Session

    def read_as_it_ends(**fields: Any) -> module.Session:
        call.__exit__(None, None, None)
        return actual(**fields)

    monkeypatch.setattr(module, "Session", read_as_it_ends)
    assert sessions(tmp_path) == []
    assert not list((tmp_path / "sessions").iterdir())
