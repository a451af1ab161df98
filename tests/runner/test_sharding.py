"""Runs whose weights are split over their devices: when they are, and when they cannot be."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ablate.api import Outcome, completion
from ablate.api import run as run_experiment
from ablate.api.completion import RunOptions
from ablate.cli.app import app
from ablate.config import RunSpec, load
from ablate.errors import SpecError
from ablate.runner.backends.local import Local
from ablate.runner.check import check_engine
from ablate.runner.devices import Device
from ablate.runner.failures import TaskOutcome, retry
from ablate.runner.task import Task
from ablate.store import Store
from tests.runner.conftest import EXPERIMENT, SMALL, MakeTask, changed_worker

NOTE = "not distributed: out of memory"

WHOLE_WEIGHTS_DO_NOT_FIT = """
from ablate.training.engines.distributed import Distributed
from ablate.training.engines.fully_sharded import FullySharded

forward_backward = Distributed.forward_backward

def fail(self, batch, normalizer):
    if not isinstance(self, FullySharded):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    return forward_backward(self, batch, normalizer)

Distributed.forward_backward = fail
"""

ON_TWO_DEVICES = f"devices_per_run: 2\n{EXPERIMENT}"


def _spec(n_devices: int, optimizer: str = "adam") -> RunSpec:
    training = SMALL["training"] | {"optimizer": optimizer}
    return RunSpec.model_validate(SMALL | {"devices_per_run": n_devices, "training": training})


def _out_of_memory(task: Task) -> Task | None:
    again = retry(TaskOutcome(task, "memory", "no luck", largest_batch=40))
    return None if again is None else again.task


@pytest.fixture
def distributed(task: MakeTask) -> Task:
    spec = _spec(2).model_dump(mode="json")
    return task("row", spec=spec, engine="distributed", isolation="device")


def test_a_run_out_of_memory_splits_its_weights_before_its_batches(distributed: Task) -> None:
    changes: dict[str, Any] = {"engine": "fully_sharded", "engine_note": NOTE}
    sharded = replace(distributed, **changes)
    assert _out_of_memory(distributed) == sharded
    assert sharded.fallbacks == changes
    assert _out_of_memory(sharded) == replace(sharded, micro_batch_factor=2)


def test_weights_that_cannot_be_split_stay_whole(distributed: Task, task: MakeTask) -> None:
    muon = replace(distributed, spec=_spec(2, "muon").model_dump(mode="json"))
    assert _out_of_memory(muon) == replace(muon, micro_batch_factor=2)
    alone = task("row", spec=_spec(1).model_dump(mode="json"), isolation="device")
    assert _out_of_memory(alone) == replace(alone, micro_batch_factor=2)


def test_what_looks_at_whole_weights_is_refused_where_the_file_says_it(tmp_path: Path) -> None:
    file = tmp_path / "pe.yaml"
    rows = "variants:\n  lamb: {training.optimizer: lamb}\n  lion: {training.optimizer: lion}\n"
    file.write_text(ON_TWO_DEVICES + rows, encoding="utf-8")
    experiment = load(file)
    check_engine(experiment, "auto")
    with pytest.raises(SpecError, match=r"pe\.yaml:13:30: .*lamb looks at the norms") as e:
        check_engine(experiment, "fully_sharded")
    assert "lion" not in str(e.value)


def test_a_run_on_one_device_with_that_engine_is_an_error_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pe.yaml").write_text(EXPERIMENT, encoding="utf-8")
    arguments = ["run", "pe.yaml", "--device", "cpu", "--engine", "fully_sharded"]
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == 2
    assert "splits a model over the devices of a run" in " ".join(ended.output.split())


@pytest.mark.ddp
@pytest.mark.skipif(sys.platform != "linux", reason="ranks are forks")
def test_what_is_out_of_memory_with_whole_weights_is_the_same_run_with_split_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its probe, too; the table says so."""
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "pe.yaml"
    file.write_text(ON_TWO_DEVICES, encoding="utf-8")

    def run(engine: str) -> tuple[Outcome, dict[str, Any], Store]:
        results = tmp_path / engine
        options = RunOptions(device="cpu", results=results, jobs=2, engine=engine, figures=False)
        is_probed = engine == "auto"
        outcome = run_experiment(file, replace(options, probe_seconds=0.0, probes=is_probed))
        (record,) = outcome.records.values()
        return outcome, record, Store(results)

    sharded_outcome, expected, store = run("fully_sharded")
    backend = Local([Device("cpu")] * 2, changed_worker(WHOLE_WEIGHTS_DO_NOT_FIT))
    with monkeypatch.context() as patch:
        patch.setattr(completion, "open_backend", lambda *_: backend)
        outcome, record, other = run("auto")
    assert outcome.exit_status == 0
    assert (expected["engine"], expected["engine_note"]) == ("fully_sharded", "")
    assert (record["engine"], record["engine_note"]) == ("fully_sharded", NOTE)
    assert record["speed"]["engine"] == "fully_sharded"
    assert {each.label: each.text for each in outcome.table.footnotes}["baseline, seed 1"] == (
        f"fully_sharded engine, {NOTE}"
    )
    assert "baseline, seed 1" not in {each.label for each in sharded_outcome.table.footnotes}
    for key in ("hash", "status", "dev", "test"):
        assert record[key] == expected[key]
    weights = [(s.path(record["hash"]) / "model.safetensors").read_bytes() for s in (store, other)]
    assert weights[0] == weights[1]
