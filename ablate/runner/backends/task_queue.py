"""A queue of groups of tasks in a shared folder, from which jobs on other machines take entries.

<folder>/waiting/<entry>        tasks as a worker process reads them; an empty line ends a group
<folder>/taken/<entry>.<job>    an entry that a job executes; a job takes it by renaming the file
<folder>/ended/<entry>.<job>    an entry that has ended
<folder>/messages/<job>.jsonl   messages of a job, to which it appends
<folder>/device.json            the device of the jobs
<folder>/jobs.json              the ids of the jobs
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from ablate.runner.devices import Device, DeviceFacts
from ablate.runner.task import WAITING, Heartbeat, Silence, Task, TaskGroup
from ablate.store import write_whole
from ablate.writing import remove_tree

_FOLDERS = ("waiting", "taken", "ended", "messages")


@dataclass(frozen=True)
class Entry:
    """Groups that one job executes, one after another."""

    name: str  # entries are taken in the order of their names
    groups: Sequence[TaskGroup]  # tasks that share a process
    job: str = ""  # that has taken it; empty while it waits
    is_over: bool = False  # whether all of its groups have ended

    @property
    def tasks(self) -> list[Task]:
        return [task for group in self.groups for task in group]

    @property
    def n_slots(self) -> int:
        """How many worker slots the largest group needs."""
        return max(task.n_devices for task in self.tasks)


@dataclass(frozen=True)
class JobMessage:
    """A message of a job about a task."""

    # whether the task has started, is running, has stalled or has ended
    kind: Literal["started", "heartbeat", "stalled", "ended"]
    entry: str  # the name of the task's entry
    key: str  # of the task
    job: str  # that writes the message
    device: Device | None = None  # of the task, if it has started
    heartbeat: Heartbeat | None = None  # if it is running
    # the fields of a `TaskOutcome` beside its task, if it has ended
    outcome: dict[str, Any] = field(default_factory=dict)
    silence: Silence | None = None  # if it has stalled

    def to_line(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @staticmethod
    def from_line(line: bytes) -> JobMessage:
        """Return the message of a line of JSON; raise a `ValueError` if it holds none."""
        return _MESSAGE.validate_json(line)


_MESSAGE = TypeAdapter(JobMessage)


class TaskQueue:
    """The queue, for the process that adds entries and for the jobs that take them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._n_added = 0
        self._read_up_to: dict[Path, int] = {}

    def create(self) -> None:
        for name in _FOLDERS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    def remove(self) -> None:
        """Remove the folder, upon which the jobs end that have nothing to do."""
        remove_tree(self.folder, ignore_errors=True)

    def add(self, groups: Sequence[TaskGroup]) -> str:
        """Append an entry; return its name."""
        name = f"{self._n_added:06}"
        self._n_added += 1
        self._write(name, groups)
        return name

    def entries(self) -> list[Entry]:
        """Return all entries, in order; one that a job is renaming may be listed twice."""
        return [
            _entry(path, is_over=name == "ended")
            for name in ("waiting", "taken", "ended")
            for path in sorted((self.folder / name).glob("[0-9]*"))
        ]

    def take(self, job: str) -> Entry | None:
        """Take the first entry that waits; return None if there is none."""
        for path in sorted((self.folder / "waiting").iterdir()):
            if path.name.startswith("."):
                continue  # it is being written
            target = self.folder / "taken" / f"{path.name}.{job}"
            with suppress(FileNotFoundError):  # another job was first
                path.rename(target)
            if target.exists():  # a rename over NFS may report an error though it was done
                return _entry(target)
        return None

    def requeue(self, job: str) -> None:
        """Move the entries that a job has taken and not ended back to the waiting ones.

        Tasks that have begun are no longer `fresh`, so that they resume. If the job is killed
        meanwhile, another one may execute an entry a second time, and skips its finished runs.
        """
        file, begun = self.folder / "messages" / f"{job}.jsonl", set[str]()
        for line in file.read_bytes().splitlines() if file.exists() else ():
            with suppress(ValueError):  # it was cut short
                message = JobMessage.from_line(line)
                phase = message.heartbeat.phase if message.heartbeat else WAITING
                if message.kind == "ended" or phase != WAITING:
                    begun.add(message.key)
        for path in (self.folder / "taken").glob(f"*.{job}"):
            goes_on = [
                tuple(replace(task, fresh=task.fresh and task.key not in begun) for task in group)
                for group in _entry(path).groups
            ]
            self._write(path.stem, goes_on)
            path.unlink()

    def mark_ended(self, entry: Entry) -> None:
        """Move an entry that has ended, or will not be executed, to the ended ones."""
        name = f"{entry.name}.{entry.job}" if entry.job else entry.name
        with suppress(FileNotFoundError):  # another job has taken it meanwhile
            old = self.folder / ("taken" if entry.job else "waiting") / name
            old.rename(self.folder / "ended" / name)

    def post(self, message: JobMessage) -> None:
        with (self.folder / "messages" / f"{message.job}.jsonl").open("a") as file:
            file.write(message.to_line())

    def has_started(self, job: str) -> bool:
        return (self.folder / "messages" / f"{job}.jsonl").exists()

    def start_messages(self, job: str) -> None:
        """Create the message file of a job; end a line that it left unfinished if it was killed."""
        with (self.folder / "messages" / f"{job}.jsonl").open("a") as file:
            file.write("\n")

    def read_messages(self) -> list[JobMessage]:
        """Return the messages since the last call, those of each job in its order."""
        files = sorted((self.folder / "messages").glob("*.jsonl"))
        return [message for file in files for message in self._new_in(file)]

    def _write(self, name: str, groups: Sequence[TaskGroup]) -> None:
        lines = "".join("".join(task.to_line() for task in group) + "\n" for group in groups)
        write_whole(self.folder / "waiting" / name, lines)

    def _new_in(self, path: Path) -> Iterator[JobMessage]:
        with path.open("rb") as file:
            file.seek(self._read_up_to.get(path, 0))
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        self._read_up_to[path] = self._read_up_to.get(path, 0) + len(complete)
        for line in complete.splitlines():
            with suppress(ValueError):  # it was cut short when its job was killed
                yield JobMessage.from_line(line)

    def save_facts(self, facts: DeviceFacts, n_slots: int) -> None:
        """Save the device of the jobs, and how many worker slots each has."""
        content = {"facts": asdict(facts), "n_slots": n_slots}
        write_whole(self.folder / "device.json", json.dumps(content) + "\n")

    def facts(self) -> tuple[DeviceFacts | None, int]:
        """Return what `save_facts` has saved; None and 0 if no job has begun."""
        content = read_json(self.folder / "device.json")
        return (DeviceFacts(**content["facts"]), content["n_slots"]) if content else (None, 0)

    def save_jobs(self, jobs: Sequence[str], cluster: str) -> None:
        content = {"jobs": list(jobs), "cluster": cluster}
        write_whole(self.folder / "jobs.json", json.dumps(content) + "\n")

    def jobs(self) -> tuple[list[str], str]:
        """Return what `save_jobs` has saved; no jobs if it was never called."""
        content = read_json(self.folder / "jobs.json")
        return (content["jobs"], content["cluster"]) if content else ([], "")


def read_json(file: Path) -> dict[str, Any]:
    """Return what `write_whole` has written into a file; nothing if there is none."""
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}


def _entry(path: Path, *, is_over: bool = False) -> Entry:
    """Return the entry of a file, which may have been moved meanwhile."""
    name, _, job = path.name.partition(".")
    text = ""
    with suppress(FileNotFoundError):
        text = path.read_text(encoding="utf-8")
    blocks = [block.splitlines() for block in text.split("\n\n") if block.strip()]
    groups = [tuple(Task.from_line(line) for line in lines) for lines in blocks]
    return Entry(name, groups, job, is_over)
