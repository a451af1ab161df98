"""Training with CUDA graphs, on a machine that keeps PyTorch's rules of them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.cuda_graphs import generator_of
from ablate.data.batches import Batch, Batches
from ablate.data.tokenizer import PAD
from ablate.errors import EngineError, StoppedError
from ablate.model import Transformer
from ablate.parts.feed_forward import Relu
from ablate.training import Progress, curve, loop, train
from ablate.training.engines import Eager, SelfCheck, cuda_graph
from ablate.training.engines.cuda_graph import CudaGraph, FusedGradAccumulator
from ablate.training.engines.self_check import compare
from ablate.training.gradient import StepInputs, forward_backward
from ablate.training.step import BatchStream
from ablate.training.weights import Weights
from tests.fake_cuda import CudaMachine
from tests.tape import Tape
from tests.tiny import PARTS, mixed, mixtures, some_batch, thin, tiny
from tests.training import test_engines
from tests.training.reversal import fresh, job, make_step_config, pairs, run_spec
from tests.training.test_engines import makes_a_shape_of_numbers, of_length, reads_a_number


def engine_of(
    machine: CudaMachine, model: Transformer | None = None, optimizer: str = "adam"
) -> CudaGraph:
    model = (model or thin("position", "none")).to(machine.device).train()
    step_config = make_step_config(clip=1.0)
    kinds = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    fused = {"fused": True} if optimizer == "adam" else {}
    engine = CudaGraph(model, step_config, kinds[optimizer](model.parameters(), lr=1e-3, **fused))
    for group in engine.optimizer.param_groups:
        group["rate"] = 1.0
    return engine


def batch(machine: CudaMachine) -> Batch:
    return some_batch().to(machine.device)


@pytest.mark.train
@pytest.mark.parametrize(("accumulate", "loss_per"), [(1, "token"), (3, "sentence")])
def test_graphs_learn_as_eager_does(accumulate: int, loss_per: str, machine: CudaMachine) -> None:
    options: dict[str, Any] = {"n_steps": 30, "accumulate": accumulate, "loss_per": loss_per}
    expected, _ = test_engines.losses("eager", machine.device, **options)
    actual, engine = test_engines.losses("cuda_graph", machine.device, **options)
    assert (engine.name, engine.note) == ("cuda_graph", "")
    assert expected[-1] < expected[0] - 0.2
    assert machine.n_replays > 30
    assert actual == pytest.approx(expected, abs=1e-4)


def test_the_update_is_captured_too(machine: CudaMachine) -> None:
    engine, one = engine_of(machine), batch(machine)
    for _ in range(2):
        engine.step([one])
    assert engine.n_captures == 2
    before, n_launches = machine.n_replays, machine.n_launches
    engine.step([one])
    assert machine.n_replays == before + 2
    assert machine.n_launches - n_launches < 15


def test_the_self_check_repeats_only_what_was_replayed(machine: CudaMachine) -> None:
    engine, one = engine_of(machine), batch(machine)
    seen = []
    for _ in range(3):
        engine.step([one])
        seen.append(engine.last_engine_batch)
    assert seen == [None, one, one], "the first step of a shape is an eager one"


def test_an_update_is_capturable_only_while_it_is_captured(machine: CudaMachine) -> None:
    """And has its rates in tensors, while the optimizer keeps them as numbers."""
    engine, one = engine_of(machine), batch(machine)
    flags: list[tuple[bool, bool]] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        [group] = optimizer.param_groups
        assert isinstance(group["lr"], Tensor)
        flags.append((group["capturable"], torch.cuda.is_current_stream_capturing()))

    engine.optimizer.register_step_pre_hook(note)
    for _ in range(3):
        engine.step([one])
        [group] = engine.optimizer.param_groups
        assert (group["lr"], group["capturable"]) == (1e-3, False)
    assert flags == [(False, False), (True, True)], "one eager update, one captured, one replayed"


def test_captures_end_at_the_most_and_cost_time_that_is_counted(
    machine: CudaMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_graph, "_MOST_CAPTURES", 1)
    engine, one = engine_of(machine), batch(machine)
    prepared = []
    for _ in range(4):
        engine.step([one])
        prepared.append(engine.seconds_preparing)
    assert engine.n_captures == 1
    assert prepared[0] == 0 < prepared[1] == prepared[2] == prepared[3]


def test_the_self_check_has_the_same_dropout_and_restores_the_devices_generator(
    machine: CudaMachine,
) -> None:
    model = tiny(n_layers=1, dropout={"embedding": 0.3, "residual": 0.3})
    engine, one = engine_of(machine, model), batch(machine)
    for _ in range(2):
        engine.step([one])
    generator = generator_of(machine.device)
    generator.manual_seed(5)
    before = generator.get_state()
    compare(engine, one)
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("change", [reads_a_number, makes_a_shape_of_numbers])
def test_a_failed_capture_ends_the_process(
    change: Callable[[Tensor], Tensor], machine: CudaMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout cannot be drawn in it any more."""
    forward = Relu.forward
    monkeypatch.setattr(Relu, "forward", lambda *args: change(forward(*args)))
    engine = engine_of(machine)
    engine.step([batch(machine)])
    expected = "^a training step could not be captured as a CUDA graph: .*not permitted"
    with pytest.raises(EngineError, match=expected):
        engine.step([batch(machine)])
    with pytest.raises(RuntimeError, match="Offset increment outside graph capture"):
        torch.nn.functional.dropout(torch.ones(2), 0.5)
    engine.close()


