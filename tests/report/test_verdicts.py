"""Conclusions, verdicts, and how a table says what its intervals hold for."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from ablate.analysis.comparison import Comparison
from ablate.analysis.ranking import discoveries, selection_bias
from ablate.analysis.statistics import Interval
from ablate.config import Experiment, load
from ablate.measuring.scores import SentenceStatistics
from ablate.report import Table, tabulate
from ablate.report.values import MINUS, NOTHING, interval_text, signed
from tests.report import made_up
from tests.report.made_up import notes, texts, vital

SEEDS = (1, 2, 3)
DIFFERENCE = "test.test.bleu.difference"


def marks(of: Table, key: str) -> list[str]:
    return [cell.mark for cell in of.column(key)]


def bleu_of(table: Table) -> Comparison:
    assert table.results is not None
    return table.results.comparisons["test.test.bleu"]


def _shift(records: made_up.Records, spread: float = 0.1, **by: float) -> None:
    """Let the BLEU of rows lie above the baseline's, about the same with every seed."""
    for row in by:
        for seed in SEEDS:
            bleu = records["baseline", seed]["test"]["test"]["bleu"]
            own = spread * (seed - 2) * (1 if row == "learned" else -1)
            records[row, seed]["test"]["test"]["bleu"] = bleu + by[row] + own


def test_verdicts_follow_from_the_intervals_and_what_is_negligible(
    tmp_path: Path, experiment: Experiment, records: made_up.Records
) -> None:
    _shift(records, learned=-2.5, literal=1.4, heads_1=0.0)
    laid_out = tabulate(experiment, records)
    assert texts(laid_out, DIFFERENCE) == ["", f"{MINUS}2.5", "+1.4", "0.0"]
    assert texts(laid_out, "verdict") == ["", "worse", "better", "no difference"]
    assert laid_out.conclusion == (
        "By BLEU on test, literal is better than the baseline; learned is worse than the baseline; "
        "heads_1 differs from the baseline by less than 1 BLEU."
    )
    head = f"negligible: {{bleu: 4, nll: 1}}\n{made_up.HEAD}"
    laid_out = tabulate(made_up.experiment(tmp_path, head=head), records)
    assert texts(laid_out, "verdict")[1:] == ["no difference"] * 3
    assert "±4 BLEU (±1 nats)" in notes(laid_out)["verdict"]
    assert [c.detail for c in laid_out.columns if c.key == "verdict"] == ["±4 BLEU"]


def test_several_rows_with_one_verdict_have_a_verb_in_the_plural(
    experiment: Experiment, records: made_up.Records
) -> None:
    for by, word in ((2.5, "better"), (-2.5, "worse")):
        _shift(records, learned=by, literal=by, heads_1=0.0)
        text = f"By BLEU on test, learned and literal are {word} than the baseline; heads_1 differs"
        assert tabulate(experiment, records).conclusion.startswith(text)
    _shift(records, learned=0.0, literal=0.1, heads_1=-0.1)
    for row, seed in records:
        nll = records["baseline", seed]["test"]["test"]["nll"]
        records[row, seed]["test"]["test"]["nll"] = nll + {"baseline": 0.0}.get(row, 0.3)
    table = tabulate(experiment, records)
    assert table.conclusion == (
        "By BLEU on test, learned, literal and heads_1 differ from the baseline by less than 1 "
        "BLEU."
    )
    text = "learned, literal and heads_1 are worse, by intervals"
    assert notes(table)["by NLL"].startswith(text)


def test_a_decided_row_whose_interval_reaches_into_the_band_is_marked(
    tmp_path: Path, records: made_up.Records
) -> None:
    _shift(records, learned=-2.2, literal=1.4, heads_1=0.0)
    head = f"negligible: {{bleu: 2, nll: 1}}\n{made_up.HEAD}"
    laid_out = tabulate(made_up.experiment(tmp_path, head=head), records)
    assert texts(laid_out, "verdict") == ["", "worse°", "no difference", "no difference"]
    assert marks(laid_out, "verdict") == ["", "°", "", ""]
    assert notes(laid_out)["°"].startswith("the interval reaches into ±2 BLEU")
    assert "°" in vital(laid_out)
    _shift(records, learned=2.2)
    laid_out = tabulate(made_up.experiment(tmp_path, head=head), records)
    assert texts(laid_out, "verdict")[1] == "better°"
    _shift(records, learned=-5.0)
    laid_out = tabulate(made_up.experiment(tmp_path, head=head), records)
    assert marks(laid_out, "verdict") == [""] * 4
    assert "°" not in notes(laid_out)


