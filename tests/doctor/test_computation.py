"""What devices compute: right, wrong, slow."""

from __future__ import annotations

import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.cuda_graphs import GraphCapturer
from ablate.doctor import __main__ as process
from ablate.doctor import computation
from ablate.doctor.computation import (
    bf16,
    capture,
    compiler,
    determinism,
    engines,
    side_by_side,
    speed,
)
from ablate.doctor.results import CheckResult, Target
from ablate.doctor.workload import SMALL, batches
from ablate.errors import EngineError
from ablate.runner import devices
from ablate.training.engines import Eager
from ablate.training.engines.data_parallel import DataParallel
from tests import tape
from tests.fake_cuda import CudaMachine

pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def _same_threads() -> Iterator[None]:
    n_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(n_threads)


@pytest.mark.parametrize(
    ("precision", "half", "scale", "outcome"),
    [
        ("fp32", 0.0, 1.0, "not applicable"),
        ("bf16", 2e12, 1.0, "ok"),
        ("bf16", 0.5e12, 1.0, "warning"),
        ("bf16", 2e12, 1.1, "broken"),
    ],
)
def test_bf16_is_correct_and_fast_or_not(
    monkeypatch: pytest.MonkeyPatch,
    target: Target,
    precision: str,
    half: float,
    scale: float,
    outcome: str,
) -> None:
    rates = {torch.float32: 1e12, torch.bfloat16: half}
    monkeypatch.setattr(devices, "resolve", lambda *_: precision)
    monkeypatch.setattr(computation, "matrix_rate", lambda _, dtype, __: rates[dtype])
    monkeypatch.setattr(Tensor, "bfloat16", lambda x: x.to(torch.bfloat16) * scale)
    result = bf16(target)
    assert result.outcome == outcome
    assert ("1.00 TFLOP/s" in result.sentence) is (outcome != "broken")


def test_a_capture_is_replayed_with_new_numbers(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    monkeypatch.setattr(GraphCapturer, "capture", tape.capture)
    assert capture(target).outcome == "ok"

    def stale(_: Any, name: str, work: Any) -> Any:
        result = work()
        return lambda: result

    monkeypatch.setattr(GraphCapturer, "capture", stale)
    assert capture(target).outcome == "broken"


def test_engines_agree_unless_one_is_wrong(monkeypatch: pytest.MonkeyPatch, target: Target) -> None:
    result = engines(target)
    assert result.outcome == "ok", result.sentence
    assert result.figures["engine"] == "data_parallel"
    assert float(result.figures["loss_difference"]) < 1e-5
    add = DataParallel.forward_backward

    def wrong(self: DataParallel, *args: Any) -> Tensor:
        losses = add(self, *args)
        weight = next(p for p in self.model.parameters() if p.grad is not None)
        assert weight.grad is not None
        weight.grad *= 1.01
        return losses

    monkeypatch.setattr(DataParallel, "forward_backward", wrong)
    assert engines(target).outcome == "broken"


def test_an_engine_that_gives_up_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    make = Eager.__init__

    def with_a_note(self: Eager, *args: Any) -> None:
        make(self, *args)
        self.note = "not cuda_graph: a part asks for a number"

    monkeypatch.setattr(computation, "resolve", lambda *_: "eager")
    monkeypatch.setattr(Eager, "__init__", with_a_note)
    result = engines(target)
    assert result.outcome == "warning"
    assert "a part asks for a number" in result.sentence


def test_runs_side_by_side_have_their_own_random_numbers(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    assert side_by_side(target).outcome == "ok"
    monkeypatch.setattr("ablate.runner.streams._RandomState.restore", lambda _: None)
    assert side_by_side(target).outcome == "broken"


def test_repeated_steps_give_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    assert determinism(target).outcome == "ok"
    monkeypatch.setattr(torch, "manual_seed", lambda _: torch.seed())
    assert determinism(target).outcome == "broken"


@pytest.mark.parametrize(("seconds", "outcome"), [((0.2, 0.1), "ok"), ((0.1, 0.2), "warning")])
def test_speeds_are_compared_with_eager(
    monkeypatch: pytest.MonkeyPatch, target: Target, seconds: tuple[float, float], outcome: str
) -> None:
    by_turns: Iterator[float] = itertools.cycle(seconds)
    monkeypatch.setattr(computation, "LAPTOP", SMALL)
    monkeypatch.setattr(computation, "timed", lambda *_: next(by_turns))
    monkeypatch.setattr(computation, "count_flops", lambda *_: 3e9)
    monkeypatch.setattr(computation, "matrix_rate", lambda *_: 1e12)
    result = speed(target)
    assert result.outcome == outcome
    assert result.figures["eager_step_ms"] == 1e3 * seconds[0]
    assert result.figures["step_ms"] == 1e3 * seconds[1]
    n_tokens = batches(SMALL, 1, torch.device("cpu"))[0].n_tokens
    share = 3e9 * n_tokens / seconds[1] / 1e12
    assert result.figures["share_of_matrix_rate"] == pytest.approx(share, abs=1e-4)
    assert ("say --engine eager" in result.sentence) is (outcome == "warning")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaMachine]:
    """A machine with one GPU, which keeps PyTorch's rules of captures."""
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda *_, **__: None)
    with CudaMachine("cuda:0", 1) as machine:
        yield machine


@pytest.mark.parametrize("check", [capture, engines, side_by_side, determinism])
def test_a_gpu_is_ok_and_its_graphs_are_replayed(
    check: Callable[[Target], CheckResult], gpu: CudaMachine, target: Target
) -> None:
    result = check(replace(target, device="cuda:0"))
    assert result.outcome == "ok", result.sentence
    assert gpu.n_replays > 0


def test_a_gpu_whose_captures_fail_raises_what_a_process_reports(
    gpu: CudaMachine, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    def curious(x: Tensor, **_: Any) -> Tensor:
        return x / x.sum().item()

    monkeypatch.setattr(torch, "softmax", curious)
    with pytest.raises(EngineError, match="could not be captured as a CUDA graph"):
        capture(replace(target, device="cuda:0"))


@pytest.mark.parametrize(
    ("scale", "outcome", "reason"),
    [(1.0, "ok", "took"), (1.1, "warning", "wrong numbers"), (None, "warning", "no C++ compiler")],
)
def test_compilers_are_tried(
    monkeypatch: pytest.MonkeyPatch, target: Target, scale: float | None, outcome: str, reason: str
) -> None:
    def compiled(work: Any) -> Any:
        if scale is None:
            raise RuntimeError("no C++ compiler\nand advice")
        return lambda x: work(x) * scale

    monkeypatch.setattr(torch, "compile", compiled)
    result = compiler(target)
    assert result.outcome == outcome
    assert reason in result.sentence


def test_a_process_makes_one_check(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], target: Target
) -> None:
    monkeypatch.setattr(process, "die_with_parent", lambda: None)
    fields = [target.devices, str(target.results), target.device]
    monkeypatch.setattr(sys, "argv", ["", "file locks", *fields])
    assert process.main() == 0
    assert CheckResult.from_line(capsys.readouterr().out.splitlines()[-1]).outcome == "ok"
    monkeypatch.setattr(sys, "argv", ["", "gpu memory", *fields])
    if not torch.cuda.is_available():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert process.main() == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") > 1
