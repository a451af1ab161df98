"""Seven formats of one table: nothing is lost, nothing is mistaken for markup, nothing breaks."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from rich.cells import cell_len

from ablate.analysis.summary import STATUSES
from ablate.config import Experiment
from ablate.errors import SpecError
from ablate.report import FORMATS, Table, format_of, render, tabulate
from ablate.report.table import Footnote
from ablate.report.values import MINUS
from tests.report import made_up

HOSTILE = """
  "a_b & 50% <i>#1</i>": {model.position: learned}
  "[x] | $y$ ^~ {z}": {model.position: none}
  "überraschung 位置": {model.dims.n_heads: 1}
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Table:
    experiment = made_up.experiment(tmp_path, HOSTILE)
    return tabulate(experiment, made_up.records(experiment))


def lines_of(each: Table, format_: str = "csv", *columns: str) -> list[dict[str, str]]:
    text = render(each, format_, columns=list(columns) or None)
    return list(csv.DictReader(io.StringIO(text)))


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+\.\d+", text)


@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_ends_in_a_newline_and_names_every_row(
    format_: str, whole: Table, broken: Table
) -> None:
    for each in (whole, broken):
        text = render(each, format_)
        assert text.endswith("\n")
        assert all(
            re.search(rf"{line.summary.name}\b", text.replace("\\_", "_")) for line in each.lines
        )


def _pipes(text: str) -> list[list[str]]:
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    return [block.splitlines() for block in blocks]


def test_markdown_reads_back_whatever_a_row_is_called(broken: Table, hostile: Table) -> None:
    for block, lines in zip(hostile.blocks, _pipes(render(hostile, "markdown")), strict=True):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert counts == {len(block.columns) + 1}
        assert "<i>" not in "".join(lines)
    for block, lines in zip(broken.blocks, _pipes(render(broken, "markdown")), strict=True):
        assert len({len(line) for line in lines}) == 1
        cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
        assert cells[0] == [column.title for column in block.columns]
        for line, read in zip(block.lines, cells[2:], strict=True):
            assert [re.sub(r"\s+", " ", text.strip("*").replace("\\", "")) for text in read] == [
                c.text for c in line.cells
            ]
        assert [rule.endswith(":") for rule in cells[1]] == [c.is_number for c in block.columns]


def test_csv_reads_back_at_full_precision(whole: Table) -> None:
    rows = lines_of(whole, "csv", "all")
    for line, row in zip(whole.lines, rows, strict=True):
        assert row["row"] == line.summary.name
        assert {path for path in line.changes if row[f"change.{path}"]} == set(line.changes)
        for name, estimate in line.summary.metrics.items():
            assert float(row[f"{name}.mean"]) == estimate.mean
            if name.startswith(("speed.", "memory.")):  # once, and not once for each seed
                assert f"{name}.sd" not in row
                continue
            assert float(row[f"{name}.sd"]) == estimate.sd
            assert int(row[f"{name}.n"]) == 3
        for name, rounds in line.summary.rounds.items():
            speed = line.summary.speeds[name]
            assert float(row[f"{name}.rounds.median"]) == rounds.median
            assert float(row[f"{name}.rounds.sd"]) == rounds.sd
            assert int(row[f"{name}.rounds.n"]) == 5
            assert float(row[f"{name}.polished"]) == speed.value
            if speed.ratio is None or speed.interval is None:
                assert row[f"{name}.ratio"] == row[f"{name}.ratio.low"] == ""
                continue
            assert float(row[f"{name}.ratio"]) == speed.ratio
            assert float(row[f"{name}.ratio.high"]) == speed.interval.high


def test_csv_holds_both_intervals_with_their_method(whole: Table) -> None:
    rows = lines_of(whole, "csv", "all")
    assert whole.results is not None
    for name, compared in whole.results.comparisons.items():
        assert rows[0][f"{name}.difference.estimate"] == ""
        for row, each in zip(rows[1:], compared.differences.values(), strict=True):
            read = {key: row[f"{name}.difference.{key}"] for key in ("method", "won")}
            assert read == {"method": each.method, "won": str(each.n_won)}
            assert each.simultaneous is not None
            assert each.single is not None
            expected = {
                "estimate": each.estimate,
                "n": each.n,
                "se": each.standard_error,
                "df": each.df,
                "low": each.simultaneous.low,
                "high": each.simultaneous.high,
                "single.low": each.single.low,
                "single.high": each.single.high,
                "p": each.p,
            }
            for key, value in expected.items():
                assert float(row[f"{name}.difference.{key}"]) == value
    verdicts = {row["test.test.bleu.difference.verdict"] for row in rows[1:]}
    assert verdicts <= {"better", "worse", "no difference", "cannot tell"}
    assert {row["test.test.chrf.difference.verdict"] for row in rows} == {""}