def test_rows_are_judged_by_two_seeds_and_by_a_loss_however_small(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, seeds="[1, 2]")
    records = made_up.records(experiment)
    for (row, seed), record in records.items():
        ours = 1e-5 * seed * (row == "learned")
        record["test"]["test"] |= {"bleu": 40 + seed + 100 * ours, "nll": 0.01 * seed + ours}
    laid_out = tabulate(experiment, records)
    assert texts(laid_out, "verdict")[1] == "no difference"
    assert laid_out.results is not None
    assert str(laid_out.results.verdict("learned", "test.test.nll")) == "no difference"


def test_an_end_of_an_interval_near_0_shows_its_side() -> None:
    assert interval_text(Interval(-1.52, -0.004), 1) == f"[{MINUS}1.5, {MINUS}0.004]"
    assert interval_text(Interval(0.049, 2.0), 1) == "[+0.05, +2.0]"
    assert interval_text(Interval(-0.0004, 2.0), 1) == f"[{MINUS}0.0004, +2.0]"
    assert interval_text(Interval(-0.00004, 0.0), 1) == "[0.0, 0.0]"


def test_a_table_of_many_rows_says_the_selection_bias_of_its_best_rows(tmp_path: Path) -> None:
    variants = "".join(f"  {n}: {{training.steps: {100 + n}}}\n" for n in range(20))
    file = tmp_path / "many.yaml"
    file.write_text(f"{made_up.HEAD}seeds: [1, 2, 3]\nvariants:\n{variants}", encoding="utf-8")
    experiment, rng = load(file), np.random.default_rng(2)
    records = {
        (row.name, seed): made_up.record("a", seed) for row in experiment.rows for seed in SEEDS
    }
    for number, row in enumerate(experiment.rows):
        for seed in SEEDS:
            bleu = 30.0 + 2.5 * (number > 10) - 5.0 * (number in (1, 2)) + rng.normal()
            records[row.name, seed]["test"]["test"]["bleu"] = bleu
    table = tabulate(experiment, records)
    footnotes, rows = notes(table), discoveries(bleu_of(table))
    n_better = sum(int(row) >= 10 for row in rows)
    n_worse = len(rows) - n_better
    assert n_better > n_worse > 0
    text = f"{n_better} rows can be called better and {n_worse} worse."
    assert footnotes["false discoveries"].endswith(text)
    n_best = [cell.value for cell in table.column("verdict")].count("better")
    assert table.results is not None
    bias = selection_bias(table.results.values("test.test.bleu"), n_best)
    text = f"the differences of the {n_best} best rows are {bias:.2f} BLEU lower"
    assert footnotes["winner's curse"].startswith(text)
    few = replace(experiment, rows=experiment.rows[:20])
    looks = replace(experiment, looks=(2, 3))  # which end the seeds of the best rows
    for other in (few, looks):
        assert not {"false discoveries", "winner's curse"} & notes(tabulate(other, records)).keys()


def test_one_best_row_has_a_bias_if_some_seeds_select_another(tmp_path: Path) -> None:
    """By hand: without seed 1 the second row is the best, by 4 and by 0 in seed 1."""
    variants = "".join(f"\n  {n}: {{training.steps: {100 + n}}}" for n in range(20))
    experiment = made_up.experiment(tmp_path, variants)
    rows = [row.name for row in experiment.rows]
    records = {(row, seed): made_up.record("a", seed) for row in rows for seed in SEEDS}
    biases = [4 - 0, (8 + 4) / 2 - 3, (8 + 3) / 2 - 4]
    for second, bias in (((0, 4, 4), np.mean(biases)), ((0, 0, 0), None)):
        gains = {"baseline": (0, 0, 0), "0": (8, 3, 4), "1": second}
        for (row, seed), record in records.items():
            error = math.cos(rows.index(row) + seed * math.tau / 3)
            bleu = gains[row][seed - 1] if row in gains else error
            record["test"]["test"]["bleu"] = 30.0 + bleu
        table = tabulate(experiment, records)
        assert [cell.value for cell in table.column("verdict")].count("better") == 1
        text = (
            "the difference of the best row is {:.2f} BLEU lower in a seed that did not select it."
        )
        assert notes(table).get("winner's curse") == (bias and text.format(bias))


