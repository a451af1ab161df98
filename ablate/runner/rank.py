"""``torchrun --nproc-per-node N -m ablate.runner.rank TASK``: one rank of a run.

TASK is a file with a task as a worker gets it, one line of JSON (`ablate.runner.task.Task`); its
``devices_per_run`` is N. What happens is printed to standard error.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ablate.errors import DivergedError, RunError, SpecError
from ablate.runner.other_ranks import set_up
from ablate.runner.run import follow_run, run_one
from ablate.runner.task import WAITING, Task
from ablate.store import Store, is_finished
from ablate.training import Progress
from ablate.training.ranks import process_group, rank_of_environment


def main(file: Path) -> int:
    """Execute this rank's part of the run, unless it has finished; return the exit status."""
    task = Task.from_line(file.read_text(encoding="utf-8"))
    task = replace(task, trained_alike=())  # the other ranks are there, and would wait
    rank, n = rank_of_environment()
    if n != task.n_devices:
        raise SpecError(
            f"devices_per_run is {task.n_devices}, and there are {n} ranks; "
            f"say torchrun --nproc-per-node {task.n_devices}"
        )
    store = Store(task.results)
    record = store.load(task.key)
    if is_finished(record) and not task.fresh:
        return _status(record)
    set_up(task)
    if rank > 0:
        # The first rank ends with the same error, and must not be ended while it writes its record
        with suppress(DivergedError), process_group(torch.device(task.device)) as ranks:
            follow_run(task, ranks)
        return 0
    phases: list[str] = []

    def report(
        phase: str, progress: Progress | None = None, largest_batch: int | None = None
    ) -> None:
        phases.append(phase)
        step = "" if progress is None else f", step {progress.step} of {progress.n_steps}"
        sys.stderr.write(f"{phase}{step}\n")

    record = run_one(task, store, report, lambda: False)
    if phases == [WAITING]:  # the other ranks would wait for this one; torchrun ends them
        raise RunError("another process has made the run meanwhile; there is nothing left to do")
    return _status(record)


def _status(record: Mapping[str, Any]) -> int:
    return 0 if record["status"] == "done" else RunError.exit_status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
