"""The neutral table: which columns there are, and that every number in it is the analysis'."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest

from ablate.analysis import TRAIN_FLOPS, comparisons, summarise
from ablate.config import Experiment, load
from ablate.config.choices import with_match
from ablate.report import Table, render, tabulate
from ablate.report.columns import PARTIAL
from ablate.report.values import MINUS, NOTHING, TIMES, signed
from ablate.wording import and_list
from tests.report import made_up

SEEDS = (1, 2, 3)


def notes(of: Table) -> dict[str, str]:
    return {note.label: note.text for note in of.footnotes}


def test_rows_stand_in_the_order_of_the_file(whole: Table) -> None:
    assert [c.value for c in whole.column("row")] == ["baseline", "learned", "literal", "heads_1"]


def test_the_baseline_says_what_it_has_and_a_variant_what_it_changes(whole: Table) -> None:
    assert [cell.value for cell in whole.column("model.position")] == [
        "sinusoidal",
        "learned",
        "sinusoidal(exponent=literal_2i)",
        "",
    ]
    assert [cell.value for cell in whole.column("model.dims.n_heads")] == ["2", "", "", "1"]


def test_options_that_another_part_brings_stand_where_they_are_not_the_baselines(
    tmp_path: Path,
) -> None:
    variants = """
  wide: {model.feed_forward.d_ff: 64}
  without: {model.feed_forward: gelu}
  named: {model.feed_forward.name: silu}
  same: {model.feed_forward: {name: relu_squared, d_ff: 32}}
  other: {model.feed_forward: {name: swiglu, d_ff: 16}}
