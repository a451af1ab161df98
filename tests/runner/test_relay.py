"""A worker process on another machine, without the other machine."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from ablate.runner import run_files
from ablate.runner.backends import relay
from ablate.runner.backends.relay import Relay, RelayedMessage
from ablate.runner.devices import Device
from ablate.runner.task import ProcessExited
from tests.runner.conftest import MakeTask


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which a node makes temporary ones."""
    monkeypatch.setattr(relay, "cache_folder", tmp_path.joinpath)
    return tmp_path / "scratch"


def _begin(task: MakeTask, *, is_shared: bool, results: Path) -> list[RelayedMessage]:
    actor = Relay(Device("cpu"), is_shared=is_shared, serves_one_group=False)
    actor.begin((replace(task("row"), results=results),), {"probes/row.json": b"{}"})
    return actor.receive()


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_node_that_cannot_make_folders_is_lost(
    is_shared: bool, scratch: Path, task: MakeTask, tmp_path: Path
) -> None:
    for file in (scratch, tmp_path / "results"):
        file.touch()
    (relayed,) = _begin(task, is_shared=is_shared, results=tmp_path / "results")
    assert relayed.is_last
    assert isinstance(relayed.message, ProcessExited)
    assert relayed.message.lost.startswith("files of runs cannot be written there: ")


def test_a_node_whose_disk_is_full_is_lost_and_keeps_no_folder(
    scratch: Path, task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_files, "atomic_write", full)
    (relayed,) = _begin(task, is_shared=False, results=tmp_path / "results")
    assert relayed.is_last
    assert isinstance(relayed.message, ProcessExited)
    assert "row.json: cannot be written: No space left on device" in relayed.message.lost
    assert list(scratch.iterdir()) == []