def test_a_footnote_says_what_the_loss_tells_and_the_conclusion_counts_no_seed_that_is_not_done(
    experiment: Experiment, records: made_up.Records
) -> None:
    _shift(records, spread=3.0, learned=0.0, literal=0.0, heads_1=0.0)
    for row, seed in records:
        nll = records["baseline", seed]["test"]["test"]["nll"]
        more = {"baseline": 0.0, "learned": 0.3}.get(row, 0.001 * seed)
        records[row, seed]["test"]["test"]["nll"] = nll + more
    unknown = "cannot tell learned, literal and heads_1 from the baseline"
    actual_table = tabulate(experiment, records)
    assert actual_table.conclusion == f"By BLEU on test, 3 seeds {unknown}."
    assert notes(actual_table)["by NLL"].startswith("learned is worse, by intervals that hold")
    assert "by NLL" in vital(actual_table)
    del records["heads_1", 3]
    actual = tabulate(experiment, records).conclusion
    assert actual.startswith(f"By BLEU on test, the runs that are done {unknown}")


def test_a_footnote_says_what_the_loss_tells_where_bleu_does_not(
    experiment: Experiment, records: made_up.Records
) -> None:
    _shift(records, learned=-2.5, literal=1.4, heads_1=0.0)
    for row, seed in records:
        nll = records["baseline", seed]["test"]["test"]["nll"]
        more = {"baseline": 0.0, "heads_1": 0.001 * seed}.get(row, 0.3)
        records[row, seed]["test"]["test"]["nll"] = nll + more
    table = tabulate(experiment, records)
    assert texts(table, "verdict")[1:] == ["worse", "better", "no difference"]
    assert notes(table)["by NLL"].startswith("literal is worse, by intervals that hold")


def test_rows_with_weights_in_common_are_named_and_a_twin_of_the_baseline_is_the_same(
    experiment: Experiment, records: made_up.Records
) -> None:
    for (row, seed), record in records.items():
        weights = f"{'baseline' if row in ('learned', 'literal') else row} {seed}"
        record["files"] = {"model.safetensors": {"bytes": 1, "sha256": weights}}
        if row == "learned":
            record["test"] = copy.deepcopy(records["baseline", seed]["test"])
    table = tabulate(experiment, records)
    assert texts(table, "verdict")[1] == "same as the baseline"
    text = "learned and literal: trained to the last bit as baseline. So the error of training"
    assert notes(table)["same weights"].startswith(text)
    assert "same weights" in vital(table)
    assert "learned is the same as the baseline" in table.conclusion
    assert bleu_of(table).differences["literal"].method == "shared"
    assert marks(table, f"{DIFFERENCE}.interval") == [""] * 4
    records["literal", 2]["files"] = {}
    records["learned", 1]["files"]["model.safetensors"]["sha256"] = "others"
    assert notes(tabulate(experiment, records))["same weights"].startswith("literal: trained")
    for seed in SEEDS:
        records["heads_1", seed]["files"] = records["learned", seed]["files"]
    text = "literal: trained to the last bit as baseline; heads_1: trained to the last bit as "
    assert notes(tabulate(experiment, records))["same weights"].startswith(f"{text}learned. So")


def test_what_is_not_done_is_counted_and_marked(whole: Table, broken: Table) -> None:
    assert texts(broken, "done") == ["3/3", "2/3§", "2/3", "0/3"]
    ranks = [next(c.rank for c in each.columns if c.key == "done") for each in (broken, whole)]
    assert ranks == sorted(set(ranks)), "a narrow terminal leaves it out of a whole table"
    assert marks(broken, "test.test.bleu") == ["", "†", "†", ""]
    assert marks(broken, DIFFERENCE)[2] == "†"
    assert [texts(broken, key)[3] for key in ("test.test.bleu", DIFFERENCE)] == [NOTHING] * 2
    assert broken.column("params.total")[3].value == "1.32"  # what is known is shown
    assert notes(broken)["missing runs"] == "literal: 1"
    ending = "learned diverged with 1 of 3 seeds; heads_1 cannot be compared."
    assert broken.conclusion.endswith(ending)


