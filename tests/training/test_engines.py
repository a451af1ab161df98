"""Engines: all make the same steps, and the eager one replaces one that a part rules out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ablate.config import RunSpec
from ablate.cuda_graphs import GraphCapturer
from ablate.data.batches import Batch, Batches
from ablate.data.tokenizer import PAD
from ablate.errors import SpecError
from ablate.model import Transformer
from ablate.registry import slots
from ablate.training.engines import NAMES, Eager, Engine, make_engine, random_draws, resolve
from ablate.training.engines import compiled as compiled_module
from ablate.training.engines import cuda_graph as graph_module
from ablate.training.engines.compiled import OPTIONS
from ablate.training.engines.cuda_graph import CudaGraph
from ablate.training.engines.factory import engine_of
from ablate.training.engines.self_check import compare
from ablate.training.gradient import forward_hidden
from ablate.training.step import BatchStream, StepConfig, make_optimizer, set_lr
from tests import tape
from tests.tiny import OBJECTIVES, PARTS, mixed, mixtures, some_batch, thin
from tests.training.reversal import fresh, make_step_config, pairs, run_spec

CPU = torch.device("cpu")


def prepared(name: str, spec: RunSpec, device: torch.device = CPU) -> tuple[Engine, Batches]:
    """Return an engine with a fresh model, and the batches to train it on."""
    model = fresh(spec).to(device).train()
    optimizer = make_optimizer(spec, model)
    set_lr(optimizer, 1e-3)
    batches = Batches(pairs(), spec.training.batch_tokens, PAD)
    step_config = StepConfig.of(spec.training, "fp32")
    return make_engine(name, model, step_config, optimizer), batches


def losses(
    name: str,
    device: torch.device = CPU,
    *,
    n_steps: int = 50,
    dropout: float = 0.0,
    **training: Any,
) -> tuple[list[float], Engine]:
    """Return the loss of each step, and the engine."""
    spec = run_spec(dropout, clip=1.0, **training)
    engine, batches = prepared(name, spec, device)
    stream, actual = BatchStream(batches, seed=1), []
    for _ in range(n_steps):
        step = [batch.to(device) for batch in stream.take(spec.training.accumulate)]
        actual.append(float(engine.step(step).loss))
    return actual, engine


@pytest.mark.train
@pytest.mark.parametrize("name", sorted(slots()["optimizer"]))
def test_every_optimizer_makes_the_same_updates_from_a_graph(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another rate, which single precision holds exactly, and gradient at every step."""
    monkeypatch.setattr(GraphCapturer, "capture", tape.capture)

    def result(engine_name: str) -> tuple[list[Tensor], int]:
        engine, batches = prepared(engine_name, run_spec(0.0, optimizer={"name": name}, clip=1.0))
        batch = batches.make(batches.epoch(1, 0)[0])
        for rate in (2**-10, 2**-9, 3 * 2**-10, 2**-8):
            set_lr(engine.optimizer, rate)
            norm = engine.step([batch]).gradient_norm
        n_captures = engine.n_captures if isinstance(engine, CudaGraph) else 0
        return [norm, *engine.model.parameters()], n_captures

    expected, _ = result("eager")
    actual, n_captures = result("cuda_graph")
    assert n_captures == (2 if name in ("adam", "adamw") else 1)
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


