"""Which columns a table has, and that every number in it is the analysis' or the source's."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from ablate.analysis.measures import comparisons
from ablate.analysis.statistics import Interval
from ablate.analysis.summary import STATUSES, TRAIN_FLOPS, summarise
from ablate.config import Experiment
from ablate.report import FORMATS, Table, render, tabulate
from ablate.report.columns import PARTIAL, more
from ablate.report.values import MINUS, NOTHING, TIMES, signed
from tests.report import made_up
from tests.report.made_up import notes, texts

SEEDS = (1, 2, 3)
TRAIN, DECODE = "train_target_tokens_per_second", "decode_sentences_per_second"


def keys(of: Table | None) -> list[str]:
    assert of is not None
    return [column.key for column in of.columns]


def test_rows_say_what_they_change_and_the_baseline_what_it_has(whole: Table) -> None:
    assert texts(whole, "row") == ["baseline", "learned", "literal", "heads_1"]
    sinusoids = ["sinusoidal", "learned", "sinusoidal(exponent=literal_2i)", ""]
    assert texts(whole, "model.position") == sinusoids
    assert texts(whole, "model.dims.n_heads") == ["2", "", "", "1"]


def test_options_that_another_part_brings_stand_where_they_are_not_the_baselines(
    tmp_path: Path,
) -> None:
    variants = """
  wide: {model.feed_forward.d_ff: 64}
  without: {model.feed_forward: gelu}
  named: {model.feed_forward.name: silu}
  same: {model.feed_forward: {name: relu_squared, d_ff: 32}}
  other: {model.feed_forward: {name: swiglu, d_ff: 16}, model.norm: rms}
