"""The self-check: an engine that is wrong is caught, one that is right is left as it was."""

from __future__ import annotations

import copy
import math
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ablate.data.batches import Batch, Batches
from ablate.data.tokenizer import PAD
from ablate.errors import EngineError
from ablate.model import Transformer
from ablate.registry import slots
from ablate.training.engines import Eager, Engine, SelfCheck, data_parallel, factory
from ablate.training.engines.data_parallel import DataParallel
from ablate.training.engines.self_check import (
    _Gradient,
    _gradient_difference,
    _Update,
    _update_difference,
    compare,
)
from tests.tiny import OBJECTIVES, fitted, some_batch
from tests.training.reversal import make_step_config, pairs, run, run_spec
from tests.training.test_engines import prepared


@pytest.fixture(autouse=True)
def _small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Split batches of a few tokens too."""
    monkeypatch.setattr(data_parallel, "_FEWEST_TOKENS", 4)


def engine_of(
    model: Transformer | None = None, objective: str = "label_smoothing", **options: Any
) -> Engine:
    """Return a data-parallel engine that has made a step."""
    model = (model or fitted("position", "none")).train()
    step_config = make_step_config(objective, clip=1.0, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for group in optimizer.param_groups:
        group["rate"] = 1.0
    engine = DataParallel(model, step_config, optimizer)
    engine.step([some_batch()])
    return engine


@pytest.mark.train
@pytest.mark.parametrize("name", OBJECTIVES)
def test_no_objective_is_taken_for_a_mistake(name: str) -> None:
    compare(engine_of(objective=name), some_batch())


@pytest.mark.parametrize("options", [{"precision": "bf16"}, {"loss_per": "sentence"}], ids=str)
def test_no_option_of_steps_is_taken_for_a_mistake(options: dict[str, Any]) -> None:
    compare(engine_of(**options), some_batch())


class _Wrong(DataParallel):
    """Makes a mistake of one per cent.

    Attributes:
        mistake: what it is about.
    """

    mistake = ""

    def forward_backward(self, batch: Batch, normalizer: int) -> Tensor:
        losses = super().forward_backward(batch, normalizer)
        gradient = self._weight.grad
        assert gradient is not None
        if self.mistake == "gradient":
            gradient.mul_(1.01)
        return losses * 1.01 if self.mistake == "loss" else losses

    def update(self) -> Tensor:
        norm = super().update()
        with torch.no_grad():
            if self.mistake == "weight":
                self._weight.mul_(1.01)
            if self.mistake == "number":
                self._weight.view(-1)[self._weight.abs().argmax()] *= 1.01
        return norm * 1.01 if self.mistake == "norm" else norm

    @property
    def _weight(self) -> torch.nn.Parameter:
        return self.model.get_parameter("encoder.layers.0.feed_forward.up.weight")


@pytest.mark.parametrize(
    ("mistake", "reason"),
    [
        ("loss", "its loss is"),
        ("norm", "its gradient norm is"),
        ("gradient", "the gradient of encoder.layers.0.feed_forward.up.weight differs by 1.00%"),
        ("weight", "encoder.layers.0.feed_forward.up.weight differs after the update by 1.00%"),
        ("number", "encoder.layers.0.feed_forward.up.weight differs after the update"),
    ],
)
def test_a_mistake_of_one_per_cent_is_caught(mistake: str, reason: str) -> None:
    right = engine_of()
    wrong = _Wrong(right.model, right.step_config, right.optimizer)
    compare(wrong, some_batch())
    wrong.mistake = mistake
    with pytest.raises(EngineError, match=reason) as error:
        compare(wrong, some_batch())
    assert str(error.value).startswith("a step of data_parallel is not that of the eager engine")


def reversal_batch() -> Batch:
    batches = Batches(pairs(), 64, PAD)
    return batches.make(batches.epoch(1, 0)[0])


def state_of(engine: Engine) -> list[Any]:
    """Return a copy of everything that a step depends on, tensors as lists of numbers."""
    model, optimizer = engine.model, engine.optimizer
    gradients = [p.grad for p in model.parameters()]
    modes = [module.training for module in model.modules()]
    state = model.state_dict(), gradients, optimizer.state_dict(), torch.get_rng_state()
    leaves = tree_leaves((state, modes))
    return [x.tolist() if isinstance(x, Tensor) else copy.deepcopy(x) for x in leaves]


def test_the_check_is_made_once_after_the_first_batch_of_the_engines_own() -> None:
    right = engine_of()
    wrong = _Wrong(right.model, right.step_config, right.optimizer)
    wrong.mistake = "loss"
    check = SelfCheck(wrong)
    check.after_step()  # there is no such batch yet
    wrong.last_engine_batch = some_batch()
    with pytest.raises(EngineError, match="its loss is"):
        check.after_step()
    check.after_step()
    eager = Eager(right.model, right.step_config, right.optimizer)
    eager.last_engine_batch = some_batch()
    SelfCheck(eager).after_step()
    assert eager.seconds_preparing == 0, "the eager engine is not checked"
    began = time.perf_counter()
    SelfCheck(right).after_step()
    assert 0 < right.seconds_preparing < time.perf_counter() - began, "the time of a check counts"


def of_gradients(loss: float, *gradients: list[float] | None) -> _Gradient:
    return _Gradient(loss, [None if x is None else torch.tensor(x) for x in gradients])


@pytest.mark.parametrize(
    ("own", "eager", "difference"),
    [
        ((1000.5, [3.0, 4.0]), (1000.0, [3.0, 4.0]), ""),
        ((1002.0, [3.0, 4.0]), (1000.0, [3.0, 4.0]), "its loss is 1002 in place of 1000"),
        ((998.0, [3.0, 4.0]), (1000.0, [3.0, 4.0]), "its loss is 998 in place of 1000"),
        ((0.0102, [3.0, 4.0]), (0.01, [3.0, 4.0]), "its loss is 0.0102 in place of 0.01"),
        ((-1000.5, [3.0]), (-1000.0, [3.0]), ""),
        ((math.nan, [3.0]), (1.0, [3.0]), "its loss is nan"),
        ((1.0, [3.0]), (math.nan, [3.0]), ""),
        ((1.0, [9.0]), (1.0, [math.inf]), ""),
        ((0.0, [0.0]), (0.0, [0.0]), ""),
        ((1.0, None, [5.0]), (1.0, None, [5.0]), ""),
        ((1.0, [1.0, 0.0]), (1.0, [1.0, 0.002]), "the gradient of w0 differs by 0.20%"),
        ((1.0, [1.0, 0.0]), (1.0, [1.0, 0.0005]), ""),
        ((1.0, None, [5.0]), (1.0, [1.0], [5.0]), "the gradient of w0 differs by 100.00%"),
        ((1.0, [1.0], [5.0]), (1.0, None, [5.0]), "the gradient of w0 differs by"),
        ((1.0, [0.0], [5.0]), (1.0, None, [5.0]), ""),
        ((1.0, [5.0], [0.004]), (1.0, [5.0], [0.0]), "the gradient of w1 differs"),
        ((1.0, [500.0], [0.004]), (1.0, [500.0], [0.0]), ""),
        ((1.0, [math.nan]), (1.0, [5.0]), "the gradient of w0 differs by nan"),
    ],
)
def test_gradients_are_compared_relative_to_their_size(
    own: tuple[Any, ...], eager: tuple[Any, ...], difference: str
) -> None:
    """To a thousandth of the loss, and of a weight's gradient with a hundredth of the whole one."""
    actual = _gradient_difference(
        ["w0", "w1"][: len(own) - 1], of_gradients(*own), of_gradients(*eager), 1e-3
    )
    assert actual.startswith(difference), actual
    assert bool(actual) == bool(difference), actual


