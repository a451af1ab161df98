"""The page: every number of the table, at any width, in any order; nothing from elsewhere."""

from __future__ import annotations

import base64
import csv
import html
import io
import re
import statistics
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from sacrebleu.metrics.chrf import CHRF

from ablate import api
from ablate.errors import DamagedFileWarning
from ablate.record import leaves
from ablate.report import Details, Table, render, tabulate
from ablate.report.table import joined_changes
from ablate.report.translations import marked, translations
from ablate.report.values import NOTHING, TIMES, signed
from ablate.store import describe, translations_file
from tests import made_up_runs
from tests.browser import in_browser, n_texts_on_paper, needs_browser
from tests.report import made_up

pytestmark = pytest.mark.figures

VOID = ("meta", "br", "link")
HOSTILE = '<img src=x onerror=alert(1)></script><script>alert(2)</script>"&amp; $title'
LOADS = re.compile(r"""(?:src|href|action|data|poster)\s*=\s*["'](?!#|data:)|@import|url\((?!#)""")


class Page(HTMLParser):
    """Reads a page back."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []  # the texts of the cells of their rows
        self.cells: list[dict[str, str | None]] = []  # attributes of the body cells of results
        self.ids: list[str] = []
        self.tags: dict[str, int] = {}  # how often each occurs
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        known = dict(attrs)
        self.ids += [name for key, name in attrs if key == "id" and name]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if "data-label" in known:
            self.cells.append(known)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data
        self.texts.append(data)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The table of made-up runs with curves and translations, and what stands behind it."""
    folder = tmp_path_factory.mktemp("study")
    text = made_up_runs.EXPERIMENT.replace("size: 1000", "size: 1000, test_size: 200")
    (folder / "small.yaml").write_text(text, encoding="utf-8")
    made_up_runs.finish(folder / "small.yaml", folder / "results", has_files=True)
    return api.report(folder / "small.yaml", results=folder / "results").table


@pytest.fixture(scope="module")
def study_page(study: Table) -> str:
    return render(study, "html")


def with_details(study: Table, **changes: Any) -> Table:
    assert study.details is not None
    return replace(study, details=replace(study.details, **changes))


def details_of(study: Table) -> Details:
    assert study.details is not None
    return study.details


def test_the_page_reads_back(whole: Table, broken: Table, many: Table) -> None:
    costs = ("params.", "flops.", "train.", "speed.", "memory.")
    for each in (whole, broken, many):
        expected = []
        for block in (joined_changes(block, 2) for block in each.blocks):
            high = [at for at, column in enumerate(block.columns) if column.key.startswith(costs)]
            low = [at for at in range(len(block.columns)) if at not in high]
            for part in (low, [0, *high] if high else []):
                heads = ["row", *(block.columns[at].title for at in part[1:])]
                texts = [[line.cells[at].text for at in part] for line in block.lines]
                expected += [[heads, *texts]] if part else []
        assert Page(render(each, "html")).tables == expected


def test_cells_are_sorted_by_the_numbers_of_the_csv(whole: Table) -> None:
    rows = list(csv.DictReader(io.StringIO(render(whole, "csv", columns=["all"]))))
    cells = Page(render(whole, "html")).cells

    def values(label: str) -> list[float]:
        of_column = [cell for cell in cells if cell["data-label"] == label]
        return [float(str(cell["data-value"])) for cell in of_column if "data-value" in cell]

    assert values("BLEU test") == [float(row["test.test.bleu.mean"]) for row in rows]
    estimates = [float(row["test.test.bleu.difference.estimate"]) for row in rows[1:]]
    assert values("ΔBLEU test") == estimates
    assert values("params k") + values("params M") == [float(r["params.total.mean"]) for r in rows]
    name = "speed.train_target_tokens_per_second.ratio"
    ratios = values(f"train {TIMES} speed")
    assert ratios == [float(row[name]) for row in rows if row[name]]


