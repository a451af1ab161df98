"""Rows that have as much of something as the baseline."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate import config, measuring
from ablate.config import Experiment, RunSpec
from ablate.data.batches import Batches
from ablate.data.prepare import prepare
from ablate.data.tokenizer import PAD
from ablate.errors import SpecError
from ablate.model import assemble
from ablate.registry import load_plugin
from ablate.runner import match
from ablate.runner.match import (
    CostCounter,
    UnmatchedError,
    match_by_counting,
    match_key,
    solve,
    target_tokens,
    with_solutions,
)
from ablate.training.step import count_passes
from tests.presets import ROOT
from tests.registrations import temporary_registrations
from tests.runner.conftest import PLUGIN, SMALL

TEXT = """\
extends: {laptop}
corpus: {{size: 240}}
match: {{on: params, via: model.feed_forward.d_ff, tolerance: 1%}}
variants:
  learned: {{model.position: learned}}
  deep: {{model.n_layers: 3}}
  swiglu: {{model.feed_forward: swiglu, model.n_layers: 1}}
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


def test_a_row_that_is_too_dear_at_its_smallest_is_given_up_at_once(tmp_path: Path) -> None:
    loaded, tried = experiment(tmp_path, multiple_of=64), []

    def cost(run: RunSpec) -> float:
        tried.append(run.model.feed_forward.options["d_ff"])
        return float(tried[-1])

    with pytest.raises(UnmatchedError, match="no d_ff gives"):
        solve(loaded, loaded.rows[1], cost, 10.0)
    assert tried == [256, 256, 128, 64]  # first as it is


@pytest.mark.parametrize(
    ("multiple_of", "cost_of", "reason"),
    [
        # Ratios of times, as they are measured: all round to 1
        (1, lambda n: 1.1 + n / 1000, "no d_ff gives the baseline's training time .*1 gives"),
        (1, lambda n: 1.5 + n / 1e6, "d_ff does not change the training time: .*1 gives"),
        (256, lambda n: n / 100, "no d_ff gives the baseline's training time .*256 gives"),
    ],
)
def test_the_reason_says_whether_the_time_changes(
    multiple_of: int, cost_of: Callable[[int], float], reason: str, tmp_path: Path
) -> None:
    loaded = experiment(tmp_path, on="time", multiple_of=multiple_of)

    def cost(run: RunSpec) -> float:
        return cost_of(run.model.feed_forward.options["d_ff"])

    with pytest.raises(UnmatchedError, match=reason):
        solve(loaded, loaded.rows[1], cost, 1.0, is_measured=True)


def test_a_value_that_no_model_can_have_is_no_solution(tmp_path: Path) -> None:
    loaded = experiment(tmp_path, multiple_of=3)

    def cost(run: RunSpec) -> float:
        if run != loaded.rows[1].spec:
            raise SpecError("refused")
        return 2.0

    with pytest.raises(UnmatchedError, match="no d_ff near 256 is possible"):
        solve(loaded, loaded.rows[1], cost, 1.0)


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


