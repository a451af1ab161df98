"""The tolerance of a statistical check: its tables, its promises, and what they cost in seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ablate.gate.tolerance import (
    PairedPromise,
    Promise,
    largest_std,
    lowest_std,
    margins,
    power,
    rounded_up,
    seeds_needed,
    tail,
)

BLEU = Promise(alpha=0.005, min_effect=1.5, power=0.9, n_new=3)


def test_tails_of_one_degree_are_those_of_cauchy() -> None:
    for critical in (-3.0, 0.0, 0.5, 4.0, 300.0):
        exact = 0.5 - math.atan(critical) / math.pi
        assert tail(critical, 1) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize(
    ("df", "shift", "critical"), [(2, 3.0, 2.92), (4, -1.0, 0.5), (9, 2, 2), (5, 1, 2)]
)
def test_tails_of_a_shifted_variable_are_those_of_simulation(
    df: int, shift: float, critical: float
) -> None:
    rng = np.random.default_rng(1)
    t = (rng.standard_normal(400_000) + shift) / np.sqrt(rng.chisquare(df, 400_000) / df)
    assert tail(critical, df, shift) == pytest.approx(np.mean(t > critical), abs=0.003)


@pytest.mark.parametrize("n", [2, 5, 8])
def test_a_correct_baseline_fails_as_seldom_as_promised(n: int) -> None:
    rng = np.random.default_rng(n)
    reference = rng.standard_normal((200_000, n))
    off = rng.standard_normal((200_000, 3)).mean(axis=1) - reference.mean(axis=1)
    std = reference.std(axis=1, ddof=1)
    room = margins(1.0, n, BLEU)
    low = np.mean(off < -room.loss * std)
    high = np.mean(off > room.gain * std)
    assert low == pytest.approx(0.004, abs=0.0006)
    assert high == pytest.approx(0.001, abs=0.0003)


@pytest.mark.parametrize("std", [0.2, 0.35, 0.5, 1.0, 3.0])
def test_a_loss_slips_through_a_blessed_reference_in_one_of_ten_whatever_the_std(
    std: float,
) -> None:
    rng = np.random.default_rng(7)
    n = 6
    reference = std * rng.standard_normal((100_000, n))
    measured = reference.std(axis=1, ddof=1)
    lost = std * rng.standard_normal((100_000, 3)).mean(axis=1) - 1.5 - reference.mean(axis=1)
    is_blessed = measured <= largest_std(n, BLEU)
    is_missed = lost >= -margins(1.0, n, BLEU).loss * measured
    assert np.mean(is_blessed & is_missed) <= 0.1


@pytest.mark.parametrize("n", [2, 5, 20])
@pytest.mark.parametrize("promise", [BLEU, Promise(alpha=0.05, min_effect=1.0, power=0.7, n_new=5)])
def test_the_largest_std_has_just_the_power_that_is_promised(n: int, promise: Promise) -> None:
    most = largest_std(n, promise)
    assert power(most, n, promise) == pytest.approx(promise.power)
    assert power(1.01 * most, n, promise) < promise.power < power(0.99 * most, n, promise)


def test_seeds_that_are_said_to_be_needed_are_needed_and_enough() -> None:
    for std in (0.05, 0.22, 0.37, 0.45, 0.6):
        n = seeds_needed(std, BLEU)
        assert n is not None
        assert std <= largest_std(n, BLEU)
        assert n == 2 or std > largest_std(n - 1, BLEU)


def test_the_documented_numbers_of_seeds() -> None:
    limits = {4: 0.247, 5: 0.319, 6: 0.370, 7: 0.407, 8: 0.436, 10: 0.477, 15: 0.535}
    for n, most in limits.items():
        assert round(largest_std(n, BLEU), 3) == most


def test_seeds_that_all_agree_leave_no_margin() -> None:
    assert margins(0.0, 3, BLEU).loss == 0.0
    assert power(0.0, 3, BLEU) == 1.0


def test_a_number_of_two_digits_is_not_rounded_up() -> None:
    for tenths in range(10, 100):
        for scale in (1e-3, 0.1, 1.0, 100.0):
            value = float(f"{tenths * scale:.2g}")
            assert rounded_up(value) == value
            assert rounded_up(value * (1 + 1e-14)) == value, "rounding alone adds no unit"


@pytest.mark.parametrize("df", [1, 4])
def test_the_true_std_lies_below_its_lower_limit_in_one_of_twenty(df: int) -> None:
    rng = np.random.default_rng(df)
    measured = np.sqrt(rng.chisquare(df, 200_000) / df)
    assert np.mean(lowest_std(1.0, df) * measured > 1) == pytest.approx(0.05, abs=0.003)


@pytest.mark.parametrize("promise", [BLEU, PairedPromise(0.005, 1.5, 0.9, n_new=3)])
def test_a_reference_may_need_two_seeds_or_forty(promise: Promise) -> None:
    assert seeds_needed(1e-6, promise) == 2
    most = largest_std(40, promise)
    assert (seeds_needed(most, promise), seeds_needed(1.0001 * most, promise)) == (40, None)
