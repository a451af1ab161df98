"""``ablate status``: the progress of runs."""

from __future__ import annotations

from pathlib import Path

from ablate.runner.sessions import Session, sessions


def status(results: Path | str = "results") -> list[Session]:
    """Return what each `run` and `gate` on a folder of results is doing, oldest first."""
    return sessions(Path(results))
