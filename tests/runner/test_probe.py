"""Probes: the speed and memory of a row, and what records hold of them."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ablate import measuring
from ablate.config import RunSpec
from ablate.data.batches import Batches
from ablate.data.prepare import prepare
from ablate.data.tokenizer import PAD
from ablate.registry import load_plugin
from ablate.runner import probe as module
from ablate.runner import provenance
from ablate.runner.backends.local import Local
from ablate.runner.devices import Device
from ablate.runner.pool import Pool
from ablate.runner.probe import (
    add_speeds,
    lacks_speed,
    n_rounds_of,
    probe_key,
    probe_one,
    sessions_of,
)
from ablate.runner.task import Task, one_per_process
from ablate.store import Store
from ablate.training.ranks import ALONE
from tests.registrations import temporary_registrations
from tests.runner.conftest import PLUGIN, SMALL, SPEEDS, Diary, MakeTask, small_spec


@pytest.fixture
def probe(task: MakeTask) -> Task:
    return task("row", key="row", spec=small_spec(), action="probe", session="now")


def _rounds_in_turn(probe: Task, pool: Pool) -> Iterator[bool]:
    """Yield after every round whether the worker is running."""
    for number in range(3):
        (ended,) = pool.run(one_per_process([replace(probe, round=number)]))
        assert ended.reason is None
        (worker,) = pool._idle
        yield worker.process.is_running


@pytest.mark.e2e
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere every round is a new process")
def test_the_first_round_has_a_process_of_its_own_and_each_adds_its_speeds(
    store: Store, diary: Diary, probe: Task
) -> None:
    peaks, speeds, endings = [], [], []
    with Local([Device("cpu")]).pool(diary) as pool:
        for status in _rounds_in_turn(probe, pool):
            known = store.load_probe("row") or {}
            endings.append(status)
            peaks.append(known["train_peak_mib"])
            speeds.append([known["rounds"][name] for name in SPEEDS])
    assert endings == [False, True, True]
    assert len(set(peaks)) == 1, "memory is counted where the process was fresh"
    assert [len(rounds) for of_turn in speeds for rounds in of_turn] == [1, 1, 2, 2, 3, 3]
    assert speeds[2][0][:2] == speeds[1][0]
    assert known["batches_per_epoch"] > 1
    for name in SPEEDS:
        assert known[name] == statistics.median(known["rounds"][name])
        assert min(known["rounds"][name]) > 0


def test_each_round_adds_its_speeds_and_other_sessions_are_left_alone(
    store: Store, probe: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds = iter([5.0, 9.0, 6.0, 1.0, 2.0])

    def measure(*_: Any) -> dict[str, float]:
        return {**dict.fromkeys(MEASURED, next(speeds)), "train_peak_mib": 1.0}

    monkeypatch.setattr(module, "_measure", measure)
    for number in range(3):
        probe_one(replace(probe, round=number), store, lambda *_: None)
    before = store.load_probe("row") or {}
    for name in MEASURED:
        assert before["rounds"][name] == [5.0, 9.0, 6.0]
        assert before[name] == statistics.median([5.0, 9.0, 6.0])
    probe_one(replace(probe, round=1, session="then"), store, lambda *_: None)
    assert store.load_probe("row") == before
    probe_one(replace(probe, session="then"), store, lambda *_: None)
    after = store.load_probe("row") or {}
    assert (after["session"], n_rounds_of(after)) == ("then", 1)
    assert after["earlier"] == {before["session"]: before["rounds"]}
    assert sessions_of(after, 1) == {"then", before["session"]}
    assert sessions_of(after, 2) == {before["session"]}


def test_a_round_measures_the_training_text_of_the_task(
    store: Store, task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = small_spec(training={**SMALL["training"], "batch_by": "bucket"})
    asked: list[Any] = []
    phases: list[Any] = []

    def probe(*given: Any, ranks: Any) -> dict[str, float]:
        asked.extend((*given, ranks))
        given[6]()
        speeds = ("train_target_tokens_per_second", "decode_sentences_per_second")
        return dict.fromkeys(speeds, 1.0)

    def prepared_of(*given: Any) -> Any:
        asked.extend(given[1:3])
        return prepare(given[0])

    monkeypatch.setattr(measuring, "probe", probe)
    monkeypatch.setattr(module, "prepare", prepared_of)
    row = task("row", spec=spec, action="probe", engine="data_parallel", micro_batch_factor=4)
    row = replace(row, corpus_fingerprint="of the text", teacher_sha256="of a teacher")
    probe_one(row, store, lambda *words: phases.append(words))
    run = RunSpec.model_validate(spec)
    train = prepare(run).train
    batches = Batches(train, run.training.batch_tokens, PAD, by="bucket").of_epoch(0, 0)
    largest = max(map(len, batches.epoch(run.seed, 0)))
    assert asked[:2] == ["of the text", "of a teacher"]
    assert asked[2] == run
    assert len(asked[3].train) == len(train)
    assert asked[4:8] == [torch.device("cpu"), "fp32", "data_parallel", 4]
    assert asked[9] == ALONE
    assert phases == [("measuring",), ("measuring steps", None, largest)]
    known = store.load_probe("row") or {}
    assert known["batches_per_epoch"] == batches.n_per_epoch
    assert known["target_tokens_per_batch"] == pytest.approx(
        sum(map(len, train.tgt)) / batches.n_per_epoch
    )
    assert known["micro_batch_factor"] == 4


@pytest.mark.parametrize("known", [None, {}, {"train_peak_mib": 1.0}])
def test_a_row_without_rounds_has_not_been_measured(known: dict[str, float] | None) -> None:
    assert n_rounds_of(known) == 0


def test_a_round_has_both_speeds() -> None:
    names = ("train_target_tokens_per_second", "decode_sentences_per_second")
    assert n_rounds_of({"rounds": dict(zip(names, ([1.0, 2.0], [1.0]), strict=True))}) == 1
    assert n_rounds_of({"rounds": dict(zip(names, ([1.0], [1.0, 2.0]), strict=True))}) == 1


CPU = Device("cpu")
MEASURED = {"train_target_tokens_per_second": 7.0, "decode_sentences_per_second": 3.0}


def saved(task: Task, store: Store, **changes: Any) -> Task:
    """Save the record of a run of this machine, which is done, and return its task."""
    record: dict[str, Any] = {"hash": task.key, "status": "done", "error": None, "test": {}}
    made = {"versions": provenance.versions(), "hardware": provenance.hardware_of(CPU)}
    store.path(task.key).mkdir(parents=True, exist_ok=True)
    store.save({**record, **made, **changes})
    return task


def speed_of(task: Task, store: Store) -> Any:
    return (store.load(task.key) or {}).get("speed")


def test_a_record_that_lacks_its_speed_gets_it(store: Store, task: MakeTask) -> None:
    run = saved(task("row", key="0123456789abcdef"), store)
    assert not lacks_speed(run, store, CPU), "nothing has been measured"
    store.save_probe(run.probe, {**MEASURED, "session": "now", "train_peak_mib": 9.0})
    assert lacks_speed(run, store, CPU)
    add_speeds([run], store, CPU)
    assert speed_of(run, store) == {**MEASURED, "session": "now"}
    assert (store.load(run.key) or {})["memory"] == {"train_peak_mib": 9.0}
    assert not lacks_speed(run, store, CPU)


@pytest.mark.parametrize(
    "changes",
    [
        {"status": "diverged"},
        {"hardware": {"cpu": "another"}},
        {"versions": {"torch": "0.1"}},
    ],
)
def test_other_records_keep_what_they_have(
    changes: dict[str, Any], store: Store, task: MakeTask
) -> None:
    """Of runs that have not ended well, and of other machines."""
    run = saved(task("row", key="0123456789abcdef"), store, **changes)
    store.save_probe(run.probe, {**MEASURED, "session": "now"})
    before = speed_of(run, store)
    add_speeds([run], store, CPU)
    assert speed_of(run, store) == before


def test_new_speeds_replace_those_of_earlier_sessions(store: Store, task: MakeTask) -> None:
    """Also if they were measured for another experiment, or for the tuning of this one."""
    names = ("train_target_tokens_per_second", "decode_sentences_per_second")
    rounds = {name: [1.0, 2.0] for name in names}
    then = {"session": "then", "rounds": rounds}
    run = saved(task("row", key="0123456789abcdef"), store, speed={**MEASURED, **then})
    store.save_probe(run.probe, {**MEASURED, **then})
    assert not lacks_speed(run, store, CPU)
    now = {"session": "now", "rounds": rounds, "earlier": {"then": rounds}}
    store.save_probe(run.probe, {**MEASURED, **now})
    add_speeds([run], store, CPU)
    assert speed_of(run, store) == {**MEASURED, **now}


def test_a_record_gets_the_rounds_that_followed_it(store: Store, task: MakeTask) -> None:
    """Jobs of a cluster train while another one measures, and so do calls in two terminals."""
    first, all_of_them = ({name: [1.0, 2.0, 4.0][:n] for name in MEASURED} for n in (1, 3))
    now = {**MEASURED, "session": "now"}
    run = saved(task("row", key="0123456789abcdef"), store, speed={**now, "rounds": first})
    store.save_probe(run.probe, {**now, "rounds": all_of_them})
    assert lacks_speed(run, store, CPU)
    add_speeds([run], store, CPU)
    assert speed_of(run, store)["rounds"] == all_of_them
    assert not lacks_speed(run, store, CPU)


def test_a_probe_is_named_after_what_speed_depends_on() -> None:
    """Not the seed; the content of a corpus of files, but of no other; engine and precision."""

    def key(
        engine: str = "eager", fingerprint: str = "", precision: str = "fp32", **changes: Any
    ) -> str:
        spec = RunSpec.model_validate(small_spec(**changes))
        return probe_key(spec, CPU, precision, engine, fingerprint)

    assert key() == key(seed=2) == key(fingerprint="another")
    assert len({key(), key(engine="compiled"), key(precision="bf16")}) == 3
    assert key() != key(decoding="beam")
    files: dict[str, Any] = {"name": "files", "src": "en", "tgt": "de"}
    files |= {"train": ["a", "b"], "dev": ["a", "b"], "tests": {"test": ["a", "b"]}}
    of_one, of_other = (key(fingerprint=each, corpus=files) for each in ("1", "2"))
    assert of_one != of_other


def test_only_a_moving_average_of_the_weights_changes_the_speed() -> None:
    def key(**average: Any) -> str:
        training = {**small_spec()["training"], "average": average}
        spec = RunSpec.model_validate(small_spec(training=training))
        return probe_key(spec, Device("cpu"), "fp32", "eager", "")

    assert key() == key(last=3)
    assert len(key()) == 16
    assert key(ema=0.9) != key()
    assert key(ema=0.9) != key(ema=0.99)


def test_speed_depends_on_the_machine_but_not_on_the_threads_of_a_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def key(**hardware: object) -> str:
        monkeypatch.setattr(module, "hardware_of", lambda _: {"cpu": "a", "threads": 1} | hardware)
        return probe_key(RunSpec.model_validate(small_spec()), Device("cpu"), "fp32", "eager", "")

    assert (of_now := key()) == key(threads=4) != key(cpu="b")
    monkeypatch.setattr(module, "versions", lambda: {"torch": "0.1"})
    assert key() != of_now


def test_speed_depends_on_the_content_of_a_plugin(tmp_path: Path) -> None:
    keys = []
    for slope in ("0.1", "0.2", "0.1"):
        (tmp_path / "mine.py").write_text(PLUGIN.replace("SLOPE", slope))
        with temporary_registrations():
            load_plugin(tmp_path / "mine.py")
            for position in ("ramp", "learned"):
                model = {**SMALL["model"], "position": position}
                run = RunSpec.model_validate(small_spec(model=model))
                keys.append(probe_key(run, Device("cpu"), "fp32", "eager", ""))
    of_ramp, of_learned = keys[::2], keys[1::2]
    assert len(set(of_learned)) == 1
    assert of_ramp[0] == of_ramp[2] != of_ramp[1]
