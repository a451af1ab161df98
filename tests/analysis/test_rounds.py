"""Speeds of rows that took turns: compared within rounds, and never across sessions."""

from __future__ import annotations

from typing import Any

import pytest

from ablate.analysis import Rounds, summarise


def test_a_disturbed_round_moves_the_deviation_and_not_the_median() -> None:
    calm, disturbed = Rounds([10.0, 11.0, 12.0], "a"), Rounds([10.0, 11.0, 120.0], "a")
    assert calm.median == disturbed.median == 11.0
    assert calm.sd == pytest.approx(1.0)
    assert disturbed.sd is not None
    assert disturbed.sd > 50
    assert Rounds([10.0], "a").sd is None


def _record(session: str | None, *speeds: float) -> dict[str, Any]:
    turns = {} if session is None else {"session": session, "rounds": {"fast": list(speeds)}}
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
    rows = summarise(["baseline", "first", "second", "third"], [1], records)
    speeds = [row.speeds["speed.fast"] for row in rows]
    assert [speed.ratio for speed in speeds[1:]] == [pytest.approx(r) for r in (2.0, 3.0, 4.0)]
    assert speeds[0].value == pytest.approx(10.0)  # of the session of most rows
    assert [row.rounds["speed.fast"].session for row in rows[:2]] == ["2026-01-03", "2026-01-01"]


def test_of_several_sessions_with_the_baseline_the_latest_counts() -> None:
    baseline = _record("2026-01-03", 10.0, 10.0)
    baseline["speed"]["earlier"] = {"2026-01-01": {"fast": [5.0, 5.0]}}
    row = _record("2026-01-03", 40.0, 40.0)
    row["speed"]["earlier"] = {"2026-01-01": {"fast": [5.0, 5.0]}}
    rows = summarise(["baseline", "row"], [1], {("baseline", 1): baseline, ("row", 1): row})
    assert rows[1].rounds["speed.fast"].session == "2026-01-03"
    assert rows[1].speeds["speed.fast"].ratio == pytest.approx(4.0)


def test_a_row_that_never_met_the_baseline_has_the_speed_of_its_latest_session() -> None:
    row = _record("2026-01-03", 40.0, 40.0)
    row["speed"]["earlier"] = {"2026-01-01": {"fast": [5.0, 5.0]}}
    records = {("baseline", 1): _record("2026-01-02", 10.0, 10.0), ("row", 1): row}
    speed = summarise(["baseline", "row"], [1], records)[1].speeds["speed.fast"]
    assert (speed.value, speed.ratio) == (40.0, None)


def test_speeds_that_are_shown_have_the_ratio_that_is_shown() -> None:
    records = {
        ("baseline", 1): _record("a", 425.0, 481.0, 390.0),
        ("row", 1): _record("a", 470.0, 400.0, 460.0),
    }
    baseline, row = (
        each.speeds["speed.fast"] for each in summarise(["baseline", "row"], [1], records)
    )
    assert row.ratio is not None
    assert row.value / baseline.value == pytest.approx(row.ratio)


def test_without_a_baseline_that_was_measured_there_is_no_ratio() -> None:
    records = {("row", 1): _record("a", 30.0, 40.0)}
    rows = summarise(["baseline", "row"], [1], records)
    assert rows[0].speeds == {}
    assert rows[1].speeds["speed.fast"].ratio is None
    assert rows[1].speeds["speed.fast"].value == 35.0
