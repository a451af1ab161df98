"""What a plan says of machines that this one is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ablate import api
from ablate.runner import provenance, staleness
from ablate.store import Store

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


def test_runs_that_share_a_gpu_take_at_most_so_long(tmp_path: Path) -> None:
    plan = api.plan(EXPERIMENTS / "pe.yaml", device="cpu", results=tmp_path, seeds=[1, 2])
    assert {row.runs_at_once for row in plan.rows} == {1}
    rows = tuple(
        replace(row, seconds_per_run=60.0, runs_at_once=n)
        for n, row in enumerate(plan.rows, start=1)
    )
    alone = replace(
        plan, n_worker_slots=2, rows=tuple(replace(row, runs_at_once=1) for row in rows)
    )
    assert alone.remarks()[:2] == [
        "0 of 10 runs are done, 10 are missing; 2 at a time on cpu",
        "about 5:00 of training are left",
    ]
    assert replace(alone, rows=rows).remarks()[:2] == [
        "0 of 10 runs are done, 10 are missing; 10 at a time on cpu",
        "at most 5:00 of training are left",
    ]


def test_runs_of_other_code_are_named(tmp_path: Path) -> None:
    experiment, store = EXPERIMENTS / "pe.yaml", Store(tmp_path)
    planned = api.plan(experiment, device="cpu", results=tmp_path, only=["none"])
    present = {
        "versions": provenance.versions(),
        "hardware": provenance.hardware("cpu"),
        "git": {"commit": None, "is_clean": None, "code": staleness.code_digest()},
        "status": "done",
    }
    (row,) = planned.rows
    for run in row.runs:
        store.save({"hash": run.hash, **present})
    current = api.plan(experiment, device="cpu", results=tmp_path, only=["none"])
    assert (current.n_missing, current.stale) == (0, ())
    store.save({"hash": row.runs[0].hash, **present, "git": {"code": "other"}})
    (remark,) = api.plan(experiment, device="cpu", results=tmp_path, only=["none"]).stale
    assert remark == (
        "1 of 3 runs (none) were not made by this code on this machine: the code has changed "
        "since; --fresh trains them again"
    )