def test_what_rows_change_is_sorted_as_numbers(tmp_path: Path) -> None:
    variants = "\n  wide: {model.feed_forward.d_ff: 128}\n  narrow: {model.feed_forward.d_ff: 8}\n"
    experiment = made_up.experiment(tmp_path, variants)
    table = tabulate(experiment, made_up.records(experiment))
    cells = [c for c in Page(render(table, "html")).cells if c["data-label"] == "d_ff"]
    assert [float(str(cell["data-value"])) for cell in cells] == [32, 128, 8]


def test_the_seeds_of_a_number_are_behind_it(whole: Table) -> None:
    cells = Page(render(whole, "html")).cells
    bleu = [c for c in cells if c["data-label"] == "BLEU test"]
    for cell, line in zip(bleu, whole.lines, strict=True):
        values = line.summary.metrics["test.test.bleu"].values
        expected = [f"seed {seed}: {value:.3f}" for seed, value in values.items()]
        expected.append(f"sd {statistics.stdev(values.values()):.3f}")
        assert str(cell["data-seeds"]).splitlines() == expected
    _, *differences = [c for c in cells if c["data-label"] == "ΔBLEU test"]
    theirs, *ours = (line.summary.metrics["test.test.bleu"].values for line in whole.lines)
    for cell, own in zip(differences, ours, strict=True):
        expected = [f"seed {seed}: {signed(own[seed] - theirs[seed], 3)}" for seed in own]
        assert str(cell["data-seeds"]).splitlines() == expected
    memory = [c for c in cells if str(c["data-label"]).startswith("memory")]
    assert memory
    assert not any("data-seeds" in cell for cell in memory)


def test_the_page_needs_nothing_from_elsewhere(whole: Table, study: Table) -> None:
    for each in (whole, study):
        text = render(each, "html")
        assert not LOADS.findall(re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL))
        assert "http://" not in text
        assert "default-src 'none'" in text
        assert len(re.findall("<script", text)) == 1


def test_every_id_is_there_once_and_every_link_leads_somewhere(study_page: str) -> None:
    ids = Page(study_page).ids
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', study_page)) <= set(ids)


def test_hostile_texts_stay_texts(study: Table, study_page: str) -> None:
    details = details_of(study)
    name = next(iter(details.texts()))
    sources, references = details.texts()[name]
    hostile = {name: ([HOSTILE] * len(sources), references)}
    experiment = replace(details.experiment, question=HOSTILE)
    evil = with_details(study, texts=lambda: hostile, experiment=experiment)
    text = render(replace(evil, question=HOSTILE, conclusion=HOSTILE), "html")
    page, plain = Page(text), Page(study_page)
    assert (page.tags.get("img"), page.tags["script"]) == (plain.tags.get("img"), 1)
    assert HOSTILE in page.texts
    assert "<script>alert" not in text


def test_the_numbers_of_every_figure_can_be_had(study: Table, study_page: str) -> None:
    links = re.findall(r'base64,([^"]+)" download="([^"]+)"', study_page)
    files = {name: base64.b64decode(content).decode() for content, name in links}
    assert {"differences.csv", "costs.csv", "lengths.csv", "curves.csv"} <= set(files)
    differences = list(csv.DictReader(io.StringIO(files["differences.csv"])))
    rows = {row["row"]: row for row in csv.DictReader(io.StringIO(render(study, "csv")))}
    for line in differences:
        value = rows[line["row"]][f"{line['metric']}.difference.estimate"]
        assert float(line["difference"]) == float(value)


def test_figures_have_the_colours_of_the_page(study_page: str) -> None:
    svg = "".join(re.findall(r"<svg.*?</svg>", study_page, flags=re.DOTALL))
    assert "var(--ink)" in svg
    assert not re.findall(r"[:\s]#(?:111111|ffffff|000000)", svg)
    assert svg.count('role="img"') == svg.count("<svg")


