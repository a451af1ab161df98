"""The folder from which jobs take groups of tasks, and to which they write messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate.runner.backends.task_queue import JobMessage, TaskQueue
from ablate.runner.devices import Device, DeviceFacts
from ablate.runner.task import WAITING, Heartbeat, one_per_process
from ablate.training import Progress
from tests.runner.conftest import MakeTask

HEARTBEAT = Heartbeat("a", "training", Progress(1, 2, 0.5, None, 10.0, 3.0))
MESSAGES = [
    JobMessage("started", "000000", "a", "7_0", Device("cuda", 1, node="n1")),
    JobMessage("heartbeat", "000000", "a", "7_0", heartbeat=HEARTBEAT),
    JobMessage("ended", "000000", "a", "7_0", outcome={"failure": "memory", "reason": "full"}),
]


@pytest.fixture
def queue(tmp_path: Path) -> TaskQueue:
    queue = TaskQueue(tmp_path / "queue")
    queue.create()
    return queue


def _add(queue: TaskQueue, task: MakeTask, *names: str) -> None:
    for name in names:
        queue.add(one_per_process([task(name)]))


def _places(queue: TaskQueue) -> list[tuple[str, str, bool]]:
    return [(entry.tasks[0].key, entry.job, entry.is_over) for entry in queue.entries()]


def test_each_entry_is_taken_by_one_job_the_first_first(queue: TaskQueue, task: MakeTask) -> None:
    _add(queue, task, "a", "b", "c")
    entries = [queue.take(job) for job in ("7_0", "7_1", "7_0", "7_1")]
    assert [entry and entry.tasks for entry in entries] == [[task(n)] for n in "abc"] + [None]
    assert _places(queue) == [("a", "7_0", False), ("b", "7_1", False), ("c", "7_0", False)]


def test_groups_of_an_entry_stay_apart(queue: TaskQueue, task: MakeTask) -> None:
    groups = [(task("a"), task("b")), (task("c"),)]
    queue.add(groups)
    entry = queue.take("7")
    assert entry is not None
    assert entry.groups == groups


def test_what_is_given_back_waits_in_its_place(queue: TaskQueue, task: MakeTask) -> None:
    _add(queue, task, "a", "b", "c")
    entry = queue.take("7_0")
    assert entry is not None
    queue.mark_ended(entry)
    queue.take("7_0")
    queue.take("7_1")
    queue.requeue("7_0")
    assert _places(queue) == [("b", "", False), ("c", "7_1", False), ("a", "7_0", True)]


def test_what_has_begun_afresh_goes_on(queue: TaskQueue, task: MakeTask) -> None:
    made = task("a", fresh=True)
    queue.add(one_per_process([made]))
    phases = [None, WAITING, "reading the corpus", None]
    for phase, is_fresh in zip(phases, (True, True, True, False), strict=True):
        entry = queue.take("7")
        assert entry is not None
        assert [each.fresh for each in entry.tasks] == [is_fresh]
        if phase is not None:
            heartbeat = Heartbeat(made.key, phase)
            queue.post(JobMessage("heartbeat", entry.name, made.key, "7", heartbeat=heartbeat))
        queue.requeue("7")


def test_an_entry_whose_file_another_job_moves_is_left_to_it(
    queue: TaskQueue, task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    _add(queue, task, "a", "b")
    rename = Path.rename

    def late(path: Path, target: Path) -> Path:
        if path.name == "000000" and path.exists():
            rename(path, target.with_suffix(".other"))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", late)
    entry = queue.take("7")
    assert entry is not None
    assert entry.tasks == [task("b")]


def test_a_removed_queue_has_nothing_more(queue: TaskQueue) -> None:
    queue.remove()
    with pytest.raises(FileNotFoundError):
        queue.take("7")


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.kind)
def test_a_message_survives_the_way(queue: TaskQueue, message: JobMessage) -> None:
    queue.post(message)
    assert queue.read_messages() == [message]
    assert queue.read_messages() == []


def test_a_line_that_is_still_being_written_is_read_later(queue: TaskQueue) -> None:
    line, file = MESSAGES[1].to_line(), queue.folder / "messages" / "7_0.jsonl"
    file.write_text(line[:30])
    assert queue.read_messages() == []
    with file.open("a") as stream:
        stream.write(line[30:])
    assert queue.read_messages() == [MESSAGES[1]]


def test_a_line_that_a_kill_has_cut_short_spoils_no_other(queue: TaskQueue) -> None:
    (queue.folder / "messages" / "7_0.jsonl").write_text(MESSAGES[1].to_line()[:30])
    assert not queue.has_started("7_1")
    queue.start_messages("7_0")
    queue.post(MESSAGES[0])
    assert queue.read_messages() == [MESSAGES[0]]


def test_facts_and_jobs_are_kept(queue: TaskQueue) -> None:
    assert queue.facts() == (None, 0)
    assert queue.jobs() == ([], "")
    facts = DeviceFacts({"device": "cpu"}, has_bf16=True, memory_mib=float("inf"))
    queue.save_facts(facts, 2)
    queue.save_jobs(["7_0"], "slurm")
    assert queue.facts() == (facts, 2)
    assert queue.jobs() == (["7_0"], "slurm")
