"""What the footnotes of a table say of its runs: reasons, provenance, choices, execution."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ablate.config import Experiment
from ablate.config.choices import with_match
from ablate.report import Table, tabulate
from ablate.report.values import MINUS, TIMES
from ablate.wording import and_list
from tests.report import made_up
from tests.report.made_up import notes, vital


def test_they_tell_the_reasons(broken: Table) -> None:
    footnotes = notes(broken)
    assert "(learned: 1, 2; literal: 1, 3)" in footnotes["†"]
    assert footnotes["learned, seed 3"] == "diverged: the loss became NaN at step 12"
    assert footnotes["heads_1, seeds 1, 2, 3"] == "out of memory: no room | here"
    of_runs = ["†", "§", "missing runs", "learned, seed 3", "heads_1, seeds 1, 2, 3"]
    assert [label for label in vital(broken) if label in footnotes][-5:] == of_runs


def test_a_long_error_is_cut(experiment: Experiment, records: made_up.Records) -> None:
    for seed, n in ((2, 300), (3, 301)):
        records["learned", seed] = made_up.without_result("failed", "x" * n, "learned", seed)
    footnotes = notes(tabulate(experiment, records))
    assert footnotes["learned, seed 2"] == f"failed: {'x' * 300}"
    assert footnotes["learned, seed 3"] == f"failed: {'x' * 300} …"


def test_rows_with_the_same_seeds_are_named_once(
    experiment: Experiment, records: made_up.Records
) -> None:
    some = {key: record for key, record in records.items() if key[0] == "baseline" or key[1] == 1}
    others = [row.name for row in experiment.rows[1:]]
    footnotes = notes(tabulate(experiment, some))
    assert f"done ({and_list(others)}: 1);" in footnotes["†"]
    assert footnotes["missing runs"] == f"{and_list(others)}: 2"


def test_they_tell_what_one_needs_to_repeat_it(whole: Table) -> None:
    footnotes = notes(whole)
    assert footnotes["chrF"] == f"{made_up.CHRF_SIGNATURE} (in the CSV and the JSON)"
    expected = {
        "BLEU": made_up.BLEU_SIGNATURE,
        "corpus": "synthetic, en → xx, 20,000 training pairs, content 9f86d081884c",
        "note": "3 over-long pairs were skipped",
        "tokenizer": "bpe, 500 source and 510 target entries, content ab12cd34ef56",
        "hardware": "cpu, Abacus 9, 1 thread",
        "software": "ablate 0.1.0 · torch 2.13.0",
        "engine": "eager, fp32",
        "commit": "9839b24aa1bb with changes that were not committed",
        "seeds": "1, 2, 3",
    }
    assert {label: footnotes[label] for label in expected} == expected


def test_the_budget_of_rows_that_all_had_more_is_theirs_alone(
    experiment: Experiment, records: made_up.Records
) -> None:
    for (row, _), record in records.items():
        record["train"]["steps"] = 10 if row == "baseline" else 20
    assert f"steps 2.00{TIMES} the baseline's" in notes(tabulate(experiment, records))["budget"]


@pytest.mark.parametrize(
    ("times", "text", "is_marked"),
    [
        (1.0005, "equal steps, target tokens and training FLOPs", False),
        (1.03, f"equal steps and target tokens; training FLOPs 1.00 to 1.03{TIMES} the", False),
        (1.06, f"equal steps and target tokens; training FLOPs 1.00 to 1.06{TIMES} the", True),
    ],
)
def test_a_budget_that_differs_by_little_is_told_and_not_marked(
    experiment: Experiment, records: made_up.Records, times: float, text: str, is_marked: bool
) -> None:
    for seed in experiment.seeds:
        records["learned", seed]["flops"] = {"train_per_target_token": 1e6 * times}
    table = tabulate(experiment, records)
    assert notes(table)["budget"].startswith(text)
    assert ("¶ marks" in notes(table)["budget"]) is ("budget" in vital(table)) is is_marked


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
        assert "within 1%, measured by turns with the baseline: " in footnote


@pytest.mark.parametrize(
    ("on", "tolerance", "beyond"),
    [
        ("params", "2%", "learned: parameters +2.5%"),
        ("params", "3%", None),
        ("flops", "2%", f"literal: training FLOPs {MINUS}10.0%"),
    ],
)
def test_rows_that_are_not_matched_as_trained_are_named(
    on: str, tolerance: str, beyond: str | None, tmp_path: Path
) -> None:
    match = (
        f"{{on: {on}, via: model.feed_forward.d_ff, tolerance: {tolerance}, exclude: [heads_1]}}"
    )
    experiment = made_up.experiment(tmp_path, head=f"match: {match}\n{made_up.HEAD}")
    records = made_up.records(experiment)
    for seed in experiment.seeds:
        records["literal", seed]["flops"] = {"train_per_target_token": 0.9e6}
        records["heads_1", seed]["flops"] = {"train_per_target_token": 2e6}
    footnotes = notes(tabulate(with_match(experiment, {"learned": 40}), records))
    assert f" equal the baseline's within {tolerance}: " in footnotes["matched"]
    assert footnotes["matched"].endswith("; not matched: heads_1")
    assert footnotes.get("not matched as trained") == beyond


def test_records_that_differ_are_told_apart(
    experiment: Experiment, records: made_up.Records
) -> None:
    records["learned", 2]["hardware"] = {"device": "cuda", "device_name": "G1", "cpu": "Abacus 9"}
    records["learned", 2]["engine_note"] = "not graph: position: mine depends on numbers"
    records["learned", 2]["spec"]["devices_per_run"] = 2
    records["learned", 2]["git"] = {"commit": "9839b24aa1bb22cc33dd", "is_clean": True}
    records["learned", 2]["plugins"] = [{"name": "/home/mine.py", "sha256": "0123456789abcdef"}]
    footnotes = notes(tabulate(experiment, records))
    other = "cuda, G1, host Abacus 9, 2 devices per run (1 run)"
    assert footnotes["hardware"] == f"cpu, Abacus 9, 1 thread (11 runs); {other}"
    dirty = "9839b24aa1bb with changes that were not committed (11 runs)"
    assert footnotes["commit"] == f"{dirty}; 9839b24aa1bb (1 run)"
    assert footnotes["plugins"] == "mine.py 0123456789ab (1 run)"
    other = "eager (not graph: position: mine depends on numbers), fp32 (1 run)"
    assert footnotes["engine"] == f"eager, fp32 (11 runs); {other}"


def test_a_note_that_runs_share_stands_there_once(
    experiment: Experiment, records: made_up.Records
) -> None:
    for (row, seed), record in records.items():
        record["corpus"]["notes"] = [
            "one left out",
            *["some cut"] * (row == "learned" and seed < 3),
        ]
    footnotes = notes(tabulate(experiment, records))
    assert footnotes["note"] == "one left out; some cut (2 runs)"
    for record in records.values():
        record["corpus"]["notes"].remove("one left out")
    assert notes(tabulate(experiment, records))["note"] == "some cut (2 runs)"


@pytest.mark.parametrize(
    ("note", "is_vital"),
    [
        ("train: 40 of 1000 pairs left out, more than 9 tokens on a side", False),
        ("train: 50 of 1000 pairs left out, more than 9 tokens on a side", True),
        ("1,012 of 12,000 pairs (8.4%) are in the training text", True),
        ("one source and two targets are in another language", False),
    ],
)
def test_a_note_on_much_of_the_text_changes_how_the_table_reads(
    experiment: Experiment, records: made_up.Records, note: str, is_vital: bool
) -> None:
    for record in records.values():
        record["corpus"]["notes"] = [note]
    (footnote,) = (n for n in tabulate(experiment, records).footnotes if n.label == "note")
    assert footnote.is_vital == is_vital


def test_they_name_rows_that_were_not_executed_as_was_asked_for(
    experiment: Experiment, records: made_up.Records
) -> None:
    divided = {"n": 4, "factor": 2, "note": "each micro-batch draws dropout of its own"}
    for seed in (1, 3):
        records["learned", seed] |= {"micro_batching": divided}
        records["learned", seed]["speed"]["micro_batch_factor"] = 2
    del records["learned", 3]["speed"]
    records["literal", 3] |= {"micro_batching": divided}  # measured with whole batches
    smaller = {**divided, "factor": 6}
    records["literal", 2] |= {"micro_batching": smaller, "engine_note": "not compile: no luck"}
    records["literal", 2]["speed"]["micro_batch_factor"] = 2
    laid_out = tabulate(experiment, records)
    text = (
        "out of memory with whole batches; done in micro-batches of 1/4 of a batch, with the same "
        "target tokens in every update: each micro-batch draws dropout of its own"
    )
    assert notes(laid_out)["learned, seeds 1, 3"] == text
    assert [note.text for note in laid_out.footnotes if "literal" in note.label] == [
        f"{text}; speed and memory were measured with parts 3 times as large",
        f"{text}; speed and memory were measured with parts 2 times as large",
        "eager engine, not compile: no luck",
    ]
    assert not any(label.startswith("baseline,") for label in notes(laid_out))
    records["literal", 2]["speed"]["engine"] = "compile"
    records["learned", 2] |= {"status": "oom", "error": "no room", "micro_batching": {"factor": 8}}
    texts = [note.text for note in tabulate(experiment, records).footnotes]
    measured = "speed and memory were measured with the compile engine"
    assert f"eager engine, not compile: no luck; {measured}" in texts
    assert "tried in micro-batches 1/8 of the usual size too" in texts


def test_they_say_that_fewer_snapshots_were_averaged_than_asked_for(
    experiment: Experiment, records: made_up.Records
) -> None:
    def with_average(record: dict[str, Any], average: dict[str, Any], n: int) -> dict[str, Any]:
        spec = {**record["spec"], "training": {**record["spec"]["training"], "average": average}}
        steps = [20 * (at + 1) for at in range(n)]
        return record | {"spec": spec, "train": record["train"] | {"averaged_steps": steps}}

    for row, average, n in (
        ("baseline", {"last": 3}, 3),
        ("learned", {"last": 8}, 3),
        ("literal", {"best": 2}, 1),
        ("heads_1", {"ema": 0.99}, 1),
    ):
        for seed in experiment.seeds:
            records[row, seed] = with_average(records[row, seed], average, n)
    lost = made_up.without_result("failed", "lost", "heads_1", 3)
    records["heads_1", 3] = with_average({**lost, "train": {}}, {"last": 8}, 0)
    footnotes = tabulate(experiment, records).footnotes
    averaged = {note.label: note for note in footnotes if "evaluation" in note.text}
    assert list(averaged) == ["learned, seeds 1, 2, 3", "literal, seeds 1, 2, 3"]
    assert averaged["learned, seeds 1, 2, 3"].is_vital
    assert averaged["learned, seeds 1, 2, 3"].text.startswith(
        "training made 3 evaluations, so that the average is of 3 and not of 8 snapshots"
    )
    assert "made 1 evaluation, so that the average is of 1 " in averaged[list(averaged)[1]].text


def test_columns_are_explained_where_they_stand(
    experiment: Experiment, records: made_up.Records, whole: Table
) -> None:
    text = re.sub(
        r"[\d,]+ target tokens and \d+ sent", "n target tokens and n sent", notes(whole)["columns"]
    )
    assert text == (
        "ppl is exp of the mean NLL per target token; train and decode are speeds over the "
        "baseline's (n target tokens and n sentences per second), each row alone on its device, by "
        "median polish of 5 rounds in which the rows took turns; in brackets the 95% interval of "
        "the ratio by itself; memory is the peak of training"
    )
    assert "columns" not in notes(tabulate(experiment, {}))


def test_speeds_are_explained_where_they_have_columns(
    experiment: Experiment, records: made_up.Records
) -> None:
    for seed in experiment.seeds:
        records["baseline", seed] = made_up.without_result("failed", "lost", "baseline", seed)
    table = tabulate(experiment, records)
    assert not any(column.header in ("train", "decode") for column in table.columns)
    assert "train and decode" not in notes(table)["columns"]