def test_the_first_row_too_may_have_nothing_to_compare(
    experiment: Experiment, records: made_up.Records
) -> None:
    for seed in SEEDS:
        del records["learned", seed]
    assert tabulate(experiment, records).conclusion.endswith("; learned cannot be compared.")


def test_a_row_that_diverged_has_no_interval_and_the_seeds_that_it_won(
    records: made_up.Records, broken: Table
) -> None:
    baseline, own = (
        [records[row, seed]["test"]["test"]["bleu"] for seed in seeds]
        for row, seeds in (("baseline", SEEDS), ("learned", SEEDS[:2]))
    )
    pairs = [ours - theirs for ours, theirs in zip(own, baseline, strict=False)]
    mean = (sum(pairs) - baseline[2]) / 3
    assert texts(broken, DIFFERENCE)[1] == f"{signed(mean, 1)}§"
    assert texts(broken, f"{DIFFERENCE}.interval")[1] == NOTHING
    assert texts(broken, "verdict")[1] == f"won {sum(pair > 0 for pair in pairs)} of 3"
    footnote = notes(broken)["§"]
    assert footnote.startswith("learned: a row with diverged seeds has no")
    assert "A marked difference counts a divergence as 0" in footnote
    assert footnote.endswith("the verdict is how many seeds the row won of those that both have.")


def test_a_row_that_diverged_has_won_no_seed_that_is_missing(
    experiment: Experiment, records: made_up.Records
) -> None:
    _shift(records, learned=2.0)
    records["learned", 3] = made_up.without_result("diverged", "NaN", "learned", 3)
    del records["learned", 2]
    assert texts(tabulate(experiment, records), "verdict")[1] == "won 1 of 2"


def test_differences_that_are_fitted_where_a_seed_is_missing_are_said_to_be(
    experiment: Experiment, records: made_up.Records
) -> None:
    def is_said(some: made_up.Records) -> bool:
        return "by least squares" in notes(tabulate(experiment, some))["†"]

    for row in ("literal", "baseline"):  # beside which all rows are fitted
        assert is_said({run: record for run, record in records.items() if run != (row, 2)})
    records["learned", 3] = made_up.without_result("diverged", "NaN", "learned", 3)
    assert not is_said(records)


def _spread(records: made_up.Records, metric: str, row: str, own: Sequence[float]) -> None:
    """Let one row have its own values of a measure, and all others spread alike and little."""
    rows = list(dict.fromkeys(name for name, _ in records))
    for name, seed in records:
        little = 0.01 * math.cos(rows.index(name) + seed * math.tau / 3)
        value = own[seed - 1] if name == row else 2 + little
        records[name, seed]["test"]["test"][metric] = value


def test_departures_are_said_of_the_columns_that_have_them(
    experiment: Experiment, records: made_up.Records
) -> None:
    _spread(records, "bleu", "", ())
    _spread(records, "nll", "literal", (2.0, 3.0, 4.5))
    laid_out = tabulate(experiment, records)
    assert marks(laid_out, f"{DIFFERENCE}.interval") == [""] * 4
    assert marks(laid_out, "test.test.nll.difference.interval")[2] == "‡"
    assert notes(laid_out)["‡"].startswith("literal (NLL): the spread over seeds departs")
    assert "‡" in vital(laid_out)
    _spread(records, "bleu", "heads_1", (2.0, 30.0, 45.0))
    _spread(records, "nll", "baseline", (2.0, 3.0, 4.5))
    text = notes(tabulate(experiment, records))["‡"]
    assert "so that every interval of NLL is of the row's own paired differences" in text
    assert "; heads_1 (BLEU): the spread over seeds departs" in text
    _spread(records, "nll", "", ())
    laid_out = tabulate(experiment, records)
    assert marks(laid_out, f"{DIFFERENCE}.interval")[3] == "‡"
    assert notes(laid_out)["‡"].startswith("heads_1: the spread over seeds departs")


