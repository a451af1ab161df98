"""A folder with an experiment, a function that runs command lines there, and a folder of runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from ablate.cli.app import app
from tests.made_up_runs import BASE

EXPERIMENT = f"""\
{BASE}variants:
  none: {{model.position: none}}
"""

Completed = subprocess.CompletedProcess[str]
Ablate = Callable[..., Completed]
COMMAND = [sys.executable, "-c", "from ablate.cli import main; main()"]


def environment(cache: Path) -> dict[str, str]:
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    outside = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "COLUMNS")}
    return {**outside, "PYTHONPATH": path, "ABLATE_CACHE": str(cache), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder; of that name, because experiments are called after their folder else."""
    (tmp_path / "experiments").mkdir()
    return tmp_path / "experiments"


@pytest.fixture
def in_process(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Ablate:
    """Run a command line in this process."""
    monkeypatch.setenv("ABLATE_CACHE", str(cache))
    for variable in ("FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)

    def run(*words: str) -> Completed:
        with pytest.raises(SystemExit) as ended:
            app(list(words))
        output = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Completed(list(words), ended.value.code, output.out, output.err)

    return run


@pytest.fixture
def ablate(folder: Path, in_process: Ablate, monkeypatch: pytest.MonkeyPatch) -> Ablate:
    """Run a command line in a folder that holds ``pe.yaml`` alone."""
    (folder / "pe.yaml").write_text(EXPERIMENT, encoding="utf-8")
    monkeypatch.chdir(folder)
    return in_process


@pytest.fixture
def after_run(run_folder: Path, in_process: Ablate, monkeypatch: pytest.MonkeyPatch) -> Ablate:
    """Run a command line where ``ablate run pe.yaml`` has been done."""
    monkeypatch.chdir(run_folder)
    return in_process


def run_in_a_process(folder: Path, cache: Path) -> Completed:
    return subprocess.run(
        [*COMMAND, "run", "pe.yaml"],
        cwd=folder,
        env=environment(cache),
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Path:
    """A folder where ``ablate run pe.yaml`` has been done: once, for all processes of the tests."""
    own = common = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        common = own.parent
    folder = common / "finished"
    with FileLock(common / "finished.lock"):
        if not folder.exists():
            made = own / "unfinished" / "experiments"
            made.mkdir(parents=True)
            (made / "pe.yaml").write_text(EXPERIMENT, encoding="utf-8")
            done = run_in_a_process(made, cache)
            assert done.returncode == 0, done.stderr
            (made / "stdout").write_text(done.stdout, encoding="utf-8")
            (made / "stderr").write_text(done.stderr, encoding="utf-8")
            made.parent.rename(folder)
    return shutil.copytree(folder, tmp_path_factory.mktemp("finished") / "copy") / "experiments"


def records_of(folder: Path) -> dict[tuple[str, int], dict[str, Any]]:
    files = (folder / "results" / "runs").glob("*/record.json")
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    for record in records:
        del record["digest"]  # or no test could change a record
    return {(record["variant"], record["seed"]): record for record in records}
