"""Runs that share a process: what each of them does is what it does alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import ablate.data
import ablate.decoding
import ablate.parts  # noqa: F401 - with the two above, every part is registered
from ablate.cuda_graphs import GraphCapturer, generator_of
from ablate.errors import RunError, StoppedError
from ablate.runner import worker
from ablate.runner.backends.local import Local
from ablate.runner.devices import Device
from ablate.runner.run import run_one
from ablate.runner.schedule import Limits, schedule
from ablate.runner.streams import MOST_ON_CUDA, Interleaver
from ablate.runner.task import Task
from ablate.store import Store
from tests.fake_cuda import STREAMS, CudaMachine
from tests.runner.conftest import MEASURED, SMALL, Diary, MakeTask, curve_of, small_spec

pytestmark = pytest.mark.e2e

CPU = torch.device("cpu")


def _assert_as_alone(
    device: torch.device, draw: Callable[[int, Callable[[], None]], Any], seeds: Sequence[int]
) -> None:
    """Check that a function, called with a seed and `yield_turn`, returns the same when alone."""

    def results(seeds: Sequence[int]) -> dict[int, Any]:
        interleaver, actual = Interleaver(device), dict[int, Any]()

        def run(seed: int) -> None:
            actual[seed] = draw(seed, interleaver.yield_turn)

        interleaver.run([partial(run, seed) for seed in seeds])
        return actual

    assert results(seeds) == {seed: results([seed])[seed] for seed in seeds}


@pytest.mark.parametrize("is_gpu", [False, True])
def test_random_numbers_are_each_ones_own(is_gpu: bool, request: pytest.FixtureRequest) -> None:
    device = request.getfixturevalue("machine").device if is_gpu else CPU

    def draw(seed: int, yield_turn: Callable[[], None]) -> list[float]:
        generator_of(device).manual_seed(seed)
        numbers = []
        for _ in range(seed):
            numbers.append(torch.rand(()).item())
            yield_turn()
        return numbers

    _assert_as_alone(device, draw, (5, 3, 4))


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


def test_captures_of_several_runs_are_those_made_alone(machine: CudaMachine) -> None:
    """Each draws from the state that it had at its capture, on a stream of its own."""

    def draw(seed: int, yield_turn: Callable[[], None]) -> list[list[float]]:
        capturer, x, masks = GraphCapturer(machine.device), torch.ones(8), []
        yield_turn()
        capturer.warm_up(lambda: torch.nn.functional.dropout(x, 0.5))
        replay = capturer.capture("dropout", lambda: torch.nn.functional.dropout(x, 0.5))
        yield_turn()
        generator_of(machine.device).manual_seed(seed)
        for _ in range(3):
            masks.append(replay().tolist())
            yield_turn()
        return masks

    _assert_as_alone(machine.device, draw, range(4))


def test_as_many_runs_share_a_gpu_as_have_streams_of_their_own(machine: CudaMachine) -> None:
    observed = []

    def work() -> None:
        capturer = GraphCapturer(machine.device)
        observed.extend([capturer._stream, torch.cuda.current_stream(machine.device)])

    Interleaver(machine.device).run([work] * MOST_ON_CUDA)
    assert len(set(observed)) == len(observed) == STREAMS


def test_tasks_of_a_worker_take_turns_until_one_is_out_of_memory(
    task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That ends the process: a capture of another one may have been interrupted."""
    steps, ends = list[str](), list[tuple[str, int]]()

    def run_one(task: Task, _: Store, __: Any, should_stop: Callable[[], bool], *___: Any) -> None:
        for step in range(3):
            steps.append(task.variant)
            if (task.variant, step) == ("b", 1):
                raise MemoryError
            should_stop()

    def end(status: int) -> None:
        ends.append(("".join(steps), status))
        raise KeyboardInterrupt  # in place of the end of the process

    monkeypatch.setattr(worker, "run_one", run_one)
    monkeypatch.setattr(worker, "_end_at_once", end)
    with pytest.raises(KeyboardInterrupt):
        worker._execute_tasks(
            [task(name) for name in "abc"], lambda _: None, lambda: False, worker._Cores()
        )
    assert ends == [("abcab", RunError.exit_status)]


def _task(make: MakeTask, results: Path, key: str, *, probe: str = "", **changes: Any) -> Task:
    return make(key, key=key, spec=small_spec(**changes), results=results, probe=probe)


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
    texts = [file.read_text(encoding="utf-8") for file in sorted(folder.glob("hypotheses.*"))]
    fields = (record["status"], record["dev"], record["test"], record["train"]["best_dev_nll"])
    curve = curve_of(Store(results), key)
    return curve.to_csv(), texts, fields, (folder / "model.safetensors").read_bytes()


@pytest.fixture
def kinds() -> dict[str, dict[str, Any]]:
    wide = {"model": {**SMALL["model"], "dims": {"d_model": 24, "n_heads": 2, "max_len": 32}}}
    return {"0" * 16: {"seed": 1}, "1" * 16: {"seed": 2}, "2" * 16: wide}


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
    schedule(tasks, Local([Device("cpu")]), store, diary, Limits(runs_per_process=3))
    for key, kind in kinds.items():
        _together([_task(task, tmp_path / "alone", key, **kind)])
        assert _numbers(tmp_path / "both", key) == _numbers(tmp_path / "alone", key)
        assert _record(tmp_path / "both", key)["runs_per_process"] == 3
        assert _record(tmp_path / "alone", key)["runs_per_process"] == 1
        assert diary.endings[key].startswith("done, BLEU")
