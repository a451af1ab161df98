"""The files of a run that go to other machines and back, and what a run resumes from."""

from __future__ import annotations

import errno
import json
import queue
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest

from ablate.errors import StoreError
from ablate.runner import run_files
from ablate.runner.backends import relay
from ablate.runner.backends.relay import Relay
from ablate.runner.devices import Device
from ablate.runner.run_files import inputs_of, outputs_of, resume, store_outputs, tidy
from ablate.runner.task import Message, ProcessExited, Task, TaskFinished, TaskGroup
from ablate.store import Store
from ablate.writing import atomic_write
from tests.runner.conftest import FakeProcess, MakeTask


@pytest.fixture
def far(tmp_path: Path, task: MakeTask) -> Task:
    """Return a run as it is done on the other machine."""
    job = replace(task("row"), results=tmp_path / "far")
    (job.log.parent / "snapshots").mkdir(parents=True)
    job.log.write_text("log", encoding="utf-8")
    for name in ("lock", "checkpoint.pt", "snapshots/1.pt"):
        (job.log.parent / name).write_text(name, encoding="utf-8")
    return job


@pytest.fixture
def near(far: Task, tmp_path: Path) -> Task:
    """Return the same run as the driver knows it."""
    return replace(far, results=tmp_path / "near")


def _save(task: Task, status: str, error: str | None = None) -> None:
    Store(task.results).save(task.record(status, error))


def _files(task: Task) -> set[str]:
    folder = task.log.parent
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_arrives_without_what_only_an_unfinished_one_needs(
    far: Task, near: Task
) -> None:
    _save(far, "done")
    store_outputs(near, outputs_of(far))
    assert Store(near.results).load("row") == Store(far.results).load("row")
    assert _files(near) - {"lock"} == {"record.json", "log.txt"}


def test_an_interrupted_run_goes_there_and_back_with_its_checkpoint(far: Task, near: Task) -> None:
    store_outputs(near, outputs_of(far))
    assert {"checkpoint.pt", "snapshots/1.pt"} < _files(near)
    assert Store(near.results).load("row") is None
    Store(near.results).save_probe("row", {"rounds": {}})
    names = {"probes/row.json", "runs/row/checkpoint.pt", "runs/row/log.txt"}
    assert inputs_of((near,)).keys() == {*names, "runs/row/snapshots/1.pt"}
    assert inputs_of((replace(near, fresh=True),)).keys() == {"probes/row.json", "runs/row/log.txt"}


@pytest.mark.parametrize("fresh", [False, True])
def test_a_run_that_another_process_has_finished_stays_unless_it_is_made_afresh(
    fresh: bool, far: Task, near: Task
) -> None:
    _save(near, "diverged", "first")
    _save(far, "diverged", "second")
    store_outputs(replace(near, fresh=fresh), outputs_of(far))
    record = Store(near.results).load("row")
    assert record is not None
    assert record["error"] == ("second" if fresh else "first")


@pytest.mark.parametrize("fresh", [False, True])
def test_what_a_run_did_not_go_on_from_there_does_not_stay_here(
    fresh: bool, far: Task, near: Task
) -> None:
    for name in ("checkpoint.pt", "snapshots/1.pt"):  # it was stopped before it saved any
        (far.log.parent / name).unlink()
    folder = near.log.parent
    (folder / "snapshots").mkdir(parents=True)
    for name in ("checkpoint.pt", "snapshots/1.pt", "changed.json", "record.damaged.json"):
        (folder / name).write_text("of an earlier attempt", encoding="utf-8")
    store_outputs(replace(near, fresh=fresh), outputs_of(far))
    assert _files(near) == {"lock", "log.txt", "record.damaged.json"}


