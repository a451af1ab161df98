"""Runs that differ in decoding alone are trained once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ablate import api
from ablate.cli.app import app
from ablate.errors import DetachedError, StoppedError
from ablate.runner import run
from ablate.runner.backends.local import Local
from ablate.runner.devices import Device
from ablate.runner.run import run_one
from ablate.runner.run_files import inputs_of, write
from ablate.runner.schedule import Limits, _in_turn, schedule
from ablate.runner.task import ProgressListener, Task, TaskGroup
from ablate.store import Store
from tests.runner.conftest import EXPERIMENT, MakeTask, finish, small_spec, task_of

WEIGHTS = "model.safetensors"


@pytest.fixture
def trained(tmp_path: Path) -> Task:
    """A run that is done."""
    task = task_of(tmp_path / "here", "none", key="trained", spec=small_spec())
    finish(task, Store(task.results))
    return task


def sampling(trained: Task, **changes: Any) -> Task:
    spec = small_spec(decoding={"name": "sample", "temperature": 0.7})
    task = replace(trained, key="sampling", variant="sampling", spec=spec)
    return replace(task, **{"trained_alike": ("trained",), **changes})


def refuse_to_train(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(*_: object) -> None:
        raise AssertionError("it is trained")

    monkeypatch.setattr(run, "train", train)


def test_the_weights_of_another_run_give_what_training_would(
    trained: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = sampling(trained, trained_alike=(), results=tmp_path / "alone")
    expected = finish(alone, Store(alone.results))
    refuse_to_train(monkeypatch)
    task, store = sampling(trained), Store(trained.results)
    actual = finish(task, store)
    assert actual["weights_of"] == "trained"
    for section in ("dev", "test", "files", "params", "flops", "engine", "git", "versions"):
        assert actual[section] == expected[section], section
    source = store.load("trained")
    assert source is not None
    assert actual["train"] == source["train"]
    assert actual["test"] != source["test"], "they translate in other ways"
    ours, theirs = store.path("sampling"), store.path("trained")
    assert {file.name for file in ours.iterdir()} == {file.name for file in theirs.iterdir()}
    assert (ours / "curve.csv").read_bytes() == (theirs / "curve.csv").read_bytes()
    assert (ours / WEIGHTS).samefile(theirs / WEIGHTS)
    for file in theirs.iterdir():
        file.unlink()
    assert not store.damaged_files(actual), "it does not need the other one any more"


@pytest.mark.parametrize(
    "lack", ["unknown", "removed", "damaged", "diverged", "replaced", "other ids"]
)
def test_a_run_is_trained_where_there_are_no_weights_to_take(trained: Task, lack: str) -> None:
    store = Store(trained.results)
    file, record = store.path("trained") / WEIGHTS, store.load("trained")
    assert record is not None
    if lack == "removed":
        file.unlink()
    if lack == "damaged":
        file.write_bytes(file.read_bytes()[:-1] + b"!")
    if lack == "diverged":
        store.save({**record, "status": "diverged"})
    if lack == "replaced":
        store.save({**record, "replaced_by": "another"})
    if lack == "other ids":
        store.save({**record, "tokenizer": {**record["tokenizer"], "fingerprint": "another"}})
    alike = ("unknown",) if lack == "unknown" else ("unknown", "trained")
    actual = finish(sampling(trained, trained_alike=alike), store)
    assert "weights_of" not in actual
    assert actual["files"][WEIGHTS] == record["files"][WEIGHTS]


def test_weights_that_cannot_be_linked_are_written(
    trained: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.link", link)
    store = Store(trained.results)
    actual, source = finish(sampling(trained), store), store.load("trained")
    assert source is not None
    assert actual["files"][WEIGHTS] == source["files"][WEIGHTS]
    assert not (store.path("sampling") / WEIGHTS).samefile(store.path("trained") / WEIGHTS)


def test_what_a_killed_run_has_left_is_in_the_way_of_no_link(trained: Task) -> None:
    store = Store(trained.results)
    ours, theirs = store.path("sampling"), store.path("trained")
    ours.mkdir()
    (ours / f"{WEIGHTS}.new").write_bytes(b"half")
    finish(sampling(trained), store)
    assert (ours / WEIGHTS).samefile(theirs / WEIGHTS)


def test_a_run_that_was_stopped_while_it_decoded_decodes_again(trained: Task) -> None:
    store, phases = Store(trained.results), list[str]()

    def report(phase: str, progress: object = None, largest_batch: int | None = None) -> None:
        phases.append(phase)

    def should_stop() -> bool:
        return phases[-1].startswith("translating")

    with pytest.raises(StoppedError):
        run_one(sampling(trained), store, report, should_stop)
    assert store.load("sampling") is None
    assert finish(sampling(trained), store)["weights_of"] == "trained"


def test_the_weights_travel_to_a_machine_that_does_not_share_the_folder(
    trained: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    bundle = inputs_of((sampling(trained),))
    write(bundle, there)
    refuse_to_train(monkeypatch)
    assert finish(sampling(trained, results=there), Store(there))["weights_of"] == "trained"
    assert not inputs_of((sampling(trained, trained_alike=()),)).keys() & bundle.keys()


def test_runs_with_weights_to_take_come_after_those_that_train(task: MakeTask) -> None:
    def tasks(**changes: Any) -> list[Task]:
        first = task("a", key="a", trained_alike=("b", "c"), **changes)
        second = task("b", key="b", trained_alike=("a", "c"), **changes)
        return [first, second, task("d", key="d", **changes)]

    first, later = _in_turn(tasks())
    assert [(each.key, each.trained_alike) for each in first] == [("a", ("b", "c")), ("d", ())]
    assert [(each.key, each.trained_alike) for each in later] == [("b", ("a",))]
    first, later = _in_turn(tasks(fresh=True))
    assert [(each.key, each.trained_alike) for each in first] == [("a", ()), ("d", ())]
    assert [(each.key, each.trained_alike) for each in later] == [("b", ("a",))]


def test_a_job_that_trains_weights_makes_the_runs_that_take_them_too(
    task: MakeTask, store: Store
) -> None:
    """In another job of a call that leaves they would begin without them, and train."""
    submitted: list[list[list[str]]] = []

    class Leaving(Local):
        def detach(self, work: Sequence[Sequence[TaskGroup]]) -> None:
            submitted.extend([[t.key for t in group] for group in chain] for chain in work)
            raise DetachedError("submitted")

    names = {"a": ("b",), "d": (), "b": ("a",)}
    tasks = [task(name, key=name, trained_alike=alike) for name, alike in names.items()]
    limits, listener = Limits(probes=False), ProgressListener()
    with pytest.raises(DetachedError):
        schedule(tasks, Leaving([Device("cpu")]), store, listener, limits)
    assert submitted == [[], [["a"], ["b"]], [["d"]]]


def test_a_run_with_the_eager_engine_takes_no_weights_with_other_random_draws(
    trained: Task,
) -> None:
    changes = {"engine": "eager", "engine_note": "not cuda_graph: no capture"}
    other = sampling(trained, engine="cuda_graph", eager_key="eager").with_fallbacks(changes)
    assert (other.key, other.trained_alike) == ("eager", ())
    same = sampling(trained, engine="cuda_graph", eager_key="sampling").with_fallbacks(changes)
    assert (same.key, same.trained_alike) == ("sampling", ("trained",))


def test_a_run_that_takes_weights_records_why_its_own_engine_is_another_one(trained: Task) -> None:
    note = "not cuda_graph: no capture"
    record = finish(sampling(trained, engine_note=note), Store(trained.results))
    assert record["weights_of"] == "trained"
    assert record["engine_note"] == note


VARIANTS = "variants: {beam: {decoding: beam}, rms: {model.norm: rms}}"


@pytest.mark.e2e
@pytest.mark.parametrize("n_devices", [1, pytest.param(2, marks=pytest.mark.ddp)])
def test_a_row_of_another_decoding_is_planned_and_made_without_training(
    tmp_path: Path, n_devices: int
) -> None:
    file, results = tmp_path / "searches.yaml", tmp_path / "results"
    text = f"{EXPERIMENT}devices_per_run: {n_devices}\n{VARIANTS}"
    file.write_text(text, encoding="utf-8")
    plan = api.plan(file, results=results)
    assert [[run.takes_weights for run in row.runs] for row in plan.rows] == [
        [False],
        [True],
        [False],
    ]
    n_bytes = 4 * (plan.rows[0].params + plan.rows[2].params)
    assert plan.weight_mib == pytest.approx(n_bytes / 2**20)
    assert any(line.startswith("1 of the runs differ from another") for line in plan.remarks())
    call = ["run", str(file), "--results", str(results), "--no-probe", "--device", "cpu"]
    outcome = CliRunner().invoke(app, call)
    assert outcome.exit_code == 0, outcome.output
    store = Store(results)
    records = {each["variant"]: each for each in map(store.load, store.headings()) if each}
    assert records["beam"]["weights_of"] == records["baseline"]["hash"]
    assert not {"baseline", "rms"} & {row for row, each in records.items() if "weights_of" in each}
    table = json.loads(CliRunner().invoke(app, ["report", *call[1:4], "--format", "json"]).output)
    assert table["errors"]["test.test.bleu"]["sharing"] == ["beam"]
