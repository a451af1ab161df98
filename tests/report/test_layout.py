"""The neutral table: which columns there are, and that every number in it is the analysis'."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from ablate.analysis import summarise
from ablate.config import Experiment
from ablate.report import Table, table
from ablate.report.numbers import TIMES
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


def test_every_number_is_the_analysis(
    experiment: Experiment, records: made_up.Records, whole: Table
) -> None:
    names = [row.name for row in experiment.rows]
    decimals = {"bleu": 2, "perplexity": 2, "exact_match": 1}
    summaries = summarise(names, SEEDS, records)
    keys = [column.key for column in whole.columns if column.key.split(".")[-1] in decimals]
    assert len(keys) == 7
    for key in keys:
        n = decimals[key.split(".")[-1]]
        for summary, cell in zip(summaries, whole.column(key), strict=True):
            estimate = summary.metrics[key]
            assert (cell.value, cell.spread) == (f"{estimate.mean:.{n}f}", f"{estimate.sd:.{n}f}")


def test_the_difference_has_a_sign_and_a_true_minus(
    experiment: Experiment, records: made_up.Records
) -> None:
    for seed in SEEDS:
        bleu = records["baseline", seed]["test"]["test"]["bleu"]
        records["learned", seed]["test"]["test"]["bleu"] = bleu - 1.234
        records["literal", seed]["test"]["test"]["bleu"] = bleu + 0.5
        records["heads_1", seed]["test"]["test"]["bleu"] = bleu
    laid_out = table(experiment, records)
    minus = "\N{MINUS SIGN}"
    values = [cell.value for cell in laid_out.column("test.test.bleu.difference")]
    assert values == ["", f"{minus}1.23", "+0.50", "0.00"]
    intervals = [cell.value for cell in laid_out.column("test.test.bleu.difference.interval")]
    assert intervals[1] == f"[{minus}1.23, {minus}1.23]"


def test_parameters_are_compared_with_the_baseline(whole: Table) -> None:
    assert [c.text for c in whole.column("params.total")] == [
        "1.32",
        "1.35 (+2.5%)",
        "1.32",
        "1.32",
    ]


TRAIN = "speed.train_target_tokens_per_second"


def _turns(records: made_up.Records, row: str, *speeds: float, occasion: str = "a") -> None:
    turns = {TRAIN.removeprefix("speed."): list(speeds)}
    for (name, _), record in records.items():
        if name == row:
            median = {TRAIN.removeprefix("speed."): statistics.median(speeds)}
            record["speed"] = {**median, "rounds": turns, "occasion": occasion}


def test_speeds_are_medians_of_rounds_and_ratios_are_taken_within_them(
    experiment: Experiment, records: made_up.Records
) -> None:
    _turns(records, "baseline", 1000.0, 2000.0, 1500.0)
    _turns(records, "learned", 500.0, 1100.0, 900.0)
    _turns(records, "literal", 500.0, 1100.0, 900.0, occasion="b")
    _turns(records, "heads_1", 3000.0, 4000.0)
    laid_out = table(experiment, records)
    cells = [cell.text for cell in laid_out.column(TRAIN)]
    assert cells[:2] == ["1500 ± 500", f"900 ± 306 (0.55 ± 0.05{TIMES})"]
    assert cells[3] == f"3500 ± 707 (2.50 ± 0.71{TIMES})"
    said = notes(laid_out)
    assert "medians of 2 to 3 rounds" in said["columns"]
    assert said["speed"].startswith("literal: not measured by turns with the baseline")


def test_turns_are_not_missed_where_the_baseline_has_no_speed(
    experiment: Experiment, records: made_up.Records
) -> None:
    alone = {key: record for key, record in records.items() if key[0] != "baseline"}
    assert "speed" not in notes(table(experiment, alone))


def test_a_speed_without_rounds_claims_none(
    experiment: Experiment, records: made_up.Records
) -> None:
    for record in records.values():
        record["speed"] = {TRAIN.removeprefix("speed."): 170.0}
    laid_out = table(experiment, records)
    assert [cell.text for cell in laid_out.column(TRAIN)] == ["170", *[f"170 (1.00{TIMES})"] * 3]
    assert "round" not in notes(laid_out)["columns"]
    assert "speed" not in notes(laid_out)


def test_large_numbers_get_a_larger_unit(experiment: Experiment, records: made_up.Records) -> None:
    for record in records.values():
        record["speed"] = {"train_target_tokens_per_second": 170_400.0}
        record["memory"]["train_peak_mib"] = 20_480.0
        record["params"]["total"] = 7_610
    laid_out = table(experiment, records)
    shown = {
        column.key: (column.detail, cell.value)
        for column, cell in zip(laid_out.columns, laid_out.lines[0].cells, strict=True)
    }
    assert shown["speed.train_target_tokens_per_second"] == ("k tok/s", "170")
    assert shown["memory.train_peak_mib"] == ("GiB", "20.0")
    assert shown["params.total"] == ("k", "7.6")


def test_lower_cased_bleu_stands_beside_bleu_where_there_is_one(
    experiment: Experiment, records: made_up.Records
) -> None:
    for record in records.values():
        record["test"]["test"] |= {"bleu_lc_tok": 41.0, "bleu_lc_tok_signature": "tok:none|case:lc"}
    laid_out = table(experiment, records)
    keys = [column.key for column in laid_out.columns]
    assert keys.index("test.test.bleu_lc_tok") == keys.index("test.test.bleu") + 1
    assert "test.test_long.bleu_lc_tok" not in keys
    assert notes(laid_out)["BLEU lc tok"] == "tok:none|case:lc"


def test_a_whole_experiment_has_no_status_column(whole: Table) -> None:
    assert all(column.kind != "status" for column in whole.columns)


def test_what_is_not_done_is_counted_and_marked(broken: Table) -> None:
    assert [cell.value for cell in broken.column("status")] == [
        "done",
        "1 of 3 diverged",
        "1 of 3 missing",
        "3 of 3 out of memory",
    ]
    assert [cell.mark for cell in broken.column("test.test.bleu")] == ["", "†", "†", ""]
    assert [cell.mark for cell in broken.column("test.test.bleu.difference")] == ["", "†", "†", ""]
    assert broken.column("test.test.bleu")[3].text == "\N{EN DASH}"
    assert broken.column("test.test.bleu.difference")[3].text == "\N{EN DASH}"
    assert broken.column("params.total")[3].value == "1.32"  # what is known is shown


def test_footnotes_tell_the_reasons(broken: Table) -> None:
    told = notes(broken)
    assert "learned: 1, 2; literal: 1, 3" in told["†"]
    assert told["learned, seed 3"] == "diverged: the loss became NaN at step 12"
    assert told["heads_1, seeds 1, 2, 3"] == "out of memory: no room | here"


def test_footnotes_tell_what_one_needs_to_repeat_it(whole: Table) -> None:
    told = notes(whole)
    assert told["BLEU"] == made_up.BLEU_SIGNATURE
    assert told["chrF"].startswith(made_up.CHRF_SIGNATURE)
    assert told["corpus"] == "synthetic, en → xx, 20,000 training pairs, content 9f86d081884c"
    assert told["note"] == "3 over-long pairs were skipped"
    assert told["tokenizer"] == "bpe, 500 source and 510 target entries, content ab12cd34ef56"
    assert told["hardware"] == "cpu, Abacus 9, 1 thread"
    assert told["software"] == "ablate 0.1.0 · torch 2.13.0; eager engine, fp32"
    assert told["commit"] == "9839b24aa1bb with changes that were not committed"
    assert told["seeds"].startswith("1, 2, 3.")
    assert "With 3 seeds" in told["ΔBLEU"]


def test_records_that_differ_are_told_apart(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["learned", 2]["hardware"] = {"device": "cuda", "device_name": "G1", "cpu": "Abacus 9"}
    told = notes(table(experiment, records))["hardware"]
    assert told == "cpu, Abacus 9, 1 thread (11 runs); cuda, G1, host Abacus 9 (1 run)"


def test_a_footnote_tells_which_runs_could_not_have_their_engine(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["learned", 2]["engine_note"] = "not graph: position: mine depends on numbers"
    told = notes(table(experiment, records))["software"]
    assert "eager engine, fp32 (" in told
    assert "eager engine (not graph: position: mine depends on numbers), fp32 (1 run)" in told


def test_a_footnote_names_rows_that_were_not_executed_as_was_asked_for(
    experiment: Experiment, records: made_up.Records
) -> None:
    divided = {"n": 4, "factor": 2, "note": "each micro-batch draws dropout of its own"}
    for seed in (1, 3):
        records["learned", seed] |= {"micro_batching": divided}
        records["learned", seed]["speed"]["micro_batch_factor"] = 2
    records["literal", 2] |= {"micro_batching": divided, "engine_note": "not compile: no luck"}
    told = notes(table(experiment, records))
    text = (
        "out of memory with whole batches; done in micro-batches of 1/4 of a batch, with the same "
        "target tokens in every update: each micro-batch draws dropout of its own"
    )
    assert told["learned, seeds 1, 3"] == text
    both = [note.text for note in table(experiment, records).footnotes if "literal" in note.label]
    assert both == [
        f"{text}; speed and memory were measured with parts 2 times as large",
        "eager engine, not compile: no luck",
    ]
    assert not any(label.startswith("baseline,") for label in told)
    records["learned", 2] |= {"status": "oom", "error": "no room", "micro_batching": {"factor": 8}}
    texts = [note.text for note in table(experiment, records).footnotes]
    assert "tried in micro-batches 1/8 of the usual size too" in texts


def test_one_seed_gets_no_spread_and_a_footnote_that_says_so(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, seeds="[7]")
    laid_out = table(experiment, made_up.records(experiment))
    spreads = {
        cell.spread
        for line in laid_out.lines
        for column, cell in zip(laid_out.columns, line.cells, strict=True)
        if not column.key.startswith("speed")
    }
    assert spreads == {""}
    assert "test.test.bleu.difference.interval" not in [column.key for column in laid_out.columns]
    told = notes(laid_out)
    assert told["seed"].startswith("7, and no other")
    assert "Student" not in told["ΔBLEU"]


def test_an_experiment_that_has_not_run_is_a_table_of_missing_runs(experiment: Experiment) -> None:
    laid_out = table(experiment, {})
    assert [cell.value for cell in laid_out.column("status")] == ["3 of 3 missing"] * 4
    assert [column.kind for column in laid_out.columns] == ["row", "change", "change", "status"]


def test_a_perplexity_without_bound_is_shown_as_it_is(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["learned", 1]["dev"]["perplexity"] = float("inf")
    records["literal", 1]["dev"]["perplexity"] = float("nan")
    cells = table(experiment, records).column("dev.perplexity")
    assert [cell.text for cell in cells[1:3]] == ["∞", "NaN"]


@pytest.mark.parametrize("path", ["model.decoder.position", "model.decoder.cross_attention"])
def test_a_stack_that_says_nothing_has_what_both_share(tmp_path: Path, path: str) -> None:
    value = "none" if path.endswith("position") else "per_head_shared"
    experiment = made_up.experiment(tmp_path, f"\n  other: {{{path}: {value}}}\n")
    shared = "sinusoidal" if path.endswith("position") else "full"
    cells = table(experiment, {}).column(path)
    assert [cell.value for cell in cells] == [shared, value]