@pytest.mark.parametrize(
    ("before", "own", "eager", "difference"),
    [
        ([5.0, 1.0], (2.0, [6.0, 1.5]), (2.0, [6.0, 1.5]), ""),
        ([5.0, 1.0], (2.01, [6.0, 1.5]), (2.0, [6.0, 1.5]), ""),
        (
            [5.0, 1.0],
            (2.03, [6.0, 1.5]),
            (2.0, [6.0, 1.5]),
            "its gradient norm is 2.03 in place of 2",
        ),
        ([5.0, 1.0], (1.5, [6.0, 1.5]), (2.0, [6.0, 1.5]), "its gradient norm is 1.5 in place of"),
        ([5.0, 1.0], (math.nan, [6.0]), (2.0, [6.0, 1.5]), "its gradient norm is nan"),
        ([5.0, 1.0], (1.0, [0.0, 0.0]), (math.inf, [6.0, 1.5]), ""),
        ([5.0, 1.0], (2.0, [6.0, 1.509]), (2.0, [6.0, 1.5]), ""),
        ([5.0, 1.0], (2.0, [6.0, 1.511]), (2.0, [6.0, 1.5]), "w differs after the update by 0.18%"),
        ([1e6, 1.0], (2.0, [1e6 + 1.5, 1.0]), (2.0, [1e6 + 1.0, 1.0]), ""),
        ([-1e6, 1.0], (2.0, [-1e6 - 1.5, 1.0]), (2.0, [-1e6 - 1.0, 1.0]), ""),
        ([5.0, 1.0], (2.0, [4.0, 0.491]), (2.0, [4.0, 0.5]), ""),
        ([1e6, 1.0], (2.0, [1e6 + 9.0, 1.0]), (2.0, [1e6 + 1.0, 1.0]), "w differs"),
        ([1e6, 1.0], (2.0, [1e6, 1.01]), (2.0, [1e6, 1.0]), "w differs"),
        ([0.0, 0.0], (0.0, [0.0, 0.0]), (0.0, [0.0, 0.0]), ""),
    ],
)
def test_updates_are_compared_relative_to_their_size_and_to_rounding(
    before: list[float],
    own: tuple[float, list[float]],
    eager: tuple[float, list[float]],
    difference: str,
) -> None:
    """To a hundredth of a weight's largest change, and to what a sum of large numbers rounds to."""
    left, right = (_Update(norm, [torch.tensor(weight)]) for norm, weight in (own, eager))
    actual = _update_difference(["w"], [torch.tensor(before)], left, right)
    assert actual.startswith(difference), actual
    assert bool(actual) == bool(difference), actual


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("adam", "soap") else pytest.mark.train)
        for name in sorted(slots()["optimizer"])
    ],
)
def test_it_leaves_no_trace(name: str) -> None:
    spec = run_spec(dropout=0.3, optimizer={"name": name})

    def after_two_steps(*, is_checked: bool) -> list[Any]:
        engine, _ = prepared("data_parallel", spec)
        model = engine.model
        torch.manual_seed(3)
        engine.step([reversal_batch()])
        if is_checked:
            before, addresses = state_of(engine), [p.data_ptr() for p in model.parameters()]
            compare(engine, reversal_batch())
            assert state_of(engine) == before
            assert [p.data_ptr() for p in model.parameters()] == addresses
        engine.step([reversal_batch()])
        return state_of(engine)

    expected, actual = (after_two_steps(is_checked=is_so) for is_so in (False, True))
    assert actual == expected