@pytest.mark.train
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # where it cannot compile
def test_more_models_are_compiled_in_one_process_than_pytorch_would(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compile_, counts = torch.compile, torch._dynamo.utils.counters["stats"]
    monkeypatch.setattr(
        torch,
        "compile",
        lambda f, *, dynamic, options: compile_(f, dynamic=dynamic, backend="eager"),
    )
    torch._dynamo.reset()  # what other tests have compiled
    n_before, engines = counts["unique_graphs"], []
    with torch._dynamo.config.patch(recompile_limit=1):
        for n_layers in (1, 2):
            spec = run_spec(0.0)
            model = spec.model.model_copy(update={"n_layers": n_layers})
            engine, batches = prepared("compile", spec.model_copy(update={"model": model}))
            engine.step([batches.make(batches.epoch(1, 0)[0])])
            engines.append(engine)
    assert counts["unique_graphs"] == n_before + len(engines)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # where it cannot compile
def test_compiled_steps_learn_as_eager_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced for batches of any shape, without compiling the 34 kernels, which takes long."""
    compile_ = torch.compile

    def without_kernels(function: Callable[..., Any], *, dynamic: bool, options: Any) -> Any:
        return compile_(function, dynamic=dynamic, backend="eager")

    monkeypatch.setattr(torch, "compile", without_kernels)
    expected, _ = losses("eager", n_steps=12, dropout=0.3)
    actual, engine = losses("compile", n_steps=12, dropout=0.3)
    assert (engine.name, engine.note) == ("compile", "")
    assert engine.seconds_preparing > 0
    assert expected[-1] < expected[0] - 0.3
    assert actual == pytest.approx(expected, abs=1e-4)
    assert engine.last_engine_batch is not None
    compare(engine, engine.last_engine_batch)


@pytest.mark.train
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_kernels_draw_dropout_as_eager_does() -> None:
    """So that they can be compared with eager steps in the middle of a run."""

    def drop(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x.sin(), 0.3)

    x, actual = torch.ones(64), []
    for function in (drop, torch.compile(drop, dynamic=True, options=OPTIONS)):
        torch.manual_seed(1)
        actual.append(function(x))
    assert 0 < int((actual[0] == 0).sum()) < 64
    torch.testing.assert_close(*actual)


@pytest.mark.train
@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:TensorFloat32 tensor cores:UserWarning")
@pytest.mark.parametrize("name", ["cuda_graph", "compile"])
def test_on_a_gpu_too(name: str) -> None:
    expected, _ = losses("eager", torch.device("cuda"))
    actual, engine = losses(name, torch.device("cuda"))
    assert (engine.name, engine.note) == (name, "")
    assert engine.seconds_preparing > 0
    assert actual == pytest.approx(expected, abs=1e-4)


def test_both_stacks_are_compiled_once_for_batches_of_any_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a compiler that changes nothing, and counts one graph at its first call."""
    compiled: list[tuple[Any, ...]] = []
    calls: list[int] = []

    def compile_(function: Callable[..., Any], *, dynamic: bool, options: Any) -> Any:
        compiled.append((function, dynamic, options))

        def call(*args: Any) -> Any:
            calls.append(1)
            return function(*args)

        return call

    monkeypatch.setattr(torch, "compile", compile_)
    monkeypatch.setattr(compiled_module, "_n_compiled", lambda: min(1, len(calls)))
    expected, _ = losses("eager", n_steps=3, dropout=0.3)
    spec = run_spec(0.3, clip=1.0)
    engine, batches = prepared("compile", spec)
    actual, seconds = [], []
    for batch in BatchStream(batches, seed=1).take(3):
        actual.append(float(engine.step([batch]).loss))
        seconds.append(engine.seconds_preparing)
        assert engine.last_engine_batch is batch
    assert actual == expected
    assert compiled == [(forward_hidden, True, {"fallback_random": True})]
    assert len(calls) == 3
    assert 0 < seconds[0] < 60, "the first call has compiled"
    assert seconds[0] == seconds[1] == seconds[2], "the others have not"


@pytest.mark.parametrize(
    ("n_devices", "name", "expected"),
    [
        (1, "eager", "eager"),
        (2, "eager", "distributed"),
        (2, "fully_sharded", "fully_sharded"),
        (1, "fully_sharded", None),
    ],
)
def test_a_run_on_several_devices_has_an_engine_for_them(
    n_devices: int, name: str, expected: str | None
) -> None:
    spec = run_spec().model_copy(update={"devices_per_run": n_devices})
    if expected is None:
        with pytest.raises(SpecError, match="splits a model over the devices of a run"):
            engine_of(spec, name)
    else:
        assert engine_of(spec, name) == expected


def gradients(cls: type[Engine], model: Transformer, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """Return the losses of a batch and its gradient, computed for the third time."""
    step_config = make_step_config()
    engine = cls(model, step_config, torch.optim.SGD(model.parameters(), lr=0.0))
    for _ in range(2):
        engine.step([batch])
    model.zero_grad(set_to_none=False)
    actual = engine.forward_backward(batch, 7)
    assert not isinstance(engine, CudaGraph) or (engine.n_captures, engine.note) == (1, "")
    return actual, [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]


@pytest.mark.train
@pytest.mark.parametrize("parts", mixtures(PARTS), ids=str)
def test_no_part_comes_out_differently_from_a_graph(
    parts: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With padding between the source and its buffer, and logits of padding."""
    monkeypatch.setattr(GraphCapturer, "capture", tape.capture)
    batch = some_batch()
    for one, other in zip(mixed(parts), mixed(parts), strict=True):
        expected, left = gradients(Eager, one.double(), batch)
        actual, right = gradients(CudaGraph, other.double(), batch)
        torch.testing.assert_close(actual, expected)
        for a, b in zip(left, right, strict=True):
            torch.testing.assert_close(a, b, atol=1e-11, rtol=1e-8)


@pytest.mark.train
@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_objective_comes_out_differently_from_a_graph(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GraphCapturer, "capture", tape.capture)

    def result(cls: type[Engine]) -> Tensor:
        model = thin("position", "sinusoidal").double()
        step_config = make_step_config(name)
        engine = cls(model, step_config, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in range(3):
            actual = engine.step([some_batch()])
        return torch.stack((actual.loss, actual.gradient_norm.to(actual.loss.dtype)))

    torch.testing.assert_close(result(CudaGraph), result(Eager))


def test_a_loss_that_is_read_late_is_that_of_its_step() -> None:
    engine, batches = prepared("cuda_graph", run_spec(dropout=0.0))
    rows = batches.epoch(1, 0)[0]
    results = [engine.step([batches.make(rows)]).loss for _ in range(4)]
    actual = [float(loss) for loss in results]
    assert actual == sorted(actual, reverse=True)
    assert len(set(actual)) == 4


def test_sources_of_almost_one_length_share_a_capture() -> None:
    engine, _ = prepared("cuda_graph", run_spec(dropout=0.0))
    assert isinstance(engine, CudaGraph)
    losses = [engine.forward_backward(of_length(n_src), 10) for n_src in (7, 8, 7, 9, 10)]
    assert engine.n_captures == 2
    torch.testing.assert_close(losses[2], losses[0], msg="of the source before nothing is left")
    assert losses[1][0] != losses[0][0]
    engine.model.max_len = 15
    assert engine._shape(of_length(15))[1] == 15, "no source is lengthened beyond the model"
    engine.forward_backward(of_length(15), 10)


@pytest.mark.parametrize(
    ("n", "expected"),
    [(1, 2), (2, 2), (31, 32), (32, 32), (33, 36), (64, 64), (65, 72), (250, 256)],
)
def test_sources_are_hardly_lengthened(n: int, expected: int) -> None:
    assert graph_module.padded_length(n) == expected


def of_length(n_src: int) -> Batch:
    """Return two pairs with sources of ``n_src`` tokens."""
    tgt = torch.full((2, 5), 5)
    return Batch(torch.full((2, n_src), 6), tgt, tgt, 10, torch.arange(2))


def reads_a_number(y: Tensor) -> Tensor:
    return y if y.sum().item() > 0 else 2 * y


def branches_on_a_number(y: Tensor) -> Tensor:
    return y if y.sum() > 0 else 2 * y


def makes_a_shape_of_numbers(y: Tensor) -> Tensor:
    return y + y[y > 0].mean()


DATA_DEPENDENT = [reads_a_number, branches_on_a_number, makes_a_shape_of_numbers]
"""Changes of a part's output after which it cannot be captured."""


def test_auto_is_what_suits_the_device() -> None:
    assert resolve("auto", "cpu") == "data_parallel"
    assert resolve("auto", "cuda") == "cuda_graph"
    assert resolve("compile", "cpu") == "compile"
    with pytest.raises(SpecError, match="captures CUDA graphs, which a CPU does not have; say --e"):
        resolve("cuda_graph", "cpu")
    with pytest.raises(
        SpecError, match="no engine 'fast'; say auto, eager, data_parallel, cuda_graph, compile"
    ):
        resolve("fast", "cpu")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "auto"])
def test_every_engine_has_a_scheme(name: str) -> None:
    known = {
        "data_parallel": "micro_batches",
        "cuda_graph": "padded_batch",
        "fully_sharded": "ranks",
    }
    training = run_spec(batch_tokens=4096).training
    assert random_draws(name, training) == known.get(name, "whole_batch")


@pytest.mark.parametrize(
    ("n_tokens", "scheme"),
    [(640, "whole_batch"), (2999, "whole_batch"), (3000, "micro_batches")],
)
def test_batches_that_are_never_split_draw_as_the_eager_engine_does(
    n_tokens: int, scheme: str
) -> None:
    training = run_spec(batch_tokens=n_tokens).training
    assert random_draws("data_parallel", training) == scheme
