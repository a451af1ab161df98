"""Experiments and results in Python: the same runs and numbers as the command's."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from typer.testing import CliRunner

import ablate
from ablate import api, config
from ablate.api import metrics
from ablate.cli.app import app
from ablate.config import shipped
from ablate.errors import DataError, SpecError, StoreError
from tests.made_up_runs import BASE, EXPERIMENT, finish, finished
from tests.registrations import temporary_registrations
from tests.runner.conftest import SMALL

CHANGES = {"training.steps": 30, "model.norm.eps": 1e-6}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> ablate.Study:
    """Return two small rows, trained."""
    folder = tmp_path_factory.mktemp("study")
    small = ablate.Experiment("small", SMALL).with_content(seeds=[1, 2])
    experiment = small.variant("shaw", {"model.position": "shaw"})
    return ablate.run(
        experiment,
        results=folder / "results",
        device="cpu",
        jobs=2,
        probes=False,
        figures=False,
    )


@pytest.mark.e2e
def test_the_table_is_the_csv_and_what_is_stored_is_found_again(study: ablate.Study) -> None:
    written = pd.read_csv(study.store.results / "small" / "table.csv").set_index("row")
    pd.testing.assert_frame_equal(study.table(), written)
    assert list(study.table().index) == ["baseline", "shaw"]
    again = ablate.study(
        study.store.results / "experiments" / "small.yaml", results=study.store.results
    )
    pd.testing.assert_frame_equal(again.table(), study.table())
    assert repr(again) == "Study('small', 2 rows, 4 records)"
    assert study.conclusion in again._repr_html_()
    assert "<table" in again._repr_html_()


@pytest.mark.e2e
def test_curves_and_translations_are_those_of_the_runs(study: ablate.Study) -> None:
    curves = study.curves()
    assert sorted(set(zip(curves["row"], curves["seed"], strict=True))) == sorted(study.records)
    assert curves["step"].max() == SMALL["training"]["steps"]
    translations = study.translations("test")
    assert list(translations.columns[2:]) == [f"{row}:{seed}" for row, seed in study.records]
    run = study.store.path(study.records["shaw", 2]["hash"])
    lines = (run / "hypotheses.test.txt").read_text(encoding="utf-8").splitlines()
    assert list(translations["shaw:2"]) == lines
    with pytest.raises(SpecError, match="no test set 'nope'; it has test, "):
        study.translations("nope")


@pytest.mark.e2e
def test_a_run_is_loaded_and_translates_as_it_did(study: ablate.Study) -> None:
    run = ablate.load_run("small:shaw:1", results=study.store.results)
    translations = study.translations()
    sources = list(translations["source"][:20])
    assert run.translate(sources) == list(translations["shaw:1"][:20])
    assert run.record["hash"] == study.records["shaw", 1]["hash"]
    translated = api.translate("small:shaw:1", sources[0], results=study.store.results)
    assert (
        [best.text for (best,) in translated]
        == run.translate(sources[0])
        == [translations["shaw:1"][0]]
    )
    with pytest.warns(
        UserWarning, match=r"line 1 has 100 tokens; only the first \d+ are translated"
    ):
        run.translate("ab " * 100)


@pytest.mark.e2e
@pytest.mark.usefixtures("machine")
def test_a_gpu_translates_without_tf32_as_a_run_does(study: ablate.Study) -> None:
    torch.set_float32_matmul_precision("high")  # as TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 does
    try:
        ablate.load_run("small:shaw:1", device="cuda:1", results=study.store.results)
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.e2e
@pytest.mark.parametrize("row", ["baseline", "shaw"])
def test_attention_is_shown_by_token(study: ablate.Study, row: str) -> None:
    run = ablate.load_run(f"small:{row}:1", results=study.store.results)
    source = study.translations()["source"][0]
    maps = {each.name: each for each in run.attention(source, "ab ab ab")}
    assert list(maps) == ["encoder.0", "decoder.0", "cross.0"]
    for each in maps.values():
        assert each.weights.shape == (2, len(each.queries), len(each.keys))
        np.testing.assert_allclose(each.weights.sum(axis=-1), 1.0, rtol=1e-5)
    *words, end = maps["encoder.0"].queries
    assert "".join(words).replace("▁", " ").split() == source.split()
    assert end == "< eos>"
    assert len(maps["decoder.0"].queries) == 4  # BOS and three words that it has not learned
    upper = np.triu(maps["decoder.0"].weights[0], k=1)
    assert not upper.any()
    assert maps["cross.0"].head(1).shape == (4, len(maps["encoder.0"].keys))


@pytest.mark.e2e
@pytest.mark.parametrize("row", ["baseline", "shaw"])
def test_a_head_is_pruned_as_if_the_output_had_no_columns_for_it(
    study: ablate.Study, row: str
) -> None:
    run = ablate.load_run(f"small:{row}:1", results=study.store.results)
    src, tgt = torch.tensor([[5, 6, 7, 2]]), torch.tensor([[1, 5, 6]])
    layers = {
        "encoder.0": run.model.encoder.blocks[0].attention,
        "decoder.0": run.model.decoder.blocks[0].attention,
        "cross.0": run.model.decoder.blocks[0].cross_attention,
    }
    with torch.no_grad():
        whole = run.model(src, tgt)
        for name, attention in layers.items():
            assert attention is not None
            with run.without_heads({name: [1]}):
                pruned = run.model(src, tgt)
            weight = attention.out.weight
            kept = weight.clone()
            weight.unflatten(1, (2, -1))[:, 1] = 0
            torch.testing.assert_close(pruned, run.model(src, tgt))
            weight.copy_(kept)
            assert not torch.allclose(pruned, whole)
        assert torch.equal(run.model(src, tgt), whole)


@pytest.mark.e2e
def test_translations_without_heads_are_others_and_come_back(study: ablate.Study) -> None:
    run = ablate.load_run("small:baseline:1", results=study.store.results)
    sources = list(study.translations()["source"][:20])
    usual = run.translate(sources)
    with run.without_heads({name: [0, 1] for name in ("encoder.0", "decoder.0", "cross.0")}):
        assert run.translate(sources) != usual
    assert run.translate(sources) == usual
    with pytest.raises(SpecError, match=r"no sub-layer is called 'encoder.1'; known: encoder.0, "):
        run.without_heads({"encoder.1": [0]}).__enter__()
    with pytest.raises(SpecError, match=r"cross.0 has no head 2; it has 0 to 1"):
        run.without_heads({"cross.0": [1, 2]}).__enter__()


@pytest.mark.e2e
def test_a_run_is_inspected_by_name(study: ablate.Study, tmp_path: Path) -> None:
    results = ["--results", str(study.store.results), "--output", str(tmp_path / "figures")]
    source = study.translations()["source"][0]
    command = ["inspect", "small:shaw:1", "--sentence", source, *results]
    printed = CliRunner().invoke(app, command)
    assert printed.exit_code == 0, printed.output
    names = {f"attention.{name}.0" for name in ("encoder", "decoder", "cross")}
    files = {path.name for path in (tmp_path / "figures").iterdir()}
    assert files == {f"{name}.{kind}" for name in names for kind in ("svg", "png", "csv")}
    assert printed.stderr.startswith(f"sentence: {source}\ntranslation: ")
    assert "'shaw' has no similarity by distance of its own" in printed.stderr
    run = ablate.load_run("small:baseline:1", results=study.store.results)
    inspection = api.inspect(run, source, "ab ab")
    assert inspection.translation == "ab ab"
    assert [drawing.name for drawing in inspection.drawings()][-1] == "positions"
    with pytest.raises(SpecError, match="the sentence is empty"):
        api.inspect(run, " ")
    with pytest.raises(SpecError, match="a sentence is longer than the model's"):
        api.inspect(run, "ab " * 999)
    assert api.inspect(run).source == source


@pytest.mark.e2e
def test_what_has_no_weights_is_named(study: ablate.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ablate.load_run("small:baseline:1", results=study.store.results)
    maps = run.attention("ab", "ab")
    monkeypatch.setattr(run, "attention", lambda *_: maps[:2])
    (remark,) = api.inspect(run, "ab").remarks
    assert remark == "cross.0 has no attention weights: the part 'full' makes none"


def test_rows_keep_their_names_and_changes_to_nothing(tmp_path: Path) -> None:
    names = ["None", "NA", "null", "nan"]
    changes = ["training.clip: null", *(f"training.clip: {clip}" for clip in (2.0, 3.0, 4.0))]
    rows = zip(names, changes, strict=True)
    text = EXPERIMENT.replace("{steps: 6,", "{steps: 6, clip: 1.0,")
    text += "".join(f'  "{name}": {{{change}}}\n' for name, change in rows)
    read = ablate.study(finished(tmp_path, text), results=tmp_path / "results").table()
    assert list(read.index) == ["baseline", "none", "rms", *names]
    assert list(read["change.training.clip"][3:]) == ["null", "2.0", "3.0", "4.0"]
    assert read["change.training.clip"][:3].isna().all()
    assert read["test.test.bleu.mean"].dtype == np.float64


def test_a_row_may_change_a_truth_value(tmp_path: Path) -> None:
    text = f"{BASE}variants: {{plain: {{model.norm.bias: false}}}}\n"
    read = ablate.study(finished(tmp_path, text), results=tmp_path / "results").table()
    assert read["change.model.norm.bias"].isna().tolist() == [True, False]
    assert read.loc["plain", "change.model.norm.bias"] is False


def test_rows_keep_their_names_in_contexts(tmp_path: Path) -> None:
    contexts = "contexts: {narrow: {}, wide: {model.dims.d_model: 32}}\n"
    rows = 'variants: {"1": {model.position: none}, "nan": {model.norm: rms}}\n'
    path = tmp_path / "size.yaml"
    path.write_text(f"{BASE}{contexts}{rows}", encoding="utf-8")
    for each in api.contexts_of(path).values():
        finish(each, tmp_path / "results")
    table = ablate.study(path, results=tmp_path / "results").table()
    assert list(dict.fromkeys(table.index)) == ["1", "nan"]
    assert table["estimate"].dtype == np.float64


def test_the_view_has_every_column_of_the_table(tmp_path: Path) -> None:
    study = ablate.study(finished(tmp_path), results=tmp_path / "results")
    view = study.view()
    assert list(view.index) == ["baseline", "none", "rms"]
    for block in study.outcome.table.blocks:
        for column in block.columns[1:]:
            cells = [cell.text for cell in study.outcome.table.column(column.key)]
            assert cells in view[[column.title]].to_numpy().T.tolist()


def test_translations_stand_beside_the_text_that_they_are_of_alone(tmp_path: Path) -> None:
    study = ablate.study(finished(tmp_path, has_files=True), results=tmp_path / "results")
    assert list(study.translations().columns[:3]) == ["source", "reference", "baseline:1"]
    for record in study.records.values():
        record["corpus"]["fingerprint"] = "other"
    with pytest.raises(DataError, match="and runs have read other: its files have changed since"):
        study.translations()
    details = study.outcome.table.details
    assert details is not None
    assert details.texts() == {}


def test_scores_that_cannot_be_stored_are_shown_with_a_remark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(path: Path, _: str) -> None:
        raise StoreError(f"{path}: cannot be written: Read-only file system")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(metrics, "write_whole", refuse)
    with temporary_registrations():
        api.init(part="metric")
        text = f"{EXPERIMENT}plugins: my_metric.py\nmetrics: {{name: my_metric, n: 1}}\n"
        finished(Path(), text, has_files=True)
        cells = api.report("pe.yaml").table.column("test.test.my_metric")
    assert all(float(cell.text) > 0 for cell in cells)
    [line] = [x for x in capsys.readouterr().err.splitlines() if x.startswith("scores")]
    assert line.startswith("scores of further metrics are printed, but not kept: results/runs/")
    assert line.endswith("metrics.json: cannot be written: Read-only file system")


def test_python_and_yaml_give_the_same_runs(tmp_path: Path) -> None:
    written = tmp_path / "same.yaml"
    written.write_text(
        "extends: ablate:presets/laptop\n"
        "seeds: [1, 2]\n"
        "training: {steps: 30}\n"
        "model: {norm: {eps: 1e-6}}\n"
        "variants:\n  learned: {model.position: learned}\n"
    )
    experiment = ablate.Experiment.baseline("same", CHANGES, seeds=[1, 2])
    experiment = experiment.variant("learned", {"model.position": "learned"})
    hashes = ablate.hashes(experiment, results=tmp_path / "results")
    assert hashes == ablate.hashes(written, results=tmp_path / "results")
    assert list(hashes) == [("baseline", 1), ("baseline", 2), ("learned", 1), ("learned", 2)]
    assert len(set(hashes.values())) == 4
    assert ablate.hashes(experiment.save(tmp_path / "again.yaml")) == hashes


def test_methods_leave_the_experiment_as_it_is() -> None:
    first = ablate.Experiment.baseline(changes={"model.norm": "rms"})
    grid = first.variant("x", {}).grid({"model.n_layers": (1, 2)})
    assert yaml.safe_load(first.to_yaml()) == {
        "extends": "ablate:presets/laptop",
        "model": {"norm": "rms"},
    }
    assert yaml.safe_load(str(grid))["grid"] == {"model.n_layers": [1, 2]}


def test_texts_that_look_like_numbers_stay_texts(tmp_path: Path) -> None:
    first = ablate.Experiment.baseline(question="12e4").variant("1e3", {"model.norm": "rms"})
    read = config.load(first.save(tmp_path / "numbers.yaml"))
    assert read.question == "12e4"
    assert [row.name for row in read.rows] == ["baseline", "1e3"]


@pytest.mark.parametrize(
    "changes",
    [
        {"model.norm.eps": 1e-3, "model.norm": "rms"},
        {"model.norm": "rms", "model.norm.eps": 1e-3},
        {"model.norm.eps": 1e-3, "model": {"norm": "rms"}},
        {"model": {"norm": {"eps": 1e-3}}, "model.norm.name": "rms"},
    ],
)
def test_changes_of_one_part_are_merged_in_any_order(changes: dict[str, object]) -> None:
    experiment = ablate.Experiment.baseline(changes=changes, extends=None)
    assert experiment.content == {"model": {"norm": {"name": "rms", "eps": 1e-3}}}


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"model": {"norm": "rms"}, "model.norm": "none"}, r"model\.norm"),
        ({"model.n_layers": 2, "model.n_layers.encoder": 3}, r"model\.n_layers\.encoder"),
        ({"model.norm": "rms", "model": {"norm": {"name": "none"}}}, r"model\.norm\.name"),
    ],
)
def test_changes_that_contradict_each_other_are_refused(
    changes: dict[str, object], path: str
) -> None:
    with pytest.raises(SpecError, match=f"^{path}: is given twice"):
        ablate.Experiment.baseline(changes=changes)


def test_a_variant_or_a_grid_that_is_given_twice_is_refused() -> None:
    first = ablate.Experiment.baseline().variant("a", {"model.norm": "rms"})
    with pytest.raises(SpecError, match=r"^variants\.a: is given twice; choose another name"):
        first.variant("a", {"model.norm": "none"})
    with pytest.raises(SpecError, match=r"^grid: is given twice; give all paths at once"):
        first.grid({"model.n_layers": [1]}).grid({"model.norm": ["rms"]})


@pytest.mark.parametrize(
    ("seeds", "values", "reason"),
    [
        (3, ["rms"], "needs a list of seeds, as in"),
        ("12", ["rms"], "seeds: needs a list; '12' is a string"),
        ([1], "rms", r"grid\.model\.norm: needs a list of the values to try"),
    ],
)
def test_what_is_no_list_is_refused_as_in_a_file(
    seeds: Any, values: Any, reason: str, tmp_path: Path
) -> None:
    experiment = ablate.Experiment.baseline(seeds=seeds).grid({"model.norm": values})
    with pytest.raises(SpecError, match=reason):
        ablate.hashes(experiment, results=tmp_path)


def test_values_may_be_numbers_of_numpy_and_paths(tmp_path: Path) -> None:
    experiment = (
        ablate.Experiment.baseline(
            "x", {"training.steps": np.int64(30), "training.teacher": tmp_path}, extends=None
        )
        .variant("rms", {"model.norm.eps": np.float32(0.5)})
        .grid({"training.schedule.lr": np.linspace(1e-3, 2e-3, 2)})
        .with_content(seeds=np.arange(1, 3), tune={"model.n_layers": (1, np.int64(2))})
    )
    assert yaml.safe_load(experiment.to_yaml()) == {
        "training": {"steps": 30, "teacher": str(tmp_path)},
        "variants": {"rms": {"model.norm.eps": 0.5}},
        "grid": {"training.schedule.lr": [0.001, 0.002]},
        "seeds": [1, 2],
        "tune": {"model.n_layers": [1, 2]},
    }


def test_what_yaml_cannot_hold_is_refused_by_its_path(tmp_path: Path) -> None:
    experiment = ablate.Experiment.baseline().grid({"model.norm": [{"rms"}]})
    with pytest.raises(
        SpecError, match=r"^grid\.model\.norm\.0: .* cannot hold \{'rms'\}, of type"
    ):
        experiment.save(tmp_path / "x.yaml")


def test_an_extended_file_is_named_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text("model: {norm: rms}\n")
    experiment = ablate.Experiment.baseline("mine", extends="base.yaml", seeds=[1])
    (row,) = config.load(experiment.save("elsewhere/mine.yaml")).rows
    assert row.spec.model.norm.name == "rms"


PLUGIN = """
from typing import Annotated
from ablate.parts.norm import Norm
from ablate.registry import FilePaths, register

