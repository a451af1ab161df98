"""Speeds of rows that took turns: compared within rounds, and never across occasions."""

from __future__ import annotations

from typing import Any

import pytest

from ablate.analysis import Rounds, summarise


def test_a_ratio_is_taken_within_each_round() -> None:
    # The machine is twice as fast in two of the rounds, and the row always half as fast
    baseline, row = Rounds([10.0, 20.0, 20.0, 10.0], "a"), Rounds([5.0, 10.0, 10.0, 5.0], "a")
    ratio = row.over(baseline)
    assert ratio is not None
    assert ratio.values == [0.5] * 4
    assert (ratio.median, ratio.sd, ratio.n) == (0.5, 0.0, 4)


def test_a_disturbed_round_moves_the_deviation_and_not_the_median() -> None:
    calm, disturbed = Rounds([10.0, 11.0, 12.0], "a"), Rounds([10.0, 11.0, 120.0], "a")
    assert calm.median == disturbed.median == 11.0
    assert calm.sd == pytest.approx(1.0)
    assert disturbed.sd is not None
    assert disturbed.sd > 50
    assert Rounds([10.0], "a").sd is None


def test_rounds_that_one_row_lacks_are_not_compared() -> None:
    ratio = Rounds([4.0, 9.0], "a").over(Rounds([2.0, 3.0, 1.0], "a"))
    assert ratio is not None
    assert ratio.values == [2.0, 3.0]
    assert Rounds([4.0], "a").over(Rounds([2.0], "b")) is None


def _record(occasion: str | None, *speeds: float) -> dict[str, Any]:
    turns = {} if occasion is None else {"occasion": occasion, "rounds": {"fast": list(speeds)}}
    return {"status": "done", "speed": {"fast": speeds[0], **turns}, "memory": {"peak": 1.0}}


def test_rows_are_compared_on_their_latest_occasion() -> None:
    records = {
        ("baseline", 1): _record("2026-01-02", 10.0, 20.0),
        ("baseline", 2): _record("2026-01-01", 1.0, 1.0),
        ("same", 1): _record("2026-01-02", 30.0, 40.0),
        ("other", 1): _record("2026-01-03", 30.0, 40.0),
        ("old", 1): _record(None, 30.0),
    }
    rows = summarise(["baseline", "same", "other", "old"], [1, 2], records)
    medians = [row.rounds["speed.fast"].median if row.rounds else None for row in rows]
    assert medians == [15.0, 35.0, 35.0, None]
    ratios = [row.ratios["speed.fast"].median if row.ratios else None for row in rows]
    assert ratios == [None, 2.5, None, None]


def test_what_is_measured_once_for_all_seeds_has_no_interval_over_seeds() -> None:
    records = {(name, seed): _record("a", 1.0) for name in ("baseline", "b") for seed in (1, 2)}
    assert summarise(["baseline", "b"], [1, 2], records)[1].differences == {}
