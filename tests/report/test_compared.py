"""Two sets of results as text: numbers without bound."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

import pytest

from ablate.analysis.two_tables import RowSample, compare_matched
from ablate.config import Negligible
from ablate.report.comparison import Compared, MatchedRow, TranslationDifferences

NLL = "test.test.nll"


def compared_in(metric: str, before: Sequence[float], after: Sequence[float]) -> Compared:
    """Return the comparison of one row by the values of its seeds."""
    first, second = (RowSample.of(dict(enumerate(of, start=1))) for of in (before, after))
    pair, done = (first, second), {"done": len(before)}
    shifts = {metric: compare_matched({"a": pair})["a"]}
    row = MatchedRow(("a", "a"), "spec", {}, {metric: pair}, shifts, (done, done))
    about = TranslationDifferences(), ["test"]
    return Compared(("before", "after"), [row], ((), ()), {}, Negligible(), *about)


@pytest.fixture
def compared() -> Compared:
    """A row whose loss has become infinite with one of two seeds."""
    return compared_in(NLL, (1.0, 2.0), (1.5, math.inf))


def _no_json(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def test_what_json_does_not_have_is_null(compared: Compared) -> None:
    text = compared.text("json")
    (row,) = json.loads(text, parse_constant=_no_json)["rows"]
    before, after = row["samples"][NLL]
    assert before["values"] == {"1": 1.0, "2": 2.0}
    assert after["values"] == {"1": 1.5, "2": None}
    assert (after["n"], after["mean"], after["sd"]) == (2, None, None)
    assert row["shifts"][NLL]["estimate"] is None


def test_a_csv_says_that_a_number_has_no_bound(compared: Compared) -> None:
    (line,) = csv.DictReader(io.StringIO(compared.text("csv")))
    assert (line["before"], line["metric"], line["mean.before"]) == ("a", NLL, "1.5")
    assert (line["mean.after"], line["difference"]) == ("inf", "inf")
    assert (line["method"], line["se"], line["single.low"], line["verdict"]) == ("none", "", "", "")


@pytest.mark.parametrize(("level", "verdict"), [(1.9, "cannot tell"), (40.0, "no difference")])
def test_what_had_hardly_learned_before_is_not_said_to_be_no_different(
    level: float, verdict: str
) -> None:
    """Below twice the band of 1 BLEU, whatever it has come to after."""
    before, gains = (level, level + 0.1, level), (0.3, 0.31, 0.3)
    after = [value + gain for value, gain in zip(before, gains, strict=True)]
    bleu = compared_in("test.test.bleu", before, after)
    assert bleu.outcome(bleu.rows[0], "test.test.bleu") == verdict


@pytest.mark.parametrize(
    ("after", "text"),
    [
        ((40.1, 40.3, 40.2), "no different beyond 1 BLEU"),
        ((30.0, 50.0, 43.0), "not told apart by these seeds"),
        ((40.0, 40.2, 40.1), "equal to the last bit"),
        ((40.0, 40.2, math.inf), "without an interval"),
    ],
)
def test_the_conclusion_says_what_the_seeds_show(after: Sequence[float], text: str) -> None:
    compared = compared_in("test.test.bleu", (40.0, 40.2, 40.1), after)
    assert compared.table().conclusion == f"By BLEU on test, a: {text}."


@pytest.mark.parametrize(("gain", "bleu", "nll"), [(3, "better", "worse"), (-3, "worse", "better")])
def test_a_verdict_says_what_a_row_has_come_to(gain: int, bleu: str, nll: str) -> None:
    before, after = (40.0, 40.2, 40.1), (40.0 + gain, 40.21 + gain, 40.09 + gain)
    compared = compared_in("test.test.bleu", before, after)
    assert compared.outcome(compared.rows[0], "test.test.bleu") == bleu
    assert compared.table().conclusion == f"By BLEU on test, a: {bleu} after than before."
    of_loss = compared_in(NLL, before, after)
    assert of_loss.outcome(of_loss.rows[0], NLL) == nll
