"""Runs that do not fit into memory, or whose engine fails, in real worker processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from ablate.api import Outcome, completion, run
from ablate.api.completion import RunOptions
from ablate.runner import schedule as schedule_module
from ablate.runner.backends.local import WORKER, Local
from ablate.runner.devices import Device
from ablate.runner.probe import n_rounds_of
from ablate.runner.schedule import Limits, schedule
from ablate.runner.task import Task
from ablate.store import Store
from ablate.training.engines import data_parallel
from tests.runner.conftest import (
    EXPERIMENT,
    MEASURED,
    SMALL,
    Diary,
    MakeTask,
    changed_worker,
    curve_of,
    small_spec,
)

pytestmark = pytest.mark.e2e
LIMITS = Limits(probe_seconds=0.0)
PRLIMIT = shutil.which("prlimit")
LIMIT_MIB = 850
"""On top of PyTorch, of which a worker alone takes 160. A batch of 48,000 hidden units takes 890
more, half of one 510."""

ADDRESS_SPACE = """
import re
from pathlib import Path

import torch
print(re.search(r"VmPeak:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""

UNCAPTURED = """
from ablate.errors import EngineError
from ablate.training.engines.cuda_graph import CudaGraph

forward_backward, calls = CudaGraph.forward_backward, []

def fail(self, batch, normalizer):
    calls.append(batch)
    if len(calls) == 5:
        raise EngineError("a training step could not be captured")
    return forward_backward(self, batch, normalizer)

CudaGraph.forward_backward = fail
"""

WRONG = """
from ablate.training.engines import data_parallel
from ablate.training.engines.data_parallel import DataParallel

data_parallel._FEWEST_TOKENS = 40
update = DataParallel.update

def err(self):
    norm = update(self)
    with torch.no_grad():
        self.model.get_parameter("encoder.layers.0.feed_forward.up.weight").mul_(1.01)
    return norm

DataParallel.update = err
"""

FULL = """
from ablate.training.engines.contract import Eager

forward_backward = Eager.forward_backward

def fail(self, batch, normalizer):
    if batch.tgt_out.numel() > 120:
        raise torch.OutOfMemoryError("CUDA out of memory.")
    return forward_backward(self, batch, normalizer)

Eager.forward_backward = fail
"""


def _task(make: MakeTask, name: str, d_ff: int) -> Task:
    spec = small_spec(
        model={
            "dims": {"d_model": 8, "n_heads": 2, "max_len": 64},
            "n_layers": 1,
            "feed_forward": {"name": "relu", "d_ff": d_ff},
        },
        training={"steps": 2, "batch_tokens": 1200, "schedule": SMALL["training"]["schedule"]},
    )
    return make(name, spec=spec, probe="measured")


@pytest.mark.skipif(PRLIMIT is None, reason="needs prlimit to limit the memory of a worker")
def test_what_does_not_fit_is_done_in_halves_and_what_never_fits_is_out_of_memory(
    task: MakeTask, diary: Diary, store: Store
) -> None:
    base = subprocess.run([sys.executable, "-c", ADDRESS_SPACE], capture_output=True, check=True)
    limit = int(base.stdout) * 2**10 + LIMIT_MIB * 2**20
    store.save_probe("measured", MEASURED)
    tasks = [_task(task, *row) for row in (("narrow", 16), ("wide", 48_000), ("huge", 32_000_000))]
    command = [str(PRLIMIT), f"--as={limit}", *WORKER]
    schedule(tasks, Local([Device("cpu")], command), store, diary)
    records = {name: store.load(name) or {} for name in ("narrow", "wide", "huge")}
    assert {name: record["status"] for name, record in records.items()} == {
        "narrow": "done",
        "wide": "done",
        "huge": "oom",
    }
    assert records["narrow"]["micro_batching"] is None
    assert records["wide"]["micro_batching"] == {
        "n": 2,
        "factor": 2,
        "note": "each micro-batch draws dropout of its own",
    }
    assert diary.begun == ["narrow", "wide", "huge", "wide"]
    tokens = [curve_of(store, name)["tokens"].tolist() for name in ("narrow", "wide")]
    assert tokens[0] == tokens[1], "the same target tokens in every update"


def test_a_probe_that_does_not_fit_is_measured_in_halves(
    task: MakeTask, diary: Diary, store: Store
) -> None:
    """With an engine that takes no more than 120 target tokens at a time."""
    run = task("row", key="run", probe="row", spec=small_spec())
    backend = Local([Device("cpu")], changed_worker(FULL))
    schedule([run], backend, store, diary, LIMITS)
    assert (store.load_probe("row") or {})["micro_batch_factor"] == 2
    assert n_rounds_of(store.load_probe("row")) == 2
    assert diary.begun == ["row"] * 4, "a probe too many, two rounds and a run"
    record = store.load("run") or {}
    assert (record["status"], record["micro_batching"]["n"]) == ("done", 2)
    assert record["speed"]["micro_batch_factor"] == 2


def _run(folder: Path, engine: str) -> Outcome:
    options = RunOptions(device="cpu", results=folder / "results", jobs=1, engine=engine)
    return run(folder / "pe.yaml", replace(options, probe_seconds=0.0, figures=False))


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, Store]:
    """Return the outcome of a run that was asked to be eager, and where it is."""
    folder = tmp_path_factory.mktemp("eager")
    (folder / "pe.yaml").write_text(EXPERIMENT, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ABLATE_CACHE", str(folder / "cache"))
        patch.setattr(schedule_module, "rows_to_probe", lambda *_: [])  # saves seconds
        return _run(folder, "eager"), Store(folder / "results")


@pytest.mark.parametrize(
    ("engine", "code", "reason"),
    [
        ("cuda_graph", UNCAPTURED, "a training step could not be captured"),
        (
            "data_parallel",
            WRONG,
            "a step of data_parallel is not that of the eager engine: "
            "encoder.layers.0.feed_forward.up.weight differs after the update by 1.00%",
        ),
    ],
)
def test_a_run_whose_engine_fails_is_the_run_of_the_eager_engine(
    engine: str,
    code: str,
    reason: str,
    eager: tuple[Outcome, Store],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has its numbers, and its hash: either engine would have drawn other dropout masks."""
    (tmp_path / "pe.yaml").write_text(EXPERIMENT, encoding="utf-8")
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(schedule_module, "rows_to_probe", lambda *_: [])
    monkeypatch.setattr(data_parallel, "_FEWEST_TOKENS", 40)
    backend = Local([Device("cpu")], changed_worker(code))
    monkeypatch.setattr(completion, "open_backend", lambda *_: backend)
    # A CPU captures nothing and so is refused; what fails here is its part of the engine
    monkeypatch.setattr("ablate.training.engines.resolve", lambda name, device: name)
    (eager_outcome, eager_store), outcome = eager, _run(tmp_path, engine)
    assert outcome.exit_status == 0
    note, label = f"not {engine}: {reason}", "baseline, seed 1"
    assert {each.label: each.text for each in outcome.table.footnotes}[label] == (
        f"eager engine, {note}"
    )
    assert label not in {each.label for each in eager_outcome.table.footnotes}
    (record,), (expected,) = outcome.records.values(), eager_outcome.records.values()
    assert (record["engine"], record["engine_note"]) == ("eager", note)
    for key in ("hash", "status", "dev", "test"):
        assert record[key] == expected[key]
    stores = Store(tmp_path / "results"), eager_store
    curve, expected_curve = (curve_of(store, record["hash"]) for store in stores)
    pd.testing.assert_frame_equal(curve, expected_curve)