def test_beside_a_baseline_that_departs_every_interval_is_of_the_rows_own_pairs(
    experiment: Experiment, records: made_up.Records
) -> None:
    _spread(records, "bleu", "baseline", (2.0, 3.0, 4.5))
    _spread(records, "nll", "", ())
    table = tabulate(experiment, records)
    assert notes(table)["‡"] == (
        "the baseline's spread over seeds departs from that of the rows (F test at 0.1%), so that "
        "every interval is of the row's own paired differences."
    )
    assert notes(table)["intervals"] == (
        "95% CI: all 3 of a column hold together with that probability; each is of a row's own "
        "paired differences, with Šidák's constant."
    )
    baseline, own = (
        np.array([records[row, seed]["test"]["test"]["bleu"] for seed in SEEDS])
        for row in ("baseline", "learned")
    )
    share = (1 - 0.95 ** (1 / 3)) / 2
    half = stats.t.isf(share, df=2) * np.std(own - baseline, ddof=1) / math.sqrt(3)
    interval = bleu_of(table).differences["learned"].simultaneous
    assert interval is not None
    assert interval.high - interval.low == pytest.approx(2 * half)


def test_a_note_quotes_the_name_of_a_row_that_would_read_as_several(tmp_path: Path) -> None:
    variants = made_up.VARIANTS.replace("heads_1", '"heads, 1"')
    experiment = made_up.experiment(tmp_path, variants)
    records = made_up.records(experiment)
    _spread(records, "nll", "", ())
    _spread(records, "bleu", "heads, 1", (2.0, 30.0, 45.0))
    assert notes(tabulate(experiment, records))["‡"].startswith("“heads, 1”: the spread over seeds")
    records["heads, 1", 2] = made_up.without_result("diverged", "NaN", "heads, 1", 2)
    assert notes(tabulate(experiment, records))["§"].startswith("“heads, 1”: a row with diverged")


def test_of_many_rows_without_counts_of_sentences_a_note_names_a_few(tmp_path: Path) -> None:
    variants = "".join(f"\n  r{n}: {{training.steps: {100 + n}}}" for n in range(9))
    experiment = made_up.experiment(tmp_path, variants)
    records = made_up.records(experiment)
    for record in records.values():
        record["test"]["test"]["sentences"] = "sentences.test.csv"
    del records["r8", 1]["test"]["test"]["sentences"]  # a run that has never had them
    ones = np.ones(1, dtype=np.int64)
    counts = SentenceStatistics(ones[:, None], ones[:, None], ones, ones, ones.astype(float))
    kept = {("r0", 1): {"test": counts}}
    assert notes(tabulate(experiment, records, kept))["new sentences"] == (
        "no interval for r0, r1, r2 and 6 more: the counts of each sentence, which archives of "
        "records leave out, are missing for 28 runs."
    )


