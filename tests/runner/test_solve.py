"""The value that matches a row to the baseline: found by few tries, and counted as records do."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate import config, measuring
from ablate.config import RunSpec
from ablate.data.batches import Batches
from ablate.data.prepare import prepare
from ablate.data.tokenizer import PAD
from ablate.errors import SpecError
from ablate.model import assemble
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
from tests.runner.conftest import SMALL
from tests.runner.test_matching import affine, experiment

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

    with pytest.raises(SpecError, match=r"(?s)none for swiglu.*none for learned"):
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


@pytest.mark.parametrize("accumulate", [1, 2])
def test_flops_are_those_of_the_first_batch_times_the_tokens(accumulate: int) -> None:
    training = {**SMALL["training"], "accumulate": accumulate}
    run = RunSpec.model_validate({**SMALL, "training": training})
    prepared = prepare(run)
    batches = Batches(prepared.train, run.training.batch_tokens, PAD).of_epoch(0, 0)
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


def test_pending_rows_have_no_corpus_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[RunSpec] = []
    monkeypatch.setattr(match, "is_available", asked.append)
    loaded = experiment(tmp_path)
    pending = {row.name: row.pending for row in match_by_counting(loaded).rows}
    assert asked == [loaded.rows[0].spec]
    via = ("model.feed_forward.d_ff",)
    assert pending == {"baseline": (), "learned": via, "deep": via, "swiglu": via}