@register("filed", source="a test")
class Filed(Norm):
    def __init__(self, dims, *, path: Annotated[str, FilePaths()] = "none"):
        super().__init__(dims)

    def forward(self, x):
        return 2 * x
"""


def test_paths_begin_where_the_experiment_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(PLUGIN)
    both, there = ["a.en", "/a.de"], [str(tmp_path / "a.en"), "/a.de"]
    experiment = ablate.Experiment.baseline(
        changes={"corpus": {"name": "files", "train": both, "tests": {"x": both}}},
        extends=None,
    ).with_content(
        extends=["ablate:presets/tiny", "b.yaml"],
        plugins="mine.py",
        metrics=["bleu", {"name": "comet", "model": "m.ckpt"}],
        leave_one_out=[{"training.teacher": "t"}, {"training": {"teacher": "t"}}],
        grid={"training.teacher": ["t", None]},
        tune={"seeds": [7], "model.norm.path": ["t"]},
    )
    varied = experiment.variant("a", {"model.norm": {"name": "filed", "path": Path("t")}})
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    teacher = str(tmp_path / "t")
    with temporary_registrations():
        assert yaml.safe_load(varied.with_content(seeds=[1]).to_yaml()) == {
            "corpus": {"name": "files", "train": there, "tests": {"x": there}},
            "extends": ["ablate:presets/tiny", str(tmp_path / "b.yaml")],
            "plugins": str(tmp_path / "mine.py"),
            "metrics": ["bleu", {"name": "comet", "model": str(tmp_path / "m.ckpt")}],
            "leave_one_out": [{"training.teacher": teacher}, {"training": {"teacher": teacher}}],
            "grid": {"training.teacher": [teacher, None]},
            "tune": {"seeds": [7], "model.norm.path": [teacher]},
            "variants": {"a": {"model.norm": {"name": "filed", "path": teacher}}},
            "seeds": [1],
        }


def test_shipped_experiments_are_found_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"pe", "presets/laptop", "multi30k/pe"} <= set(shipped.names())
    assert ("learned", 1) in ablate.hashes("pe")
    Path("pe").write_text("variants: {x: {model.norm: rms}}\n")  # what is there goes first
    assert {row for row, _ in ablate.hashes("pe")} == {"baseline", "x"}
    with pytest.raises(SpecError, match="no file 'heds', nor a shipped one; did you mean 'heads'"):
        api.plan("heds")
    for parent, reason in {
        "ablate:presets/lapto": "did you mean 'ablate:presets/laptop'",
        "heds": "did you mean 'ablate:heads'",
        "presets/laptop": "'presets/laptop'; the shipped one is called 'ablate:presets/laptop'",
        "below/multi30k/pe.yaml": "the shipped one is called 'ablate:multi30k/pe'",
    }.items():
        Path("x.yaml").write_text(f"extends: {parent}\n")
        with pytest.raises(SpecError, match=reason):
            api.plan("x.yaml")
    with pytest.raises(SpecError, match=r"'experiments/pe\.yaml'; the shipped one is called 'pe'"):
        api.plan("experiments/pe.yaml")


def test_the_names_of_the_package_are_loaded_when_they_are_used() -> None:
    code = (
        "import sys, ablate; print('torch' in sys.modules, dir(ablate) == sorted(ablate.__all__))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert printed.stdout == "False True\n"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ablate.nothing  # noqa: B018


def test_the_page_names_all_that_is_public() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    for name in ablate.__all__:
        assert name == "__version__" or f"`ablate.{name}" in page, name
    for name in api.__all__:
        assert re.search(rf"`(ablate\.)?{name}\b", page), name


def test_the_code_of_the_page_uses_no_name_that_it_does_not_make() -> None:
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    code = "".join(block.split("```")[0] for block in page.split("```python\n")[1:])
    nodes = list(ast.walk(ast.parse(code)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    made |= {
        alias.name.split(".")[0]
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert {node.id for node in names} - made - set(dir(builtins)) == set()
