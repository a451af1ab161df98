"""Runs that share a process: what each of them does is what it does alone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

import ablate.data
import ablate.decoding
import ablate.parts  # noqa: F401 - with the two above, every part is registered
from ablate.config import RunSpec
from ablate.errors import StoppedError
from ablate.runner.devices import Device
from ablate.runner.interleaving import Interleaver
from ablate.runner.run import run_one
from ablate.runner.schedule import schedule
from ablate.runner.task import Task
from ablate.store import Store
from tests.runner.conftest import MEASURED, SMALL, Diary, MakeTask

CPU = torch.device("cpu")


def _draws(interleaver: Interleaver, seed: int, found: dict[int, list[float]]) -> None:
    torch.manual_seed(seed)
    found[seed] = []
    for _ in range(seed):
        found[seed].append(torch.rand(()).item())
        interleaver.yield_turn()


def test_random_numbers_are_each_ones_own() -> None:
    together: dict[int, list[float]] = {}
    interleaver = Interleaver(CPU)
    interleaver.run([partial(_draws, interleaver, seed, together) for seed in (5, 3, 4)])
    for seed in (5, 3, 4):
        alone: dict[int, list[float]] = {}
        only = Interleaver(CPU)
        only.run([partial(_draws, only, seed, alone)])
        assert together[seed] == alone[seed]


def test_only_one_goes_on_at_a_time_and_all_in_turn() -> None:
    interleaver, order, inside = Interleaver(CPU), [], threading.Lock()

    def work(name: str) -> None:
        for _ in range(3):
            assert inside.acquire(blocking=False)
            order.append(name)
            inside.release()
            interleaver.yield_turn()

    interleaver.run([partial(work, name) for name in "abc"])
    assert "".join(order) == "abcabcabc"


def test_an_exception_in_one_reaches_the_caller_when_the_others_have_ended() -> None:
    interleaver, ended = Interleaver(CPU), []

    def fail() -> None:
        interleaver.yield_turn()
        raise ZeroDivisionError

    def work() -> None:
        for _ in range(5):
            interleaver.yield_turn()
        ended.append(True)

    with pytest.raises(ZeroDivisionError):
        interleaver.run([work, fail, work])
    assert ended == [True, True]


def _task(make: MakeTask, results: Path, key: str, *, probe: str = "", **changes: Any) -> Task:
    spec = RunSpec.model_validate({**SMALL, **changes}).model_dump(mode="json")
    return make(key, key=key, spec=spec, results=results, probe=probe)


def _together(tasks: list[Task], should_stop: Callable[[], bool] = lambda: False) -> None:
    interleaver = Interleaver(torch.device(tasks[0].device))

    def stop() -> bool:
        interleaver.yield_turn()
        return should_stop()

    def one(task: Task) -> None:
        run_one(task, Store(task.results), lambda *_: None, stop)

    interleaver.run([partial(one, task) for task in tasks])


def _record(results: Path, key: str) -> dict[str, Any]:
    record = Store(results).load(key)
    assert record is not None
    return record


def _numbers(results: Path, key: str) -> tuple[Any, ...]:
    folder = Store(results).path(key)
    record = _record(results, key)
    curve = pd.read_csv(folder / "curve.csv").drop(columns="seconds")
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("hypotheses.*"))]
    kept = (record["status"], record["dev"], record["test"], record["train"]["best_dev_nll"])
    return curve.to_csv(), texts, kept, (folder / "model.safetensors").read_bytes()


@pytest.fixture
def kinds() -> dict[str, dict[str, Any]]:
    wide = {"model": {**SMALL["model"], "dims": {"d_model": 24, "n_heads": 2, "max_len": 32}}}
    return {"0" * 16: {"seed": 1}, "1" * 16: {"seed": 2}, "2" * 16: wide}


def test_runs_by_turns_are_bit_for_bit_those_made_alone(
    task: MakeTask, tmp_path: Path, kinds: dict[str, dict[str, Any]]
) -> None:
    _together([_task(task, tmp_path / "both", key, **kind) for key, kind in kinds.items()])
    for key, kind in kinds.items():
        _together([_task(task, tmp_path / "alone", key, **kind)])
        assert _numbers(tmp_path / "both", key) == _numbers(tmp_path / "alone", key)


def test_runs_that_are_stopped_together_continue_together(
    task: MakeTask, tmp_path: Path, kinds: dict[str, dict[str, Any]]
) -> None:
    tasks = [_task(task, tmp_path / "both", key, **kind) for key, kind in kinds.items()]
    n_asked = iter(range(10_000))
    with pytest.raises(StoppedError):
        _together(tasks, lambda: next(n_asked) > 20)
    assert not list((tmp_path / "both").glob("runs/*/record.json"))
    assert list((tmp_path / "both").glob("runs/*/checkpoint.pt"))
    _together(tasks)
    for key, kind in kinds.items():
        _together([_task(task, tmp_path / "alone", key, **kind)])
        assert _numbers(tmp_path / "both", key) == _numbers(tmp_path / "alone", key)


def test_a_worker_makes_several_runs_and_says_so(
    task: MakeTask, tmp_path: Path, kinds: dict[str, dict[str, Any]], diary: Diary
) -> None:
    tasks = [_task(task, tmp_path / "both", key, **kind, probe=key) for key, kind in kinds.items()]
    store = Store(tmp_path / "both")
    for key in kinds:
        store.save_probe(key, MEASURED)
    schedule(tasks, [Device("cpu")], store, diary, runs_per_process=3)
    for key, kind in kinds.items():
        _together([_task(task, tmp_path / "alone", key, **kind)])
        assert _numbers(tmp_path / "both", key) == _numbers(tmp_path / "alone", key)
        assert _record(tmp_path / "both", key)["runs_per_process"] == 3
        assert _record(tmp_path / "alone", key)["runs_per_process"] == 1
        assert diary.endings[key].startswith("done, BLEU")


@pytest.mark.gpu
def test_recorded_steps_by_turns_are_those_made_alone(
    task: MakeTask, tmp_path: Path, kinds: dict[str, dict[str, Any]]
) -> None:
    def on_gpu(results: Path, key: str) -> Task:
        made = _task(task, results, key, **kinds[key])
        return replace(made, device="cuda", engine="cuda_graph")

    _together([on_gpu(tmp_path / "both", key) for key in kinds])
    for key in kinds:
        _together([on_gpu(tmp_path / "alone", key)])
        assert _numbers(tmp_path / "both", key) == _numbers(tmp_path / "alone", key)