"""
    laid_out = tabulate(made_up.experiment(tmp_path, variants), {})
    widths = [cell.value for cell in laid_out.column("model.feed_forward.d_ff")]
    assert widths == ["32", "64", NOTHING, NOTHING, "", "16"]


def test_what_a_row_has_in_place_of_the_baselines_choice_stands_beside_it(tmp_path: Path) -> None:
    head = made_up.HEAD.replace("{steps: 10}", "{steps: 10, average: {ema: 0.5}}")
    variants = "\n  last: {training.average: {last: 3}}\n  epochs: {training.epochs: 2}\n"
    laid_out = tabulate(made_up.experiment(tmp_path, variants, head=head), {})
    assert [column.key for column in laid_out.columns if column.kind == "change"] == [
        "training.average.last",
        "training.epochs",
        "training.average.ema",
        "training.steps",
    ]
    cells = {c.key: [cell.value for cell in laid_out.column(c.key)] for c in laid_out.columns}
    assert cells["training.average.last"] == [NOTHING, "3", ""]
    assert cells["training.average.ema"] == ["0.5", NOTHING, ""]
    assert cells["training.epochs"] == [NOTHING, "", "2"]
    assert cells["training.steps"] == ["10", "", NOTHING]


def test_every_number_is_the_analysis(
    experiment: Experiment, records: made_up.Records, whole: Table
) -> None:
    names = [row.name for row in experiment.rows]
    summaries = summarise(names, SEEDS, records)
    actual = comparisons(summaries)
    for test_set in made_up.SETS:
        key = f"test.{test_set}.bleu"
        means = [f"{summary.metrics[key].mean:.1f}" for summary in summaries]
        assert [cell.value for cell in whole.column(key)] == means
        expected = [actual[key].differences[name] for name in names[1:]]
        deltas = whole.column(f"{key}.difference")
        assert [c.value for c in deltas[1:]] == [signed(each.estimate or 0, 1) for each in expected]
        for cell, each in zip(
            whole.column(f"{key}.difference.interval")[1:], expected, strict=True
        ):
            assert each.simultaneous is not None
            low, high = signed(each.simultaneous.low, 1), signed(each.simultaneous.high, 1)
            assert cell.value == f"[{low}, {high}]"
    loss = [actual["test.test.nll"].differences[name].estimate for name in names[1:]]
    deltas = whole.column("test.test.nll.difference")[1:]
    assert [cell.value for cell in deltas] == [signed(each or 0, 3) for each in loss]


@pytest.mark.parametrize("key", ["test.test.perplexity", "dev.perplexity"])
def test_a_perplexity_is_that_of_the_mean_nll_for_readers_and_programs(
    key: str, experiment: Experiment, records: made_up.Records
) -> None:
    nlls = dict(zip(SEEDS, (0.5, 1.0, 3.0), strict=True))
    for seed, nll in nlls.items():
        of_set = records["learned", seed]["test"]["test"]
        (of_set if key.startswith("test") else records["learned", seed]["dev"])["nll"] = nll
    del records["literal", 2]
    laid_out = tabulate(experiment, records)
    mean, perplexities = math.exp(1.5), {seed: math.exp(nll) for seed, nll in nlls.items()}
    sd = pytest.approx(statistics.stdev(perplexities.values()))
    cells = laid_out.column(key)
    assert (cells[1].text, cells[2].mark) == (f"{mean:.2f}", PARTIAL)
    line = list(csv.DictReader(io.StringIO(render(laid_out, "csv", columns=["all"]))))[1]
    assert float(line[f"{key}.mean"]) == pytest.approx(mean)
    assert float(line[f"{key}.sd"]) == sd
    of_json = json.loads(render(laid_out, "json"))["rows"][1]["metrics"][key]
    assert (of_json["mean"], of_json["sd"]) == (pytest.approx(mean), sd)
    assert of_json["values"] == {str(seed): value for seed, value in perplexities.items()}


def _shift(records: made_up.Records, row: str, by: float, spread: float = 0.1) -> None:
    """Let a row's BLEU lie ``by`` above the baseline's, about the same with every seed."""
    for seed in SEEDS:
        bleu = records["baseline", seed]["test"]["test"]["bleu"]
        own = spread * (seed - 2) * (1 if row == "learned" else -1)
        records[row, seed]["test"]["test"]["bleu"] = bleu + by + own


def test_the_difference_has_a_sign_and_a_true_minus(
    experiment: Experiment, records: made_up.Records
) -> None:
    for row, by in (("learned", -1.26), ("literal", 0.5), ("heads_1", 0.0)):
        _shift(records, row, by)
    values = [c.value for c in tabulate(experiment, records).column("test.test.bleu.difference")]
    assert values == ["", f"{MINUS}1.3", "+0.5", "0.0"]


def test_verdicts_follow_from_the_intervals(
    experiment: Experiment, records: made_up.Records
) -> None:
    for row, by in (("learned", -2.5), ("literal", 1.4), ("heads_1", 0.1)):
        _shift(records, row, by)
    laid_out = tabulate(experiment, records)
    verdicts = [cell.value for cell in laid_out.column("verdict")]
    assert verdicts == ["", "worse", "better", "no difference"]
    assert laid_out.conclusion == (
        "By BLEU on test, literal is better than the baseline; learned is worse than the baseline; "
        "heads_1 differs from the baseline by less than 1 BLEU."
    )


def test_what_is_negligible_is_the_experiments_to_say(
    tmp_path: Path, experiment: Experiment, records: made_up.Records
) -> None:
    for row, by in (("learned", -2.5), ("literal", 1.4), ("heads_1", 0.1)):
        _shift(records, row, by)
    head = f"negligible: {{bleu: 4, nll: 1}}\n{made_up.HEAD}"
    laid_out = tabulate(made_up.experiment(tmp_path, head=head), records)
    assert [cell.value for cell in laid_out.column("verdict")][1:] == ["no difference"] * 3
    assert "±4 BLEU (±1 nats)" in notes(laid_out)["verdict"]
    (column,) = [column for column in laid_out.columns if column.key == "verdict"]
    assert column.detail == "±4 BLEU"


def test_a_loss_that_tells_more_than_bleu_is_in_the_conclusion(
    experiment: Experiment, records: made_up.Records
) -> None:
    for row, by in (("learned", 0.0), ("literal", 0.0), ("heads_1", 0.0)):
        _shift(records, row, by, spread=3.0)
        for seed in SEEDS:
            nll = records["baseline", seed]["test"]["test"]["nll"]
            more = 0.3 if row == "learned" else 0.001 * seed
            records[row, seed]["test"]["test"]["nll"] = nll + more
    assert tabulate(experiment, records).conclusion == (
        "By BLEU on test, 3 seeds cannot tell learned, literal and heads_1 from the baseline; by "
        "NLL, learned is worse."
    )


def test_the_conclusion_counts_no_seed_that_is_not_done(
    experiment: Experiment, records: made_up.Records
) -> None:
    unknown = "cannot tell learned, literal and heads_1 from the baseline"
    for row in ("learned", "literal", "heads_1"):
        _shift(records, row, 0.0, spread=3.0)
    assert tabulate(experiment, records).conclusion.startswith(
        f"By BLEU on test, 3 seeds {unknown}"
    )
    del records["heads_1", 3]
    actual = tabulate(experiment, records).conclusion
    assert actual.startswith(f"By BLEU on test, the runs that are done {unknown}")


def test_many_rows_are_counted_in_the_conclusion(tmp_path: Path) -> None:
    grid = "".join(f"  row_{n}: {{model.feed_forward.d_ff: {n}}}\n" for n in range(33, 41))
    experiment = made_up.experiment(tmp_path, f"\n{grid}")
    conclusion = tabulate(experiment, made_up.records(experiment)).conclusion
    assert "row_33, row_34, row_35 and 4 more" in conclusion


def test_parameters_are_compared_with_the_baseline(whole: Table) -> None:
    assert [c.text for c in whole.column("params.total")] == [
        "1.32",
        "1.35 (+2.5%)",
        "1.32",
        "1.32",
    ]


def test_equal_budgets_are_one_line(whole: Table) -> None:
    assert notes(whole)["budget"] == "equal steps, target tokens and training FLOPs"
    keys = [column.key for column in whole.columns]
    assert "train.steps" not in keys
    assert "train.target_tokens" not in keys
    assert {cell.text for cell in whole.column(TRAIN_FLOPS)} == {"4.0"}


def test_rows_that_had_more_are_told_apart_and_marked(
    experiment: Experiment, records: made_up.Records
) -> None:
    for seed in SEEDS:
        records["learned", seed]["train"] |= {"steps": 20, "target_tokens": 8000 + 2 * seed}
        records["literal", seed]["flops"] = {"train_per_target_token": 1.03e6}
    laid_out = tabulate(experiment, records)
    assert notes(laid_out)["budget"] == (
        f"steps 1.00 to 2.00{TIMES} the baseline's; target tokens 1.00 to 2.00{TIMES} the "
        f"baseline's; training FLOPs 1.00 to 2.00{TIMES} the baseline's; ¶ marks what differs by "
        "more than 5%"
    )
    steps = [cell.text for cell in laid_out.column("train.steps")]
    assert steps == ["10", "20¶", "10", "10"]
    flops = [cell.text for cell in laid_out.column(TRAIN_FLOPS)]
    assert flops == ["4.0", f"8.0¶ (2.00{TIMES})", f"4.1 (1.03{TIMES})", "4.0"]


def test_where_tokenizers_differ_losses_are_compared_per_character(
    experiment: Experiment, records: made_up.Records
) -> None:
    for seed in SEEDS:
        records["learned", seed]["tokenizer"] = {"fingerprint": "other", "n_src": 9, "n_tgt": 9}
    laid_out = tabulate(experiment, records)
    keys = [column.key for column in laid_out.columns]
    assert "test.test.bits_per_character.difference" in keys
    assert "test.test.nll.difference" not in keys
    assert laid_out.more is not None
    more = [column.key for column in laid_out.more.columns]
    assert "test.test.bits_per_character" in more
    assert not any("perplexity" in key for key in more)
    assert "bits per character of the references" in notes(laid_out)["columns"]
    assert "bits per character" in notes(laid_out)["intervals"]


def test_between_tokenizers_no_loss_per_token_has_a_verdict(
    experiment: Experiment, records: made_up.Records
) -> None:
    for seed in SEEDS:
        records["learned", seed]["dev"]["nll"] = records["baseline", seed]["dev"]["nll"] - 0.2
    for is_other in (False, True):
        if is_other:
            for seed in SEEDS:
                other = {"fingerprint": "other", "n_src": 9, "n_tgt": 9}
                records["learned", seed]["tokenizer"] = other
        differences = json.loads(render(tabulate(experiment, records), "json"))["rows"][1]
        verdicts = {n: each["verdict"] for n, each in differences["differences"].items()}
        assert (verdicts["dev.nll"] is None) is is_other
        assert (verdicts["test.test.nll"] is None) is is_other
        assert verdicts["test.test.bleu"] is not None
        narang = tabulate(experiment, records, layout="narang")
        key = "test.test.bits_per_character" if is_other else "dev.nll"
        (loss,) = [column for column in narang.columns if column.header in ("loss", "bits/char")]
        assert loss.key == key
        estimate = narang.lines[1].summary.metrics[key]
        mark = "" if is_other else "*"
        assert narang.column(key)[1].text == f"{estimate.mean:.3f}{mark} (±{estimate.sd:.3f})"


TRAIN = "speed.train_target_tokens_per_second"


def _turns(records: made_up.Records, row: str, *speeds: float, session: str = "a") -> None:
    turns = {TRAIN.removeprefix("speed."): list(speeds)}
    for (name, _), record in records.items():
        if name == row:
            median = {TRAIN.removeprefix("speed."): statistics.median(speeds)}
            record["speed"] = {**median, "rounds": turns, "session": session}


def test_ratios_of_speeds_are_those_of_rows_that_took_turns(
    experiment: Experiment, records: made_up.Records
) -> None:
    _turns(records, "baseline", 1000.0, 2000.0, 1500.0)
    _turns(records, "learned", 500.0, 1000.0, 750.0)
    _turns(records, "literal", 500.0, 1100.0, 900.0, session="b")
    _turns(records, "heads_1", 3000.0, 4000.0)
    for record in records.values():
        rounds = record["speed"]["rounds"]
        rounds["decode_sentences_per_second"] = [
            speed / 10 for speed in rounds[TRAIN.removeprefix("speed.")]
        ]
    laid_out = tabulate(experiment, records)
    cells = [cell.text for cell in laid_out.column(TRAIN)]
    nothing = "\N{EN DASH}"
    assert cells[:3] == ["1.00", "0.50 (0.50 to 0.50)", nothing]
    assert cells[3].startswith("2.45 (")
    notes_ = notes(laid_out)
    assert "1,500 target tokens and 150 sentences per second" in notes_["columns"]
    assert "median polish of 3 rounds" in notes_["columns"]
    assert notes_["speed"].startswith("literal: not measured by turns with the baseline")


def test_turns_are_not_missed_where_the_baseline_has_no_speed(
    experiment: Experiment, records: made_up.Records
) -> None:
    alone = {key: record for key, record in records.items() if key[0] != "baseline"}
    assert "speed" not in notes(tabulate(experiment, alone))


def test_a_speed_without_rounds_claims_none(
    experiment: Experiment, records: made_up.Records
) -> None:
    for record in records.values():
        record["speed"] = {TRAIN.removeprefix("speed."): 170.0}
    laid_out = tabulate(experiment, records)
    assert [cell.text for cell in laid_out.column(TRAIN)] == ["1.00"] * 4
    assert "round" not in notes(laid_out)["columns"]
    assert "speed" not in notes(laid_out)


def test_large_numbers_get_a_larger_unit(experiment: Experiment, records: made_up.Records) -> None:
    for record in records.values():
        record["memory"]["train_peak_mib"] = 20_480.0
        record["params"]["total"] = 7_610
        record["flops"]["train_per_target_token"] = 1e11
    laid_out = tabulate(experiment, records)
    cells_ = {
        column.key: (column.detail, cell.value)
        for column, cell in zip(laid_out.columns, laid_out.lines[0].cells, strict=True)
    }
    assert cells_["memory.train_peak_mib"] == ("GiB", "20.0")
    assert cells_["params.total"] == ("k", "7.6")
    assert cells_[TRAIN_FLOPS] == ("T", "400.2")


def test_lower_cased_bleu_stands_in_the_second_block_where_there_is_one(
    experiment: Experiment, records: made_up.Records
) -> None:
    for record in records.values():
        record["test"]["test"] |= {"bleu_lc_tok": 41.0, "bleu_lc_tok_signature": "tok:none|case:lc"}
    laid_out = tabulate(experiment, records)
    assert laid_out.more is not None
    keys = [column.key for column in laid_out.more.columns]
    assert "test.test.bleu_lc_tok" in keys
    assert "test.test_long.bleu_lc_tok" not in keys
    assert notes(laid_out)["BLEU lc tok"] == "tok:none|case:lc"


def test_what_is_not_done_is_counted_and_marked(broken: Table) -> None:
    assert [cell.text for cell in broken.column("done")] == ["3/3", "2/3§", "2/3", "0/3"]
    assert [cell.mark for cell in broken.column("test.test.bleu")] == ["", "†", "†", ""]
    assert broken.column("test.test.bleu.difference")[2].mark == "†"
    assert broken.column("test.test.bleu")[3].text == "\N{EN DASH}"
    assert broken.column("test.test.bleu.difference")[3].text == "\N{EN DASH}"
    assert broken.column("params.total")[3].value == "1.32"  # what is known is shown
    assert notes(broken)["missing runs"] == "literal: 1"
    assert broken.conclusion.endswith(
        "learned diverged with 1 of 3 seeds; heads_1 cannot be compared."
    )


def test_a_row_that_diverged_has_no_interval_and_the_seeds_that_it_won(
    records: made_up.Records, broken: Table
) -> None:
    bleu = {
        (row, seed): records[row, seed]["test"]["test"]["bleu"]
        for row, seed in (
            ("baseline", 1),
            ("baseline", 2),
            ("baseline", 3),
            ("learned", 1),
            ("learned", 2),
        )
    }
    pairs = [bleu["learned", 1] - bleu["baseline", 1], bleu["learned", 2] - bleu["baseline", 2]]
    mean = (sum(pairs) - bleu["baseline", 3]) / 3
    assert broken.column("test.test.bleu.difference")[1].text == f"{signed(mean, 1)}§"
    assert broken.column("test.test.bleu.difference.interval")[1].text == "\N{EN DASH}"
    assert broken.column("verdict")[1].text == f"won {sum(pair > 0 for pair in pairs)} of 3"
    footnote = notes(broken)["§"]
    assert footnote.startswith("learned: a row with diverged seeds has no")
    assert "A marked difference counts a divergence as 0" in footnote
    assert footnote.endswith("the verdict is how many seeds the row won of those that both have.")


def test_a_row_whose_spread_departs_is_marked_and_said(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, seeds="[1, 2, 3, 4]")
    records = made_up.records(experiment)
    for seed in (1, 2, 3, 4):
        records["literal", seed]["test"]["test"]["bleu"] = 40.0 + 300 * (seed % 2) - seed
    laid_out = tabulate(experiment, records)
    marks = [cell.mark for cell in laid_out.column("test.test.bleu.difference.interval")]
    assert marks == ["", "", "‡", ""]
    assert notes(laid_out)["‡"].startswith("literal: the spread over seeds departs")


def _spread(records: made_up.Records, metric: str, row: str, own: Sequence[float]) -> None:
    """Let one row have its own values of a measure, and all others spread alike and little."""
    rows = list(dict.fromkeys(name for name, _ in records))
    for name, seed in records:
        little = 0.01 * math.cos(rows.index(name) + seed * math.tau / 3)
        value = own[seed - 1] if name == row else 2 + little
        records[name, seed]["test"]["test"][metric] = value


def test_a_row_whose_spread_departs_in_the_loss_alone_is_said(
    experiment: Experiment, records: made_up.Records
) -> None:
    _spread(records, "bleu", "", ())
    _spread(records, "nll", "literal", (2.0, 3.0, 4.5))
    laid_out = tabulate(experiment, records)
    assert {cell.mark for cell in laid_out.column("test.test.bleu.difference.interval")} == {""}
    assert laid_out.column("test.test.nll.difference.interval")[2].mark == "‡"
    assert notes(laid_out)["‡"].startswith("literal (NLL): the spread over seeds departs")


def _stand_out(records: made_up.Records, metric: str, row: str, spread: float) -> None:
    """Let one row spread more than the others in a measure."""
    rows = list(dict.fromkeys(name for name, _ in records))
    for name, seed in records:
        error = math.cos(rows.index(name) + seed * math.tau / 3)
        value = 40 + (spread if name == row else 1) * error
        records[name, seed]["test"]["test"][metric] = value


def test_the_level_that_is_named_is_that_of_the_tests_that_were_made(tmp_path: Path) -> None:
    """It depends on the runs that a row has, not on the seeds that are asked for."""
    experiment = made_up.experiment(tmp_path, seeds="[1, 2, 3, 4, 5]")
    records = {run: of for run, of in made_up.records(experiment).items() if run[1] < 4}
    for record in records.values():
        record["test"] = {"test": record["test"]["test"] | {"nll": 1.0}}
    _stand_out(records, "bleu", "heads_1", 5)
    assert "stands out (F test at 0.2), so that" in notes(tabulate(experiment, records))["‡"]
    del records["heads_1", 3]
    _stand_out(records, "bleu", "heads_1", 12)
    assert "stands out (F test at 0.4), so that" in notes(tabulate(experiment, records))["‡"]
    _stand_out(records, "nll", "literal", 5)
    footnote = notes(tabulate(experiment, records))["‡"]
    assert "stands out (F test at 0.2 to 0.4, depending on the row's runs), so that" in footnote


def test_departures_are_said_of_the_columns_that_have_them(
    experiment: Experiment, records: made_up.Records
) -> None:
    _spread(records, "bleu", "heads_1", (2.0, 30.0, 45.0))
    _spread(records, "nll", "baseline", (2.0, 3.0, 4.5))
    laid_out = tabulate(experiment, records)
    text = notes(laid_out)["‡"]
    assert "so that every interval of NLL is of the row's own paired differences" in text
    assert "; heads_1 (BLEU): the spread over seeds departs" in text
    _spread(records, "nll", "", ())
    text = notes(tabulate(experiment, records))["‡"]
    assert text.startswith("heads_1: the spread over seeds departs")


def test_a_baseline_that_diverged_is_the_conclusion(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["baseline", 2] = made_up.without_result("diverged", "NaN", "baseline", 2)
    laid_out = tabulate(experiment, records)
    assert laid_out.conclusion == "The baseline diverged with 1 of 3 seeds: no verdicts."
    assert notes(laid_out)["intervals"] == "none: the baseline diverged with 1 of 3 seeds."


def test_beside_a_baseline_that_diverged_nothing_is_judged_or_fitted(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["baseline", 2] = made_up.without_result("diverged", "NaN", "baseline", 2)
    del records["literal", 3]
    laid_out = tabulate(experiment, records)
    assert "verdict" not in [column.key for column in laid_out.columns]
    footnotes = notes(laid_out)
    assert footnotes["§"].endswith("be it the row's or the baseline's, and no row has a verdict.")
    assert footnotes["†"].endswith("(baseline: 1, 3; literal: 1, 2).")
    marks = [cell.mark for cell in laid_out.column("test.test.bleu.difference")[1:]]
    assert marks == ["§", "§", "§"]


def test_a_row_that_is_compared_by_its_own_pairs_is_not_said_to_be_fitted(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, seeds="[1, 2, 3, 4]")
    records = made_up.records(experiment)
    for record in records.values():
        record["test"] = {"test": record["test"]["test"]}
    for seed in (2, 3, 4):
        of_test, of_dev = records["literal", seed]["test"]["test"], records["literal", seed]["dev"]
        for metric in ("bleu", "chrf", "exact_match", "nll", "bits_per_character"):
            of_test[metric] = of_dev["nll"] = 40.0 + 300 * (seed % 2) - seed
    del records["literal", 1]
    laid_out = tabulate(experiment, records)
    assert notes(laid_out)["‡"].startswith("literal (BLEU and NLL): the spread over seeds departs")
    assert notes(laid_out)["†"].endswith("(literal: 2, 3, 4).")
    del records["learned", 2]
    assert "by least squares" in notes(tabulate(experiment, records))["†"]


def _diverge(records: made_up.Records, row: str, seeds: Sequence[int]) -> None:
    for seed in seeds:
        records[row, seed] = made_up.without_result("diverged", "NaN", row, seed)


def test_rows_that_diverged_are_told_apart_by_how_often(
    experiment: Experiment, records: made_up.Records
) -> None:
    _diverge(records, "learned", SEEDS)
    _diverge(records, "literal", [2])
    laid_out = tabulate(experiment, records)
    assert "; learned diverged with all seeds; literal diverged with 1 of 3 seeds" in (
        laid_out.conclusion
    )
    assert notes(laid_out)["intervals"].startswith("95% CI")
    _diverge(records, "heads_1", [3])
    laid_out = tabulate(experiment, records)
    assert "literal and heads_1 diverged with 1 of 3 seeds" in laid_out.conclusion
    assert notes(laid_out)["intervals"] == (
        "none: every row but the baseline diverged with some or all of its seeds."
    )


def test_one_seed_gives_a_row_that_diverged_no_verdict(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, seeds="[7]")
    records = made_up.records(experiment)
    _diverge(records, "learned", [7])
    laid_out = tabulate(experiment, records)
    assert "verdict" not in [column.key for column in laid_out.columns]
    assert notes(laid_out)["§"].endswith("no row has a verdict.")


def test_footnotes_tell_the_reasons(broken: Table) -> None:
    footnotes = notes(broken)
    assert "learned: 1, 2; literal: 1, 3" in footnotes["†"]
    assert footnotes["learned, seed 3"] == "diverged: the loss became NaN at step 12"
    assert footnotes["heads_1, seeds 1, 2, 3"] == "out of memory: no room | here"


def test_footnotes_tell_what_one_needs_to_repeat_it(whole: Table) -> None:
    footnotes = notes(whole)
    assert footnotes["BLEU"] == made_up.BLEU_SIGNATURE
    assert footnotes["chrF"].startswith(made_up.CHRF_SIGNATURE)
    assert footnotes["corpus"] == "synthetic, en → xx, 20,000 training pairs, content 9f86d081884c"
    assert footnotes["note"] == "3 over-long pairs were skipped"
    assert footnotes["tokenizer"] == "bpe, 500 source and 510 target entries, content ab12cd34ef56"
    assert footnotes["hardware"] == "cpu, Abacus 9, 1 thread"
    assert footnotes["software"] == "ablate 0.1.0 · torch 2.13.0; eager engine, fp32"
    assert footnotes["commit"] == "9839b24aa1bb with changes that were not committed"
    assert footnotes["seeds"] == "1, 2, 3"


def test_every_metric_that_is_shown_has_its_signature(tmp_path: Path) -> None:
    head = f"metrics: [chrf, {{name: comet, model: weights.ckpt}}]\n{made_up.HEAD}"
    experiment = made_up.experiment(tmp_path, head=head)
    records = made_up.records(experiment)
    for record in records.values():
        scores = {"comet": record["test"]["test"]["chrf"], "comet_signature": "comet|model:w"}
        record["test"]["test"] |= scores
    footnotes = notes(tabulate(experiment, records))
    assert footnotes["comet"] == "comet|model:w"
    assert footnotes["chrF"] == made_up.CHRF_SIGNATURE  # a column, and not in the CSV alone


def test_rows_to_be_matched_are_not_said_to_be_within_the_tolerance(tmp_path: Path) -> None:
    head = f"match: {{on: time, via: model.feed_forward.d_ff}}\n{made_up.HEAD}"
    experiment = made_up.experiment(tmp_path, head=head)
    for values, text in (
        ({"learned": 40, "literal": None}, "in learned; all other rows are within it as they are"),
        ({"learned": 40, "literal": None, "heads_1": 48}, "in learned and heads_1"),
        ({"learned": None, "literal": None, "heads_1": None}, "in no row"),
    ):
        missing = [row for row, value in values.items() if value is None]
        footnote = notes(tabulate(with_match(experiment, values), {}))["matched"]
        assert footnote.endswith(f"was solved for {text}; not done yet: {and_list(missing)}")


def test_the_first_footnotes_say_how_to_read_the_table(whole: Table) -> None:
    assert [note.label for note in whole.footnotes][:3] == ["intervals", "verdict", "budget"]
    compared = whole.comparisons["test.test.bleu"]
    notes_ = whole.footnotes[0].text
    assert "all 3 of a column hold together" in notes_
    assert f"Dunnett's distribution, constant {compared.family.critical:.2f}" in notes_
    assert f"± {compared.sd:.2f} BLEU" in notes_
    assert "6 degrees of freedom" in notes_
    assert compared.detectable is not None
    assert f"a true difference of {compared.detectable.high:.1f} BLEU" in notes_


def test_columns_with_other_numbers_of_intervals_are_not_given_one(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["learned", 1]["test"]["test"]["nll"] = math.inf
    text = notes(tabulate(experiment, records))["intervals"]
    assert text.startswith("95% CI: all of a column hold together with that probability")


def test_what_can_be_detected_is_of_the_pairs_done(
    experiment: Experiment, records: made_up.Records
) -> None:
    del records["literal", 2]
    actual = tabulate(experiment, records).comparisons["test.test.bleu"].detectable
    assert actual is not None
    low, high = f"{actual.low:.1f}", f"{actual.high:.1f}"
    assert f"of {low} to {high} BLEU" in tabulate(experiment, records).footnotes[0].text


def test_records_that_differ_are_told_apart(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["learned", 2]["hardware"] = {"device": "cuda", "device_name": "G1", "cpu": "Abacus 9"}
    footnotes = notes(tabulate(experiment, records))["hardware"]
    assert footnotes == "cpu, Abacus 9, 1 thread (11 runs); cuda, G1, host Abacus 9 (1 run)"


def test_a_footnote_tells_which_runs_could_not_have_their_engine(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["learned", 2]["engine_note"] = "not graph: position: mine depends on numbers"
    footnotes = notes(tabulate(experiment, records))["software"]
    assert "eager engine, fp32 (" in footnotes
    assert "eager engine (not graph: position: mine depends on numbers), fp32 (1 run)" in footnotes


def test_a_footnote_names_rows_that_were_not_executed_as_was_asked_for(
    experiment: Experiment, records: made_up.Records
) -> None:
    divided = {"n": 4, "factor": 2, "note": "each micro-batch draws dropout of its own"}
    for seed in (1, 3):
        records["learned", seed] |= {"micro_batching": divided}
        records["learned", seed]["speed"]["micro_batch_factor"] = 2
    records["literal", 2] |= {"micro_batching": divided, "engine_note": "not compile: no luck"}
    footnotes = notes(tabulate(experiment, records))
    text = (
        "out of memory with whole batches; done in micro-batches of 1/4 of a batch, with the same "
        "target tokens in every update: each micro-batch draws dropout of its own"
    )
    assert footnotes["learned, seeds 1, 3"] == text
    both = [
        note.text for note in tabulate(experiment, records).footnotes if "literal" in note.label
    ]
    assert both == [
        f"{text}; speed and memory were measured with parts 2 times as large",
        "eager engine, not compile: no luck",
    ]
    assert not any(label.startswith("baseline,") for label in footnotes)
    records["literal", 2]["speed"]["engine"] = "compile"
    both = [
        note.text for note in tabulate(experiment, records).footnotes if "literal" in note.label
    ]
    assert both[1] == (
        "eager engine, not compile: no luck; speed and memory were measured with the compile engine"
    )
    records["learned", 2] |= {"status": "oom", "error": "no room", "micro_batching": {"factor": 8}}
    texts = [note.text for note in tabulate(experiment, records).footnotes]
    assert "tried in micro-batches 1/8 of the usual size too" in texts


def test_one_seed_gets_no_verdict_and_a_footnote_that_says_so(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, seeds="[7]")
    laid_out = tabulate(experiment, made_up.records(experiment))
    keys = [column.key for column in laid_out.columns]
    assert "test.test.bleu.difference" in keys
    assert "test.test.bleu.difference.interval" not in keys
    assert "verdict" not in keys
    footnotes = notes(laid_out)
    assert footnotes["seed"] == "7"
    assert footnotes["intervals"].startswith("none: with one seed")
    assert laid_out.conclusion.startswith("With one seed no difference can be told from chance")


def test_an_experiment_that_has_not_run_is_a_table_of_missing_runs(experiment: Experiment) -> None:
    laid_out = tabulate(experiment, {})
    assert [cell.value for cell in laid_out.column("done")] == ["0/3"] * 4
    assert [column.kind for column in laid_out.columns] == ["row", "change", "change", "measure"]
    assert laid_out.more is None
    assert laid_out.conclusion.startswith("The baseline has no result yet")


def test_a_test_set_of_zeros_is_left_to_the_csv(
    experiment: Experiment, records: made_up.Records
) -> None:
    for record in records.values():
        record["test"]["test_long"]["bleu"] = 0.0
    laid_out = tabulate(experiment, records)
    assert laid_out.more is not None
    keys = [column.key for column in laid_out.more.columns]
    assert not any("test_long" in key for key in keys)
    assert "test.test_novel.bleu" in keys
    assert "test.test_long.bleu.mean" in render(laid_out, "csv")
    note = "BLEU on test_long is 0 in all rows (in the CSV and the JSON)"
    assert note in notes(laid_out)["columns"]
    records["learned", 1]["test"]["test_long"]["bleu"] = 0.1
    assert "is 0 in all rows" not in notes(tabulate(experiment, records))["columns"]


def test_an_experiment_without_variants_has_nothing_to_compare(tmp_path: Path) -> None:
    (tmp_path / "alone.yaml").write_text(made_up.HEAD, encoding="utf-8")
    experiment = load(tmp_path / "alone.yaml")
    laid_out = tabulate(experiment, made_up.records(experiment))
    assert laid_out.conclusion.startswith("There is nothing to compare")
    assert "intervals" not in notes(laid_out)


def test_a_perplexity_without_bound_is_shown_as_it_is(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["learned", 1]["dev"]["nll"] = 3000.0
    records["literal", 1]["dev"]["nll"] = float("nan")
    cells = tabulate(experiment, records).column("dev.perplexity")
    assert [cell.text for cell in cells[1:3]] == ["∞", "NaN"]


@pytest.mark.parametrize("path", ["model.decoder.position", "model.decoder.cross_attention"])
def test_a_stack_that_says_nothing_has_what_both_share(tmp_path: Path, path: str) -> None:
    value = "none" if path.endswith("position") else "per_head_shared"
    experiment = made_up.experiment(tmp_path, f"\n  other: {{{path}: {value}}}\n")
    shared = "sinusoidal" if path.endswith("position") else "full"
    cells = tabulate(experiment, {}).column(path)
    assert [cell.value for cell in cells] == [shared, value]
