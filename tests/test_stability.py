"""What docs/stability.md promises has not changed since its snapshot was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate import api
from tests.stability import FOLDER, SNAPSHOTS

ROOT = FOLDER.parents[1]


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_what_others_rely_on_is_as_it_was(name: str) -> None:
    known = (FOLDER / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    actual = list(SNAPSHOTS[name]())
    assert len(set(known)) == len(known) > 50
    lost = [line for line in known if line not in set(actual)]
    assert not lost, "it is gone or means something else, and others rely on it: docs/stability.md"
    new = [line for line in actual if line not in set(known)]
    assert not new, "it is new, and to be kept from now on: python -m tests.stability"


@pytest.mark.full
@pytest.mark.parametrize("name", ["pe_500", "atlas", "matched", "tuned"])
def test_archives_of_earlier_versions_hold_the_runs_of_their_experiments(
    name: str, tmp_path: Path
) -> None:
    """Every record can be read, and has the name that its row has today."""
    restored = api.restore(ROOT / "results" / name / "runs.tar.xz", results=tmp_path)
    planned = api.plan(ROOT / "experiments" / f"{name}.yaml", results=tmp_path, device="cpu")
    assert len(restored.new) >= sum(row.n_runs for row in planned.rows) > 10
    assert planned.n_missing == 0
