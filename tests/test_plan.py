"""What a plan says of machines that this one is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ablate import api

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
