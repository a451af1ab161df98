"""Numbers and changes as people read them."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ablate.parts  # noqa: F401  (parts enter the registry when their room is imported)
from ablate.report.values import MINUS, format_value, number, percent_change, row_names, signed


@given(st.floats(-1e6, 1e6), st.integers(0, 3))
def test_a_number_reads_back(value: float, decimals: int) -> None:
    assert float(number(value, decimals).replace(MINUS, "-")) == pytest.approx(
        value, abs=0.5001 * 10**-decimals
    )
    assert "-" not in number(value, decimals)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.00"), (-0.001, "0.00"), (0.001, "0.00"), (1.2, "+1.20"), (-1.2, f"{MINUS}1.20")],
)
def test_differences_show_their_sign_unless_they_round_to_nothing(value: float, text: str) -> None:
    assert signed(value, 2) == text


def test_a_number_is_never_as_wide_as_a_line() -> None:
    assert number(123456.789, 3) == "123456.789"
    assert number(-3.2e261, 2) == f"{MINUS}3.2e+261"


def test_names_that_would_read_as_several_rows_are_in_quotes() -> None:
    names = ["sharing", "sharing, factorised", "d_k and d_v", "none", "commander"]
    assert row_names(names) == "sharing, “sharing, factorised”, “d_k and d_v”, “none” and commander"


def test_numbers_without_bound_have_names() -> None:
    assert number(math.inf, 2) == "∞"
    assert number(-math.inf, 2) == f"{MINUS}∞"
    assert number(math.nan, 2) == "NaN"


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, ""), (0.0262, "+2.6%"), (-0.5, f"{MINUS}50.0%"), (2e-4, "+0.02%"), (1e-6, "<0.01%")],
)
def test_shares_never_hide_a_change(share: float, text: str) -> None:
    assert percent_change(share) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("none", "none"),
        (None, "\N{EN DASH}"),
        (5e-4, "0.0005"),
        (
            {"name": "sinusoidal", "exponent": "t2t", "base": 500},
            "sinusoidal(exponent=t2t, base=500)",
        ),
        ({"base": 500}, "base=500"),
    ],
)
def test_values_are_written_compactly(value: Any, text: str) -> None:
    assert format_value(value) == text


def test_a_baseline_leaves_out_the_options_that_are_defaults() -> None:
    choice = {"name": "sinusoidal", "exponent": "t2t", "layout": "interleaved", "base": 10_000.0}
    assert format_value(choice, "model.position") == "sinusoidal(exponent=t2t)"
    assert format_value({**choice, "exponent": "paper"}, "model.decoder.position") == "sinusoidal"
