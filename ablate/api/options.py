"""Options of the commands that train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ablate.runner.backends.contract import Backend
from ablate.store import Store


@dataclass(frozen=True)
class RunOptions:
    """Which runs a command needs, and how those that are missing are made.

    Attributes:
        seeds: in place of those of the experiment.
        overrides: ``path=value``, changes of the baseline, which make other runs of all rows.
        device: ``auto``, ``cpu``, ``cuda``, or GPUs by number, ``cuda:0,2``.
        jobs: parallel runs on each GPU, by default as many as fit; without a GPU the cores that
            runs share, by default all.
        engine: how training steps and the decoding of translations are executed. All engines
            compute the same function; one that draws other dropout masks makes other runs.
        fresh: whether to repeat finished runs.
        probe_seconds: how long the speed of each row is measured; by default `PROBE_SECONDS`, or
            less where runs are short.
        probes: whether speed and memory are measured at all.
        figures: whether figures are drawn beside the table.
        stall_after: seconds without a heartbeat after which a worker is reported, and killed after
            as many again; by default as long as its phase needs (`runner.watchdog`).
        backend: where runs are made: its name, or one that is open already.
        log: names of the trackers that finished runs are exported to.
    """

    seeds: Sequence[int] | None = None
    overrides: Sequence[str] = ()
    device: str = "auto"
    jobs: int | None = None
    engine: str = "auto"
    results: Path | str = "results"
    fresh: bool = False
    probe_seconds: float | None = None
    probes: bool = True
    figures: bool = True
    stall_after: float | None = None
    backend: str | Backend = "local"
    backend_options: Mapping[str, str] = field(default_factory=dict)
    log: Sequence[str] = ()

    @property
    def store(self) -> Store:
        """Where the runs are kept."""
        return Store(Path(self.results))


DEFAULT = RunOptions()