def test_beside_a_baseline_that_diverged_nothing_is_judged_or_fitted(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["baseline", 2] = made_up.without_result("diverged", "NaN", "baseline", 2)
    del records["literal", 3]
    laid_out = tabulate(experiment, records)
    assert laid_out.conclusion == "The baseline diverged with 1 of 3 seeds: no verdicts."
    assert "verdict" not in [column.key for column in laid_out.columns]
    footnotes = notes(laid_out)
    assert footnotes["intervals"] == "none: the baseline diverged with 1 of 3 seeds."
    assert footnotes["§"].endswith("be it the row's or the baseline's, and no row has a verdict.")
    assert footnotes["†"].endswith("(baseline: 1, 3; literal: 1, 2).")
    assert marks(laid_out, DIFFERENCE) == ["", "§", "§", "§"]


def test_rows_that_diverged_are_told_apart_by_how_often(
    experiment: Experiment, records: made_up.Records
) -> None:
    for run in (*(("learned", seed) for seed in SEEDS), ("literal", 2)):
        records[run] = made_up.without_result("diverged", "NaN", *run)
    laid_out = tabulate(experiment, records)
    text = "; learned diverged with all seeds; literal diverged with 1 of 3 seeds"
    assert text in laid_out.conclusion
    assert notes(laid_out)["intervals"].startswith("95% CI")
    records["heads_1", 3] = made_up.without_result("diverged", "NaN", "heads_1", 3)
    laid_out = tabulate(experiment, records)
    assert "literal and heads_1 diverged with 1 of 3 seeds" in laid_out.conclusion
    assert notes(laid_out)["intervals"] == (
        "none: every row but the baseline diverged with some or all of its seeds."
    )


def test_the_interval_of_a_single_row_is_explained(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, "\n  none: {model.position: none}\n")
    table = tabulate(experiment, made_up.records(experiment))
    of_pair = notes(table)
    assert of_pair["intervals"].startswith("95% CI: it holds with that probability (row + seed")
    assert "(2 degrees of freedom)" in of_pair["intervals"]
    assert (found := bleu_of(table).detectable) is not None
    assert f"a true difference of {found.low:.1f} BLEU is found" in of_pair["intervals"]
    assert of_pair["verdict"].startswith("no difference: ")


@pytest.mark.parametrize("has_diverged", [False, True])
def test_one_seed_gets_no_verdict_and_a_footnote_that_says_so(
    tmp_path: Path, has_diverged: bool
) -> None:
    experiment = made_up.experiment(tmp_path, seeds="[7]")
    records = made_up.records(experiment)
    if has_diverged:
        records["learned", 7] = made_up.without_result("diverged", "NaN", "learned", 7)
    laid_out = tabulate(experiment, records)
    keys = [column.key for column in laid_out.columns]
    assert DIFFERENCE in keys
    assert not {f"{DIFFERENCE}.interval", "verdict"} & set(keys)
    assert notes(laid_out)["seed"] == "7"
    assert notes(laid_out)["intervals"].startswith("none: with one seed")
    assert laid_out.conclusion.startswith("With one seed no difference can be told from chance")
    assert not has_diverged or notes(laid_out)["§"].endswith("no row has a verdict.")


def test_the_first_footnotes_say_how_to_read_the_table(
    experiment: Experiment, records: made_up.Records, whole: Table
) -> None:
    assert [note.label for note in whole.footnotes][:3] == ["intervals", "verdict", "budget"]
    compared = bleu_of(whole)
    text = notes(whole)["intervals"]
    assert "all 3 of a column hold together" in text
    assert "each row's variance moderated by the pooled one, Dunnett's distribution" in text
    assert whole.results is not None
    assert (loss := whole.results.comparison("test.test.nll")) is not None
    assert f"± {compared.sd:.2f} BLEU and ± {loss.sd:.3f} nats" in text
    assert "6 degrees of freedom" in text
    assert (found := compared.detectable) is not None
    assert f"a true difference of {found.low:.1f} to {found.high:.1f} BLEU" in text
    two = {run: record for run, record in records.items() if run[0] != "learned"}
    assert "both of a column hold together" in notes(tabulate(experiment, two))["intervals"]
    del records["literal", 2]
    records["learned", 1]["test"]["test"]["nll"] = math.inf  # one interval less in its column
    partial = tabulate(experiment, records)
    assert (least := bleu_of(partial).detectable) is not None
    text = notes(partial)["intervals"]
    assert text.startswith("95% CI: all of a column hold together with that probability")
    assert f"of {least.low:.1f} to {least.high:.1f} BLEU" in text


def test_models_that_translate_nothing_are_not_said_to_show_differences_of_0(
    experiment: Experiment, records: made_up.Records
) -> None:
    for record in records.values():
        record["test"]["test"]["bleu"] /= 1000
    table = tabulate(experiment, records)
    assert bleu_of(table).detectable is not None
    assert "95% CI" in notes(table)["intervals"]
    assert "true difference" not in notes(table)["intervals"]


def test_where_the_baseline_has_hardly_learned_that_and_its_score_are_said(
    tmp_path: Path, records: made_up.Records
) -> None:
    """Below twice the band of 3 BLEU a row has too little to lose."""
    head = f"negligible: {{bleu: 3}}\n{made_up.HEAD}"
    experiment = made_up.experiment(tmp_path, head=head)
    for bleu, is_said in ((5.9, True), (6.1, False)):
        for (row, seed), record in records.items():
            record["test"]["test"]["bleu"] = bleu + 0.01 * math.cos(len(row) + seed * math.tau / 3)
        table = tabulate(experiment, records)
        of_baseline = f", of which the baseline has too little to lose ({bleu})" * is_said
        assert table.conclusion.startswith(f"By BLEU on test{of_baseline}, ")
        assert ("hardly learned" in notes(table)["verdict"]) == is_said
        assert ("verdict" in vital(table)) == is_said
        verdict = "cannot tell" if is_said else "no difference"
        assert texts(table, "verdict")[1:] == [verdict] * 3


def test_an_experiment_without_variants_has_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "alone.yaml").write_text(made_up.HEAD, encoding="utf-8")
    experiment = load(tmp_path / "alone.yaml")
    laid_out = tabulate(experiment, made_up.records(experiment))
    assert laid_out.conclusion.startswith("There is nothing to compare")
    assert "intervals" not in notes(laid_out)
