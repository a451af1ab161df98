"""Rows are gathered from records: what counts, and the speeds of rows that took turns."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.summary import (
    TRAIN_FLOPS,
    Rounds,
    Summary,
    compare_speeds,
    evaluated_sets,
    median_polish,
    summarise,
    trained_by,
)


def record(bleu: float, status: str = "done", **more: Any) -> dict[str, Any]:
    return {
        "status": status,
        "error": None,
        "params": {"total": 1000, "embedding": 10},
        "train": {"steps": 5, "stopped_early": True},
        "test": {"test": {"bleu": bleu, "bleu_signature": "nrefs:1"}},
        **more,
    }


def test_metrics_are_named_as_they_are_nested() -> None:
    (row,) = summarise(["baseline"], [1], {("baseline", 1): record(41.0)})
    assert {name: each.mean for name, each in row.metrics.items()} == {
        "params.total": 1000,
        "params.embedding": 10,
        "train.steps": 5,
        "test.test.bleu": 41.0,
    }


def test_every_seed_has_an_outcome() -> None:
    records = {
        ("baseline", 1): record(41.0),
        ("baseline", 2): record(0.0, "diverged", error="the loss became NaN"),
    }
    (row,) = summarise(["baseline"], [1, 2, 3], records)
    assert row.outcomes == {1: "done", 2: "diverged", 3: "missing"}
    assert [row.count(status) for status in ("done", "diverged", "missing", "oom")] == [1, 1, 1, 0]
    assert row.errors == {2: "the loss became NaN"}
    assert not row.is_complete


def test_quality_is_of_done_runs_and_cost_of_all() -> None:
    records = {("baseline", 1): record(41.0), ("baseline", 2): record(3.0, "diverged")}
    others = {("baseline", 9): record(1.0), ("x", 1): record(2.0)}  # of other rows and seeds
    (row,) = summarise(["baseline"], [1, 2], records | others)
    assert row.metrics["test.test.bleu"].values == {1: 41.0}
    assert row.metrics["params.total"].values == {1: 1000.0, 2: 1000.0}


def test_a_training_costs_what_its_tokens_do() -> None:
    flops = {"train_per_target_token": 50.0}
    records = {
        ("baseline", 1): record(40.0, flops=flops, train={"target_tokens": 1000}),
        ("baseline", 2): record(40.0, flops=flops, train={"target_tokens": 1200}),
        ("baseline", 3): record(40.0, "diverged", flops=flops),
    }
    (row,) = summarise(["baseline"], [1, 2, 3], records)
    assert row.metrics[TRAIN_FLOPS].values == {1: 50_000.0, 2: 60_000.0}


def test_test_sets_keep_their_order() -> None:
    known: dict[str, Any] = {"test2016": {}, "test2017": {}, "mscoco": {}}
    records: dict[tuple[str, int], dict[str, Any]] = {
        ("baseline", 1): {"status": "failed"},
        ("baseline", 2): {"status": "done", "test": known},
    }
    assert evaluated_sets(records) == ["test2016", "test2017", "mscoco"]


def test_an_additive_table_is_taken_apart() -> None:
    rows, rounds = np.array([1.0, 4.0, 2.0]), np.array([0.0, 0.5, -2.0, 7.0, 1.0])
    polished = median_polish(rows[:, None] + rounds)
    np.testing.assert_allclose(polished, rows + np.median(rounds))


def test_one_disturbed_measurement_moves_nothing() -> None:
    rng = np.random.default_rng(0)
    values = np.array([1.0, 4.0, 2.0])[:, None] + rng.normal(0, 1, 5)
    disturbed = values.copy()
    disturbed[1, 2] -= 3
    np.testing.assert_allclose(median_polish(disturbed), median_polish(values), atol=1e-9)


def test_ratios_are_the_quotients_of_the_speeds() -> None:
    rng = np.random.default_rng(2)
    rounds = {name: list(rng.lognormal(6, 0.3, 7)) for name in ("baseline", "a", "b")}
    rounds["short"] = rounds["a"][:2]  # it failed in the third round
    speeds = compare_speeds(rounds)
    assert (speeds["baseline"].ratio, speeds["baseline"].interval) == (None, None)
    assert [speeds[name].n for name in rounds] == [7, 7, 7, 2]
    for name in ("a", "b", "short"):
        quotient = speeds[name].value / speeds["baseline"].value
        assert speeds[name].ratio == pytest.approx(quotient)
        logs = np.log(rounds[name]) - np.log(rounds["baseline"][: speeds[name].n])
        ends = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
        interval = speeds[name].interval
        assert interval is not None
        assert interval.low == pytest.approx(math.exp(ends.low))
        assert interval.high == pytest.approx(math.exp(ends.high))


def test_a_baseline_that_lacks_rounds_has_the_speed_of_a_typical_round() -> None:
    """Of an additive table, whose last rounds are fast, and without noise."""
    rounds = np.exp([0.0, 0.1, 0.2, 0.5, 0.6])
    speeds = compare_speeds({"baseline": list(100 * rounds[:3]), "a": list(300 * rounds)})
    assert speeds["baseline"].value == pytest.approx(100 * rounds[2])
    assert speeds["a"].value == pytest.approx(300 * rounds[2])
    assert speeds["a"].ratio == pytest.approx(3)


def test_a_row_alone_has_the_median_of_its_rounds_and_one_round_no_interval() -> None:
    values = [500.0, 900.0, 700.0]
    speed = compare_speeds({"baseline": values})["baseline"]
    assert (speed.value, speed.n) == pytest.approx((statistics.median(values), 3))
    one = compare_speeds({"baseline": [400.0], "a": [500.0]})["a"]
    assert one.ratio == pytest.approx(1.25)
    assert one.interval is None


def test_two_rounds_have_a_standard_deviation_and_one_has_none() -> None:
    assert Rounds([500.0, 506.0], "s").sd == pytest.approx(math.sqrt(18))
    assert Rounds([500.0], "s").sd is None
    assert Rounds([500.0, 900.0, 506.0], "s").median == 506.0


def test_a_row_has_the_weights_of_the_first_row_that_was_trained_alike() -> None:
    weights = {
        "baseline": {1: "a", 2: "b"},
        "other": {1: "c", 2: "d"},
        "twin": {1: "a", 2: "b"},
        "third": {2: "b"},  # its other seed has failed
        "half": {1: "a", 2: "e"},
        "none": {},
        "again": {1: "c", 2: "d"},
    }
    rows = [Summary(name, {}, {}, {}, weights=of_row) for name, of_row in weights.items()]
    assert trained_by(rows) == {"twin": "baseline", "third": "baseline", "again": "other"}


def _record(session: str | None, *speeds: float) -> dict[str, Any]:
    turns = {} if session is None else {"session": session, "rounds": {"fast": list(speeds)}}
    return {"status": "done", "speed": {"fast": speeds[0], **turns}, "memory": {"peak": 1.0}}


def test_rows_are_compared_on_their_latest_occasion() -> None:
    records = {
        ("baseline", 1): _record("2026-01-02", 10.0, 20.0),
        ("baseline", 2): _record("2026-01-01", 1.0, 1.0),
        ("same", 1): _record("2026-01-02", 30.0, 40.0),
        ("other", 1): _record("2026-01-03", 30.0, 40.0),
        ("other", 2): _record("2025-12-31", 1.0, 1.0),
        ("old", 1): _record(None, 30.0),
    }
    rows = summarise(["baseline", "same", "other", "old"], [1, 2], records)
    medians = [row.rounds["speed.fast"].median if row.rounds else None for row in rows]
    assert medians == [15.0, 35.0, 35.0, None]
    speeds = [row.speeds.get("speed.fast") for row in rows]
    ratios = [speed.ratio if speed else None for speed in speeds]
    assert ratios == [None, pytest.approx(6**0.5), None, None]  # of the logarithms
    assert [speed.value if speed else None for speed in speeds[2:]] == [35.0, None]


def test_a_row_is_compared_in_its_latest_session_with_the_baseline() -> None:
    """A baseline that two experiments share took turns with the rows of each."""
    shared = _record("2026-01-03", 10.0, 10.0)
    shared["speed"]["earlier"] = {"2026-01-01": {"fast": [5.0, 5.0]}}
    records = {
        ("baseline", 1): shared,
        ("first", 1): _record("2026-01-01", 10.0, 10.0),
        ("second", 1): _record("2026-01-03", 30.0, 30.0),
        ("third", 1): _record("2026-01-03", 40.0, 40.0),
    }
    rows = summarise(["baseline", "second", "third", "first"], [1], records)
    speeds = [row.speeds["speed.fast"] for row in rows]
    assert [speed.ratio for speed in speeds[1:]] == [pytest.approx(r) for r in (3.0, 4.0, 2.0)]
    assert speeds[0].value == pytest.approx(10.0)  # of the session of most rows
    assert [row.rounds["speed.fast"].session for row in rows[2:]] == ["2026-01-03", "2026-01-01"]


def test_without_a_baseline_that_was_measured_there_is_no_ratio() -> None:
    records = {("row", 1): _record("a", 30.0, 40.0)}
    rows = summarise(["baseline", "row"], [1], records)
    assert rows[0].speeds == {}
    assert rows[1].speeds["speed.fast"].ratio is None
    assert rows[1].speeds["speed.fast"].value == 35.0


@pytest.mark.parametrize(("session", "ratio"), [("2026-01-03", 4.0), ("2026-01-02", None)])
def test_of_several_sessions_the_latest_counts(session: str, ratio: float | None) -> None:
    """With the baseline, or of a row that never met it."""
    row, baseline = _record("2026-01-03", 40.0, 40.0), _record(session, 10.0, 10.0)
    row["speed"]["earlier"] = {"2026-01-01": {"fast": [5.0, 5.0]}}
    if ratio:
        baseline["speed"]["earlier"] = row["speed"]["earlier"]
    rows = summarise(["baseline", "row"], [1], {("baseline", 1): baseline, ("row", 1): row})
    assert rows[1].rounds["speed.fast"].session == "2026-01-03"
    speed = rows[1].speeds["speed.fast"]
    assert [speed.value, speed.ratio] == pytest.approx([40.0, ratio])
