"""The atlas has every registered part and says what it leaves out; its page has its results."""

from __future__ import annotations

import sys
from pathlib import Path

import atlas
import atlas_page
import pytest
import yaml
from atlas_page import Difference, agreement

from ablate import config
from ablate.analysis.statistics import Interval
from ablate.registry import slots
from tests.browser import in_browser, needs_browser

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "experiments"
SLOTS = {
    "atlas": (
        *("position", "attention", "scaling", "mask", "norm", "residual", "feed_forward"),
        *("sharing", "embedding", "initialisation", "objective"),
    ),
    "atlas_tuned": ("optimizer", "schedule"),
}


def part_of(spec: config.RunSpec, slot: str) -> str:
    section = spec.model if slot in config.ModelSpec.model_fields else spec.training
    return getattr(section, slot).name


@pytest.mark.parametrize("name", SLOTS)
def test_every_part_has_a_row_or_a_reason(name: str) -> None:
    text = (EXPERIMENTS / f"{name}.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    specs = {row.name: row.spec for row in config.load(EXPERIMENTS / f"{name}.yaml").rows}
    baseline = yaml.safe_load((EXPERIMENTS / "presets" / "laptop.yaml").read_text(encoding="utf-8"))
    settings = {**baseline["model"], **baseline["training"], "mask": "causal", "sharing": "none"}
    for slot in SLOTS[name]:
        setting = settings[slot]
        own = setting if isinstance(setting, str) else setting["name"]
        rows = {row for row in content["variants"] if row.startswith(f"{slot} ")}
        assert rows == {f"{slot} {part_of(specs[row], slot)}" for row in rows}
        left_out = {line.split(":")[0][4:] for line in text.splitlines() if line.startswith("#   ")}
        known = {f"{slot} {part}" for part in slots()[slot] if part != own}
        assert rows | {each for each in left_out if each.startswith(f"{slot} ")} == known, (
            "write it anew: python benchmarks/atlas.py"
        )


@pytest.mark.full
def test_the_experiments_are_what_their_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    written: dict[Path, str] = {}
    monkeypatch.setattr(sys, "argv", ["atlas.py"])
    monkeypatch.setattr(atlas, "write_whole", written.__setitem__)
    atlas.main()
    assert {path.stem for path in written} >= {*SLOTS}
    for path, text in written.items():
        assert text == path.read_text(encoding="utf-8"), "write it anew: python benchmarks/atlas.py"


def test_no_warm_up_of_a_row_is_longer_than_its_training() -> None:
    for row in config.load(EXPERIMENTS / "atlas_tuned.yaml").rows:
        training = row.spec.training
        assert training.schedule.options["warmup"] < training.steps, row.name


def test_the_page_is_what_its_script_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["atlas_page.py", "--output", str(tmp_path / "atlas.md")])
    atlas_page.main()
    written = (tmp_path / "atlas.md").read_text(encoding="utf-8")
    assert written == (ROOT / "docs" / "atlas.md").read_text(encoding="utf-8"), (
        "write it anew: python benchmarks/atlas_page.py"
    )


def test_what_is_decided_in_german_and_ten_others_are_asked_in_french(tmp_path: Path) -> None:
    rows = [row.name for row in config.load(EXPERIMENTS / "multi30k" / "atlas.yaml").rows[1:]]
    verdicts = dict.fromkeys(rows, "cannot tell") | dict.fromkeys(rows[3:90:5], "worse")
    text = atlas.in_french(verdicts).replace("atlas.yaml\ncorpus", "ablate:multi30k/atlas\ncorpus")
    (tmp_path / "atlas_fr.yaml").write_text(text, encoding="utf-8")
    asked = config.load(tmp_path / "atlas_fr.yaml")
    names = [row.name for row in asked.rows[1:]]
    assert [row for row in names if verdicts[row] == "worse"] == rows[3:90:5]
    assert len(names) == len(rows[3:90:5]) + 10
    assert {row.spec.corpus.options["tgt"] for row in asked.rows} == {"fr"}
    few = dict(zip(rows, ["better", "cannot tell", "no difference"], strict=False))
    assert "null" not in atlas.in_french(few)


def column(**rows: tuple[float, str]) -> dict[str, Difference]:
    return {
        name: Difference(value, Interval(value - 1, value + 1), verdict)
        for name, (value, verdict) in rows.items()
    }


