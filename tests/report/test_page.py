"""The page shows every number at any width: wide, on a phone and on paper."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from ablate.report import Table, render, table
from tests.report import made_up
from tests.report.test_latex import MANY

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
MEASURE = """
<iframe srcdoc="{page}" style="width:{width}px;height:3000px;border:0"></iframe>
<script>
const frame = document.querySelector("iframe");
frame.addEventListener("load", () => {{
  const page = frame.contentDocument;
  const cells = [...page.querySelectorAll("td, tbody th")].filter(cell => cell.innerText);
  const edges = cells.map(cell => [...cell.children, cell]
      .map(each => each.getBoundingClientRect()).map(box => box.right));
  document.body.innerHTML = "<pre>" + JSON.stringify({{
    width: page.documentElement.clientWidth,
    right: Math.max(...edges.flat()),
    n_bleu: cells.filter(cell => cell.checkVisibility()
        && cell.dataset.label === "BLEU test").length,
    n_hidden: cells.filter(cell => !cell.checkVisibility()).length,
  }}) + "</pre>";
}});
</script>
"""


@pytest.fixture
def many(tmp_path: Path) -> Table:
    experiment = made_up.experiment(tmp_path, MANY)
    return table(experiment, made_up.records(experiment))


def test_every_cell_knows_its_column(whole: Table, many: Table) -> None:
    for each in (whole, many):
        text = render(each, "html")
        labels = re.findall(r'<td class="\w+" data-label="([^"]+)">', text)
        assert len(labels) == text.count("<td ")
        titles = {column.title for block in each.blocks for column in block.columns}
        assert {html.unescape(label) for label in labels} - {"changes"} <= titles
        assert "content: attr(data-label)" in text


def test_costs_stand_below_and_many_changes_share_a_column(many: Table) -> None:
    heads = re.findall(r"<thead>\n<tr>(.*?)</tr>", render(many, "html"))
    assert [len(re.findall("<th ", head)) for head in heads] == [9, 6, 9]
    assert "changes" in heads[0]
    assert "memory" in heads[1]


@pytest.mark.e2e
@pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")
@pytest.mark.parametrize("width", [1400, 1000, 390])
def test_no_number_is_out_of_sight(width: int, many: Table, tmp_path: Path) -> None:
    page = html.escape(render(many, "html"))
    (tmp_path / "x.html").write_text(MEASURE.format(page=page, width=width), encoding="utf-8")
    assert BROWSER is not None
    options = "--headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=5000"
    done = subprocess.run(
        [BROWSER, *options.split(), "--window-size=1600,3000", "--dump-dom", "x.html"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    found = re.search(r"<pre>(.*)</pre>", done.stdout)
    assert found, done.stderr
    measured = json.loads(found[1])
    assert measured["right"] <= measured["width"] == width
    assert measured["n_hidden"] == 0
    assert measured["n_bleu"] == len(many.lines)
