"""The fake machine with CUDA keeps PyTorch's rules: each of them can be broken, and fails then."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.fake_cuda import CudaMachine

pytestmark = pytest.mark.usefixtures("machine")


def capture(
    work: Callable[[], Tensor], pool: Any = None, stream: Any = None
) -> tuple[torch.cuda.CUDAGraph, Tensor]:
    """Capture some work as PyTorch's documentation does, on a stream of the tensors' device."""
    graph = torch.cuda.CUDAGraph()
    device = torch.zeros(()).device
    stream = stream or torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            result = work()
        finally:
            graph.capture_end()
    torch.cuda.current_stream(device).wait_stream(stream)
    return graph, result


def test_a_replay_works_on_the_memory_of_the_capture() -> None:
    x = torch.zeros(2)
    graph, y = capture(lambda: x.add_(1) * 10)
    assert x.tolist() == [0.0, 0.0], "a capture does nothing"
    for _ in range(3):
        graph.replay()
    assert (x.tolist(), y.tolist()) == ([3.0, 3.0], [30.0, 30.0])


def test_a_pool_dies_with_its_last_graph() -> None:
    x, pool = torch.zeros(2), torch.cuda.graph_pool_handle()
    keeper, _ = capture(lambda: x + 1, pool)
    graph, _ = capture(lambda: x + 1, pool)
    del graph
    graph, _ = capture(lambda: x + 1, pool)
    del graph, keeper
    with pytest.raises(RuntimeError, match="use_count > 0"):
        capture(lambda: x + 1, pool)


@pytest.mark.parametrize("work", [lambda x: x * x.sum().item(), lambda x: x[x > 0]])
def test_a_failed_capture_leaves_generator_and_allocator_capturing(
    work: Callable[[Tensor], Tensor],
) -> None:
    x, pool = torch.ones(2), torch.cuda.graph_pool_handle()
    functional.dropout(x, 0.5)
    with pytest.raises(RuntimeError, match="operation failed due to a previous error"):
        capture(lambda: work(x), pool)
    with pytest.raises(RuntimeError, match="Offset increment outside graph capture"):
        functional.dropout(x, 0.5)
    with pytest.raises(RuntimeError, match="captures_underway"):
        torch.cuda.empty_cache()
    with pytest.raises(RuntimeError, match="already recording"):
        capture(lambda: x + 1, pool)


def test_dropout_is_drawn_anew_by_each_replay_and_from_the_seed(machine: CudaMachine) -> None:
    x, generator = torch.ones(64), machine.default_generators[1]
    generator.manual_seed(3)
    expected = [functional.dropout(x, 0.5).tolist() for _ in range(2)]
    graph, y = capture(lambda: functional.dropout(x, 0.5))
    generator.manual_seed(3)
    results = []
    for _ in range(2):
        graph.replay()
        results.append(y.tolist())
    assert results == expected
    assert results[0] != results[1]


def test_a_seed_that_inference_mode_has_made_is_for_inference_mode_alone() -> None:
    x = torch.ones(2)
    with torch.inference_mode():
        graph, _ = capture(lambda: x + 1)
        graph.replay()
    with pytest.raises(RuntimeError, match="inference tensor"):
        capture(lambda: x + 1)


def test_a_graph_that_dies_in_another_capture_spoils_it() -> None:
    class Owner:
        pass

    x, owner = torch.ones(2), Owner()
    owner.me, owner.graph = owner, capture(lambda: x + 1)[0]  # type: ignore[attr-defined]
    del owner
    with pytest.raises(RuntimeError, match="previous error"):
        capture(lambda: x + gc.collect())


def test_the_end_of_a_graph_takes_the_workspace_of_the_others_on_its_stream() -> None:
    x, stream = torch.ones(2, 2), torch.cuda.Stream(torch.device("cuda", 1))
    graph, _ = capture(lambda: x @ x, stream=stream)
    elsewhere, _ = capture(lambda: x @ x)
    dropped, _ = capture(lambda: x + x, stream=stream)
    graph.replay()
    del dropped
    elsewhere.replay()
    with pytest.raises(RuntimeError, match="illegal memory access"):
        graph.replay()


@pytest.mark.parametrize("awaited", ["current device", "device of the tensors"])
def test_streams_must_be_waited_for_on_their_own_device(awaited: str) -> None:
    x, device = torch.ones(2), torch.device("cuda", 1)
    x += 1
    stream = torch.cuda.Stream(device)
    if awaited == "device of the tensors":
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            x *= 2
        return
    stream.wait_stream(torch.cuda.current_stream())
    with pytest.raises(RuntimeError, match="without having waited"), torch.cuda.stream(stream):
        x *= 2


def test_an_optimizer_that_counts_on_the_host_is_not_captured() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    adam = torch.optim.Adam([weight], lr=0.1, fused=True)
    adam.step()
    with pytest.raises(RuntimeError, match="capturable is False"):
        capture(lambda: adam.step() or weight)


def test_a_graph_must_not_outlive_the_memory_that_it_uses() -> None:
    x, held = torch.ones(2), [torch.ones(2)]
    held.append(held[0][:1])
    graph, result = capture(lambda: (x.view(2, 1) + 1).add_(held[-1]).sum())
    del held[0]
    graph.replay()
    assert float(result) == 6
    held.clear()
    with pytest.raises(RuntimeError, match="has been freed"):
        graph.replay()
