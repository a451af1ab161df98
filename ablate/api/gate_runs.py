"""The runs of a gate: which there are, whether this code made them, and what they leave."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from ablate.analysis.evidence import Evidence
from ablate.analysis.reference import LOSSES, Exact, Reference
from ablate.analysis.wording import counted, listed
from ablate.api.running import How, complete
from ablate.api.selecting import Records, Selection, select, stored
from ablate.config import Run
from ablate.errors import AblateError, StoreError
from ablate.runner import devices
from ablate.runner.schedule import is_finished
from ablate.runner.staleness import stale_reason
from ablate.store import Store

RunRequest = set[tuple[str, int]]
"""Rows and seeds."""


class StaleRecordError(AblateError):
    """What is stored was made by other code, or elsewhere, and so says nothing about this code."""


@dataclass(frozen=True)
class Means:
    """How runs are come by.

    Attributes:
        device: as for `run`.
        jobs: as for `run`.
        overrides: as for `run`.
        results: the folder of results.
        fresh: whether to train even what is there.
        stored: whether to train nothing, and take what is there whoever made it.
    """

    device: str = "auto"
    jobs: int | None = None
    overrides: Sequence[str] = ()
    results: Path | str = "results"
    fresh: bool = False
    stored: bool = False


def gather(path: Path | str, needed: RunRequest, means: Means) -> Records:
    """Return the records of runs, trained first where they are missing.

    Raises:
        StaleRecordError: if what is stored was made by other code, and nobody says what to do then.
        StoreError: if nothing is to be trained and something is missing.
    """
    seeds, rows = sorted({seed for _, seed in needed}), sorted({row for row, _ in needed})
    whole = select(path, means.overrides, seeds, rows)
    runs = tuple(run for run in whole.runs if _key(run) in needed)
    selection, store = replace(whole, runs=runs, shown=runs), Store(Path(means.results))
    if means.stored:
        return _kept(selection, store)
    if not means.fresh:
        _refuse_stale(selection, store, means.device)
    records, _ = complete(selection, store, How(means.device, means.jobs, fresh=means.fresh))
    return records


def evidence_of(reference: Reference, records: Records, store: Store) -> Evidence:
    """Return what the checks of a reference ask of runs."""
    rows = {
        check.row
        for check in reference.checks.values()
        if isinstance(check, Exact) and check.measure == LOSSES
    }
    curves = {
        (row, seed): store.path(record["hash"]) / "curve.csv"
        for (row, seed), record in records.items()
        if row in rows
    }
    return Evidence(records, {key: _losses(curve) for key, curve in curves.items()})


def _kept(selection: Selection, store: Store) -> Records:
    records = stored(selection, store)
    missing = [f"{r.variant} with seed {r.seed}" for r in selection.runs if _key(r) not in records]
    if missing:
        raise StoreError(f"{store.results} holds no run of {listed(missing)}")
    return records


def _refuse_stale(selection: Selection, store: Store, device: str) -> None:
    place = devices.find(device)[0]
    records = stored(selection, store, devices.resolve("auto", place))
    kept = [record for record in records.values() if is_finished(record)]
    others = [(record, why) for record in kept if (why := stale_reason(record, place.kind))]
    if others:
        record, why = others[0]
        n = counted(len(others), "run")
        raise StaleRecordError(
            f"{store.results} holds {n} that other code may have made: {record['variant']} with "
            f"seed {record['seed']} ({record['hash']}): {why}; say --fresh to train again, "
            "--stored to judge what is stored as it is, or --results with another folder"
        )


def _key(of: Run) -> tuple[str, int]:
    return of.variant, of.seed


def _losses(curve: Path) -> list[float]:
    """Return the losses of the first steps, as long as each has a line of its own."""
    if not curve.exists():
        return []
    with curve.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    alone = takewhile(lambda pair: int(pair[1]["step"]) == pair[0], enumerate(lines, start=1))
    return [float(line[LOSSES]) for _, line in alone]
