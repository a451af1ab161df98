"""The catalogue of parts with what they are worth in the tables of experiments."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablate import api
from ablate.api.parts import MeasuredPart
from ablate.cli.app import app
from ablate.errors import SpecError
from ablate.report.values import signed
from tests.made_up_runs import EXPERIMENT, finish

ROWS = """\
  both: {model.position: learned, model.norm: rms}
  rezero: {model.residual: rezero, model.norm: none}
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An experiment whose runs are made up and whose table is written."""
    folder = tmp_path / "experiments"  # elsewhere its name would be that of the folder as well
    folder.mkdir()
    monkeypatch.chdir(folder)
    path = Path("few.yaml")
    path.write_text(EXPERIMENT.replace("variants:\n", f"variants:\n{ROWS}"), encoding="utf-8")
    finish(path, Path("results"))
    api.run(path, api.RunOptions(device="cpu", figures=False))
    return path


def _line(row: str) -> dict[str, str]:
    with Path("results/few/table.csv").open(encoding="utf-8") as lines:
        return next(line for line in csv.DictReader(lines) if line["row"] == row)


def _measured(slot: str, name: str, path: Path) -> MeasuredPart | None:
    (part,) = api.parts(slot, name, measured=[path])
    return part.measured


def _parts(*words: str) -> str:
    """Return what ``ablate parts`` prints."""
    done = CliRunner().invoke(app, ["parts", *words])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_part_has_the_row_that_changes_the_least(path: Path) -> None:
    rms, line = _measured("norm", "rms", path), _line("rms")
    assert rms is not None
    assert (rms.experiment, rms.row, rms.metric, rms.n_seeds) == ("few", "rms", "test.test.bleu", 2)
    assert rms.mean == float(line["test.test.bleu.mean"])
    ends = [line[f"test.test.bleu.difference.{name}"] for name in ("estimate", "low", "high")]
    assert [rms.difference, rms.low, rms.high] == [float(end) for end in ends]
    assert rms.beside == {}
    rezero = _measured("residual", "rezero", path)
    assert rezero is not None
    assert (rezero.row, rezero.beside) == ("rezero", {"model.norm": "none"})


def test_the_baselines_own_part_has_no_difference(path: Path) -> None:
    own = _measured("position", "sinusoidal", path)
    assert own is not None
    assert (own.row, own.difference, own.low) == ("baseline", None, None)
    assert own.mean == float(_line("baseline")["test.test.bleu.mean"])


def test_what_no_row_has_is_not_measured(path: Path) -> None:
    assert _measured("position", "rotary", path) is None
    assert _measured("metric", "bleu", path) is None, "it belongs to no run"


def test_the_catalogue_says_what_a_part_is_worth(path: Path) -> None:
    line = _line("rms")
    values = (float(line[f"test.test.bleu.difference.{n}"]) for n in ("estimate", "low", "high"))
    estimate, low, high = (signed(value, 1) for value in values)
    cell = f"{estimate} [{low}, {high}]"
    page = _parts("norm", "--format", "markdown", "--measured", str(path))
    assert "ablate parts --format markdown --measured few > docs/parts.md" in page
    assert "in the table of few: the mean over seeds" in page
    (row,) = (line for line in page.splitlines() if line.startswith("| [rms]"))
    assert f"| {cell} |" in row
    assert cell in _parts("norm", "--measured", str(path))
    assert f"ΔBLEU {cell}; ΔBLEU is" in _parts("norm", "rms", "--measured", str(path))
    assert ", with model.norm: none" in _parts("residual", "rezero", "--measured", str(path))
    (listed,) = json.loads(_parts("norm", "rms", "--json", "--measured", str(path)))
    assert listed["measured"]["row"] == "rms"
    assert "ΔBLEU" not in _parts("norm")


def test_an_experiment_without_a_table_is_an_error_with_the_way_out(path: Path) -> None:
    before = _measured("norm", "rms", path)
    Path("results/few/table.csv").unlink()
    hint = r"few has no table in results/few; run it, or .* report SPEC --output results/few/table"
    with pytest.raises(SpecError, match=hint):
        api.parts("norm", measured=[path])
    words = ["report", str(path), "--output", "results/few/table.csv"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert _measured("norm", "rms", path) == before


def test_an_experiment_with_contexts_is_measured_in_one_of_them(path: Path) -> None:
    contexts = "contexts: {plain: {}, deep: {model.n_layers: 2}}\n"
    path.write_text(f"{path.read_text(encoding='utf-8')}{contexts}", encoding="utf-8")
    with pytest.raises(SpecError, match=r"takes one: few\.yaml#plain"):
        api.parts("norm", measured=[path])