def test_a_csv_is_brief_unless_all_is_asked_for(whole: Table) -> None:
    brief, every = (
        render(whole, "csv", columns=columns).splitlines()[0].split(",")
        for columns in (None, ["all"])
    )
    assert set(brief) < set(every)
    assert len(brief) < 65
    for name in ("test.test.bleu.difference.low", "params.total.mean", "change.model.position"):
        assert name in brief
    with pytest.raises(SpecError, match="a CSV has compact or all columns"):
        render(whole, "csv", columns=["bleu"])


def test_a_brief_csv_has_the_loss_of_the_table(
    experiment: Experiment, records: made_up.Records
) -> None:
    key = "test.test.bits_per_character.difference.low"
    assert key not in lines_of(tabulate(experiment, records))[0]
    for seed in experiment.seeds:
        records["learned", seed]["tokenizer"]["fingerprint"] = "other"
    table = tabulate(experiment, records)
    assert "Δbits/char" in {column.header for column in table.columns}
    assert lines_of(table)[1][key]


def test_every_csv_has_the_signatures_of_its_metrics(whole: Table) -> None:
    for rows in (lines_of(whole), lines_of(whole, "csv", "all")):
        assert {row["signature.bleu"] for row in rows} == {made_up.BLEU_SIGNATURE}
        assert {row["signature.chrf"] for row in rows} == {made_up.CHRF_SIGNATURE}
    signatures = {row["metric"]: row["signature"] for row in lines_of(whole, "by-seed")}
    assert signatures["test.test.bleu"] == signatures["test.test_long.bleu"]
    assert signatures["test.test.bleu"] == made_up.BLEU_SIGNATURE
    assert signatures["test.test.chrf"] == made_up.CHRF_SIGNATURE
    assert not signatures["dev.nll"]


@pytest.mark.parametrize("format_", ["json", "by-seed"])
def test_a_format_that_holds_every_number_has_no_columns_to_choose(
    format_: str, whole: Table
) -> None:
    for columns in (["verdict"], ["compact"], ["all", "bleu"]):
        with pytest.raises(SpecError, match=f"^--columns {','.join(columns)}: .* has all columns"):
            render(whole, format_, columns=columns)
    assert render(whole, format_, columns=["all"]) == render(whole, format_)


def test_the_long_form_has_every_number_of_every_seed(whole: Table, broken: Table) -> None:
    rows = lines_of(whole, "by-seed")
    for line in whole.lines:
        for name, estimate in line.summary.metrics.items():
            values = {
                int(row["seed"]): float(row["value"])
                for row in rows
                if (row["row"], row["metric"]) == (line.summary.name, name)
            }
            assert values == estimate.values
    rows = lines_of(broken, "by-seed")
    of_run = {"row": "literal", "seed": "2", "status": "missing"}
    assert of_run | {"metric": "", "value": "", "signature": ""} in rows


def test_the_suffix_decides_the_format() -> None:
    for name, format_ in (("y.tex", "latex"), ("y.HTML", "html"), ("y.csv", "csv")):
        assert format_of(Path(name)) == format_
    with pytest.raises(SpecError, match=r"y\.pdf: the suffix stands for no format; known: \."):
        format_of(Path("y.pdf"))


def test_csv_counts_what_is_not_done(broken: Table) -> None:
    rows = {row["row"]: row for row in lines_of(broken, "csv", "all")}
    counts = {name: {s: int(row[f"runs.{s}"]) for s in STATUSES} for name, row in rows.items()}
    nothing = dict.fromkeys(STATUSES, 0)
    assert counts["learned"] == {**nothing, "done": 2, "diverged": 1}
    assert counts["literal"] == {**nothing, "done": 2, "missing": 1}
    assert counts["heads_1"] == {**nothing, "oom": 3}
    assert rows["heads_1"]["test.test.bleu.mean"] == ""
    assert rows["learned"]["test.test.bleu.n"] == "2"
    assert rows["learned"]["test.test.bleu.difference.method"] == "divergence as 0"
    assert rows["learned"]["test.test.bleu.difference.low"] == ""
    assert rows["literal"]["test.test.bleu.difference.method"] == "two-way"