def test_translations_are_those_on_which_rows_differ_most(study: Table, study_page: str) -> None:
    ranges = [float(number) for number in re.findall(r"range (\S+) chrF", study_page)]
    assert ranges == sorted(ranges, reverse=True)
    texts = details_of(study).texts()
    assert set(re.findall(r'<article data-set="([^"]+)"', study_page)) == set(texts)
    n_all = sum(len(sources) for sources, _ in texts.values())
    assert f"{n_all - len(ranges):,} sentences left out" in study_page
    assert study_page.count('<article data-set="test" data-length="long"') == 12


def test_a_sentence_has_its_place_its_source_and_the_scores_of_its_rows(study: Table) -> None:
    details = details_of(study)
    pattern = r"<h3>(\S+), sentence (\d+), (\w+); range (\S+) chrF</h3>\n<dl>\n(.*?)\n</dl>"
    articles = re.findall(pattern, translations(details), flags=re.DOTALL)
    lengths: dict[tuple[str, str], list[int]] = {}
    for test_set, number, length, range_, lines in articles:
        (sources, (references,)), at = details.texts()[test_set], int(number) - 1
        terms = re.findall('<dt>(.*?)</dt><dd dir="auto">(.*)</dd>', html.unescape(lines))
        assert terms[:2] == [("source", sources[at]), ("reference", references[at])]
        lengths.setdefault((test_set, length), []).append(len(sources[at].split()))
        scores = []
        for rows, text in terms[2:]:
            row, seed = rows.replace(" and ", ", ").split(", ")[0], details.experiment.seeds[0]
            file = details.folders[row, seed] / translations_file(test_set)
            ours = file.read_text(encoding="utf-8").splitlines()[at]
            scores.append(CHRF().sentence_score(ours, [references[at]]).score)
            assert text.endswith(f"chrF {scores[-1]:.1f}</span>")
        assert range_ == f"{max(scores) - min(scores):.1f}"
    for test_set in details.texts():
        short, medium, long = (lengths[test_set, of] for of in ("short", "medium", "long"))
        assert max(short) < min(medium) <= max(medium) < min(long)


def test_a_source_without_spaces_is_as_long_as_its_characters(study: Table) -> None:
    details = details_of(study)
    texts = {
        name: (["".join(source.split()) for source in sources], references)
        for name, (sources, references) in details.texts().items()
    }
    page = translations(replace(details, texts=lambda: texts))
    for length in ("short", "medium", "long"):
        assert page.count(f'<article data-set="test" data-length="{length}"') == 12


def test_translations_are_of_a_seed_that_the_baseline_has(study: Table) -> None:
    details = details_of(study)
    baseline, first, _ = (row.name for row in details.experiment.rows)
    one, other = details.experiment.seeds
    lost = {(baseline, one), (first, other)}  # as many rows have translations by either seed
    folders = {run: path for run, path in details.folders.items() if run not in lost}
    text = translations(replace(details, folders=folders))
    assert f"Translations with seed {other}." in text
    assert f"Without translations: {first}." in text


def test_translations_are_of_the_seed_that_most_rows_have(study: Table) -> None:
    details = details_of(study)
    first, (one, other) = details.experiment.rows[1].name, details.experiment.seeds
    folders = {run: path for run, path in details.folders.items() if run != (first, one)}
    text = translations(replace(details, folders=folders))
    assert f"Translations with seed {other}." in text
    assert "Without translations" not in text
    assert translations(replace(details, folders={})) == ""


def test_damaged_translations_are_left_out_with_a_warning(study: Table) -> None:
    details = details_of(study)
    row, seed = details.experiment.rows[1].name, details.experiment.seeds[0]
    files = {translations_file(test_set): describe(b"other") for test_set in details.texts()}
    records = {**details.records, (row, seed): {**details.records[row, seed], "files": files}}
    with pytest.warns(DamagedFileWarning, match=r"hypotheses\..*\.txt: is damaged"):
        text = translations(replace(details, records=records))
    assert f"Without translations: {row}." in text


