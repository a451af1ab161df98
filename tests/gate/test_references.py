"""The references that we ship: blessed, whole, of experiments that are still there."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate import config
from ablate.gate.checks.finding import FindingCheck
from ablate.gate.reference import read

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "results" / "reference"
REFERENCES = sorted(path for path in FOLDER.rglob("*.yaml") if path.stem != "goldens")


def name_of(path: Path) -> str:
    return str(path.relative_to(FOLDER))


def spec_of(path: Path) -> Path:
    """Return the experiment that a reference is of: one made for it, or else a study."""
    experiments, inside = ROOT / "experiments", path.relative_to(FOLDER)
    made_for_it = experiments / "reference" / inside
    return made_for_it if made_for_it.exists() else experiments / inside


@pytest.mark.parametrize("path", REFERENCES, ids=name_of)
def test_a_reference_is_blessed_and_of_the_experiment_of_its_name(path: Path) -> None:
    reference, experiment = read(path).reference, config.load(spec_of(path))
    assert list(reference.flaws()) == []
    assert reference.source
    assert reference.blessed is not None
    assert reference.blessed.is_clean, "it was blessed by code that no commit has"
    assert reference.blessed.experiment == experiment.name
    rows = {row for check in reference.checks.values() for row in check.rows}
    assert {row.name for row in experiment.rows} >= rows
    for name, check in reference.checks_with_chosen_seeds.items():
        assert len(experiment.seeds) >= check.seeds, f"{name} asks for more seeds than there are"
    has_finding = any(isinstance(check, FindingCheck) for check in reference.checks.values())
    assert has_finding == (path.parent.name == "science")


def test_ci_runs_the_gate() -> None:
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "ablate gate experiments/reference/synthetic.yaml" in lines
    assert "--reference results/reference/synthetic.yaml" in lines
