"""The capturer, on a machine that keeps PyTorch's rules of captures."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ablate.cuda_graphs import GraphCapturer, generator_of
from ablate.errors import EngineError
from tests.fake_cuda import MIB, CudaMachine


def test_captures_go_on_after_all_were_destroyed(machine: CudaMachine) -> None:
    capturer, x = GraphCapturer(machine.device), torch.zeros(2)
    for n in range(3):
        capturer.warm_up(lambda: x.add_(1).sum())
        replay = capturer.capture("the work", lambda: x.add_(1).sum())
        assert float(replay()) == 2 * 2 * (n + 1)
        assert capturer.n_captures == 1
        capturer.clear()
    assert machine.live_graphs == 1


def test_a_capturer_that_was_made_in_inference_mode_serves_training_too(
    machine: CudaMachine,
) -> None:
    x = torch.ones(8)
    with torch.inference_mode():
        capturer = GraphCapturer(machine.device)
        capturer.capture("decoding", lambda: x + 1)()
    y = capturer.capture("a training step", lambda: torch.nn.functional.dropout(x, 0.5))()
    assert set(y.tolist()) <= {0.0, 2.0}


def test_captures_that_are_no_longer_used_live_as_long_as_the_others(machine: CudaMachine) -> None:
    capturer, x = GraphCapturer(machine.device), torch.ones(2, 2)
    capturer.warm_up(lambda: x @ x)
    replay = capturer.capture("one", lambda: x @ x)
    dropped = capturer.capture("another", lambda: x + x)
    del dropped
    assert replay().tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_work_waits_for_the_streams_of_its_own_device(machine: CudaMachine) -> None:
    """The current device is another one, as in ``translate --device cuda:1``."""
    assert torch.cuda.current_device() != machine.device.index
    x, capturer = torch.ones(2), GraphCapturer(machine.device)
    x += 1
    y = capturer.warm_up(lambda: x * 2)
    assert (y + x).tolist() == [6.0, 6.0]
    x += 1
    replay = capturer.capture("the work", lambda: x * 2)
    x += 1
    assert replay().tolist() == [8.0, 8.0]


def test_what_cannot_be_captured_is_named(machine: CudaMachine) -> None:
    x = torch.ones(2)
    capturer = GraphCapturer(machine.device)
    expected = (
        "^the work could not be captured as a CUDA graph: CUDA error: operation not permitted"
    )
    with pytest.raises(EngineError, match=expected):
        capturer.capture("the work", lambda: x * x.sum().item())


def test_a_failure_that_the_work_hides_is_one_too(machine: CudaMachine) -> None:
    x = torch.ones(2)

    def hide() -> Tensor:
        try:
            return x * x.sum().item()
        except RuntimeError:
            return x * 2

    with pytest.raises(EngineError, match="operation failed due to a previous error"):
        GraphCapturer(machine.device).capture("the work", hide)


def test_the_lack_of_memory_stays_what_it_is(machine: CudaMachine) -> None:
    def fail() -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    capturer = GraphCapturer(machine.device)
    with (
        pytest.warns(UserWarning, match="The CUDA Graph is empty"),
        pytest.raises(torch.OutOfMemoryError, match="2 GiB"),
    ):
        capturer.capture("the work", fail)


@pytest.mark.parametrize(("free_mib", "n_expected"), [(60_000, 0), (0, 1)])
def test_memory_that_is_held_for_reuse_is_free_for_a_capture(
    machine: CudaMachine, monkeypatch: pytest.MonkeyPatch, free_mib: int, n_expected: int
) -> None:
    """During a capture PyTorch gives nothing back, and is out of memory beside free blocks."""
    x, capturer, n_times = torch.ones(2), GraphCapturer(machine.device), []

    def give_back() -> None:
        assert not machine.allocator.underway
        n_times.append(1)

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free_mib * MIB, 80_000 * MIB))
    monkeypatch.setattr(torch.cuda, "empty_cache", give_back)
    capturer.warm_up(lambda: x * 2)
    assert capturer.capture("the work", lambda: x * 2)().tolist() == [2.0, 2.0]
    assert len(n_times) == n_expected


def test_the_generator_of_a_device_is_not_that_of_the_current_one(machine: CudaMachine) -> None:
    generators: tuple[object, ...] = machine.default_generators
    assert generator_of(machine.device) is generators[1]
    assert generator_of(torch.device("cuda")) is generators[0]
    assert generator_of(torch.device("cpu")) is torch.default_generator


def test_on_a_cpu_a_capture_is_the_work() -> None:
    x, capturer = torch.zeros(()), GraphCapturer(torch.device("cpu"))
    work = x.add_
    assert capturer.capture("the work", lambda: work(1))() == 1
    assert capturer.n_captures == 0
    capturer.clear()