SHAPES: dict[str, Callable[[int], float]] = {
    "linear": lambda n: 7.0 + 3 * n,
    "square": lambda n: 5.0 + n * n,
    "root": lambda n: 10 * math.sqrt(n),
    "step": lambda n: 10.0 * (1 + n // 10),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("step", [1, 4])
def test_the_nearest_possible_value_is_found_by_few_tries(shape: str, step: int) -> None:
    rng = random.Random(f"{shape} {step}")
    for _ in range(400):
        refused = {rng.randrange(1, 300) for _ in range(rng.choice([0, 20]))}
        tried: list[int] = []

        def cost(value: int, refused: set[int] = refused, tried: list[int] = tried) -> float:
            tried.append(value)
            if value in refused:
                raise SpecError("refused")
            return SHAPES[shape](value)

        start, nearest = rng.choice([1, 3, 40, 250]), rng.randrange(step, 240, step)
        target = SHAPES[shape](nearest) * rng.choice([1.0, 1.0003])
        search = match._Search(cost, target, step, 0.0)
        found = search.nearest(start)
        possible = [value for value in range(step, 400, step) if value not in refused]
        off = {value: abs(SHAPES[shape](value) - target) for value in possible}
        if shape != "step":  # there, values between two of one cost are not looked at
            assert found == min(off, key=lambda value: (off[value], value))
        assert found is not None
        assert off[found] == min(off.values())
        assert all(value % step == 0 and value > 0 for value in tried)
        allowed = [value for value in tried if value not in refused]
        assert len(allowed) == len(set(allowed))
        assert len(search.costs) <= 24, (shape, step, start, nearest)


def test_a_search_by_measurement_ends_at_the_first_value_within_the_tolerance() -> None:
    tried: list[int] = []

    def cost(value: int) -> float:
        tried.append(value)
        return float(value)

    assert match._Search(cost, 1000.0, 1, 0.05).nearest(500) == 1000
    assert tried == [500, 1000]
    tried.clear()
    assert match._Search(cost, 1000.0, 1, 0.05).nearest(960) == 960
    assert tried == [960]


def test_the_value_below_is_tried_where_a_line_would_end_above() -> None:
    cost = {8: 1.0, 9: 1.0, 10: 990.0, 16: 1000.0, 32: 2000.0}
    search = match._Search(lambda value: cost.get(value, 990.0), 995.1, 1, 0.0)
    assert search.nearest(8) == 16
    steep = match._Search(lambda value: {8: 0.0, 16: 1000.0}.get(value, 997.0), 998.0, 1, 0.0)
    assert steep.nearest(8) == 15


def test_a_line_is_solved_at_once() -> None:
    tried: list[int] = []

    def cost(value: int) -> float:
        tried.append(value)
        return 3.0 * value

    assert match._Search(cost, 3 * 1003.0, 8, 0.0).nearest(512) == 1000
    assert tried == [512, 1024, 1000, 1008]


def test_only_a_whole_number_is_solved_for(tmp_path: Path) -> None:
    for via, value in (("tokenizer.lowercase", "False"), ("model.position", "{'name'")):
        loaded = experiment(tmp_path, via=via)
        with pytest.raises(UnmatchedError, match=f"path of a whole number; {via} is {value}"):
            solve(loaded, loaded.rows[2], lambda _: 1.0, 1.0)


def test_no_value_is_tried_beyond_what_a_model_can_have() -> None:
    tried: list[int] = []

    def cost(value: int) -> float:
        tried.append(value)
        return 1.0 + value / 2**30

    match._Search(cost, 2.0, 1, 0.0).nearest(2**20)
    assert max(tried) == 2**24
    assert len(tried) == 5


def test_a_message_says_what_the_nearest_values_give(tmp_path: Path) -> None:
    loaded = experiment(tmp_path, multiple_of=64, tolerance=0.001)
    with pytest.raises(UnmatchedError, match=r"64 gives -36\.0%; 128 gives \+28\.0%"):
        solve(loaded, loaded.rows[1], affine(1, 0), 100.0)
    with pytest.raises(UnmatchedError, match=r"128 gives \+28\.0%; 256 gives \+156\.0%;"):
        solve(loaded, loaded.rows[1], refusing(affine(1, 0), 64), 100.0)
    with pytest.raises(UnmatchedError, match="d_ff does not change the parameters"):
        solve(loaded, loaded.rows[1], affine(0, 50), 100.0)


def refusing(cost: Callable[[RunSpec], float], value: int) -> Callable[[RunSpec], float]:
    def allowed(run: RunSpec) -> float:
        if run.model.feed_forward.options["d_ff"] <= value:
            raise SpecError("refused")
        return cost(run)

    return allowed


def test_a_value_just_within_the_tolerance_is_enough(tmp_path: Path) -> None:
    loaded = experiment(tmp_path, multiple_of=125, tolerance=0.25)
    assert solve(loaded, loaded.rows[1], affine(0, 125), 100.0) is None
    assert solve(loaded, loaded.rows[1], affine(1, 0), 100.0) == 125
    loaded = experiment(tmp_path, tolerance=0.05)
    assert solve(loaded, loaded.rows[1], affine(1, 0), 1000.0, is_measured=True) == 1024
    assert solve(loaded, loaded.rows[1], affine(1, 0), 1000.0) == 1000


def test_a_row_without_the_option_starts_from_the_baselines(tmp_path: Path) -> None:
    narrow = "variants:\n  narrow: {model.feed_forward.d_ff: 64}\n"
    experiment(tmp_path)
    file = tmp_path / "own.yaml"
    text = file.read_text().replace("variants:\n", narrow)
    file.write_text(text.replace("tolerance: 1%", "tolerance: 1%, exclude: [narrow]"))
    loaded, tried = config.load(file), []

    def cost(run: RunSpec) -> float:
        tried.append(run.model.feed_forward.options.get("d_ff"))
        return float(tried[-1] or 1)

    row = next(row for row in loaded.rows if row.name == "swiglu")
    assert solve(loaded, row, cost, 300.0) == 300
    assert tried[:2] == [None, 256]


def test_rows_that_need_no_value_keep_their_own(tmp_path: Path) -> None:
    loaded = experiment(tmp_path)
    values = {"learned": None, "deep": 77, "swiglu": None}
    matched = with_solutions(loaded, lambda row: values[row.name])
    d_ff = {row.name: row.spec.model.feed_forward.options.get("d_ff") for row in matched.rows}
    before = {row.name: row.spec.model.feed_forward.options.get("d_ff") for row in loaded.rows}
    assert d_ff == before | {"deep": 77}
    assert [row.name for row in matched.rows if row.chosen] == ["deep"]

    def refuse(row: Any) -> int:
        if row.name == "deep":
            return 77
        raise UnmatchedError(f"none for {row.name}")

    with pytest.raises(SpecError, match=r"(?s)none for learned.*none for swiglu"):
        with_solutions(loaded, refuse)


def test_a_match_is_measured_anew_for_another_baseline(tmp_path: Path) -> None:
    keys: list[tuple[str, config.Row]] = []
    for size in ("240", "241", "240"):
        experiment(tmp_path)
        file = tmp_path / "own.yaml"
        file.write_text(file.read_text().replace("240", size))
        loaded = config.load(file)
        row = replace(loaded.rows[1], spec=keys[0][1].spec if keys else loaded.rows[1].spec)
        keys.append((match_key(loaded, row, ""), row))
    assert keys[0][0] == keys[2][0] != keys[1][0]


def test_a_match_is_measured_anew_for_other_files_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = experiment(tmp_path)
    own = loaded.rows[1].spec

    def key(content: str) -> str:
        monkeypatch.setattr(
            match, "files_of", lambda spec, _: {"x": content} if spec is own else {}
        )
        return match_key(loaded, loaded.rows[1], "")

    assert key("one") == key("one") != key("other")


def test_a_match_is_measured_anew_for_another_text(tmp_path: Path) -> None:
    loaded = experiment(tmp_path)
    row = loaded.rows[1]
    assert match_key(loaded, row, "one") == match_key(loaded, row, "other")  # made by a seed
    assert len(match_key(loaded, row, "")) == 16
    for side in ("en", "de"):
        (tmp_path / f"text.{side}").write_text("a b\n")
    pair = "[text.en, text.de]"
    corpus = (
        f"{{name: files, src: en, tgt: de, train: {pair}, dev: {pair}, tests: {{test: {pair}}}}}"
    )
    text = (tmp_path / "own.yaml").read_text().replace("{size: 240}", corpus)
    (tmp_path / "own.yaml").write_text(text)
    of_files = config.load(tmp_path / "own.yaml")
    row = of_files.rows[1]
    assert match_key(of_files, row, "one") != match_key(of_files, row, "other")


@pytest.mark.parametrize(
    "length",
    [{"accumulate": 2}, {"steps": None, "epochs": 2}, {"batch_by": "bucket"}],
    ids=str,
)
def test_flops_are_those_of_the_first_batch_times_the_tokens(length: dict[str, Any]) -> None:
    training = {k: v for k, v in (SMALL["training"] | length).items() if v is not None}
    run = RunSpec.model_validate({**SMALL, "training": training})
    prepared = prepare(run)
    by = run.training.batch_by
    batches = Batches(prepared.train, run.training.batch_tokens, PAD, by=by).of_epoch(0, 0)
    order = batches.epoch(0, 0)
    model = assemble(run.model, prepared.tokenizers.vocabulary, PAD)
    passes = count_passes(run.training)
    of_first, *of_others = (
        measuring.count_flops(model, batches.make(rows), passes) for rows in order
    )
    assert of_first not in of_others
    tokens = target_tokens(run.training, batches.mean_tokens, batches.n_per_epoch)
    assert CostCounter("flops")(run) == pytest.approx(of_first * tokens, rel=1e-9)
    n_parameters = sum(weight.numel() for weight in model.parameters())
    count = CostCounter("params")
    assert count(run) == count(run) == n_parameters


def test_a_counter_of_many_runs_counts_each_by_its_own_batches(tmp_path: Path) -> None:
    teacher = tmp_path / "teacher"
    teacher.write_text("one word\n" * SMALL["corpus"]["size"], encoding="utf-8")
    runs = [
        RunSpec.model_validate(
            {
                **SMALL,
                "model": SMALL["model"] | {"dims": SMALL["model"]["dims"] | dims},
                "training": SMALL["training"] | training,
            }
        )
        for dims, training in (
            ({}, {}),
            ({}, {"batch_tokens": 100}),
            ({}, {"batch_by": "bucket"}),
            ({}, {"teacher": str(teacher)}),
            ({"max_len": 10}, {}),
        )
    ]
    count = CostCounter("flops")
    costs = [count(run) for run in runs]
    assert costs == [CostCounter("flops")(run) for run in runs]
    assert len(set(costs)) == len(runs)


def test_pending_rows_have_no_corpus_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunSpec] = []
    monkeypatch.setattr(match, "is_available", asked.append)
    loaded = experiment(tmp_path)
    pending = {row.name: row.pending for row in match_by_counting(loaded).rows}
    assert asked == [loaded.rows[0].spec]
    via = ("model.feed_forward.d_ff",)
    assert pending == {"baseline": (), "learned": via, "deep": via, "swiglu": via}