def test_without_the_corpus_there_are_no_translations(study: Table) -> None:
    text = render(with_details(study, texts=dict), "html")
    assert "<article" not in text
    assert 'id="figures"' in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b c", "a b c"),
        ("a x c", "a <del>b</del> <ins>x</ins> c"),
        ("a c", "a <del>b</del> c"),
        ("a b c <d>", "a b c <ins>&lt;d&gt;</ins>"),
        ("", "<em>nothing</em> <del>a b c</del>"),
    ],
)
def test_words_that_differ_are_marked(text: str, expected: str) -> None:
    assert marked(text, "a b c") == expected


def test_the_spec_of_the_baseline_is_whole_and_each_difference_there(
    study: Table, study_page: str
) -> None:
    page = Page(study_page)
    baseline = details_of(study).experiment.rows[0]
    (spec,) = [text for text in page.texts if text.startswith("corpus:")]
    expected = baseline.spec.model_dump(mode="json")
    assert yaml.safe_load(spec) == {k: v for k, v in expected.items() if k != "seed"}
    (lines,) = [rows[1:] for rows in page.tables if rows[0] == ["row", "value", "baseline", "here"]]
    value = {(line[0], line[1]) for line in lines if line[0]}
    assert value == {("none", "model.position.name"), ("rms", "model.norm.name")}
    assert all(path in dict(leaves(expected)) for _, path, before, _ in lines if before != NOTHING)


def test_runs_have_their_hashes_and_commands_below_the_question(
    study: Table, study_page: str
) -> None:
    first, *_ = study_page.split("<main>")
    assert html.escape(study.conclusion) in first
    assert f"<h1>{html.escape(str(study.question))}</h1>" in first
    heads = ["row", "seed", "status", "hash", "test.test.bleu", "test.test.nll", "finished"]
    (runs,) = [rows[1:] for rows in Page(study_page).tables if rows[0] == heads]
    assert [run[:6] for run in runs] == [
        [row, str(seed), "done", record["hash"], f"{scores['bleu']:.2f}", f"{scores['nll']:.4f}"]
        for (row, seed), record in details_of(study).records.items()
        for scores in [record["test"]["test"]]
    ]
    assert re.search(r"ablate run \S*small\.yaml\n", study_page)
    assert "@software{ablate," in study_page
    assert "Zhang &amp; Sennrich 2019" in study_page  # the source of rms


MEASURE = """
<iframe srcdoc="{page}" style="width:{width}px;height:3000px;border:0"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {{
  const page = frame.contentDocument;
  const cells = [...page.querySelectorAll(".cards td, .cards tbody th")]
      .filter(cell => cell.innerText);
  const edges = cells.map(cell => [...cell.children, cell]
      .map(each => each.getBoundingClientRect()).map(box => box.right));
  document.body.innerHTML = "<pre>" + JSON.stringify({{
    width: page.documentElement.clientWidth,
    scroll: page.documentElement.scrollWidth,
    right: Math.max(...edges.flat()),
    n_bleu: cells.filter(cell => cell.checkVisibility()
        && cell.dataset.label === "BLEU test").length,
    n_hidden: cells.filter(cell => !cell.checkVisibility()).length,
  }}) + "</pre>";
}});
</script>
"""
SORT = """
<script type="module">
const key = (target, name) => target.dispatchEvent(
    new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const names = () => [...document.querySelectorAll("table.cards")].map(
    table => [...table.querySelectorAll("tbody th")].map(cell => cell.textContent));
const button = [...document.querySelectorAll(".sort")].find(
    each => each.textContent.startsWith("BLEU"));
const head = button.closest("th");
button.focus();
const isFocusable = document.activeElement === button;
const orders = [[names(), head.getAttribute("aria-sort")]];
for (let i = 0; i < 3; i++) {
  button.click();
  orders.push([names(), head.getAttribute("aria-sort")]);
}
const spans = [...document.querySelectorAll("[data-seeds] > span")];
const tip = document.querySelector(".tip");
spans[0].focus();
const seeds = [tip.hidden, tip.textContent];
key(spans[0], "ArrowDown");
const next = [document.activeElement.closest("tr").dataset.row, tip.textContent];
key(document.activeElement, "Escape");
const form = document.querySelector(".filters");
form.querySelector("[name=length]").value = "long";
form.dispatchEvent(new Event("change"));
const shown = [...document.querySelectorAll("article")].filter(each => !each.hidden);
document.body.innerHTML = "";
document.body.append(Object.assign(document.createElement("pre"), {
  textContent: JSON.stringify({
    isFocusable, orders, seeds, next, isTipHidden: tip.hidden,
    lengths: [...new Set(shown.map(each => each.dataset.length))], n: shown.length,
  })}));
</script>
"""