def test_json_holds_every_value_with_its_seed(broken: Table) -> None:
    content = json.loads(render(broken, "json"))
    assert content["seeds"] == [1, 2, 3]
    assert [row["is_baseline"] for row in content["rows"]] == [True, False, False, False]
    for line, row in zip(broken.lines, content["rows"], strict=True):
        assert row["changes"] == line.changes
        assert {int(seed): text for seed, text in row["errors"].items()} == line.summary.errors
        assert {
            int(seed): status for seed, status in row["outcomes"].items()
        } == line.summary.outcomes
        for name, estimate in line.summary.metrics.items():
            read = row["metrics"][name]
            assert {int(seed): value for seed, value in read["values"].items()} == estimate.values
            sd = None if name.startswith(("speed.", "memory.")) else estimate.sd
            assert (read["mean"], read["sd"], read["n"]) == (estimate.mean, sd, estimate.n)
        assert row["speeds"].keys() == line.summary.speeds.keys()
        for name, speed in line.summary.speeds.items():
            read, rounds = row["speeds"][name], line.summary.rounds[name]
            ends = speed.interval and [speed.interval.low, speed.interval.high]
            assert (read["polished"], read["ratio"]) == (speed.value, speed.ratio)
            assert read["ratio_interval"] == ends
            assert (read["median"], read["sd"]) == (rounds.median, rounds.sd)
    assert len(content["footnotes"]) == len(broken.footnotes)
    assert content["conclusion"] == broken.conclusion
    assert content["negligible"] == {"bleu": 1.0, "nll": 0.02}
    assert broken.results is not None
    for name, compared in broken.results.comparisons.items():
        error, read = content["errors"][name], content["rows"][2]["differences"][name]
        assert (error["sd"], error["df"], error["diverged"]) == (
            compared.sd,
            compared.df,
            ["learned"],
        )
        assert error["critical"] == compared.family.critical
        least = compared.detectable
        assert error["detectable"] == (least and [least.low, least.high])
        each = compared.differences["literal"]
        assert (read["estimate"], read["p"], read["won"]) == (each.estimate, each.p, each.n_won)


def test_json_has_null_for_what_json_cannot_say(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path)
    records = made_up.records(experiment)
    records["learned", 1]["dev"]["nll"] = 3000.0
    text = render(tabulate(experiment, records), "json")
    content = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    perplexity = content["rows"][1]["metrics"]["dev.perplexity"]
    assert (perplexity["mean"], perplexity["values"]["1"]) == (None, None)


def test_latex_escapes_what_it_would_read_as_markup(hostile: Table) -> None:
    text = render(hostile, "latex")
    assert r"a\_b \& 50\% \textless{}i\textgreater{}\#1" in text
    assert r"{[x] \textbar{} \$y\$ \textasciicircum{}\textasciitilde{} \{z\}}" in text
    body = re.sub(r"^%.*$", "", text, flags=re.MULTILINE)
    assert not re.search(r"(?<!\\)[%#_]", body)
    assert len(re.findall(r"(?<!\\)\$", body)) % 2 == 0
    assert not set(body) & set("±†‡§¶→∞…\N{MULTIPLICATION SIGN}\N{MINUS SIGN}\N{EN DASH}")


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_a_terminal_is_never_overrun_breaks_no_number_and_leaves_no_column_out(
    width: int, whole: Table, broken: Table, hostile: Table, many: Table
) -> None:
    for each in (whole, broken, hostile, many):
        text = render(each, "terminal", width)
        assert max(map(cell_len, text.splitlines())) <= width
        cells = [cell.text for block in each.blocks for line in block.lines for cell in line.cells]
        known = {n for t in (*cells, *(note.text for note in each.footnotes)) for n in numbers(t)}
        assert set(numbers(text)) <= known
        for block in each.blocks:
            for at, column in enumerate(block.columns):
                assert column.header in text
                if column.is_number:
                    assert all(line.cells[at].value in text for line in block.lines)


@pytest.mark.parametrize(
    "name", ["a-name-" * 8, "a/name/" * 8, "aNameWithoutAnyBreak" * 3, "位置编码" * 8]
)
def test_a_long_word_does_not_overrun_a_terminal(name: str, tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, f"\n  {name}: {{model.position: none}}\n")
    text = render(tabulate(experiment, made_up.records(experiment)), "terminal", 60)
    assert max(map(cell_len, text.splitlines())) <= 60
    first_column = "".join(re.split(r"\s{2,}", line)[0].strip() for line in text.splitlines())
    assert name in first_column


JUDGED = {"BLEU", "ΔBLEU", "verdict"}
PROMISED = JUDGED | {"95% CI", "train", "decode", "memory"}


def _first_heads(text: str) -> set[str]:
    lines = iter(text.splitlines())
    heads = next(after for line, after in pairwise(lines) if set(line) == {"━"})
    return set(re.split(r"\s{2,}", heads.strip()))


