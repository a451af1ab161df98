"""Parts do what they declare about batches and captures, and engines comply with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.cuda_graphs import GraphCapturer
from ablate.data.tokenizer import PAD
from ablate.model import Transformer
from ablate.parts.feed_forward import Relu
from ablate.parts.norm import LayerNorm
from ablate.parts.objective import Objective
from ablate.parts.objective.likelihood import LabelSmoothing
from ablate.parts.position import Position
from ablate.registry import build, choose, lookup, register, slots
from ablate.training.engines import capturer_for, make_engine
from ablate.training.engines.factory import batch_dependence, capture_blocker
from ablate.training.step import StepConfig
from tests.observed import observed_batch_dependence, observed_capture_blocker
from tests.registrations import temporary_registrations
from tests.tiny import PARTS, mixed, mixtures, some_batch, thin
from tests.training.test_engines import DATA_DEPENDENT, branches_on_a_number


def objective(name: str = "label_smoothing") -> Objective:
    return build(Objective, choose(Objective, name), PAD)


def declaring(claim: str) -> list[tuple[str, str]]:
    """Return the parts that declare something."""
    return [part for part in PARTS if getattr(lookup(*part).cls, claim)]


def not_declaring(claim: str) -> list[tuple[tuple[str, str], ...]]:
    """Return the parts that do not, in groups that fit one model."""
    return mixtures([part for part in PARTS if part not in declaring(claim)])


@pytest.mark.parametrize(("slot", "name"), declaring("batch_dependence"))
def test_parts_declare_how_the_pairs_of_a_batch_depend_on_each_other(slot: str, name: str) -> None:
    model = thin(slot, name).train()
    observed = observed_batch_dependence(model, some_batch())
    assert batch_dependence(model, objective()) == observed != ""


@pytest.mark.full
@pytest.mark.parametrize("parts", not_declaring("batch_dependence"), ids=str)
def test_the_pairs_of_a_batch_do_not_depend_on_each_other(parts: list[tuple[str, str]]) -> None:
    for model in mixed(parts):
        assert batch_dependence(model.train(), objective()) == ""
        assert observed_batch_dependence(model, some_batch()) == ""


def test_parts_declare_what_keeps_them_from_being_captured() -> None:
    """A part of this test does, and any other that declares something."""
    with temporary_registrations():

        @register("branching", source="this test, 2026", formula="e_p or 2 e_p")
        class Branching(Position):
            """Decide by a number."""

            capture_blocker = "decides by numbers what it adds"

            def embed(self, x: Tensor, positions: Tensor) -> Tensor:
                return branches_on_a_number(x)

        for slot, name in [("position", "branching"), *declaring("capture_blocker")]:
            model = thin(slot, name).train()
            observed = observed_capture_blocker(model, StepConfig(objective()), some_batch())
            assert observed.startswith(f"{slot}: {name} ")
            assert capture_blocker(model).startswith(f"{slot}: {name} ")


@pytest.mark.full
@pytest.mark.parametrize("parts", not_declaring("capture_blocker"), ids=str)
def test_nothing_keeps_the_others_from_being_captured(parts: list[tuple[str, str]]) -> None:
    for model in mixed(parts):
        observed = observed_capture_blocker(model.train(), StepConfig(objective()), some_batch())
        assert capture_blocker(model) == observed == ""


@pytest.mark.parametrize("name", sorted(slots()["objective"]))
def test_objectives_declare_what_keeps_them_from_being_captured(name: str) -> None:
    model, step_config = thin("position", "none").train(), StepConfig(objective(name))
    observed = observed_capture_blocker(model, step_config, some_batch())
    assert bool(capture_blocker(model, step_config.objective)) == bool(observed), observed


def sees_others(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self, *args: forward(self, *args) + forward(self, *args).mean(dim=0)


def remembers(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def changed(self: nn.Module, *args: Any) -> Tensor:
        if self.training:
            self.get_buffer("seen").add_(1)
        return forward(self, *args)

    return changed


@pytest.mark.parametrize(
    ("change", "observed"),
    [
        (sees_others, "norm: layer makes pairs of a batch depend on each other"),
        (remembers, "norm: layer keeps seen from batch to batch"),
    ],
)
def test_a_part_that_declares_too_little_is_noticed(
    change: Callable[..., Any], observed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = thin("residual", "pre").train()
    for module in model.modules():
        if isinstance(module, LayerNorm):
            module.register_buffer("seen", torch.zeros(()))
    monkeypatch.setattr(LayerNorm, "forward", change(LayerNorm.forward))
    assert observed_batch_dependence(model, some_batch()) == observed


@pytest.mark.parametrize("change", DATA_DEPENDENT)
def test_a_part_that_depends_on_numbers_is_noticed(
    change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Relu.forward
    monkeypatch.setattr(Relu, "forward", lambda *args: change(forward(*args)))
    model = thin("feed_forward", "relu").train()
    observed = observed_capture_blocker(model, StepConfig(objective()), some_batch())
    assert observed.startswith("feed_forward: relu depends on numbers")


def engine_name_and_note(model: Transformer, name: str) -> tuple[str, str]:
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.warns(UserWarning, match=f"training goes on eagerly, not as {name}"):
        engine = make_engine(name, model.train(), StepConfig(objective()), optimizer)
    engine.step([some_batch()])
    return engine.name, engine.note


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("data_parallel", "batch_dependence"),
        ("cuda_graph", "capture_blocker"),
        ("compile", "capture_blocker"),
    ],
)
@pytest.mark.parametrize(
    ("part", "label"), [(LayerNorm, "norm: layer"), (LabelSmoothing, "objective: label_smoothing")]
)
def test_a_part_that_declares_so_is_trained_eagerly(
    name: str, claim: str, part: type, label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, claim, "looks at everything")
    actual = engine_name_and_note(thin("residual", "pre"), name)
    assert actual == ("eager", f"not {name}: {label} looks at everything")


def test_what_cannot_be_captured_has_no_capturer(monkeypatch: pytest.MonkeyPatch) -> None:
    model = thin("norm", "layer")
    assert isinstance(capturer_for("cuda_graph", model, torch.device("cpu")), GraphCapturer)
    monkeypatch.setattr(LayerNorm, "capture_blocker", "looks at everything")
    assert capturer_for("cuda_graph", model, torch.device("cpu")) is None


def test_masks_declare_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = thin("position", "none")
    monkeypatch.setattr(type(model.decoder.mask), "capture_blocker", "counts")
    assert capture_blocker(model).endswith(" counts")


def test_layers_are_left_out_for_a_whole_batch() -> None:
    model = thin("position", "none")
    assert batch_dependence(model, objective()) == ""
    model.decoder.layer_dropout = 0.1
    note = engine_name_and_note(model, "data_parallel")[1]
    assert note == "not data_parallel: layer dropout leaves out a layer for the whole batch"