def test_columns_agree_as_far_as_their_ranks_and_signs_do() -> None:
    one = column(a=(1.0, "better"), b=(2.0, "better"), c=(3.0, "cannot tell"), d=(4.0, "better"))
    one |= column(e=(-5.0, "worse"), alone=(9.0, "better"))
    other = column(a=(0.2, "better"), b=(0.1, "better"), c=(0.3, "better"), d=(-1.0, "worse"))
    other |= column(e=(-2.0, "worse"))
    agreed = agreement(one, other)
    assert (agreed.n, agreed.both, agreed.contrary) == (5, 4, ("d",))
    assert agreed.rho == pytest.approx(1 - 6 * (4 + 1 + 9) / (5 * 24))
    # Bonett and Wright 2000: tanh(atanh(r) -+ 1.95996 sqrt((1 + r^2 / 2) / (n - 3)))
    assert agreed.interval == pytest.approx((-0.8031, 0.9386), abs=1e-4)
    # Clopper and Pearson, 3 of 4
    assert agreed.share == pytest.approx((0.1941, 0.9937), abs=1e-4)


def test_a_row_with_runs_that_are_missing_has_no_value() -> None:
    start = "test.test2016.bleu.difference"
    line = {f"{start}.estimate": "1.5", f"{start}.low": "0.5", f"{start}.high": "2.5"}
    line |= {f"{start}.verdict": "better", "runs.missing": "0", "runs.diverged": "0"}
    same = line | {f"{start}.low": "", f"{start}.high": "", f"{start}.verdict": "same"}
    lines = [
        {**line, "row": "baseline", f"{start}.estimate": ""},
        {**line, "row": "done"},
        {**line, "row": "begun", "runs.missing": "1"},
        {**same, "row": "same"},
        {**line, "row": "near", f"{start}.low": "0.0104"},
        {**same, "row": "apart", f"{start}.verdict": "", "runs.diverged": "1"},
    ]
    differences = atlas_page.column(lines)
    assert {name: (str(each), each.verdict) for name, each in differences.items()} == {
        "done": ("+1.5<br>[+0.5, +2.5]", "better"),
        "same": ("+1.5", "same"),
        "near": ("+1.5<br>[+0.01, +2.5]", "better"),
        "apart": ("+1.5", "diverged"),
    }
    assert atlas_page.counts("invented", differences).endswith("0 cannot tell, 1 diverged")


SORT_AND_FILTER = """
<script>
const table = document.querySelector("table");
const names = () => [...table.tBodies[0].rows].filter(row => !row.hidden).map(
    row => row.cells[0].textContent);
const click = (heading) => {
  [...table.querySelectorAll("th button")].find(each => each.textContent === heading).click();
  return names();
};
const down = click("ΔBLEU invented"), up = click("ΔBLEU invented");
const costs = click("parameters"), byName = click("part");
const field = document.querySelector("input");
field.value = "Position  better";
field.dispatchEvent(new Event("input"));
const filtered = names();
document.body.innerHTML = "";
document.body.append(Object.assign(document.createElement("pre"), {
  textContent: JSON.stringify({down, up, costs, byName, filtered})}));
</script>
"""


@pytest.mark.figures
@pytest.mark.e2e
@needs_browser
def test_the_page_is_sorted_and_filtered_in_a_browser(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "atlas.md").read_text(encoding="utf-8")
    body = pytest.importorskip("markdown").markdown(text, extensions=["tables"])
    script = (ROOT / "docs" / "tables.js").read_text(encoding="utf-8")
    page = f"<meta charset=utf-8><article>{body}</article><script>{script}</script>"
    orders = in_browser(tmp_path, page + SORT_AND_FILTER)
    lines = atlas_page.lines_of("atlas")
    rows = atlas_page.column(lines)
    down, up = ([name for name in orders[key] if name in rows] for key in ("down", "up"))
    values = [rows[name].estimate for name in down]
    assert len(values) == len(rows)
    assert [round(value, 1) for value in values] == sorted(
        (round(value, 1) for value in values), reverse=True
    )
    assert [round(rows[name].estimate, 1) for name in up] == sorted(
        round(value, 1) for value in values
    )
    added = atlas_page.added(lines)
    assert added[orders["costs"][0]][0] == max(n for n, _ in added.values())
    assert orders["byName"] == sorted(orders["byName"])
    assert sorted(orders["filtered"]) == sorted(
        row for row in rows if row.startswith("position ") and rows[row].verdict == "better"
    )