def with_late_weight(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Have a part multiply its output for long sentences by a weight that others do not use."""

    def changed(self: Relu, x: Tensor, *rest: Any) -> Tensor:
        y = forward(self, x, *rest)
        return y * self.get_parameter("late") if x.size(1) > 10 else y

    return changed


def with_late_weights(model: Transformer) -> list[Relu]:
    """Give each of these parts its weight, and return them."""
    layers = [module for module in model.modules() if isinstance(module, Relu)]
    for layer in layers:
        layer.late = torch.nn.Parameter(torch.ones(16))
    return layers


def test_weights_that_are_first_used_late_are_updated(
    machine: CudaMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a new capture of the update, which leaves the other captures alone."""
    monkeypatch.setattr(Relu, "forward", with_late_weight(Relu.forward))
    late = []
    for cls in (Eager, CudaGraph):
        model = fresh(run_spec(dropout=0.0)).to(machine.device).train()
        parts = with_late_weights(model)
        adam = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
        engine = cls(model, make_step_config(), adam)
        for n_src in (8, 8, 8, 12, 12, 12):
            engine.step([of_length(n_src).to(machine.device)])
        late.append([part.get_parameter("late").detach().clone() for part in parts])
        engine.step([of_length(8).to(machine.device)])
    assert isinstance(engine, CudaGraph)
    assert engine.n_captures == 4
    assert machine.live_graphs == 5, "the first update's lives on, and so does the pool's keeper"
    assert any(bool((weight != 1).all()) for weight in late[0])
    torch.testing.assert_close(late[1], late[0])


def test_a_closed_engine_keeps_no_graph(machine: CudaMachine) -> None:
    engine = engine_of(machine)
    for _ in range(3):
        engine.step([batch(machine)])
    engine.close()
    assert machine.live_graphs == 1, "of the capturer, which may go on to capture"
    assert not engine._buffers, "nor the memory of its inputs"


@pytest.mark.train
def test_garbage_is_not_collected_during_a_capture(
    machine: CudaMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that was not closed refers to itself, and so is garbage with graphs."""
    forward = Relu.forward

    def collect(*args: Any) -> Tensor:
        """Collect at the worst moment, if garbage is collected at all."""
        if gc.isenabled():
            gc.collect()
        return forward(*args)

    monkeypatch.setattr(Relu, "forward", collect)
    dead, engine = engine_of(machine), engine_of(machine)
    for _ in range(2):
        dead.step([batch(machine)])
    engine.step([batch(machine)])
    del dead
    engine.step([batch(machine)])
    assert engine.n_captures == 2
    assert gc.isenabled()


@pytest.mark.train
@pytest.mark.parametrize("parts", mixtures(PARTS), ids=str)
def test_every_part_keeps_the_rules_of_captures(
    parts: list[tuple[str, str]], machine: CudaMachine
) -> None:
    """Its numbers are compared with those of eager steps in `test_engines`."""
    for model in mixed(parts):
        engine = engine_of(machine, model)
        for _ in range(2):
            engine.step([batch(machine)])
        assert (engine.n_captures, engine.note) == (2, "")
        before = machine.n_replays
        engine.step([batch(machine)])
        assert machine.n_replays == before + 2


def test_the_self_check_notices_a_learning_rate_that_stays(machine: CudaMachine) -> None:
    engine = engine_of(machine)
    for _ in range(2):
        engine.step([batch(machine)])
    captured = engine._rates
    engine._rates = [rate.clone() for rate in captured]
    with pytest.raises(EngineError, match="differs after the update"):
        compare(engine, batch(machine))


def trained(
    machine: CudaMachine,
    folder: Path,
    engine: str = "cuda_graph",
    should_stop: Callable[[], bool] = lambda: False,
    **training: Any,
) -> tuple[dict[str, Tensor], list[Progress]]:
    spec = run_spec(dropout=0.1, **training)
    reports: list[Progress] = []
    model = fresh(spec).to(machine.device)
    batches = Batches(pairs(), spec.training.batch_tokens, PAD, machine.device)
    gpu_job = replace(job(spec, folder), engine=engine, device=machine.device, batches=batches)
    train(model, gpu_job, reports.append, should_stop)
    return {name: x.clone() for name, x in model.state_dict().items()}, reports


def curve_without_seconds(folder: Path) -> list[str]:
    lines = (folder / "curve.csv").read_text(encoding="ascii").splitlines()
    return [line.rpartition(",")[0] for line in lines]


@pytest.mark.parametrize("engine", ["eager", pytest.param("cuda_graph", marks=pytest.mark.train)])
def test_a_run_that_is_continued_ends_as_any_other(
    engine: str, machine: CudaMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stops where the losses of steps are still unread; its first update is not captured."""
    monkeypatch.setattr(Weights, "map_location", torch.device("cpu"))  # where tensors really are
    schedule = {"name": "constant", "lr": 7e-3}  # which single precision rounds
    part = partial(trained, machine, engine=engine, schedule=schedule, steps=16)
    whole, _ = part(tmp_path / "whole")
    answers, folder = iter([*[False] * 7, True]), tmp_path / "stopped"
    with pytest.raises(StoppedError):
        part(folder, should_stop=lambda: next(answers))
    continued, _ = part(folder)
    torch.testing.assert_close(continued, whole, atol=0.0, rtol=0.0)
    assert curve_without_seconds(folder) == curve_without_seconds(tmp_path / "whole")


def test_the_host_waits_for_the_device_once_in_many_steps(
    machine: CudaMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run in which every step has a row of the curve."""
    monkeypatch.setattr(SelfCheck, "after_step", lambda _: None)
    monkeypatch.setattr(curve, "is_recorded", lambda _: False)  # some sixty steps of a long run
    monkeypatch.setattr(loop, "_MAX_UNREAD_STEPS", 4)
    waits: list[int] = []

    def count(stream: BatchStream, n: int) -> Any:
        waits.append(machine.n_waits)
        return take(stream, n)

    take = BatchStream.take
    monkeypatch.setattr(BatchStream, "take", count)
    _, reports = trained(machine, tmp_path, steps=10, evaluate_every=10)
    assert waits[-1] - waits[1] == 2
    assert [progress.step for progress in reports] == [4, 8, 10]
    rows = (tmp_path / "curve.csv").read_text(encoding="ascii").splitlines()
    assert len(rows) == 11


@pytest.mark.train
def test_rows_do_not_depend_on_when_they_are_read(
    machine: CudaMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(n_steps_ahead: int) -> list[str]:
        monkeypatch.setattr(loop, "_MAX_UNREAD_STEPS", n_steps_ahead)
        folder = tmp_path / str(n_steps_ahead)
        trained(machine, folder, engine="eager")
        return curve_without_seconds(folder)

    assert rows(20) == rows(1)


def backward(model: Transformer, precision: str) -> Callable[[], Tensor]:
    """Return a function that adds a gradient to those of a model."""
    inputs = StepInputs.of(some_batch(), 7)
    return partial(forward_backward, model, make_step_config(precision=precision), inputs)


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [weight.grad for weight in model.parameters()]


def sums(
    model: nn.Module, add: Callable[[], Tensor], fused: FusedGradAccumulator | None = None
) -> list[Tensor | None]:
    """Return the losses and the gradients after two additions."""
    model.zero_grad()
    torch.manual_seed(3)
    for is_captured in (False, True):
        losses = add() if fused is None else fused(add, is_captured=is_captured)
    return [losses, *gradients(model)]


@pytest.mark.parametrize("parts", mixtures(PARTS), ids=str)
def test_no_part_comes_out_differently(parts: list[tuple[str, str]]) -> None:
    """Added twice, and with weights that have changed since the accumulator was made."""
    for model in mixed(parts):
        fused = FusedGradAccumulator(model.train(), "bf16")
        with torch.no_grad():
            for weight in model.parameters():
                weight.mul_(0.5)
        add = backward(model, "bf16")
        actual = sums(model, add, fused)
        expected = sums(model, add)
        torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("precision", "n"), [("fp32", (0, 1)), ("bf16", (2, 2))])
def test_no_weight_has_a_kernel_of_its_own(precision: str, n: tuple[int, int]) -> None:
    model = thin("position", "sinusoidal").train()
    add = partial(FusedGradAccumulator(model, precision), backward(model, precision))
    add(is_captured=False)
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    weights = [weight for linear in linears for weight in linear.parameters()]
    ids = {id(weight.grad) for weight in weights}
    if precision == "bf16":  # in fp32 the products use the weights themselves
        ids |= {id(weight) for weight in weights}
    with Tape() as tape:
        add(is_captured=True)
    names = [func._schema.name for func, *_ in tape.calls]
    assert (names.count("aten::_foreach_copy_"), names.count("aten::_foreach_add_")) == n
    assert not any(id(x) in ids for _, arguments, *_ in tape.calls for x in arguments)


def test_other_code_uses_the_weight_of_a_layer_itself() -> None:
    """Its gradient is the sum of both uses."""
    layer = nn.Linear(3, 3)
    x = torch.randn(5, 3)

    def add() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
        with torch.autocast("cpu", enabled=False):
            y = y + layer(x) + layer.weight.square().sum()
        y.sum().backward()
        return y.detach()

    expected = add(), layer.weight.grad, layer.bias.grad
    layer.zero_grad()
    actual = (
        FusedGradAccumulator(layer, "bf16")(add, is_captured=False),
        layer.weight.grad,
        layer.bias.grad,
    )
    torch.testing.assert_close(actual, expected)
    assert "forward" not in vars(layer)


def test_a_weight_that_is_not_trained_stays_so() -> None:
    layer = nn.Linear(3, 3)
    layer.weight.requires_grad_(False)

    def add() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = layer(torch.ones(5, 3)).sum()
        loss.backward()
        return loss.detach()

    FusedGradAccumulator(layer, "bf16")(add, is_captured=False)
    assert layer.weight.grad is None
    torch.testing.assert_close(layer.bias.grad, torch.full((3,), 5.0))


def test_a_first_gradient_is_not_captured() -> None:
    model: Transformer = thin("position", "sinusoidal").train()
    with pytest.raises(RuntimeError, match="first gradient in a capture"):
        FusedGradAccumulator(model, "fp32")(backward(model, "fp32"), is_captured=True)
    assert set(gradients(model)) == {None}


def test_a_compiled_model_is_not_compiled_again_at_every_call() -> None:
    """After a few times PyTorch would give up without an error, and run it eagerly."""
    layer, x = nn.Linear(3, 3), torch.randn(5, 3)
    compiled = torch.compile(layer, backend="eager")

    def add() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = compiled(x).sum()
        loss.backward()
        return loss.detach()

    fused = FusedGradAccumulator(layer, "bf16")
    fused(add, is_captured=False)
    with torch.compiler.set_stance("fail_on_recompile"):
        fused(add, is_captured=True)