"""
    laid_out = tabulate(made_up.experiment(tmp_path, variants), {})
    widths = ["32", "64", NOTHING, NOTHING, "", "16"]
    assert texts(laid_out, "model.feed_forward.d_ff") == widths


def test_what_a_row_has_in_place_of_the_baselines_choice_stands_beside_it(tmp_path: Path) -> None:
    head = made_up.HEAD.replace("{steps: 10}", "{steps: 10, average: {ema: 0.5}}")
    variants = "\n  last: {training.average: {last: 3}}\n  epochs: {training.epochs: 2}\n"
    laid_out = tabulate(made_up.experiment(tmp_path, variants, head=head), {})
    columns = [column.key for column in laid_out.columns if column.kind == "change"]
    assert {key.removeprefix("training."): texts(laid_out, key) for key in columns} == {
        "average.last": [NOTHING, "3", ""],
        "epochs": [NOTHING, "", "2"],
        "average.ema": ["0.5", NOTHING, ""],
        "steps": ["10", "", NOTHING],
    }


def test_every_number_is_the_analysis(
    experiment: Experiment, records: made_up.Records, whole: Table
) -> None:
    names = [row.name for row in experiment.rows]
    summaries = summarise(names, SEEDS, records)
    actual = comparisons(summaries)
    for test_set in made_up.SETS:
        key = f"test.{test_set}.bleu"
        assert texts(whole, key) == [f"{each.metrics[key].mean:.1f}" for each in summaries]
        expected = [actual[key].differences[name] for name in names[1:]]
        deltas = [signed(each.estimate or 0, 1) for each in expected]
        assert texts(whole, f"{key}.difference")[1:] == deltas
        intervals = [each.simultaneous for each in expected if each.simultaneous]
        assert [cell.value for cell in whole.column(f"{key}.difference.interval")][1:] == [
            f"[{signed(each.low, 1)}, {signed(each.high, 1)}]" for each in intervals
        ]
    loss = [actual["test.test.nll"].differences[name].estimate for name in names[1:]]
    deltas = [signed(each or 0, 3) for each in loss]
    assert texts(whole, "test.test.nll.difference")[1:] == deltas
    ends = [actual["test.test.nll"].differences[name].simultaneous for name in names[1:]]
    assert [cell.value for cell in whole.column("test.test.nll.difference.interval")][1:] == [
        f"[{signed(each.low, 3)}, {signed(each.high, 3)}]" for each in ends if each
    ]
    peaks = [each.metrics["memory.train_peak_mib"].mean for each in summaries]
    assert texts(whole, "memory.train_peak_mib") == [f"{peak:.0f}" for peak in peaks]


def test_intervals_for_new_sentences_have_a_column_of_their_own(whole: Table) -> None:
    assert whole.results is not None
    bleu = "test.test.bleu"
    compared = whole.results.comparisons[bleu]
    wider = {
        row: replace(each, with_sentences=Interval(-9.0, 9.0 + n))
        for n, (row, each) in enumerate(compared.differences.items())
    }
    comparisons = {**whole.results.comparisons, bleu: replace(compared, differences=wider)}
    blocks = more(replace(whole.results, comparisons=comparisons))
    (cells,) = [cells for head, cells in blocks if head.key == f"{bleu}.difference.with_sentences"]
    expected = ["", *(f"[{MINUS}9.0, +{high}]" for high in ("9.0", "10.0", "11.0"))]
    assert [cell.text for cell in cells] == expected


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


def test_a_run_that_failed_before_its_tokens_were_known_changes_no_measure(
    experiment: Experiment, records: made_up.Records, whole: Table
) -> None:
    records["learned", 2] = {"status": "failed", "error": "no corpus"}
    assert keys(tabulate(experiment, records)) == keys(whole)


def test_rows_that_had_more_are_told_apart_and_marked(
    experiment: Experiment, records: made_up.Records, whole: Table
) -> None:
    assert texts(whole, "params.total") == ["1.32", "1.35 (+2.5%)", "1.32", "1.32"]
    assert set(texts(whole, TRAIN_FLOPS)) == {"4.0"}
    assert not {"train.steps", "train.target_tokens"} & set(keys(whole))
    assert notes(whole)["budget"] == "equal steps, target tokens and training FLOPs"
    for seed in SEEDS:
        records["learned", seed]["train"] |= {"steps": 20, "target_tokens": 8000 + 2 * seed}
        records["literal", seed]["flops"] = {"train_per_target_token": 1.03e6}
    laid_out = tabulate(experiment, records)
    assert notes(laid_out)["budget"] == (
        f"steps 1.00 to 2.00{TIMES} the baseline's; target tokens 1.00 to 2.00{TIMES} the "
        f"baseline's; training FLOPs 1.00 to 2.00{TIMES} the baseline's; ¶ marks what differs by "
        "more than 5%"
    )
    assert texts(laid_out, "train.steps") == ["10", "20¶", "10", "10"]
    flops = ["4.0", f"8.0¶ (2.00{TIMES})", f"4.1 (1.03{TIMES})", "4.0"]
    assert texts(laid_out, TRAIN_FLOPS) == flops


def test_rows_that_had_less_are_told_apart_and_marked(
    experiment: Experiment, records: made_up.Records
) -> None:
    for seed in SEEDS:
        records["learned", seed]["train"] |= {"steps": 5}
        records["literal", seed]["flops"] = {"train_per_target_token": 0.9e6}
    laid_out = tabulate(experiment, records)
    assert texts(laid_out, "train.steps") == ["10", "5¶", "10", "10"]
    assert texts(laid_out, TRAIN_FLOPS) == ["4.0", "4.0", f"3.6¶ (0.90{TIMES})", "4.0"]
    assert notes(laid_out)["budget"] == (
        f"equal target tokens; steps 0.50 to 1.00{TIMES} the baseline's; training FLOPs 0.90 to "
        f"1.00{TIMES} the baseline's; ¶ marks what differs by more than 5%"
    )


def test_where_tokenizers_differ_losses_are_per_character_and_those_per_token_not_judged(
    experiment: Experiment, records: made_up.Records
) -> None:
    for seed in SEEDS:
        records["learned", seed]["dev"]["nll"] = records["baseline", seed]["dev"]["nll"] - 0.2
    for is_other in (False, True):
        for seed in SEEDS if is_other else ():
            other = {"fingerprint": "other", "n_src": 9, "n_tgt": 9}
            records["learned", seed]["tokenizer"] = other
        laid_out = tabulate(experiment, records)
        assert ("test.test.bits_per_character.difference" in keys(laid_out)) is is_other
        assert ("test.test.nll.difference" in keys(laid_out)) is not is_other
        assert ("test.test.bits_per_character" in keys(laid_out.more)) is is_other
        assert any("perplexity" in key for key in keys(laid_out.more)) is not is_other
        text = "bits per character of the references"
        assert (text in notes(laid_out)["columns"]) is is_other
        assert ("each row's own tokenizer" in notes(laid_out)["columns"]) is is_other
        assert ("ppl is exp" in notes(laid_out)["columns"]) is not is_other
        assert ("bits per character" in notes(laid_out)["intervals"]) is is_other
        of_row = json.loads(render(laid_out, "json"))["rows"][1]["differences"]
        verdicts = {name: each["verdict"] for name, each in of_row.items()}
        assert (verdicts["dev.nll"] is None) is is_other
        assert (verdicts["test.test.nll"] is None) is is_other
        assert verdicts["test.test.bleu"] is not None
        narang = tabulate(experiment, records, layout="narang")
        key = "test.test.bits_per_character" if is_other else "dev.nll"
        (loss,) = [column for column in narang.columns if column.header in ("loss", "bits/char")]
        assert loss.key == key
        estimate = narang.lines[1].summary.metrics[key]
        mark = "" if is_other else "*"
        assert texts(narang, key)[1] == f"{estimate.mean:.3f}{mark} (±{estimate.sd:.3f})"


def _turns(
    records: made_up.Records, row: str, *speeds: float, session: str = "a", share: float = 0.1
) -> None:
    """Let a row have taken turns at these speeds of training, and a share of them in decoding."""
    rounds = {TRAIN: list(speeds), DECODE: [each * share for each in speeds]}
    medians = {name: statistics.median(values) for name, values in rounds.items()}
    for (name, _), record in records.items():
        if name == row:
            record["speed"] = {**medians, "rounds": rounds, "session": session}


def test_ratios_of_speeds_are_those_of_rows_that_took_turns(
    experiment: Experiment, records: made_up.Records
) -> None:
    _turns(records, "baseline", 1000.0, 2000.0, 1500.0)
    _turns(records, "learned", 500.0, 1000.0, 750.0)
    _turns(records, "literal", 500.0, 1100.0, 900.0, session="b")
    _turns(records, "heads_1", 3000.0, 4000.0, share=0.4)
    laid_out = tabulate(experiment, records)
    logs = [math.log(3), math.log(2)]
    half = stats.t.ppf(0.975, 1) * statistics.stdev(logs) / math.sqrt(2)
    for key, factor in ((TRAIN, 1), (DECODE, 4)):
        cells = texts(laid_out, f"speed.{key}")
        assert cells[:3] == ["1.00", "0.50 (0.50 to 0.50)", NOTHING]
        middle, low, high = (factor * math.sqrt(6) * math.exp(by) for by in (0, -half, half))
        assert cells[3] == f"{middle:.2f} ({low:.2f} to {high:.2f})"
    assert "1,500 target tokens and 150 sentences per second" in notes(laid_out)["columns"]
    assert "median polish of 3 rounds" in notes(laid_out)["columns"]
    text = "literal: not measured by turns with the baseline"
    assert notes(laid_out)["speed"].startswith(text)
    alone = {key: record for key, record in records.items() if key[0] != "baseline"}
    assert "speed" not in notes(tabulate(experiment, alone))


def test_a_speed_without_rounds_is_compared_as_it_is(
    experiment: Experiment, records: made_up.Records
) -> None:
    for (row, _), record in records.items():
        record["speed"] = {TRAIN: 1000.0 if row == "baseline" else 2400.0}
        record["train"] = {"steps": 10, "target_tokens": 4000}
    key = f"speed.{TRAIN}"
    assert texts(tabulate(experiment, records), key) == ["1.00", *["2.40"] * 3]
    per_second = texts(tabulate(experiment, records, layout="narang"), key)
    assert per_second == ["2.50", *["6.00"] * 3]


def test_large_numbers_get_a_larger_unit(experiment: Experiment, records: made_up.Records) -> None:
    for record in records.values():
        record["memory"]["train_peak_mib"] = 102_400.0
        record["params"]["total"] = 7_610
        record["flops"]["train_per_target_token"] = 1e11
    laid_out = tabulate(experiment, records)
    details = {column.key: column.detail for column in laid_out.columns}
    for key, unit, text in (
        ("memory.train_peak_mib", "GiB", "100.0"),
        ("params.total", "k", "7.6"),
        (TRAIN_FLOPS, "T", "400.2"),
    ):
        assert (details[key], texts(laid_out, key)[0]) == (unit, text)


@pytest.mark.parametrize(
    ("n", "unit", "text"),
    [(999, "", "999"), (1000, "k", "1.0"), (987_600, "k", "987.6"), (12_345_678, "M", "12.3")],
)
def test_tokens_have_a_unit_from_1000_and_steps_are_whole_numbers(
    n: int, unit: str, text: str, experiment: Experiment, records: made_up.Records
) -> None:
    for (row, _), record in records.items():
        n_less = n // 2 if row == "learned" else n
        record["train"] |= {"steps": n_less, "target_tokens": n_less}
    laid_out = tabulate(experiment, records)
    details = {column.key: column.detail for column in laid_out.columns}
    assert [details[key] for key in ("train.target_tokens", "train.steps")] == [unit, ""]
    assert texts(laid_out, "train.target_tokens")[0] == text
    assert texts(laid_out, "train.steps") == [f"{n:,}", f"{n // 2:,}¶", f"{n:,}", f"{n:,}"]


def test_a_test_set_of_zeros_is_left_to_the_csv(
    experiment: Experiment, records: made_up.Records
) -> None:
    for record in records.values():
        record["test"]["test_long"]["bleu"] = 0.0
    laid_out = tabulate(experiment, records)
    assert not any("test_long" in key for key in keys(laid_out.more))
    assert "test.test_novel.bleu" in keys(laid_out.more)
    assert "test.test_long.bleu.mean" in render(laid_out, "csv")
    note = "BLEU on test_long is 0 in all rows (in the CSV and the JSON)"
    assert note in notes(laid_out)["columns"]
    records["learned", 1]["test"]["test_long"]["bleu"] = 0.1
    assert "is 0 in all rows" not in notes(tabulate(experiment, records))["columns"]


def test_an_experiment_that_has_not_run_is_a_table_of_missing_runs(experiment: Experiment) -> None:
    laid_out = tabulate(experiment, {})
    assert texts(laid_out, "done") == ["0/3"] * 4
    assert [column.kind for column in laid_out.columns] == ["row", "change", "change", "measure"]
    assert laid_out.more is None
    assert laid_out.conclusion.startswith("The baseline has no result yet")


SOURCE, NOTE = "Somebody 2017, table 3", "They count 37,000 words."
PUBLISHED = f"""
published:
  source: {SOURCE}
  note: {NOTE}
  rows:
    baseline: {{params: 65e6, bleu: 25.8, ppl: 4.92}}
    learned: {{bleu: 26, bleu_lc_tok: 41.02}}
    heads_1: {{ppl: 5.3}}
