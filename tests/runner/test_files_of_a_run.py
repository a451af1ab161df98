"""The files of a run: their permissions, and what is said where they cannot be written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors import SafetensorError
from typer.testing import CliRunner

from ablate.cli.app import app
from ablate.errors import StoreError
from ablate.runner import run
from ablate.runner.task import Task
from ablate.store import Store
from tests.made_up_runs import EXPERIMENT
from tests.runner.conftest import SMALL, MakeTask, finish, small_spec

KEY = "0123456789abcdef"


@pytest.fixture
def small(task: MakeTask, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Task:
    """Return a run of one step, whose cache is a new folder."""
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    spec = small_spec(training={**SMALL["training"], "steps": 1})
    return task("none", key=KEY, spec=spec)


@pytest.fixture(params=[0o077, 0o002], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Return a umask that the process has during a test."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_files_and_folders_keep_the_umask(umask: int, small: Task, tmp_path: Path) -> None:
    assert finish(small, Store(small.results))["status"] == "done"
    cache, results = tmp_path / "cache", Store(small.results).path(KEY)
    paths = [*cache.rglob("*"), *results.rglob("*")]
    assert results / "model.safetensors" in paths
    assert any(path.parts[-3:-1] == ("encodings", path.parent.name) for path in paths)
    for path in paths:
        most = 0o777 if path.is_dir() else 0o666
        assert oct(stat.S_IMODE(path.stat().st_mode)) == oct(most & ~umask), path


def test_a_full_disk_is_told_of_the_model_as_of_other_files(
    small: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(run, "save_model", fail)
    with pytest.raises(StoreError, match=r"model\.safetensors: cannot be written: .*No space left"):
        finish(small, Store(small.results))
    record = Store(small.results).load(KEY) or {}
    assert record["status"] == "failed"
    assert "model.safetensors: cannot be written" in record["error"]


@pytest.mark.parametrize("command", ["run", "plan", "report"])
def test_a_folder_of_results_that_no_record_could_name_is_refused(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "pe.yaml"
    spec.write_text(EXPERIMENT, encoding="utf-8")
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9")
    printed = CliRunner().invoke(app, [command, str(spec), "--results", folder])
    assert printed.exit_code == 2
    assert r"caf\udce9: cannot be a folder of results: its name" in printed.stderr
    assert not Path(folder).exists()
    beside = Path(folder) / "experiments" / "pe.yaml"
    beside.parent.mkdir(parents=True)
    beside.write_text(EXPERIMENT, encoding="utf-8")
    monkeypatch.chdir(folder)
    printed = CliRunner().invoke(app, [command, "experiments/pe.yaml"])
    assert printed.exit_code == 2
    assert r"caf\udce9/results: cannot be a folder of results: its name" in printed.stderr


@pytest.mark.parametrize("name", [b"sp\xe9c.yaml", b"a\x1bb.yaml", b"caf\xe9/pe.yaml"])
@pytest.mark.parametrize("command", ["run", "plan"])
def test_an_experiment_that_no_record_could_name_is_refused(
    command: str, name: bytes, tmp_path: Path
) -> None:
    spec = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    spec.parent.mkdir(exist_ok=True)
    spec.write_text(EXPERIMENT, encoding="utf-8")
    words = [command, str(spec), "--results", str(tmp_path / "results")]
    printed = CliRunner().invoke(app, words)
    assert printed.exit_code == 2
    assert ":1:1: an experiment cannot be called" in printed.stderr
    assert not (tmp_path / "results").exists()
