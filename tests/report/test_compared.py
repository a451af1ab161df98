"""Two sets of results as text: numbers without bound."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import pytest

from ablate.analysis.two_tables import RowSample, compare_matched
from ablate.config import Negligible
from ablate.report.comparison import Compared, MatchedRow, TranslationDifferences

NLL = "test.test.nll"


@pytest.fixture
def compared() -> Compared:
    """A row whose loss has become infinite with one of two seeds."""
    pair = RowSample.of({1: 1.0, 2: 2.0}), RowSample.of({1: 1.5, 2: math.inf})
    shifts, done = {NLL: compare_matched({"a": pair})["a"]}, {"done": 2}
    row = MatchedRow(("a", "a"), "spec", {}, {NLL: pair}, shifts, (done, done))
    about = TranslationDifferences(), ["test"]
    return Compared(("before", "after"), [row], ((), ()), {}, Negligible(), *about)


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