"""


@pytest.fixture
def compared(tmp_path: Path) -> Table:
    experiment = made_up.experiment(tmp_path, head=made_up.HEAD + PUBLISHED)
    return tabulate(experiment, made_up.records(experiment))


def test_published_numbers_stand_right_of_ours_as_they_were_printed(
    compared: Table, whole: Table
) -> None:
    first, second = keys(compared), keys(compared.more)
    assert first.index("published.bleu") == first.index("test.test.bleu") + 1
    assert second.index("published.ppl") == second.index("dev.perplexity") + 1
    assert first.index("published.params") == first.index("params.total") + 1
    assert texts(compared, "published.params") == ["65", *[NOTHING] * 3]
    assert texts(compared, "published.bleu") == ["25.8", "26.0", NOTHING, NOTHING]
    assert texts(compared, "published.ppl") == ["4.92", NOTHING, NOTHING, "5.30"]
    assert texts(compared, "published.bleu_lc_tok")[1] == "41.02"
    both = notes(compared)["published"], notes(compared)["published, note"]
    assert both == (SOURCE, NOTE)
    assert not any("published" in label for label in notes(whole))


@pytest.mark.parametrize("format_", [name for name in FORMATS if name != "by-seed"])
def test_every_format_has_the_published_numbers_and_their_source(
    format_: str, compared: Table
) -> None:
    text = render(compared, format_)
    for expected in ("published", SOURCE, NOTE, "25.8", "4.92", "41.02"):
        assert expected in text


def test_a_paper_gets_ours_of_the_kind_that_is_published_and_its_signature(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, head=made_up.HEAD + PUBLISHED)
    records = made_up.records(experiment)
    for record in records.values():
        lower = {"bleu_lc_tok": 40.3, "bleu_lc_tok_signature": "tok:none|case:lc"}
        record["test"]["test"] |= lower
    laid_out = tabulate(experiment, records)
    assert "test.test.bleu_lc_tok" in keys(laid_out.more)
    assert "test.test_long.bleu_lc_tok" not in keys(laid_out.more)
    assert notes(laid_out)["BLEU lc tok"] == "tok:none|case:lc"
    without = tabulate(made_up.experiment(tmp_path, head=made_up.HEAD), records)
    ours, plain = (
        re.sub(r"^%.*$", "", render(each, "latex"), flags=re.MULTILINE)
        for each in (laid_out, without)
    )
    for text in ("40.3", "BLEU lc tok: tok:none"):
        assert text in ours
        assert text not in plain
    assert all(text in ours for text in texts(laid_out, "dev.perplexity"))


def test_machines_get_all_that_is_published(compared: Table, whole: Table) -> None:
    rows = list(csv.DictReader(io.StringIO(render(compared, "csv"))))
    assert [row["published.bleu"] for row in rows] == ["25.8", "26.0", "", ""]
    assert [row["published.params"] for row in rows] == ["65000000.0", "", "", ""]
    assert rows[2]["published.source"] == SOURCE
    content = json.loads(render(compared, "json"))
    assert content["published"] == {"source": SOURCE, "note": NOTE}
    assert content["rows"][1]["published"] == {"bleu": 26.0, "bleu_lc_tok": 41.02}
    assert content["rows"][2]["published"] == {}
    assert "published" not in render(whole, "csv")
    assert json.loads(render(whole, "json"))["published"] is None


def documented_columns() -> dict[str, str]:
    """Return a regular expression for each column that docs/results.md has, by its text there."""
    page = (Path(__file__).parents[2] / "docs" / "results.md").read_text(encoding="utf-8")
    section = page.partition("## Tables as CSV")[2].partition("\n\nOf an experiment")[0]
    columns = set[str]()
    for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE):
        first, *others = re.findall(r"`(.*?)`", row)
        columns |= {first, *(key for key in others if key[0] != ".")}
        columns |= {first.rsplit(".", key.count("."))[0] + key for key in others if key[0] == "."}
    known = {"<metric>": r"[a-z]+\.[a-z_.]+", "<status>": "|".join(STATUSES), "<path>": r"[a-z_.]+"}
    return {
        column: "".join(
            f"({known.get(piece, '[a-z_]+')})" if piece[:1] == "<" else re.escape(piece)
            for piece in re.split("(<.*?>)", column)
        )
        for column in columns
    }


def test_the_page_on_results_has_every_column_of_a_csv(whole: Table, compared: Table) -> None:
    columns = {
        name
        for each in (whole, compared)
        for name in next(csv.reader(io.StringIO(render(each, "csv", columns=["all"]))))
    }
    matched = {
        c: {n for n in columns if re.fullmatch(p, n)} for c, p in documented_columns().items()
    }
    assert columns == set().union(*matched.values())
    assert {column for column, names in matched.items() if not names} == {"trial", "decided_at"}
