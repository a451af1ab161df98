"""What is deprecated works as before; one sentence says where it stands and what replaces it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablate import config
from ablate.cli.app import app
from ablate.deprecation import DEPRECATED, Deprecation, warn_if_deprecated
from ablate.errors import DeprecatedWarning
from tests.config.loading import load
from tests.made_up_runs import BASE

EXPERIMENT = f"""{BASE}negligible: {{bleu: 1}}
variants:
  sharp: {{model.norm: {{name: scale, unit: true}}}}
  rms: {{model.norm: rms}}
"""


@pytest.fixture
def deprecated(request: pytest.FixtureRequest) -> Iterator[str]:
    DEPRECATED[request.param] = Deprecation("1.4", "use what is new")
    yield request.param
    del DEPRECATED[request.param]


@pytest.mark.parametrize(
    ("deprecated", "at"),
    [
        ("negligible", "negligible:"),
        ("negligible.bleu", "bleu:"),
        ("training.steps", "steps"),
        ("norm: scale", "scale,"),
        ("norm: scale.unit", "unit"),
        ("norm: rms", "rms}"),
    ],
    indirect=["deprecated"],
)
def test_an_experiment_is_warned_once_where_it_uses_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deprecated: str, at: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.warns(DeprecatedWarning) as caught:
        experiment = load(tmp_path, EXPERIMENT)
    lines = EXPERIMENT.splitlines()
    line = next(number for number, text in enumerate(lines, 1) if at in text)
    column = lines[line - 1].index(at) + 1
    (warning,) = caught
    assert str(warning.message) == (
        f"x.yaml:{line}:{column}: {deprecated} is deprecated since 1.4 "
        "and goes with 2.0: use what is new"
    )
    assert [row.name for row in experiment.rows] == ["baseline", "sharp", "rms"]


@pytest.mark.parametrize("deprecated", ["attention: additive", "looks"], indirect=True)
@pytest.mark.usefixtures("deprecated")
def test_what_an_experiment_does_not_use_warns_of_nothing(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    load(tmp_path, EXPERIMENT)
    assert not recwarn.list


@pytest.mark.parametrize(
    "deprecated", ["ablate plan --results", "ablate plan", "training.steps"], indirect=True
)
def test_a_command_prints_the_warning_as_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deprecated: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.yaml").write_text(EXPERIMENT)
    words = ["plan", "x.yaml", "--results", "results"]
    done = CliRunner().invoke(app, words, prog_name="ablate")
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stderr.splitlines() if "deprecated" in line]
    (line,) = lines
    assert f"{deprecated} is deprecated since 1.4 and goes with 2.0: use what is new" in line
    assert line.startswith(deprecated if "ablate" in deprecated else "x.yaml:")


@pytest.mark.parametrize("deprecated", ["ablate plan --json"], indirect=True)
@pytest.mark.usefixtures("deprecated")
def test_an_option_that_is_not_given_warns_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(EXPERIMENT)
    words = ["plan", str(tmp_path / "x.yaml"), "--results", str(tmp_path / "results")]
    assert "deprecated" not in CliRunner().invoke(app, words, prog_name="ablate").output


@pytest.mark.parametrize("deprecated", ["ablate.api.plan"], indirect=True)
def test_python_points_at_the_line_that_calls(deprecated: str) -> None:
    def old() -> None:
        warn_if_deprecated(deprecated)

    with pytest.warns(DeprecatedWarning) as caught:
        old()
    assert caught[0].filename == __file__


def test_nothing_that_is_shipped_is_deprecated(recwarn: pytest.WarningsRecorder) -> None:
    for name in config.shipped.names():
        config.load(name)
    assert not [each for each in recwarn.list if issubclass(each.category, DeprecatedWarning)]
