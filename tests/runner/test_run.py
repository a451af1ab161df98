"""One run: how it ends when something goes wrong. tests/cli see it go right."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

import ablate.data
import ablate.decoding
import ablate.parts  # noqa: F401 - with the two above, every part is registered
from ablate.config import RunSpec
from ablate.data.prepare import prepare
from ablate.errors import DataError, DivergedError, EngineError, StoppedError
from ablate.runner import provenance, run
from ablate.runner.devices import Device
from ablate.runner.run import run_one
from ablate.runner.task import Task
from ablate.store import Store
from tests.runner.conftest import SMALL, MakeTask, finish, small_spec

pytestmark = pytest.mark.e2e

KEY = "0123456789abcdef"
SPEC = {
    "corpus": "synthetic",
    "tokenizer": "word",
    "model": {"dims": {"d_model": 16, "n_heads": 2, "max_len": 32}},
    "training": {"steps": 1},
    "decoding": "greedy",
}


@pytest.fixture
def job(task: MakeTask) -> Task:
    spec = RunSpec.model_validate(SPEC).model_dump(mode="json")
    return task("none", key=KEY, spec=spec)


def _raising(error: BaseException) -> Any:
    def prepare(spec: RunSpec, *_: str) -> None:
        raise error

    return prepare


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (DivergedError("the loss of step 3 is nan"), "diverged", "the loss of step 3 is nan"),
        (MemoryError("no room"), "oom", "MemoryError: no room"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes\nmore"),
            "oom",
            "RuntimeError: DefaultCPUAllocator: can't allocate memory: 8 bytes",
        ),
        (EngineError("no capture"), "failed", "no capture"),
        (DataError("no network"), "failed", "no network"),
        (ZeroDivisionError("division by zero"), "failed", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_failure_is_a_record_with_its_reason_and_what_was_known(
    job: Task,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: str,
    reason: str,
) -> None:
    monkeypatch.setattr(run, "prepare", _raising(error))
    turns = {"session": "today", "rounds": {"decode_sentences_per_second": [8.0, 9.0, 9.5]}}
    measured = {"train_peak_mib": 7.0, "decode_sentences_per_second": 9.0, "n_src": 5}
    store.save_probe(job.probe, measured | turns)
    if status == "diverged":
        finish(job, store)
    else:
        with pytest.raises(type(error), match=re.escape(str(error))):
            finish(job, store)
    record = store.load(KEY) or {}
    assert (record["status"], record["error"]) == (status, reason)
    assert record["memory"] == {"train_peak_mib": 7.0}
    assert record["speed"] == {"decode_sentences_per_second": 9.0, **turns}
    assert record["versions"]["torch"]
    traceback = (store.path(KEY) / "error.txt").read_text(encoding="utf-8")
    assert traceback.startswith("Traceback")


def test_bits_are_per_character_of_what_is_left_of_the_references(
    task: MakeTask, store: Store
) -> None:
    model = {**SMALL["model"], "dims": {**SMALL["model"]["dims"], "max_len": 8}}
    spec = small_spec(model=model, training={**SMALL["training"], "steps": 1})
    text = prepare(RunSpec.model_validate(spec)).text.tests["test_long"].tgt
    scores = finish(task("cut", key=KEY, spec=spec), store)["test"]["test_long"]
    table = pd.read_csv(store.path(KEY) / "sentences.test_long.csv")
    words = [line.split()[:8] for line in text]  # seven tokens of a sentence are left
    assert (table["characters"] <= [len(" ".join(of)) for of in words]).all()
    bits = table["nll"].sum() / math.log(2) / table["characters"].sum()
    assert scores["bits_per_character"] == pytest.approx(bits, abs=1e-4)


def test_being_stopped_leaves_no_record(
    job: Task, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "prepare", _raising(StoppedError("stopped")))
    with pytest.raises(StoppedError):
        finish(job, store)
    assert store.load(KEY) is None
    with pytest.raises(StoppedError, match="before reading the corpus"):
        run_one(job, store, lambda *_: None, lambda: True)


def test_what_was_done_meanwhile_is_not_done_again(job: Task, store: Store) -> None:
    done = {"hash": KEY, "status": "done", "test": {}}
    store.save(done)
    assert finish(job, store) == store.load(KEY) == done


def test_a_second_try_keeps_the_checkpoint_and_a_fresh_one_does_not(
    job: Task, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed: list[list[str]] = []

    def prepare(spec: RunSpec, *_: str) -> None:
        observed.append(sorted(path.name for path in store.path(KEY).iterdir()))
        raise DataError("again")

    monkeypatch.setattr(run, "prepare", prepare)
    folder = store.path(KEY)
    for name in ("checkpoint.pt", "snapshots/1.pt", "error.txt", "log.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    store.save({"hash": KEY, "status": "failed"})
    for again in (job, replace(job, fresh=True)):
        with pytest.raises(DataError, match="again"):
            finish(again, store)
    assert observed == [["checkpoint.pt", "lock", "log.txt", "snapshots"], ["lock", "log.txt"]]


def test_the_record_of_a_run_that_other_code_began_is_not_of_this_code(
    job: Task, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = {**job.spec, "training": {**job.spec["training"], "steps": 3}}
    task, progress = replace(job, spec=spec), list[object]()
    monkeypatch.setattr(provenance, "code_digest", lambda: "of yesterday")
    with pytest.raises(StoppedError):
        run_one(task, store, lambda *report: progress.extend(report[1:2]), lambda: any(progress))
    monkeypatch.undo()
    record = finish(task, store)
    assert (record["status"], record["git"]["code"]) == ("done", "of yesterday")
    assert provenance.stale_reason(record, Device("cpu")) == "the code has changed since"
    again = finish(replace(task, fresh=True), store)
    assert again["git"]["code"] == provenance.code_digest()


def test_a_run_says_that_it_goes_on_with_every_batch_that_it_evaluates_or_translates(
    task: MakeTask, store: Store
) -> None:
    phases: list[str] = []
    goes_on: list[str] = []
    run_one(
        task("run", spec=small_spec()),
        store,
        lambda phase, *_: phases.append(phase),
        lambda: False,
        goes_on=lambda: goes_on.append(phases[-1]),
    )
    assert set(goes_on) == set(phases[2:])
    assert {"training", "measuring dev", "translating test_novel"} < set(goes_on)