def test_gradients_that_an_engine_keeps_are_as_before() -> None:
    engine = engine_of()
    for weight in engine.model.parameters():
        weight.grad = torch.zeros_like(weight)
    kept = [(weight, weight.grad) for weight in engine.model.parameters()]
    compare(engine, some_batch())
    for weight, gradient in kept:
        assert weight.grad is gradient
        assert gradient is not None
        assert not gradient.any()


def trained(folder: Path, engine: str) -> dict[str, Tensor]:
    return dict(run(run_spec(dropout=0.1), folder, engine=engine)[1].state_dict())


@pytest.mark.train
@pytest.mark.parametrize("name", ["data_parallel", "cuda_graph"])
def test_a_run_is_checked_once_and_ends_as_without(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def note(engine: Engine, batch: Batch) -> None:
        names.append(engine.name)
        compare(engine, batch)

    monkeypatch.setattr("ablate.training.engines.self_check.compare", note)
    checked = trained(tmp_path / "checked", name)
    assert names == [name]
    monkeypatch.setattr(SelfCheck, "after_step", lambda _: None)
    unchecked = trained(tmp_path / "unchecked", name)
    torch.testing.assert_close(checked, unchecked, atol=0.0, rtol=0.0)


def test_an_engine_that_is_wrong_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Wrong, "mistake", "gradient")
    monkeypatch.setitem(factory._ENGINES, "data_parallel", _Wrong)
    with pytest.raises(EngineError, match=r"feed_forward.up.weight differs by 1.00%"):
        trained(tmp_path, "data_parallel")
    assert not list(tmp_path.glob("curve.csv"))


def test_a_run_that_diverges_is_not_the_engines_fault() -> None:
    engine = engine_of()
    with torch.no_grad():
        next(engine.model.parameters()).fill_(float("nan"))
    compare(engine, some_batch())
