"""The simulations of tables judge them as the report does."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import sentence_errors
import table_errors

from ablate.analysis.comparison import compare
from ablate.analysis.measures import comparisons
from ablate.analysis.summary import summarise
from ablate.measuring import SentenceStatistics

ROOT = Path(__file__).parents[1]
LOOKS = ROOT / "results" / "benchmarks" / "looks.json"


@pytest.mark.parametrize("special", ["nothing", "spreads", "diverging", "missing"])
def test_many_tables_at_once_are_judged_as_each_by_itself(special: str) -> None:
    setting = table_errors.Setting(
        special,
        4,
        3,
        spread=1.0 if special == "spreads" else 0.0,
        diverging=0.1 if special == "diverging" else 0.0,
        n_missing=2 if special == "missing" else 0,
    )
    values = setting.draw(np.random.default_rng(1), 60)
    judged = table_errors.judge(values)
    for at, of_rows in enumerate(values):
        rows = {str(row): dict(enumerate(of_row)) for row, of_row in enumerate(of_rows.tolist())}
        done = {
            row: {seed: v for seed, v in of_row.items() if math.isfinite(v)}
            for row, of_row in rows.items()
        }
        diverged = {
            row: [seed for seed, v in of_row.items() if math.isinf(v)]
            for row, of_row in rows.items()
        }
        for row, each in enumerate(compare(done, diverged).differences.values()):
            half = judged.half_widths[at, row]
            if each.simultaneous is None or each.estimate is None:
                assert math.isnan(half)
                continue
            assert each.single is not None
            single = judged.single_half_widths[at, row]
            assert single == pytest.approx(each.single.high - each.estimate)
            assert judged.estimates[at, row] == pytest.approx(each.estimate)
            assert half == pytest.approx(each.simultaneous.high - each.estimate)
            assert judged.is_apart[at, row] == (each.method == "paired")


def test_holm_is_the_textbooks() -> None:
    """Of p values 0.01, 0.04, 0.03 and 0.005, the two least are below 0.05 / 4 and 0.05 / 3."""
    rng = np.random.default_rng(3)
    values = rng.normal(size=(80, 5, 4)) + np.array([0, 1, 2, 0, 3])[:, None]
    actual = table_errors._holm(values)
    for table, ours in zip(values, actual, strict=True):
        rows = {str(at): dict(enumerate(of_row)) for at, of_row in enumerate(table.tolist())}
        p = [compare({"0": rows["0"], row: rows[row]}).differences[row].p for row in list(rows)[1:]]
        known = [each if each is not None else 1.0 for each in p]
        expected = [False] * 4
        for rank, at in enumerate(np.argsort(known)):
            if known[at] > 0.05 / (4 - rank):
                break
            expected[at] = True
        assert ours.tolist() == expected


def test_new_sentences_are_simulated_as_a_report_has_them() -> None:
    """A score that is a mean over sentences, as the NLL of sentences of one token each is."""
    scores = sentence_errors.draw(np.random.default_rng(1), n_seeds=3, shared=1.0)
    n_rows, n_seeds, n_sentences = scores.shape
    none = np.zeros((n_sentences, 0), dtype=np.int64)
    ones = np.ones(n_sentences, dtype=np.int64)
    rows, seeds = [str(row) for row in range(n_rows)], range(n_seeds)
    runs = {(row, seed): scores[int(row), seed].astype(float) for row in rows for seed in seeds}
    records = {
        run: {"status": "done", "test": {"test": {"nll": each.mean()}}}
        for run, each in runs.items()
    }
    sentences = {
        run: {"test": SentenceStatistics(none, none, ones, ones, nll)} for run, nll in runs.items()
    }
    compared = comparisons(summarise(rows, seeds, records), sentences)["test.test.nll"]
    for ours, each in zip(
        sentence_errors.intervals(scores), compared.differences.values(), strict=True
    ):
        assert each.with_sentences is not None
        assert each.method == "moderated"
        ends = each.with_sentences.low, each.with_sentences.high
        assert (ours.low, ours.high) == pytest.approx(ends, rel=1e-4)


def test_the_page_has_the_numbers_of_the_simulated_looks() -> None:
    record = json.loads(LOOKS.read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    for each in record["settings"]:
        shares = [f"{each[key]:.2%}" for key in ("wrong", "missed")]
        keys = ("decided", "decided_by_all_seeds", "runs")
        shares += [f"{each[key]:.0%}" for key in keys]
        assert f"| {' | '.join([each['name'], str(each['rows']), *shares])} |" in page
        if each["rows"] < 100 and not each["collapsing"]:
            most = 0.08 if each["spread"] else 0.055
            assert each["wrong"] < most