def test_a_run_that_cannot_be_written_whole_has_no_record(
    far: Task, near: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record comes last: here a file cannot be written that comes after it by its name."""
    _save(near, "failed", "before")
    _save(far, "done")
    bundle = outputs_of(far)
    assert max(bundle) == "runs/row/snapshots/1.pt"

    def full(path: Path) -> AbstractContextManager[IO[Any]]:
        if path.name == "1.pt":
            raise OSError(28, "No space left on device")
        return atomic_write(path)

    monkeypatch.setattr(run_files, "atomic_write", full)
    with pytest.raises(StoreError, match=r"runs/row/.*: cannot be written: No space left"):
        store_outputs(near, bundle)
    assert Store(near.results).load("row") is None


def test_a_probe_arrives_with_its_log(far: Task, near: Task) -> None:
    probe = replace(far, action="probe")
    Store(far.results).save_probe("row", {"rounds": {"speed": [1.0]}})
    probe.log.write_text("log", encoding="utf-8")
    store_outputs(replace(near, action="probe"), outputs_of(probe))
    assert Store(near.results).load_probe("row") == {"rounds": {"speed": [1.0]}}
    assert (near.results / "probes" / "row.log").exists()


HALVES = {"micro_batch_factor": 2}
EAGER = {"engine": "eager", "engine_note": "not cuda_graph: no capture"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run that was stopped."""
    for name in ("checkpoint.pt", "snapshots/1.pt", "error.txt", "record.json", "log.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_run_as_it_was_asked_for_goes_on(folder: Path, task: MakeTask) -> None:
    assert resume(task("row"), folder) == task("row")
    assert _names(folder) == ["checkpoint.pt", "log.txt", "snapshots"]


def test_a_run_that_is_to_be_fresh_begins_anew(folder: Path, task: MakeTask) -> None:
    fresh = task("row", fresh=True)
    assert resume(fresh, folder) == fresh
    assert _names(folder) == ["log.txt"]


class KilledError(Exception):
    """In place of a kill."""


def kill_after_one_file(remove: Callable[[], object]) -> None:
    """Kill what removes files when a checkpoint, or what it was made with, has gone."""
    unlink = Path.unlink

    def unlink_one(path: Path, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        if path.name in ("changed.json", "checkpoint.pt"):
            raise KilledError

    with pytest.MonkeyPatch.context() as killing:
        killing.setattr(Path, "unlink", unlink_one)
        with pytest.raises(KilledError):
            remove()


ANY_ORDER = pytest.mark.parametrize(
    "names", [["changed.json", "checkpoint.pt"], ["checkpoint.pt", "changed.json"]]
)
"""Of the files in a folder, as a file system may list them."""


@ANY_ORDER
def test_a_kill_while_a_run_begins_anew_leaves_no_checkpoint_of_unknown_making(
    names: list[str], folder: Path, task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "changed.json").write_text(json.dumps(HALVES), encoding="utf-8")
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([path / name for name in names]))
    kill_after_one_file(partial(resume, task("row", micro_batch_factor=4), folder))
    assert not (folder / "checkpoint.pt").exists()


@ANY_ORDER
def test_a_kill_while_an_earlier_attempt_is_replaced_leaves_none_either(
    names: list[str], far: Task, near: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    (far.log.parent / "checkpoint.pt").unlink()
    bundle, folder = outputs_of(far), near.log.parent
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).touch()
    monkeypatch.setattr(Path, "rglob", lambda path, _: iter([path / name for name in names]))
    kill_after_one_file(partial(store_outputs, near, bundle))
    assert not (folder / "checkpoint.pt").exists()


@pytest.mark.parametrize("changes", [HALVES, EAGER, HALVES | EAGER])
def test_a_run_that_is_changed_begins_anew_and_goes_on_as_it_was_begun(
    changes: dict[str, Any], folder: Path, task: MakeTask
) -> None:
    job = task("row", engine="cuda_graph")
    changed = job.with_fallbacks(changes)
    assert changed.fallbacks == changes
    assert resume(changed, folder) == changed
    assert _names(folder) == ["changed.json", "log.txt"]
    (folder / "checkpoint.pt").touch()
    for again in (changed, job):  # at once, and after it was stopped
        resumed = resume(again, folder)
        assert (resumed.fallbacks, resumed.engine) == (changes, changed.engine)
        assert _names(folder) == ["changed.json", "checkpoint.pt", "log.txt"]
    further = changed.with_fallbacks({"micro_batch_factor": 4})
    assert resume(further, folder) == further
    assert _names(folder) == ["changed.json", "log.txt"]


@pytest.mark.parametrize("asked", [HALVES, EAGER, HALVES | EAGER])
def test_a_run_that_is_stopped_in_smaller_micro_batches_goes_on_in_them(
    asked: dict[str, Any], folder: Path, task: MakeTask
) -> None:
    """As its row's probe advises, a later call asks for fewer of the changes that it needed."""
    job = task("row", engine="cuda_graph").with_fallbacks(asked)
    further = job.with_fallbacks({"micro_batch_factor": 4})
    resume(further, folder)
    (folder / "checkpoint.pt").touch()
    assert resume(job, folder).fallbacks == further.fallbacks
    assert _names(folder) == ["changed.json", "checkpoint.pt", "log.txt"]


def test_a_run_goes_on_with_its_engine_whatever_the_reason_for_it(
    folder: Path, task: MakeTask
) -> None:
    """A probe that is made again may fail with another message."""
    job = task("row", engine="cuda_graph")
    resume(job.with_fallbacks(EAGER), folder)
    (folder / "checkpoint.pt").touch()
    later = job.with_fallbacks(EAGER | {"engine_note": "not cuda_graph: it differs by 1.2%"})
    assert resume(later, folder).fallbacks == EAGER
    assert _names(folder) == ["changed.json", "checkpoint.pt", "log.txt"]
    assert resume(later.with_fallbacks(HALVES), folder).fallbacks == later.fallbacks | HALVES
    assert _names(folder) == ["changed.json", "log.txt"]


def test_without_a_checkpoint_it_is_tried_as_it_was_asked_for(folder: Path, task: MakeTask) -> None:
    resume(task("row").with_fallbacks(HALVES), folder)
    assert resume(task("row"), folder) == task("row")
    assert _names(folder) == ["log.txt"]


def test_nothing_of_it_is_left_behind(folder: Path, task: MakeTask) -> None:
    resume(task("row").with_fallbacks(HALVES), folder)
    (folder / "checkpoint.pt").touch()
    (folder / ".hidden.new").touch()
    (folder / ".ipynb_checkpoints").mkdir()  # whose is it?
    tidy(folder)
    (folder / ".ipynb_checkpoints").rmdir()
    assert _names(folder) == ["log.txt"]


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which a node makes temporary ones."""
    monkeypatch.setattr(relay, "cache_folder", tmp_path.joinpath)
    return tmp_path / "scratch"


def test_a_node_whose_disk_is_full_is_lost_and_keeps_no_folder(
    scratch: Path, task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_files, "atomic_write", full)
    actor = Relay(Device("cpu"), Path.cwd(), is_shared=False, serves_one_group=False)
    actor.begin((replace(task("row"), results=tmp_path / "results"),), {"probes/row.json": b"{}"})
    (relayed,) = actor.receive()
    assert relayed.is_last
    assert isinstance(relayed.message, ProcessExited)
    assert "row.json: cannot be written: No space left on device" in relayed.message.lost
    assert list(scratch.iterdir()) == []


class OnNode(FakeProcess):
    """A worker process that finishes its first run, and dies in the second."""

    def __init__(self, _: Device, log: Path) -> None:
        self.is_running = False
        self._sent: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def begin(self, group: TaskGroup) -> None:
        done, lost = group
        assert Store(done.results).load_probe("row") == {}, "what a group needs is there first"
        _save(done, "done")
        (lost.log.parent / "checkpoint.pt").touch()
        self._sent.put(TaskFinished(done.key))
        self._sent.put(ProcessExited(-9))

    def messages(self) -> Iterator[Message]:
        while True:
            yield (message := self._sent.get())
            if isinstance(message, ProcessExited):
                return


def test_a_node_sends_what_has_ended_and_what_another_can_continue(
    scratch: Path, task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "LocalProcess", OnNode)
    actor = Relay(Device("cpu"), Path.cwd(), is_shared=False, serves_one_group=False)
    group = [replace(task(name), results=tmp_path / "results") for name in ("done", "lost")]
    actor.begin(tuple(group), {"probes/row.json": b"{}"})
    relayed = actor.receive()
    while not relayed[-1].is_last:
        relayed += actor.receive()
    names = [{key: sorted(bundle) for key, bundle in each.bundles.items()} for each in relayed]
    assert names == [{"done": ["runs/done/record.json"]}, {"lost": ["runs/lost/checkpoint.pt"]}]
    assert list(scratch.iterdir()) == []


def test_a_worker_on_a_node_finds_files_by_the_paths_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray's own processes work where ``ray start`` was called on their node."""
    monkeypatch.chdir(tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    for cwd in (project, tmp_path / "not on this node"):
        Relay(Device("cpu"), cwd, is_shared=True, serves_one_group=False)
        assert Path.cwd() == project
