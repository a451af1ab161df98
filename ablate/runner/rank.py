"""``torchrun --nproc-per-node N -m ablate.runner.rank TASK``: one rank of a run.

TASK is a file with a task as a worker gets it, one line of JSON (`ablate.runner.task.Task`); its
``devices_per_run`` is N. What happens is printed to standard error.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from ablate.errors import RunError, SpecError
from ablate.runner.ranks import set_up
from ablate.runner.run import follow_run, run_one
from ablate.runner.task import Task
from ablate.store import Store
from ablate.training import Progress
from ablate.training.ranks import process_group, rank_of_environment


def main(file: Path) -> int:
    """Execute this rank's part of the run; return the exit status.

    Raises:
        SpecError: if there are other ranks than the run is for.
    """
    task = Task.from_line(file.read_text(encoding="utf-8"))
    rank, n = rank_of_environment()
    if n != task.n_devices:
        raise SpecError(
            f"devices_per_run is {task.n_devices}, and there are {n} ranks; "
            f"say torchrun --nproc-per-node {task.n_devices}"
        )
    set_up(task)
    if rank > 0:
        with process_group(torch.device(task.device)) as ranks:
            follow_run(task, ranks)
        return 0
    record = run_one(task, Store(task.results), _report, lambda: False)
    return 0 if record["status"] == "done" else RunError.exit_status


def _report(phase: str, progress: Progress | None = None, largest_batch: int | None = None) -> None:
    step = "" if progress is None else f", step {progress.step} of {progress.n_steps}"
    sys.stderr.write(f"{phase}{step}\n")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