@pytest.mark.parametrize(("width", "promised"), [(100, PROMISED), (80, JUDGED)])
def test_the_first_grid_holds_what_a_row_is_judged_by(
    width: int, promised: set[str], whole: Table, broken: Table
) -> None:
    for each in (whole, broken):
        assert promised <= _first_heads(render(each, "terminal", width))


def test_many_changed_paths_share_one_column_in_a_narrow_terminal(tmp_path: Path) -> None:
    experiment = made_up.experiment(tmp_path, made_up.VARIANTS + "  rms: {model.norm: rms}\n")
    laid_out = tabulate(experiment, made_up.records(experiment))
    text = render(laid_out, "terminal", 80)
    assert "position=learned" in text
    assert "norm=rms" in text
    assert "position=" not in render(laid_out, "terminal")


def test_a_terminal_without_faces_gets_plain_text(whole: Table) -> None:
    plain = render(whole, "terminal", 100)
    bold = render(whole, "terminal", 100, is_coloured=True)
    assert "\x1b" not in plain
    assert re.search(r"\x1b\[1mbaseline .*\x1b\[0m", bold)
    assert re.sub(r"\x1b\[\d*m", "", bold) == plain


def test_numbers_of_a_column_stand_below_one_another(whole: Table) -> None:
    lines = render(whole, "terminal").splitlines()
    rows = [line for line in lines if line.split("  ")[0] in ("learned", "literal", "heads_1")]
    points = [{m.start() for m in re.finditer(r"\.", row)} for row in rows[:3]]
    assert points[0] > points[1] == points[2]  # the first has one more number in brackets


def test_each_line_of_a_terminal_has_the_numbers_of_its_row(whole: Table) -> None:
    signed = re.compile(rf"[+{MINUS}]?\d+\.\d+")
    lines = render(whole, "terminal").splitlines()
    for block in whole.blocks:
        for row in block.lines:
            expected = signed.findall(" ".join(cell.text for cell in row.cells))
            printed = [
                signed.findall(each) for each in lines if each.split("  ")[0] == row.summary.name
            ]
            assert expected in printed


def test_where_a_terminal_has_no_room_for_brackets_it_says_so(whole: Table) -> None:
    for width, has_room in ((400, True), (80, False)):
        text = render(whole, "terminal", width)
        assert ("(+2.5%)" in text) == has_room
        assert ("\nbrackets: this terminal is too narrow for them" in text) != has_room
    assert "\nbrackets:" not in render(whole, "terminal", 80, has_all_notes=False)


def test_without_all_notes_the_vital_ones_stand_under_the_answer_and_the_table(
    broken: Table,
) -> None:
    whole = render(broken, "terminal", 100).splitlines()
    brief = render(broken, "terminal", 100, has_all_notes=False).splitlines()
    assert whole[1] == brief[1] == broken.conclusion[: len(whole[1])]
    vital = [note.label for note in broken.footnotes if note.is_vital]
    assert 1 < len(vital) < len(broken.footnotes)
    last = max(at for at, line in enumerate(brief) if set(line) == {"━"})
    labels = [line.partition(":")[0] for line in brief[last + 1 :] if not line.startswith("  ")]
    n_more = len(broken.footnotes) - len(vital[:5])
    assert labels == [*vital[:5], f"{n_more} more notes (--notes, or table.md)"]
    many = replace(broken, footnotes=tuple(Footnote(f"n{i}", "x", is_vital=True) for i in range(8)))
    text = render(many, "terminal", 100, has_all_notes=False)
    assert "n4: x\n3 more notes (--notes, or table.md): n5, n6 and n7\n" in text
    assert "more note" not in render(many, "terminal", 100)


def test_many_options_share_a_column_in_markdown(tmp_path: Path) -> None:
    """Columns of which each row fills one are mostly empty."""
    changes = {
        "rms": "model.norm: rms", "pre": "model.residual: pre", "one": "model.dims.n_heads: 1",
        "flat": "model.scaling: none", "few": "training.steps: 5",
    }  # fmt: skip
    for n, is_joined in ((4, False), (5, True)):
        rows = "".join(f"\n  {name}: {{{change}}}" for name, change in [*changes.items()][:n])
        experiment = made_up.experiment(tmp_path, rows)
        text = render(tabulate(experiment, made_up.records(experiment)), "markdown")
        head = next(line for line in text.splitlines() if line.startswith("| "))
        assert ("| changes " in head) is is_joined
        assert ("| norm=rms " in text) is is_joined
