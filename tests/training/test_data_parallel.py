"""A batch in shards: the gradient of the whole batch, whichever process computes which shard."""

from __future__ import annotations

import copy
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.errors import StoppedError
from ablate.model import Transformer
from ablate.parts.feed_forward import Relu
from ablate.parts.position.absolute import Shifted
from ablate.registry import lookup
from ablate.runner.backends.local import python_path
from ablate.training.engines import Engine, data_parallel, make_engine
from ablate.training.engines.data_parallel import (
    GradWorker,
    Shard,
    ShardResult,
    _to_shared_memory,
    compute_gradients,
    max_n_shards,
    n_shards,
    shard_batch,
    share_weights,
    sum_results,
)
from ablate.training.gradient import StepInputs, forward_backward
from tests.tiny import PARTS, mixed, mixtures, some_batch, thin
from tests.training.reversal import fresh, make_step_config, run, run_spec

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="workers are forks")


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split batches of a few tokens too."""
    monkeypatch.setattr(data_parallel, "_FEWEST_TOKENS", 4)
    monkeypatch.setattr(data_parallel, "MAX_SHARDS", 4)


def engine_of(
    model: Transformer, objective: str = "label_smoothing", name: str = "data_parallel"
) -> Engine:
    step_config = make_step_config(objective, clip=1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return make_engine(name, model.train(), step_config, optimizer)


def gradient(engine: Engine) -> list[Tensor | None]:
    """Return the sums of the losses of a batch, and its gradient."""
    with closing(engine):
        actual = engine.forward_backward(some_batch(), 20)
    return [actual, *(p.grad for p in engine.model.parameters())]


def of_shape(n_rows: int, n_src: int, n_tgt: int) -> Batch:
    tgt = torch.full((n_rows, n_tgt), 5)
    return Batch(torch.full((n_rows, n_src), 6), tgt, tgt, tgt.numel(), torch.arange(n_rows))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((40, 9, 16), 1),
        ((100, 9, 29), 1),
        ((100, 9, 30), 2),
        ((100, 9, 41), 2),
        ((1, 9, 4000), 1),
        ((3, 9, 4000), 2),
        ((600, 9, 10), 4),
        ((1200, 9, 10), 8),
        ((9000, 9, 10), 8),
    ],
)
def test_only_large_batches_are_split(shape: tuple[int, int, int], expected: int) -> None:
    assert n_shards(of_shape(*shape)) == expected
    assert max_n_shards(shape[0] * shape[2]) >= expected, "no batch of that size has more"


def test_shards_are_the_batch(small_shards: None) -> None:
    batch = some_batch()
    shards = shard_batch(batch, 20, is_training=True)
    assert len(shards) == len({shard.seed for shard in shards}) == 4
    for name in ("src", "tgt_in", "tgt_out"):
        whole = torch.cat([torch.from_numpy(getattr(shard, name)) for shard in shards])
        assert torch.equal(whole, getattr(batch, name))
    assert sum(int(shard.inputs().n_tokens) for shard in shards) == batch.n_tokens
    seeds = [s.seed for _ in range(20) for s in shard_batch(batch, 20, is_training=True)]
    assert len(set(seeds)) == len(seeds), "every shard of every batch has draws of its own"


@on_linux
def test_one_core_is_used_unless_there_are_more(small_shards: None) -> None:
    with closing(engine_of(thin("position", "none"))) as engine:
        engine.step([some_batch()])
        assert workers() == []
        assert engine.last_engine_batch is not None, "the batch is in shards all the same"
        engine.cores = 3
        engine.step([some_batch()])
        assert len(workers()) == 1, "of a power of two of processes this one is the first"
    assert workers() == [], "a closed engine has none"


@pytest.mark.parametrize("is_training", [True, False])
def test_a_shard_is_computed_in_its_own_mode(is_training: bool, small_shards: None) -> None:
    """Whichever mode the model is in, as a worker's is in another."""
    step_config, actual = make_step_config(), []
    for was_training in (True, False):
        model = fresh(run_spec(dropout=0.3)).train(was_training)
        torch.manual_seed(1)
        shards = shard_batch(narrow(some_batch()), 20, is_training=is_training)
        actual.append(compute_gradients(model, step_config, shards))
        assert model.training == is_training
    assert torch.equal(actual[0].losses, actual[1].losses)
    model = fresh(run_spec(dropout=0.0))
    whole = forward_backward(model, step_config, StepInputs.of(narrow(some_batch()), 20))
    is_without_dropout = bool(torch.allclose(actual[0].losses, whole))
    assert is_without_dropout != is_training


