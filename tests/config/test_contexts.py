"""Contexts: the same rows elsewhere, named after the file, and every mistake at its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate import config
from ablate.errors import SpecError
from tests.config.loading import load

BASE = """\
corpus: {name: synthetic, size: 1000}
tokenizer: word
model: {dims: {d_model: 16, n_heads: 2, max_len: 64}, n_layers: 1}
training: {steps: 20, batch_tokens: 512}
seeds: [1, 2]
"""
TWO = """\
contexts:
  narrow: {}
  wide: {model.dims.d_model: 64}
trend: model.dims.d_model
"""
ROWS = "variants: {none: {model.position: none}, rms: {model.norm: rms}}\n"


def test_each_context_has_the_rows_over_its_own_baseline(tmp_path: Path) -> None:
    experiment = load(tmp_path, BASE + TWO + ROWS)
    assert [*experiment.contexts] == ["narrow", "wide"]
    assert experiment.trend == "model.dims.d_model"
    assert experiment.context_paths == ("model.dims.d_model",)
    for name, width in (("narrow", 16), ("wide", 64)):
        of = experiment.contexts[name]
        assert of.name == f"{experiment.name}/{name}"
        assert of.path == tmp_path / f"x.yaml#{name}"
        assert [row.name for row in of.rows] == ["baseline", "none", "rms"]
        assert {row.spec.model.dims.d_model for row in of.rows} == {width}
        assert of.rows[2].spec.model.norm.name == "rms"
        assert config.load(of.path) == of
    assert config.contexts_of(tmp_path / "x.yaml") == {
        name: each.path for name, each in experiment.contexts.items()
    }
    assert config.contexts_of(tmp_path / "x.yaml#wide") == {}


def test_a_context_is_the_experiment_that_has_its_change(tmp_path: Path) -> None:
    change = "{training.steps: 40, model.norm: {name: layer, eps: 1e-4}}"
    text = f"{BASE}contexts:\n  short: {{}}\n  long: {change}\n{ROWS}"
    in_context = load(tmp_path, text).contexts["long"]
    alone = load(
        tmp_path,
        BASE.replace("steps: 20", "steps: 40") + ROWS,
        "model.norm={name: layer, eps: 1e-4}",
    )
    assert [row.spec for row in in_context.rows] == [row.spec for row in alone.rows]
    assert [row.changes for row in in_context.rows] == [row.changes for row in alone.rows]


def test_contexts_are_inherited_by_name_and_take_overrides(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text(BASE + TWO + ROWS)
    text = "contexts: {wide: {model.dims.d_model: 32}, deep: {model.n_layers: 2}}\n"
    experiment = load(tmp_path, f"extends: parent.yaml\n{text}", "contexts.deep.training.steps=30")
    sizes = [each.rows[0].spec.model.dims.d_model for each in experiment.contexts.values()]
    assert sizes == [16, 32, 16]
    layers = {row.spec.model.n_layers for row in experiment.contexts["deep"].rows}
    assert layers == {2}
    assert experiment.contexts["deep"].rows[0].spec.training.steps == 30
    assert experiment.contexts["wide"].rows[0].spec.training.steps == 20


def test_null_leaves_out_a_context_that_is_inherited(tmp_path: Path) -> None:
    three = "contexts: {narrow: , wide: {model.dims.d_model: 32}, deep: {model.n_layers: 2}}\n"
    (tmp_path / "parent.yaml").write_text(BASE + three + ROWS)
    assert [*load(tmp_path, "extends: parent.yaml\n").contexts] == ["narrow", "wide", "deep"]
    without = "extends: parent.yaml\ncontexts: {narrow: null}\n"
    assert [*load(tmp_path, without).contexts] == ["wide", "deep"]
    wide = load(tmp_path, without, "contexts.deep=null", "contexts.narrow={}")
    assert [*wide.contexts] == ["narrow", "wide"]
    with pytest.raises(SpecError, match=r"--set:1:1: contexts: needs two or more"):
        load(tmp_path, without, "contexts.deep=null")
    none = load(tmp_path, without, "contexts.deep=null", "contexts.wide=null")
    assert not none.contexts
    assert [row.name for row in none.rows] == [row.name for row in load(tmp_path, BASE + ROWS).rows]


def test_a_file_with_a_sign_in_its_name_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "x.yaml#wide").write_text(BASE + ROWS)
    assert config.load(tmp_path / "x.yaml#wide").contexts == {}


@pytest.mark.parametrize(
    ("old", "new", "mistake"),
    [
        ("d_model: 64", "d_model: 63", "8:16: contexts.wide.model.dims: d_model (63) is not a"),
        ("d_model: 64", "d_modle: 64", "8:21: contexts.wide.model.dims.d_modle: unknown option"),
        (
            "wide: {model.dims.d_model: 64}",
            "wide: {model.norm: rms}",
            "10:42: variants.rms: the row 'rms' changes nothing: it equals the baseline "
            "(in the context 'wide')",
        ),
        (
            "wide: {model.dims.d_model: 64}",
            "wide: {}",
            "8:3: contexts.wide: is the same as the context 'narrow'; remove one",
        ),
        (
            "none: {model.position: none}, rms: {model.norm: rms}}",
            "rms: {model.norm: rms}}\ngrid: {model.dims.d_model: [32, 64]}",
            "8:3: contexts.wide: has no row 'd_model=64', as that point of the grid is its",
        ),
        ("trend: model.dims.d_model", "trend: model.norm", "9:8: trend: needs the path of a"),
        (
            "trend: model.dims.d_model",
            "trend: model.dropout.attention",
            "9:8: trend: needs the path of a positive number in every context, such as "
            "model.dims.d_model",
        ),
        ("trend: model.dims.d_model", "trend: training.steps", "9:8: trend: is the same in"),
        ("  wide: {model.dims.d_model: 64}\n", "", "6:1: contexts: needs two or more"),
        ("contexts:\n  narrow: {}\n  wide: {model.dims.d_model: 64}\n", "", "6:8: trend: is of"),
        ("wide:", "'wi de':", "8:3: contexts: no context can be called 'wi de'"),
        ("wide:", "trials:", "8:3: contexts: no context can be called 'trials'"),
        (
            "wide: {model.dims.d_model: 64}",
            "wide: {seeds: [1]}",
            "8:10: contexts.wide.seeds: all contexts share 'seeds'; put it at the top level",
        ),
        (
            "trend: model.dims.d_model",
            "tune: {model.dims.d_model: [32, 64]}",
            "8:21: contexts.wide.model.dims.d_model: is what `tune` chooses for every row; leave",
        ),
        ("wide: {model.dims.d_model: 64}", "wide: 7", "8:9: contexts.wide: needs a mapping"),
        ("model.norm: rms}", "model.norm: rmms}", "10:60: variants.rms.model.norm: no norm is"),
    ],
)
def test_a_mistake_is_reported_once_where_it_is(
    tmp_path: Path, old: str, new: str, mistake: str
) -> None:
    text = BASE + TWO + ROWS
    assert old in text
    with pytest.raises(config.MistakesError) as caught:
        load(tmp_path, text.replace(old, new))
    first = str(caught.value.mistakes[0]).partition("\n")[0]
    assert f"x.yaml:{mistake}" in first
    assert len(caught.value.mistakes) == 1


def test_a_context_that_is_not_there(tmp_path: Path) -> None:
    load(tmp_path, BASE + TWO + ROWS)
    with pytest.raises(
        config.MistakesError, match="no context is called 'wid'; did you mean 'wide'"
    ):
        config.load(tmp_path / "x.yaml#wid")
