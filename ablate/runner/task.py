"""Tasks, the messages to and from worker processes, one line of JSON each, and their listeners."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from ablate.config import RunSpec, TrainingSpec
from ablate.config.identity import plugins_of
from ablate.record import SCHEMA
from ablate.registry import Plugin, plugins
from ablate.runner.devices import Device
from ablate.runner.provenance import now
from ablate.training import Progress

Failure = Literal["memory", "killed", "engine", "process_lost", "stalled", "held", "other"]
"""Why a task left no result:

``memory``        the process or the device ran out of memory
``killed``        signal 9, which Linux sends when memory is short, and users may send
``engine``        the engine failed
``process_lost``  another task of the same process failed and ended it, or the machine is lost
``stalled``       its process had stopped working, and was killed
``held``          another call is at work on the run
``other``         anything else
"""


@dataclass(frozen=True)
class Task:
    """A probe or a training run for a worker process."""

    action: Literal["probe", "train"]  # measure speed and memory of a row, or make a run
    key: str  # the hash of the run, or the key of the probe
    experiment: str  # as the user named it
    variant: str  # the row's name
    spec: dict[str, Any]  # of the run, as plain data
    device: Literal["cpu", "cuda"]  # the kind of device it computes on
    precision: Literal["fp32", "bf16"]  # ``auto`` resolved
    results: Path  # the folder of results
    probe: str  # the key of the row's probe; of a probe, its own
    session: str = ""  # of a probe: its name, which begins with the time
    round: int = 0  # of a probe: its number, from 0; the first round has a process of its own
    n_rounds: int = 0  # of a probe: how many rounds there will be; 0 while that is not known
    engine: str = "eager"  # how training steps are executed, and tokens of translations written
    eager_key: str = ""  # the hash that a run has with the eager engine; empty: the same
    engine_note: str = ""  # why this engine is used, if another one was requested and failed
    # how many times smaller than usual the parts of a batch are, so that they fit into memory
    micro_batch_factor: int = 1
    isolation: Literal["none", "process", "device"] = "none"  # what it must not share
    fresh: bool = False  # whether to begin again even if there is a result
    runs_per_process: int = 1  # tasks that share the process, this one included
    memory_mib: float = math.inf  # the most that it will reserve; infinite if unknown
    seconds: float = math.inf  # that it will train alone on its device; infinite if unknown
    corpus_fingerprint: str = ""  # of the content that the run's hash covers; empty: any
    teacher_sha256: str = ""  # of the translations of a teacher that the hash covers; empty: any
    # the hashes of runs that differ in decoding alone: it takes the weights of one that is done
    trained_alike: tuple[str, ...] = ()
    waits: bool = True  # for another call that is at work on the run; else that is a failure
    has_stalled: bool = False  # whether it is repeated because its process had stopped working
    # that the worker loads; by default those whose parts the run uses. It must not see others,
    # because the run's hash does not cover them.
    plugins: tuple[Plugin, ...] | None = None

    def __post_init__(self) -> None:
        if self.plugins is None:
            used = plugins_of(RunSpec.model_validate(self.spec)).values() if plugins() else ()
            object.__setattr__(self, "plugins", tuple(p for p in plugins() if p in used))

    @property
    def seed(self) -> int:
        return self.spec["seed"]

    @property
    def training(self) -> TrainingSpec:
        return RunSpec.model_validate(self.spec).training

    @property
    def n_devices(self) -> int:
        """How many devices it computes on together."""
        return self.spec.get("devices_per_run", 1)

    @property
    def is_alone(self) -> bool:
        """Whether nothing else may be at work on its device."""
        return self.action == "probe" or self.isolation == "device"

    @property
    def fallbacks(self) -> dict[str, Any]:
        """The fields that differ from the request because that failed."""
        changes: dict[str, Any] = {}
        if self.micro_batch_factor > 1:
            changes["micro_batch_factor"] = self.micro_batch_factor
        if self.engine_note:
            changes |= {"engine": self.engine, "engine_note": self.engine_note}
        return changes

    def with_fallbacks(self, changes: Mapping[str, Any]) -> Task:
        """Return the task, maybe another run, with fallbacks and the isolation that they need."""
        task = self
        if changes.get("engine_note"):
            key = task.eager_key or task.key
            task = replace(
                task,
                key=key,
                engine=changes["engine"],
                engine_note=changes["engine_note"],
                # under another hash, random numbers may be drawn in another way
                trained_alike=task.trained_alike if key == task.key else (),
                isolation="process" if task.isolation == "none" else task.isolation,
            )
        if changes.get("micro_batch_factor", 1) > 1:
            factor = changes["micro_batch_factor"]
            task = replace(task, micro_batch_factor=factor, isolation="device")
        return task

    @property
    def log(self) -> Path:
        """The file for everything that the process prints."""
        if self.action == "probe":
            return self.results / "probes" / f"{self.key}.log"
        return self.results / "runs" / self.key / "log.txt"

    def record(self, status: str, error: str | None = None, **fields: Any) -> dict[str, Any]:
        """Return a record of the run: the request, how it ended, and what else is fields."""
        return {
            "schema": SCHEMA,
            "hash": self.key,
            "experiment": self.experiment,
            "variant": self.variant,
            "seed": self.seed,
            "status": status,
            "error": error,
            "spec": self.spec,
            "plugins": [{"name": p.name, "sha256": p.sha256} for p in self.plugins or ()],
            **fields,
        }

    def to_line(self) -> str:
        return json.dumps({**asdict(self), "results": str(self.results)}) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Task:
        data = json.loads(line)
        loaded = tuple(Plugin(**plugin) for plugin in data["plugins"])
        alike = tuple(data["trained_alike"])
        own = {"results": Path(data["results"]), "plugins": loaded, "trained_alike": alike}
        return cls(**{**data, **own})


TaskGroup = tuple[Task, ...]
"""Tasks that take turns in one process; they use the same plugins."""


def one_per_process(tasks: Sequence[Task]) -> list[TaskGroup]:
    """Return a group of one for each task."""
    return [(replace(task, runs_per_process=1),) for task in tasks]


def append_to_log(log: Path, text: str) -> None:
    """Append a line with the date to the log of a task."""
    with suppress(OSError), log.open("a", encoding="utf-8") as file:  # on a full disk
        file.write(f"{now()}  {text}\n")


STARTING = "starting"
"""The phase of a task whose process has sent nothing yet."""

WAITING = "waiting until no other process has it"
"""The phase of a task that has changed nothing yet."""


@dataclass(frozen=True)
class Heartbeat:
    """What a worker is doing now; sent again while it goes on, with the same phase and progress."""

    key: str  # of the task
    phase: str  # in a word or two
    progress: Progress | None = None  # while training, how far it is
    largest_batch: int | None = None  # its sentences, where work on batches begins


@dataclass(frozen=True)
class Silence:
    """A worker has sent no heartbeat for long."""

    seconds: float  # for how long
    seconds_left: float  # until its process is killed


@dataclass(frozen=True)
class TaskFinished:
    """A task is over."""

    key: str  # of the task
    failure: Failure | None = None  # None if there is a result, even that the run diverged
    reason: str | None = None  # of the failure, in one line


@dataclass(frozen=True)
class ProcessExited:
    """The process that a group of tasks shared has ended."""

    status: int  # its exit status; less than 0 if a signal has killed it
    lost: str = ""  # why its machine is lost, too; empty if it is not


Message = Heartbeat | TaskFinished | ProcessExited
"""What a worker sends."""


def to_line(message: Message) -> str:
    """Return a message as a line of JSON."""
    return json.dumps({"message": type(message).__name__, **asdict(message)}) + "\n"


def parse_message(line: str) -> Message:
    """Return the message that a line of JSON holds; raise a `ValueError` if it holds none."""
    try:
        data = json.loads(line)
        kind = _MESSAGES[data.pop("message")]
        if data.get("progress") is not None:
            data["progress"] = Progress(**data["progress"])
        return kind(**data)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"not a message of a worker: {line!r}") from error


_MESSAGES: dict[str, type[Message]] = {
    kind.__name__: kind for kind in (Heartbeat, TaskFinished, ProcessExited)
}


class ProgressListener:
    """Is called with what happens to tasks while they are scheduled; does nothing by itself."""

    def expect(self, tasks: Sequence[Task], what: str, n_at_once: int) -> None:
        """Announce the tasks that come next, in the words ``what`` if they are new."""

    def started(self, task: Task, device: Device) -> None:
        """Announce that a worker begins a task."""

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        """Announce what a worker is doing."""

    def stalled(self, task: Task, silence: Silence) -> None:
        """Announce that a worker has sent no heartbeat for long; the next one ends that."""

    def ended(self, task: Task, outcome: str, *, is_good: bool) -> None:
        """Announce how a task ended, in words."""

    def note(self, text: str) -> None:
        """Announce what concerns no task."""


class Report(Protocol):
    """Is called in a worker with the phase of a task, and ``largest_batch`` where batches begin."""

    def __call__(
        self, phase: str, progress: Progress | None = None, largest_batch: int | None = None
    ) -> None: ...