@pytest.mark.e2e
@needs_browser
@pytest.mark.parametrize("width", [1400, 1280, 1000, 400])
def test_no_number_is_out_of_sight(width: int, many: Table, tmp_path: Path) -> None:
    page = html.escape(render(many, "html"))
    measured = in_browser(tmp_path, MEASURE.format(page=page, width=width))
    assert measured["right"] <= measured["width"] == measured["scroll"] == width
    assert measured["n_hidden"] == 0
    assert measured["n_bleu"] == len(many.lines)


@pytest.mark.e2e
@needs_browser
def test_rows_are_sorted_by_keyboard_and_seeds_shown(
    study: Table, study_page: str, tmp_path: Path
) -> None:
    measured = in_browser(tmp_path, study_page.replace("</body>", f"{SORT}</body>"))
    means = {line.summary.name: line.summary.metrics["test.test.bleu"].mean for line in study.lines}
    baseline, *rows = means
    best_first = [baseline, *sorted(rows, key=lambda row: -means[row])]
    worst_first = [baseline, *sorted(rows, key=lambda row: means[row])]
    orders = [([baseline, *rows], None), (best_first, "descending"), (worst_first, "ascending")]
    assert measured["isFocusable"]
    for (tables, value), (order, direction) in zip(
        measured["orders"], [*orders, orders[0]], strict=True
    ):
        assert all(names == order for names in tables)
        assert value == direction
    values = study.lines[0].summary.metrics["test.test.bleu"].values
    assert measured["seeds"][0] is False
    assert f"seed 1: {values[1]:.3f}" in measured["seeds"][1]
    assert measured["next"][0] == "1"
    assert measured["isTipHidden"]
    assert measured["lengths"] == ["long"]
    assert measured["n"] == study_page.count('data-length="long"')


BY_NAME = """
<script type="module">
document.querySelector(".sort").click();
const names = [...document.querySelector("table.cards").querySelectorAll("tbody th")];
document.body.innerHTML = "<pre>" + JSON.stringify(
    {names: names.map(cell => cell.textContent)}) + "</pre>";
</script>
"""


@pytest.mark.e2e
@needs_browser
def test_numbers_in_names_are_sorted_as_numbers(tmp_path: Path) -> None:
    variants = "".join(f"\n  ff {n}: {{model.feed_forward.d_ff: {n}}}" for n in (100, 9, 16))
    experiment = made_up.experiment(tmp_path, f"{variants}\n")
    page = render(tabulate(experiment, made_up.records(experiment)), "html")
    measured = in_browser(tmp_path, page.replace("</body>", f"{BY_NAME}</body>"))
    assert measured["names"] == ["baseline", "ff 9", "ff 16", "ff 100"]


@pytest.mark.e2e
@needs_browser
def test_on_paper_headings_are_on_every_page(tmp_path: Path) -> None:
    variants = "".join(f"\n  row_{n}: {{model.feed_forward.d_ff: {n}}}" for n in range(64, 128))
    experiment = made_up.experiment(tmp_path, f"{variants}\n", seeds="[1]")
    page = render(tabulate(experiment, made_up.records(experiment)), "html")
    without_buttons = re.sub("<script.*?</script>", "", page, flags=re.DOTALL)
    assert n_texts_on_paper(tmp_path, page) == n_texts_on_paper(tmp_path, without_buttons)