def test_sums_of_results_are_those_of_one_process_bit_for_bit() -> None:
    """Of results that are None for some weights, in any of them."""
    torch.manual_seed(0)
    results = [
        ShardResult(torch.rand(2), [torch.rand(5), None, torch.rand(5) if i % 2 else None])
        for i in range(4)
    ]
    a, b, c, d = (result.losses for result in results)
    first, last = ([result.gradient[k] for result in results] for k in (0, 2))
    added = (first[0] + first[1]) + (first[2] + first[3])  # type: ignore[operator]
    of_some = last[1] + last[3]  # type: ignore[operator]
    actual = sum_results(copy.deepcopy(results))
    assert torch.equal(actual.losses, (a + b) + (c + d))
    assert torch.equal(actual.gradient[0], added)  # type: ignore[arg-type]
    assert actual.gradient[1] is None
    assert torch.equal(actual.gradient[2], of_some)  # type: ignore[arg-type]


def test_shared_memory_holds_copies_that_do_not_overlap() -> None:
    """At addresses that are aligned as PyTorch's own, of tensors of any size and type."""
    tensors = [torch.rand(n) for n in (1, 16, 17, 3)] + [torch.arange(5)]
    shared = _to_shared_memory(tensors)
    torch.testing.assert_close(shared, tensors, rtol=0, atol=0)
    starts = [x.data_ptr() for x in shared]
    assert {start % 64 for start in starts} == {0}
    ends = [x.data_ptr() + x.numel() * x.element_size() for x in shared]
    assert all(end <= start < end + 64 for end, start in zip(ends[:-1], starts[1:], strict=True))


@pytest.mark.train
@pytest.mark.parametrize(
    "parts",
    mixtures([part for part in PARTS if not lookup(*part).cls.batch_dependence]),
    ids=str,
)
def test_the_gradient_is_that_of_the_whole_batch(
    parts: list[tuple[str, str]], small_shards: None
) -> None:
    for model in mixed(parts):
        for module in model.modules():
            if isinstance(module, Shifted):
                module.max_shift = 0  # it would be drawn
        expected = gradient(engine_of(copy.deepcopy(model), name="eager"))
        engine = engine_of(model)
        assert engine.name == "data_parallel"
        torch.testing.assert_close(gradient(engine), expected, atol=2e-5, rtol=1e-3)


def noisy() -> Transformer:
    """Return a model with dropout, in which a weight is used only in shards with padding."""
    model = fresh(run_spec(dropout=0.3)).train()
    for module in model.modules():
        if isinstance(module, Relu):
            module.late = nn.Parameter(torch.ones(16))
    return model


