"""What a shell completes, and a status that is watched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablate import api
from ablate.cli import status as module
from ablate.cli.app import app
from ablate.runner.sessions import Session
from tests.made_up_runs import EXPERIMENT, finish
from tests.registrations import temporary_registrations


def completed(words: str) -> list[str]:
    """Return what bash would complete the last word of a command line to."""
    environment = {
        "_ABLATE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    done = CliRunner().invoke(app, [], prog_name="ablate", env=environment)
    return done.stdout.split()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("experiments").mkdir()
    path = Path("experiments/pe.yaml")
    path.write_text(EXPERIMENT, encoding="utf-8")
    finish(path, Path("results"))
    return tmp_path


@pytest.mark.parametrize("command", ["runs show", "inspect", "translate"])
def test_names_of_runs_are_completed(folder: Path, command: str) -> None:
    names = [f"pe:{row}:{seed}" for row in ("baseline", "none", "rms") for seed in (1, 2)]
    assert completed(f"ablate {command} ") == names
    assert completed(f"ablate {command} pe:n") == ["pe:none:1", "pe:none:2"]
    assert completed(f"ablate {command} x") == []
    assert completed(f"ablate {command} --results nowhere ") == []


def test_names_of_rows_are_completed(folder: Path) -> None:
    for command in ("run", "plan", "report"):
        line = f"ablate {command} experiments/pe.yaml --only "
        assert completed(line) == ["baseline", "none", "rms"]
        assert completed(f"{line}r") == ["rms"]
    Path("bad.yaml").write_text("modle: 1", encoding="utf-8")
    assert completed("ablate run bad.yaml --only ") == []
    assert completed("ablate run --only ") == []


def test_rows_are_completed_without_the_plugins_that_the_command_keeps_out(folder: Path) -> None:
    Path("own.py").write_text("from pathlib import Path\nPath('has_run').touch()\n")
    Path("own.yaml").write_text(f"plugins: own.py\n{EXPERIMENT}", encoding="utf-8")
    completed("ablate --no-plugins run own.yaml --only ")
    assert not Path("has_run").exists()
    completed("ablate run own.yaml --only ")
    assert Path("has_run").exists()


def test_rows_are_completed_with_the_plugins_of_the_command(folder: Path) -> None:
    part, experiment = api.init("tilted", part="norm"), Path("tilted.yaml")
    experiment.write_text(f"{EXPERIMENT}  tilted: {{model.norm: tilted}}\n", encoding="utf-8")
    for words in (f"{experiment} --plugin {part}", f"--plugin {part} {experiment}"):
        with temporary_registrations():
            assert completed(f"ablate run {words} --only t") == ["tilted"]


@pytest.mark.parametrize("option", ["--watch", "", "--watch --json"])
def test_a_status_is_watched_until_all_is_done(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session("here", 7, "pe", "then", "now", "training 2 runs", 2, seconds=61.0)
    states = [[session], [replace(session, n_ended=1)], []]
    slept: list[float] = []
    monkeypatch.setattr(api, "status", lambda _: states.pop(0))
    monkeypatch.setattr(module, "time", type("Time", (), {"sleep": slept.append}))
    done = CliRunner().invoke(app, ["status", "--results", str(tmp_path), *option.split()])
    assert done.exception is None, done.exc_info
    lines = done.stdout.splitlines()
    first = "pe, process 7 on here: training 2 runs, 0 of 2 done, at work for 1:01"
    if "--json" in option:
        assert (json.loads(done.stdout), slept) == ([], [2.0, 2.0])
    elif option:
        assert lines == [first, first.replace("0 of", "1 of"), f"nothing is at work on {tmp_path}"]
        assert slept == [2.0, 2.0]
    else:
        assert (lines, slept) == ([first], [])
