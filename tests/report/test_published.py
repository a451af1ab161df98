"""Published numbers beside ours: in every format, with their source."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from ablate.report import FORMATS, Table, render, tabulate
from ablate.report.values import decimals_of
from tests.report import made_up

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


def test_theirs_stand_right_of_ours_as_they_were_printed(compared: Table) -> None:
    assert compared.more is not None
    nothing = "\N{EN DASH}"
    keys, more = ([column.key for column in each.columns] for each in (compared, compared.more))
    assert keys.index("published.bleu") == keys.index("test.test.bleu") + 1
    assert more.index("published.ppl") == more.index("dev.perplexity") + 1
    assert keys.index("published.params") == keys.index("params.total") + 1
    assert [c.text for c in compared.column("published.params")] == ["65", *[nothing] * 3]
    assert [c.text for c in compared.column("published.bleu")] == ["25.8", "26.0", nothing, nothing]
    assert [c.text for c in compared.column("published.ppl")] == ["4.92", nothing, nothing, "5.30"]
    assert [c.text for c in compared.column("published.bleu_lc_tok")][1] == "41.02"


def test_source_and_note_are_footnotes(compared: Table, whole: Table) -> None:
    notes = {note.label: note.text for note in compared.footnotes}
    assert (notes["published"], notes["published, note"]) == (SOURCE, NOTE)
    assert not any("published" in note.label for note in whole.footnotes)


@pytest.mark.parametrize("format_", [name for name in FORMATS if name != "by-seed"])
def test_every_format_has_the_numbers_and_their_source(format_: str, compared: Table) -> None:
    text = render(compared, format_)
    for expected in ("published", SOURCE, NOTE, "25.8", "4.92", "41.02"):
        assert expected in text


def test_a_paper_gets_ours_of_the_kind_that_is_published_and_its_signature(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, head=made_up.HEAD + PUBLISHED)
    records = made_up.records(experiment)
    signature = "tok:none|case:lc"
    for record in records.values():
        lower = {"bleu_lc_tok": 40.3, "bleu_lc_tok_signature": signature}
        record["test"]["test"] |= lower
    laid_out = tabulate(experiment, records)
    printed = re.sub(r"^%.*$", "", render(laid_out, "latex"), flags=re.MULTILINE)
    assert all(cell.text in printed for cell in laid_out.column("dev.perplexity"))
    assert "40.3" in printed
    assert "BLEU lc tok: tok:none" in printed
    without = made_up.experiment(tmp_path, head=made_up.HEAD)
    printed = re.sub(r"^%.*$", "", render(tabulate(without, records), "latex"), flags=re.MULTILINE)
    assert "40.3" not in printed
    assert "BLEU lc tok" not in printed


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


def test_theirs_are_there_before_ours(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, head=made_up.HEAD + PUBLISHED)
    first = tabulate(experiment, {})
    assert first.more is not None
    last = [column.key for column in first.columns[-2:]]
    assert last == ["published.bleu", "published.params"]
    assert first.columns[-1].title == "params M published"
    keys = [column.key for column in first.more.columns]
    assert keys == ["row", "published.ppl", "published.bleu_lc_tok"]


def test_decimals_are_those_that_were_printed() -> None:
    assert decimals_of([25.8, 26.0, 41.02]) == 2
    assert decimals_of([26.0, 3]) == 0
    assert decimals_of([]) == 0
