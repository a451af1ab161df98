"""What a worker process is told, and what it says: one line of JSON each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ablate.config import RunSpec
from ablate.config.identity import outside
from ablate.registry import Plugin, plugins
from ablate.training import Progress


@dataclass(frozen=True)
class Task:
    """One thing to do in a process of its own.

    Attributes:
        action: measure the speed and memory of a row, or train and measure a run.
        key: the hash of the run, or the key of the probe.
        experiment: as the user named it.
        variant: the row's name.
        spec: of the run, as plain data.
        device: the kind of device it computes on.
        precision: ``auto`` resolved.
        results: the folder of results.
        probe: the key of the row's probe; of a probe, its own.
        occasion: of a probe: when the rows began to take turns.
        round: of a probe: how often the row has had its turn; the first has a process of its own.
        engine: how training steps are executed, and tokens of translations written.
        fresh: whether to begin again even where there is a result.
        runs_per_process: tasks that share the process, this one included.
        plugins: what the worker loads: those that the run uses a part of, unless given; it must
            not see the others, because the run's hash does not cover them.
    """

    action: Literal["probe", "train"]
    key: str
    experiment: str
    variant: str
    spec: dict[str, Any]
    device: Literal["cpu", "cuda"]
    precision: Literal["fp32", "bf16"]
    results: Path
    probe: str
    occasion: str = ""
    round: int = 0
    engine: str = "eager"
    fresh: bool = False
    runs_per_process: int = 1
    plugins: tuple[Plugin, ...] | None = None

    def __post_init__(self) -> None:
        if self.plugins is None:
            object.__setattr__(self, "plugins", _used(self.spec))

    @property
    def seed(self) -> int:
        """Return the run's seed."""
        return self.spec["seed"]

    @property
    def log(self) -> Path:
        """Return the file that takes everything the process says to a person."""
        if self.action == "probe":
            return self.results / "probes" / f"{self.key}.log"
        return self.results / "runs" / self.key / "log.txt"

    def record(self, status: str, error: str | None = None, **known: Any) -> dict[str, Any]:
        """Return a record of the run: what was asked for, how it ended, what is known of it."""
        return {
            "hash": self.key,
            "experiment": self.experiment,
            "variant": self.variant,
            "seed": self.seed,
            "status": status,
            "error": error,
            "spec": self.spec,
            "plugins": [{"name": p.name, "sha256": p.sha256} for p in self.plugins or ()],
            **known,
        }

    def to_line(self) -> str:
        """Return the task as a line of JSON."""
        return json.dumps({**asdict(self), "results": str(self.results)}) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Task:
        """Return the task that a line of JSON holds."""
        told = json.loads(line)
        loaded = tuple(Plugin(**plugin) for plugin in told["plugins"])
        return cls(**{**told, "results": Path(told["results"]), "plugins": loaded})


@dataclass(frozen=True)
class Heartbeat:
    """A sign of life: what a worker is doing now.

    Attributes:
        key: of the task that it is about.
        phase: in a word or two.
        progress: while training, how far it is.
        is_over: whether the task has left its result.
    """

    key: str
    phase: str
    progress: Progress | None = None
    is_over: bool = False

    def to_line(self) -> str:
        """Return the sign as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> Heartbeat:
        """Return the sign that a line of JSON holds.

        Raises:
            ValueError: if it holds none.
        """
        try:
            said = json.loads(line)
            progress = said["progress"]
            told = {**said, "progress": None if progress is None else Progress(**progress)}
            return cls(**told)
        except (KeyError, TypeError) as error:
            names = ", ".join(field.name for field in fields(cls))
            raise ValueError(f"not a sign of life ({names}): {line!r}") from error


@dataclass(frozen=True)
class Exit:
    """What a worker says of a crew that is at an end.

    Attributes:
        status: with which the crew's process has ended; less than 0 if a signal has killed it.
    """

    status: int

    def to_line(self) -> str:
        """Return the exit as a line of JSON."""
        return json.dumps(asdict(self)) + "\n"


def parse_message(line: str) -> Heartbeat | Exit:
    """Return what a worker says in a line of JSON.

    Raises:
        ValueError: if it says nothing.
    """
    said = json.loads(line)
    if isinstance(said, dict) and said.keys() == {"status"}:
        return Exit(**said)
    return Heartbeat.from_line(line)


def _used(spec: dict[str, Any]) -> tuple[Plugin, ...]:
    if not plugins():
        return ()
    used = outside(RunSpec.model_validate(spec)).values()
    return tuple(plugin for plugin in plugins() if plugin in used)
