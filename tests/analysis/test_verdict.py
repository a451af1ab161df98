"""Verdicts follow from the interval, the band, and which values are better."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.analysis.measures import Verdict, direction, higher_is_better, verdict
from ablate.analysis.statistics import Interval
from ablate.gate.evidence import LOSSES


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.2, 3.0, "better"),
        (-3.0, -0.2, "worse"),
        (-0.4, 0.9, "no difference"),
        (0.1, 0.9, "no difference"),
        (-0.4, 1.0, "cannot tell"),
        (-5.0, 7.0, "cannot tell"),
        (0.0, 2.0, "cannot tell"),
    ],
)
def test_each_verdict(low: float, high: float, expected: str) -> None:
    assert verdict(Interval(low, high), 1.0) == expected
    assert verdict(None, 1.0) is None


def test_of_losses_less_is_better() -> None:
    assert verdict(Interval(0.1, 0.2), 0.02, higher_is_better=False) is Verdict.WORSE
    assert verdict(Interval(-0.2, -0.1), 0.02, higher_is_better=False) is Verdict.BETTER


@given(st.floats(-9, 9), st.floats(0, 9), st.floats(0, 9))
def test_a_mirrored_interval_has_the_mirrored_verdict(
    low: float, width: float, negligible: float
) -> None:
    mirror = {Verdict.BETTER: Verdict.WORSE, Verdict.WORSE: Verdict.BETTER}
    ours = verdict(Interval(low, low + width), negligible)
    theirs = verdict(Interval(-low - width, -low), negligible)
    assert ours is not None
    assert theirs is mirror.get(ours, ours)


@given(st.floats(-9, 9), st.floats(0, 9))
def test_without_a_band_every_interval_around_0_cannot_tell(low: float, width: float) -> None:
    actual = verdict(Interval(low, low + width), 0.0)
    assert (actual is Verdict.CANNOT_TELL) == (low <= 0 <= low + width)


@pytest.mark.parametrize(
    ("measure", "better"),
    [
        ("test.test2016.bleu", "higher"),
        ("test.test2016.bleu_lc_tok", "higher"),
        ("test.test_long.exact_match", "higher"),
        ("dev.nll", "lower"),
        ("test.test.bits_per_character", "lower"),
        (LOSSES, "lower"),
        ("test.test.perplexity", "lower"),
        ("train.seconds", "lower"),
        ("params.total", "lower"),
        ("train.steps", None),
    ],
)
def test_which_way_is_better_is_known_of_most_measures(measure: str, better: Any) -> None:
    assert direction(measure) == better


def test_more_of_an_unknown_measure_is_better_in_a_comparison() -> None:
    """As the contract of a metric says."""
    assert direction("test.test.comet") is None
    assert higher_is_better("test.test.comet")
    assert not higher_is_better("test.test.nll")
