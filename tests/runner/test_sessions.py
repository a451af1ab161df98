"""What another process can read about a call of ``ablate run``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

from ablate.cli.status import print_sessions
from ablate.errors import StoreError
from ablate.runner import sessions as module
from ablate.runner.devices import Device
from ablate.runner.sessions import SessionFile, session_file, sessions
from ablate.runner.task import ProgressListener, Silence
from tests.runner.conftest import MakeTask, training_at

CPU = Device("cpu")


def calls() -> Mock:
    """Return a listener that keeps what it is called with."""
    return Mock(spec=ProgressListener)


def test_the_session_tells_what_is_at_work(tmp_path: Path, task: MakeTask) -> None:
    good, bad = task("none"), task("learned")
    with session_file(tmp_path, "pe", calls()) as listener:
        listener.expect([good, bad], "training 2 runs", 2)
        listener.started(good, CPU)
        listener.started(bad, CPU)
        listener.ended(bad, "failed: no luck", is_good=False)
        (session,) = sessions(tmp_path)
        assert session.is_alive
        assert (session.experiment, session.stage) == ("pe", "training 2 runs")
        assert (session.n_tasks, session.n_ended) == (2, 1)
        (running,) = session.running
        assert (running.task, running.run, running.device, running.phase, running.step) == (
            f"{good.experiment}:none:{good.seed}",
            good.key,
            "cpu",
            "starting",
            None,
        )
        assert session.failures == [f"{bad.experiment}:learned:{bad.seed}: failed: no luck"]
    assert sessions(tmp_path) == []
    assert not list((tmp_path / "sessions").iterdir())


def test_all_is_passed_on(tmp_path: Path, task: MakeTask) -> None:
    other, job, heartbeat = calls(), task("none"), training_at(1)
    with session_file(tmp_path, "pe", other) as listener:
        listener.expect([job], "training", 1)
        listener.started(job, CPU)
        listener.heartbeat(job, heartbeat)
        listener.stalled(job, Silence(120.0, 120.0))
        listener.ended(job, "done", is_good=True)
        listener.note("a note")
    assert other.method_calls == [
        call.expect([job], "training", 1),
        call.started(job, CPU),
        call.heartbeat(job, heartbeat),
        call.stalled(job, Silence(120.0, 120.0)),
        call.ended(job, "done", is_good=True),
        call.note("a note"),
    ]


def test_heartbeats_are_written_every_two_seconds(tmp_path: Path, task: MakeTask) -> None:
    now, job, file = [0.0], task("none"), tmp_path / "session.json"
    listener = SessionFile(calls(), file, "pe", timer=lambda: now[0])
    listener.started(job, CPU)
    for second, step_written in ((1.0, None), (2.0, 20), (3.5, 20), (4.0, 40)):
        now[0] = second
        listener.heartbeat(job, training_at(int(10 * second)))
        assert json.loads(file.read_text())["running"][0]["step"] == step_written


def test_status_names_a_silent_run_until_there_is_news(
    tmp_path: Path, task: MakeTask, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds, job = [0.0], task("none")

    def printed() -> str:
        print_sessions(sessions(tmp_path), tmp_path)
        return capsys.readouterr().out.splitlines()[1].rpartition(": ")[2]

    with session_file(tmp_path, "pe", calls(), timer=lambda: seconds[0]) as listener:
        listener.started(job, CPU)
        listener.heartbeat(job, training_at(4))
        seconds[0] = 120.0
        listener.stalled(job, Silence(120.0, 120.0))
        assert printed().endswith("training, no news for 2:00")
        seconds[0] = 232.0
        assert isinstance(listener, SessionFile)
        listener.refresh()
        assert printed().endswith("no news for 3:52")
        listener.heartbeat(job, training_at(5))
        assert printed().endswith("step 5 of 100, 0:30 left")


def test_a_task_without_heartbeats_is_still_timed(tmp_path: Path, task: MakeTask) -> None:
    present, job, file = [0.0], task("none"), tmp_path / "session.json"
    listener = SessionFile(calls(), file, "pe", timer=lambda: present[0])
    listener.started(job, CPU)
    for second, written in ((14.0, 0.0), (15.0, 15.0), (29.0, 15.0), (31.0, 31.0)):
        present[0] = second
        listener.refresh()
        assert json.loads(file.read_text())["running"][0]["seconds"] == written


def test_a_killed_call_is_told_once(tmp_path: Path) -> None:
    with session_file(tmp_path, "pe", calls()) as listener:
        listener.expect([], "training", 1)
        (file,) = (tmp_path / "sessions").glob("*.json")
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


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "sessions").write_text("a file where the folder should be")
    with (
        pytest.raises(StoreError, match=r"sessions.*cannot be written"),
        session_file(tmp_path, "pe", calls()),
    ):
        pass


def test_a_call_that_ends_while_it_is_read_was_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = session_file(tmp_path, "pe", calls())
    call.__enter__().expect([], "training", 1)
    actual = module.Session

    def read_as_it_ends(**fields: Any) -> module.Session:
        call.__exit__(None, None, None)
        return actual(**fields)

    monkeypatch.setattr(module, "Session", read_as_it_ends)
    assert sessions(tmp_path) == []
    assert not list((tmp_path / "sessions").iterdir())
