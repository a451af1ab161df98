"""Published numbers and the band of no difference, in a file and in a plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate import config
from ablate.api import plan
from ablate.config import identity
from tests.config.loading import load

VASWANI = """
question: What does a row buy?
model:
  dims: {d_model: 16, n_heads: 2, max_len: 16}
  n_layers: 1
  feed_forward: {name: relu, d_ff: 32}
variants:
  rms: {model.norm: rms}
grid: {model.scaling: [none]}
"""
PUBLISHED = """
published:
  source: A paper, table 3
  note: Their vocabulary is larger.
  rows:
    baseline: {params: 65e6, bleu: 25.8, ppl: 4.92}
    scaling=none: {bleu: 26}
"""


def test_rows_have_the_numbers_that_are_given_and_no_others(tmp_path: Path) -> None:
    published = load(tmp_path, VASWANI + PUBLISHED).published
    assert published is not None
    assert published.source == "A paper, table 3"
    assert published.note == "Their vocabulary is larger."
    assert published.of("baseline") == {"params": 65e6, "bleu": 25.8, "ppl": 4.92}
    assert published.of("scaling=none") == {"bleu": 26.0}
    assert published.of("rms") == {}
    assert load(tmp_path, VASWANI).published is None


@pytest.mark.parametrize("more", [PUBLISHED, "negligible: {bleu: 3}"])
def test_it_is_no_part_of_any_run(tmp_path: Path, more: str) -> None:
    without, within = (load(tmp_path, VASWANI + text).rows for text in ("", more))
    assert without == within
    names = [[identity(row.spec, "content", "fp32") for row in rows] for rows in (without, within)]
    assert names[0] == names[1]


def test_what_is_negligible_is_merged_key_by_key(tmp_path: Path) -> None:
    plain = load(tmp_path, VASWANI).negligible
    assert (plain.bleu, plain.nll) == (1.0, 0.02)
    (tmp_path / "parent.yaml").write_text("negligible: {bleu: 0.5, nll: 0.01}")
    child = load(tmp_path, "extends: parent.yaml\nnegligible: {bleu: 2}").negligible
    assert (child.bleu, child.nll) == (2, 0.01)
    assert load(tmp_path, VASWANI, "negligible.nll=0").negligible.nll == 0


def test_children_add_to_it_replace_it_and_take_it_away(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text(VASWANI + PUBLISHED)

    def of_child(text: str, *overrides: str) -> config.Published | None:
        return load(tmp_path, f"extends: parent.yaml\n{text}", *overrides).published

    assert of_child("seeds: [1]") == load(tmp_path, VASWANI + PUBLISHED).published
    more = of_child("published: {note: Ours., rows: {baseline: {bleu: 27.3}, rms: {ppl: 5}}}")
    assert more is not None
    assert (more.source, more.note) == ("A paper, table 3", "Ours.")
    assert more.of("baseline") == {"params": 65e6, "bleu": 27.3, "ppl": 4.92}
    assert more.of("rms") == {"ppl": 5.0}
    assert of_child("published: null") is None
    overridden = of_child("seeds: [1]", "published.rows.rms.bleu=24.9")
    assert overridden is not None
    assert overridden.of("rms") == {"bleu": 24.9}


def test_a_row_that_is_null_has_no_numbers_any_more(tmp_path: Path) -> None:
    parent = "variants: {a: {model.norm: rms}, b: {model.norm: none}}\n"
    numbers = "published: {source: s, rows: {a: {bleu: 3}, b: {bleu: 4}}}\n"
    (tmp_path / "parent.yaml").write_text(parent + numbers)
    child = "extends: parent.yaml\nvariants: {a: null"
    published = load(tmp_path, f"{child}}}").published
    assert published is not None
    assert [*published.rows] == ["b"]
    assert load(tmp_path, f"{child}, b: null}}").published is None
    with pytest.raises(config.MistakesError, match=r"x\.yaml:3:.*no row is called 'a'"):
        load(tmp_path, f"{child}}}\npublished: {{rows: {{a: {{bleu: 5}}}}}}")


def test_a_point_of_a_grid_that_is_the_baseline_has_no_numbers_of_its_own(tmp_path: Path) -> None:
    text = "grid: {model.scaling: [sqrt_dk, none]}\npublished: {source: s, rows: {%s: {ppl: 5}}}"
    with pytest.raises(config.MistakesError, match="no row is called 'scaling=sqrt_dk'"):
        load(tmp_path, text % "scaling=sqrt_dk")
    assert load(tmp_path, text % "scaling=none").published


def test_a_plan_holds_our_counts_against_theirs(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(VASWANI + PUBLISHED)
    planned = plan(tmp_path / "x.yaml", device="cpu", results=tmp_path / "results")
    assert [row.published.get("params") for row in planned.rows] == [65e6, None, None]
    assert planned.remarks()[-2:] == [
        "published, source: A paper, table 3",
        "published, note: Their vocabulary is larger.",
    ]
    plain = planned.to_json()
    assert plain["published"] == {
        "source": "A paper, table 3",
        "note": "Their vocabulary is larger.",
    }
    assert plain["rows"][2]["published"] == {"bleu": 26.0}