def late(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def changed(self: Relu, x: Tensor, aux_losses: Any = None) -> Tensor:
        y = forward(self, x, aux_losses)
        return y if bool(aux_losses.is_token.all()) else y * self.get_parameter("late")

    return changed


@on_linux
@pytest.mark.parametrize(
    "n_cores", [pytest.param(n, marks=() if n == 3 else pytest.mark.train) for n in (2, 3, 4)]
)
def test_the_numbers_do_not_depend_on_the_number_of_cores(
    n_cores: int, small_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do later draws; batches are accumulated, and only some shards use a weight."""
    monkeypatch.setattr(Relu, "forward", late(Relu.forward))

    def result(n_cores: int) -> list[Tensor]:
        torch.manual_seed(1)
        with closing(engine_of(noisy())) as engine:
            assert engine.name == "data_parallel"
            for n in (1, n_cores, n_cores, 2):
                engine.cores = n if n_cores > 1 else 1
                step = engine.step([narrow(some_batch()), narrow(some_batch())])
            return [step.loss, step.gradient_norm, torch.rand(3), *engine.model.parameters()]

    for alone, together in zip(result(1), result(n_cores), strict=True):
        assert torch.equal(alone, together)


def narrow(batch: Batch) -> Batch:
    """Return the batch with ids of a small vocabulary."""
    src, tgt_in, tgt_out = (x % 11 for x in (batch.src, batch.tgt_in, batch.tgt_out))
    n_tokens = int((tgt_out != PAD).sum())
    return Batch(src, tgt_in, tgt_out, n_tokens, batch.index)


@pytest.mark.train
@on_linux
def test_an_interrupted_run_may_go_on_with_other_cores(tmp_path: Path, small_shards: None) -> None:
    spec = run_spec(accumulate=2, average={"last": 2})

    def go(name: str, n_cores: list[int], stops: Sequence[bool] = ()) -> dict[str, Tensor]:
        cores, folder = itertools.cycle(n_cores), tmp_path / name
        parallel: dict[str, Any] = {"engine": "data_parallel", "cores": lambda: next(cores)}
        result, model = run(spec, folder, stops, **parallel)
        assert result.engine == "data_parallel"
        return dict(model.state_dict())

    whole = go("whole", [1])
    assert workers() == []
    with pytest.raises(StoppedError):
        go("parts", [1, 2, 4], [*[False] * 11, True])
    assert workers() == [], "they outlived the run"
    torch.testing.assert_close(go("parts", [4]), whole, rtol=0, atol=0)


def workers() -> list[int]:
    """Return the forks of this process."""
    process = os.getpid()
    actual = Path(f"/proc/{process}/task/{process}/children").read_text(encoding="ascii").split()
    own = Path(f"/proc/{process}/cmdline").read_bytes()
    return [int(child) for child in actual if Path(f"/proc/{child}/cmdline").read_bytes() == own]


@on_linux
@pytest.mark.parametrize("is_at_work", [False, True])
def test_the_death_of_a_worker_is_an_error(is_at_work: bool, small_shards: None) -> None:
    model = thin("position", "none").train()
    share_weights(model)
    shards = shard_batch(some_batch(), 20, is_training=True)
    with closing(GradWorker(model, engine_of(model).step_config)) as worker:
        if is_at_work:
            worker.begin(shards * 200)
        os.kill(workers()[0], signal.SIGKILL)
        with pytest.raises(MemoryError, match=r"killed by signal 9 \(out of memory\?\)"):
            result_of(worker, shards)


@on_linux
def test_a_worker_goes_on_when_all_processes_are_asked_to_stop(small_shards: None) -> None:
    model = thin("position", "none").train()
    share_weights(model)
    shards = shard_batch(some_batch(), 20, is_training=True)
    with closing(GradWorker(model, engine_of(model).step_config)) as worker:
        before = result_of(worker, shards).losses
        os.kill(workers()[0], signal.SIGTERM)
        assert torch.equal(result_of(worker, shards).losses, before)


_FORGETS_A_WORKER = """\
from tests.training.test_data_parallel import *

model = thin("position", "none").train()
share_weights(model)
worker = GradWorker(model, engine_of(model).step_config)
result_of(worker, shard_batch(some_batch(), 20, is_training=True))
"""


@on_linux
def test_a_worker_that_was_not_closed_ends_with_its_process() -> None:
    path = {"PYTHONPATH": python_path()}
    command = [sys.executable, "-P", "-c", _FORGETS_A_WORKER]
    subprocess.run(command, env={**os.environ, **path}, check=True, timeout=60)


def result_of(worker: GradWorker, shards: Sequence[Shard]) -> ShardResult:
    """Return a worker's result of shards, which it computes after all earlier ones."""
    worker.begin(shards)
    return worker.result()


class UnpicklableError(Exception):
    """Cannot be sent to another process: its constructor takes two arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one}, {two}")


@on_linux
@pytest.mark.parametrize(
    ("error", "expected", "message"),
    [
        (MemoryError("all of it"), MemoryError, "^all of it$"),
        (UnpicklableError("so", "so"), RuntimeError, "^UnpicklableError: so, so$"),
    ],
)
def test_an_error_in_a_worker_is_raised_here(
    error: Exception,
    expected: type[Exception],
    message: str,
    small_shards: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parent_pid, forward = os.getpid(), Relu.forward

    def fails_elsewhere(self: Relu, *args: Any) -> Tensor:
        if os.getpid() != parent_pid:
            raise error
        return forward(self, *args)

    monkeypatch.setattr(Relu, "forward", fails_elsewhere)
    with closing(engine_of(thin("position", "none"))) as engine:
        engine.cores = 2
        with pytest.raises(expected, match=message):
            engine.step([some_batch()])


ORPHANED = """
import os, signal
from tests.training.test_data_parallel import engine_of, thin, data_parallel, workers
from tests.tiny import some_batch
data_parallel._FEWEST_TOKENS = 4
engine = engine_of(thin("position", "none"))
engine.cores = 4
engine.step([some_batch()])
print(*workers(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.train
@on_linux
def test_workers_end_with_their_parent() -> None:
    words = [sys.executable, "-c", ORPHANED]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    orphans = done.stdout.split()
    assert len(orphans) == 3
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{orphan}/cmdline").exists() for orphan in orphans):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_small_batches_are_computed_eagerly() -> None:
    model = fresh(run_spec(dropout=0.3))
    other = fresh(run_spec(dropout=0.3))
    for engine in (engine_of(model), engine_of(other, name="eager")):
        torch.manual_seed(1)
        engine.cores = 4
        engine.step([narrow(some_batch())])
    assert workers() == []
    for x, y in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(x, y)
