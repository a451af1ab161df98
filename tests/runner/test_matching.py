"""Rows that have as much of something as the baseline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate import config
from ablate.config import Experiment, RunSpec
from ablate.data.batches import Batches
from ablate.data.prepare import prepare
from ablate.errors import SpecError
from ablate.registry import load_plugin, temporary_registrations
from ablate.runner.match import (
    CostCounter,
    UnmatchedError,
    match_by_counting,
    match_key,
    solve,
    target_tokens,
)
from tests.presets import ROOT

TEXT = """\
extends: {laptop}
corpus: {{size: 240}}
match: {{on: params, via: model.feed_forward.d_ff, tolerance: 1%}}
variants:
  learned: {{model.position: learned}}
  deep: {{model.n_layers: 3}}
  swiglu: {{model.feed_forward: swiglu, model.n_layers: 1}}
"""


PLUGIN = """\
from torch import Tensor

from ablate.parts.position import Position
from ablate.registry import register


@register("ramp", formula="x_p = e_p + SLOPE p", source="this test, 2026, sec. 1")
class Ramp(Position):
    \"\"\"Add the position itself.\"\"\"

    def embed(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + SLOPE * positions[:, None]
"""


def experiment(folder: Path, more: str = "", **match: Any) -> Experiment:
    path = folder / "own.yaml"
    path.write_text(TEXT.format(laptop=ROOT / "presets/laptop.yaml") + more)
    return with_terms(config.load(path), **match)


def with_terms(loaded: Experiment, **match: Any) -> Experiment:
    assert loaded.match is not None
    return replace(loaded, match=loaded.match.model_copy(update=match))


def affine(per_unit: float, fixed: float) -> Callable[[RunSpec], float]:
    return lambda run: fixed + per_unit * run.model.feed_forward.options["d_ff"]


@pytest.mark.train
@pytest.mark.parametrize("on", ["params", "flops"])
def test_rows_have_equal_budgets(tmp_path: Path, on: str) -> None:
    matched = match_by_counting(experiment(tmp_path, on=on))
    count = CostCounter(on)
    budget = count(matched.rows[0].spec)
    for row in matched.rows[1:]:
        assert count(row.spec) == pytest.approx(budget, rel=0.01), row.name
    assert matched.rows[2].chosen == {"model.feed_forward.d_ff": "matched"}


@pytest.mark.train
def test_the_shipped_study_has_equal_budgets() -> None:
    matched = match_by_counting(config.load(ROOT / "matched.yaml", ["corpus.size=240"]))
    count = CostCounter("params")
    budget = count(matched.rows[0].spec)
    assert all(abs(count(row.spec) / budget - 1) <= 0.01 for row in matched.rows)
    assert len({row.spec.model.feed_forward.options["d_ff"] for row in matched.rows}) == 4


@pytest.mark.train
def test_steps_make_up_for_a_larger_model(tmp_path: Path) -> None:
    matched = match_by_counting(
        experiment(tmp_path, on="flops", via="training.steps", tolerance=0.002)
    )
    steps = {row.name: row.spec.training.steps or 0 for row in matched.rows}
    assert steps["deep"] < steps["baseline"] < steps["swiglu"]


def test_a_row_within_the_tolerance_stays_as_it_is(tmp_path: Path) -> None:
    loaded = experiment(tmp_path)
    assert solve(loaded, loaded.rows[1], affine(0.0, 100.0), 100.9) is None


@pytest.mark.parametrize(("per_unit", "fixed"), [(1, 10), (3, 5000), (0.25, 1000)])
@pytest.mark.parametrize("multiple", [1, 8])
def test_the_nearest_value_is_chosen(
    tmp_path: Path, per_unit: float, fixed: float, multiple: int
) -> None:
    loaded = experiment(tmp_path, multiple_of=multiple)
    cost, nearest = affine(per_unit, fixed), 1000 * multiple
    target = fixed + per_unit * (nearest + 0.3 * multiple)
    loaded = with_terms(loaded, tolerance=abs(per_unit * multiple / target) + 1e-6)
    assert solve(loaded, loaded.rows[1], cost, target) == nearest


def test_values_that_a_part_refuses_are_passed_over(tmp_path: Path) -> None:
    loaded = experiment(tmp_path, tolerance=0.1)

    def cost(run: RunSpec) -> float:
        d_ff = run.model.feed_forward.options["d_ff"]
        if d_ff % 16:
            raise SpecError("needs a multiple of 16")
        return float(d_ff)

    assert solve(loaded, loaded.rows[1], cost, 1009.0) == 1008


def test_a_row_that_is_too_dear_at_its_smallest_is_given_up_at_once(tmp_path: Path) -> None:
    loaded, tried = experiment(tmp_path, multiple_of=64), []

    def cost(run: RunSpec) -> float:
        tried.append(run.model.feed_forward.options["d_ff"])
        return float(tried[-1])

    with pytest.raises(UnmatchedError, match="no d_ff gives"):
        solve(loaded, loaded.rows[1], cost, 10.0)
    assert tried == [256, 256, 128, 64]  # first as it is


def test_a_match_is_measured_anew_for_another_content_of_a_plugin(tmp_path: Path) -> None:
    own, keys = tmp_path / "mine.py", []
    for slope in ("0.1", "0.2", "0.1"):
        own.write_text(PLUGIN.replace("SLOPE", slope))
        with temporary_registrations():
            load_plugin(own)
            loaded = experiment(tmp_path, "  own: {model.position: ramp}\n")
            keys.append([match_key(loaded, row, "") for row in loaded.rows[1:]])
    assert keys[0] == keys[2]
    assert keys[0][:-1] == keys[1][:-1]  # rows without parts of it
    assert keys[0][-1] != keys[1][-1]


def test_a_row_that_cannot_be_matched_says_why(tmp_path: Path) -> None:
    loaded = experiment(tmp_path, tolerance=0.001)
    with pytest.raises(
        UnmatchedError, match=r"no d_ff gives .* within 0\.001: 9 gives -2\.0%; 10 gives \+8\.0%"
    ):
        solve(loaded, loaded.rows[1], affine(500, 400), 5000.0)
    with pytest.raises(UnmatchedError, match=r"d_ff does not change the parameters"):
        solve(loaded, loaded.rows[1], affine(0, 400), 5000.0)


def test_the_mistake_is_located(tmp_path: Path) -> None:
    via = "model.dims.n_heads"
    with pytest.raises(SpecError, match=r"own\.yaml:3:26: match\.via: .*\(in the row 'deep'\)"):
        match_by_counting(experiment(tmp_path, via=via, rows=("deep",)))
    with pytest.raises(SpecError, match=r"unknown option; did you mean 'd_ff'\?"):
        match_by_counting(experiment(tmp_path, via="model.feed_forward.dff", rows=("deep",)))


def test_a_training_lasts_for_steps_epochs_or_tokens() -> None:
    training = config.load(ROOT / "presets/laptop.yaml").rows[0].spec.training
    for changes, tokens in (
        ({"steps": 10, "accumulate": 2}, 2000),
        ({"steps": None, "epochs": 3}, 1500),
        ({"steps": None, "epochs": 3, "accumulate": 4}, 1200),  # 3 steps of 4 of the 15 batches
        ({"steps": None, "epochs": 1, "accumulate": 7}, 700),
        ({"steps": None, "target_tokens": 777}, 800),
        ({"steps": None, "target_tokens": 801, "accumulate": 3}, 900),
    ):
        changed = training.model_copy(update=changes)
        assert target_tokens(changed, per_batch=100, batches_per_epoch=5) == tokens


@pytest.mark.parametrize(
    ("power", "target", "is_measured", "tried"),
    [
        (1, 1000, False, [512, 1024, 1000]),
        (1, 100, False, [128, 64, 100]),
        (2, 1000, False, [512, 1024, 992, 1000]),
        (2, 1000, True, [512, 1024, 992]),  # as near as it is measured
        (1, 520, True, [512]),
    ],
)
def test_a_target_is_passed_by_doubling_and_found_on_the_line_between(
    tmp_path: Path, power: int, target: int, is_measured: bool, tried: list[int]
) -> None:
    loaded, values = experiment(tmp_path, tolerance=0.02), list[int]()

    def cost(run: RunSpec) -> float:
        values.append(run.model.feed_forward.options["d_ff"])
        return float(values[-1] ** power)

    aim = float(target**power)
    assert solve(loaded, loaded.rows[1], cost, aim, is_measured=is_measured) == tried[-1]
    assert values == [256, 256, *tried]  # first as it is


def test_a_training_costs_the_operations_of_its_steps(tmp_path: Path) -> None:
    spec = experiment(tmp_path).rows[0].spec
    count = CostCounter("flops")

    def cost(**length: int | None) -> float:
        training = spec.training.model_copy(update={"steps": None, **length})
        return count(spec.model_copy(update={"training": training}))

    prepared = prepare(spec)
    n_tokens = int(prepared.train.tgt.lengths.sum())
    n_batches = len(
        Batches(prepared.train, spec.training.batch_tokens, 0).of_epoch(0, 0).epoch(0, 0)
    )
    assert cost(epochs=2) / cost(steps=1) == pytest.approx(2 * n_batches)
    assert cost(steps=n_batches) == pytest.approx(cost(target_tokens=n_tokens))
    assert cost(steps=3, accumulate=2) == pytest.approx(cost(steps=6))
