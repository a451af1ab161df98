"""Records of layers: what they hold, and that nothing else depends on them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from ablate.training.curve import Curve, LayerRecorder, UnreadStep, is_recorded, layer_of
from ablate.training.weights import Weights
from tests.training.reversal import run, run_spec


class Layers(nn.Module):
    """An embedding and an encoder of one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 4, bias=False)] * 1)})


class FakeEngine:
    """Makes updates of a known size."""

    before_update = None

    def __init__(self) -> None:
        self.model = Layers()
        self.weights = Weights(self.model)

    def step(self, module: nn.Module | None = None) -> None:
        module = module or self.model
        for weight in module.parameters():
            weight.grad = torch.full_like(weight, 2.0)
        if self.before_update is not None:
            self.before_update()
        with torch.no_grad():
            for weight in module.parameters():
                weight.mul_(1.1)
                weight.grad = None


def test_a_row_has_the_means_over_the_tokens_of_its_steps() -> None:
    curve = Curve([], [])
    for n_tokens, loss, aux_loss in ((10, 4.0, 1.0), (30, 2.0, 0.0)):
        result: Any = SimpleNamespace(n_tokens=n_tokens)
        step = UnreadStep(7, result, 40, 0.1, seconds=1.0, has_row=True)
        curve.add_step(step, loss, aux_loss, 0.5)
    curve.add_row(step, 1.0)
    assert (curve.last("train_loss"), curve.last("own_loss")) == (2.5, 0.25)


def test_norms_and_ratios_are_those_of_the_step(tmp_path: Path) -> None:
    engine = FakeEngine()
    recorder = LayerRecorder(engine, [])  # type: ignore[arg-type]
    for step in range(1, 20):
        recorder.before_step(step)
        engine.step()
        recorder.after_step(step)
    recorder.write(tmp_path)
    rows = pd.read_csv(tmp_path / "layers.csv")
    assert set(rows["layer"]) == {"embedding", "encoder 1"}
    assert list(rows["step"].unique()) == [step for step in range(1, 20) if is_recorded(step)]
    assert rows["update_ratio"].tolist() == pytest.approx([0.1] * len(rows), rel=1e-4)
    of_encoder = rows[rows["layer"] == "encoder 1"]["gradient_norm"].tolist()
    assert of_encoder == pytest.approx([2.0 * 16**0.5] * len(of_encoder))


def test_a_run_records_its_first_steps_and_then_ever_fewer(tmp_path: Path) -> None:
    """With the norms before clipping."""
    run(run_spec(steps=9, clip=0.01), tmp_path)
    rows = pd.read_csv(tmp_path / "layers.csv")
    assert rows["step"].unique().tolist() == [1, 2, 3, 4, 5, 6, 7, 9]
    assert rows["layer"].unique().tolist() == ["embedding", "encoder 1", "decoder 1"]
    square = (rows["gradient_norm"] ** 2).groupby(rows["step"]).sum()
    norms = pd.read_csv(tmp_path / "curve.csv").set_index("step")["gradient_norm"]
    assert norms.min() > 0.01
    assert (square**0.5).tolist() == pytest.approx(norms[square.index].tolist(), rel=1e-4)


def test_steps_grow_apart_and_do_not_depend_on_the_length_of_the_run() -> None:
    steps = [step for step in range(1, 100_001) if is_recorded(step)]
    assert steps[:6] == [1, 2, 3, 4, 5, 6]
    assert 50 < len(steps) < 65


@pytest.mark.parametrize(
    ("weight", "layer"),
    [
        ("encoder.layers.0.attention.q.weight", "encoder 1"),
        ("decoder.layers.11.residual.norms.0.norm.bias", "decoder 12"),
        ("decoder.closing.weight", "decoder"),
        ("embedding.tgt_table.weight", "embedding"),
    ],
)
def test_a_weight_belongs_to_a_layer(weight: str, layer: str) -> None:
    assert layer_of(weight) == layer


def test_what_continues_adds_to_what_there_was() -> None:
    earlier: list[dict[str, str | int | float]] = [{"step": 1, "layer": "embedding"}]
    engine = FakeEngine()
    recorder = LayerRecorder(engine, earlier)  # type: ignore[arg-type]
    recorder.before_step(2)
    engine.step()
    recorder.after_step(2)
    assert [row["step"] for row in earlier] == [1, 2, 2]


def test_no_gradient_is_no_row() -> None:
    engine = FakeEngine()
    rows: list[dict[str, str | int | float]] = []
    recorder = LayerRecorder(engine, rows)  # type: ignore[arg-type]
    frozen: Tensor = engine.model.embedding.weight
    recorder.before_step(1)
    engine.step(engine.model.encoder)
    recorder.after_step(1)
    assert frozen.grad is None
    assert [row["layer"] for row in rows] == ["encoder 1"]
