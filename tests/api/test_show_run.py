"""`ablate runs show`: which run a name is taken for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ablate import api
from ablate.api.selection import select, tasks
from ablate.cli.app import app
from ablate.errors import StoreError
from ablate.runner.devices import Device
from ablate.store import Store
from tests.made_up_runs import EXPERIMENT, finish

RESULTS = Path("results")
TRIAL = ["training.steps=3"]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path)
    path = Path("experiments", "mine.yaml")
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


def _hashes(path: Path, overrides: list[str], seed: int) -> list[str]:
    """Return the hashes of the baseline and of the row `none`."""
    runs = select(path, overrides, [seed], ["baseline", "none"]).runs
    return [task.key for task in tasks(runs, Device("cpu"), RESULTS)]


@pytest.mark.parametrize("folder", [".", "experiments"])
def test_a_name_is_of_the_run_that_the_file_describes(
    path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    finish(path, RESULTS, TRIAL, [1], ["none"])
    finish(path, RESULTS)
    results = RESULTS.absolute()
    _, none = _hashes(path, [], 1)
    monkeypatch.chdir(folder)
    assert api.show_run("mine:none:1", results=results)["hash"] == none
    shown = CliRunner().invoke(app, ["runs", "show", "mine:none:1", "--results", str(results)])
    assert json.loads(shown.stdout) == api.show_run(none, results=results)


def test_a_run_has_the_names_of_every_experiment_that_shares_it(path: Path) -> None:
    finish(path, RESULTS)
    other = Path("experiments", "other.yaml")
    other.write_text(EXPERIMENT.partition("variants:")[0], encoding="utf-8")
    shared = api.show_run("other:baseline:1")
    assert (shared["experiment"], shared["hash"]) == ("mine", _hashes(path, [], 1)[0])
    assert api.show_run("mine:baseline:1") == shared


def test_a_run_has_its_name_in_a_context_too(path: Path) -> None:
    finish(path, RESULTS)
    contexts = "contexts: {plain: {}, deep: {model.n_layers: 2}}\n"
    path.with_name("two.yaml").write_text(f"{EXPERIMENT}{contexts}", encoding="utf-8")
    assert api.show_run("two/plain:none:1")["hash"] == _hashes(path, [], 1)[1]
    deep = path.with_name("two.yaml#deep")
    finish(deep, RESULTS, TRIAL, [1], ["none"])
    with pytest.raises(StoreError, match=r"as experiments/two\.yaml#deep describes it"):
        api.show_run("two/deep:none:1")
    finish(deep, RESULTS)
    assert api.show_run("two/deep:none:1")["hash"] == _hashes(deep, [], 1)[1]


def test_a_name_is_of_no_trial(path: Path) -> None:
    finish(path, RESULTS, TRIAL, [1], ["none"])
    baseline, none = _hashes(path, TRIAL, 1)
    message = rf"no run 'mine:none:1' as experiments/mine\.yaml describes it; .*: {none}; give"
    with pytest.raises(StoreError, match=message):
        api.show_run("mine:none:1")
    assert api.show_run(none)["variant"] == "none"
    assert api.show_run(str(RESULTS / "runs" / baseline))["variant"] == "baseline"
    path.unlink()
    assert api.show_run("mine:none:1")["hash"] == none, "no file says otherwise"


def test_the_folder_of_the_file_may_be_left_out(path: Path) -> None:
    own = path.rename("mine.yaml")
    finish(own, RESULTS, TRIAL, [1], ["none"])
    with pytest.raises(StoreError, match=r"no run 'mine:none:1' as mine\.yaml describes it"):
        api.show_run("mine:none:1")
    finish(own, RESULTS)
    assert api.show_run("mine:none:1")["hash"] == _hashes(own, [], 1)[1]


def test_a_seed_that_the_file_does_not_have_is_found(path: Path) -> None:
    finish(path, RESULTS, (), [7])
    assert api.show_run("mine:none:7")["hash"] == _hashes(path, [], 7)[1]


@pytest.mark.parametrize("text", ["no: experiment", EXPERIMENT.replace("none:", "renamed:")])
def test_a_file_that_does_not_describe_the_row_leaves_the_names(path: Path, text: str) -> None:
    finish(path, RESULTS)
    _, none = _hashes(path, [], 1)
    path.write_text(text, encoding="utf-8")
    assert api.show_run("mine:none:1")["hash"] == none


def test_a_name_that_is_of_no_run_suggests_one(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(path, RESULTS)
    with pytest.raises(StoreError, match=r"no run 'mine:non:1'.* did you mean 'mine:none:1'"):
        api.show_run("mine:non:1")
    with pytest.raises(StoreError, match="no run 'mine:none:9'"):
        api.show_run("mine:none:9")
    assert capsys.readouterr().err == "", "the refusal says it all"


def test_a_shipped_experiment_leaves_the_runs_of_ones_own_file_elsewhere(path: Path) -> None:
    own = path.with_name("pe.yaml")
    path.rename(own)
    finish(own, RESULTS)
    none = _hashes(own, [], 1)[1]
    own.unlink()
    assert api.show_run("pe:none:1")["hash"] == none
    finish(Path("pe"), RESULTS, (), [1], ["none"])
    assert api.show_run("pe:none:1")["hash"] == _hashes(Path("pe"), [], 1)[1] != none


def test_the_folder_of_a_replaced_run_gives_its_replacement(path: Path) -> None:
    finish(path, RESULTS)
    baseline, none = _hashes(path, [], 1)
    store, given_up = Store(RESULTS), {"status": "failed", "engine_note": "", "replaced_by": none}
    store.save({**(store.read(baseline) or {}), **given_up})
    assert api.show_run(str(store.path(baseline)))["hash"] == none
    with pytest.raises(StoreError, match=rf"{none}: this run left no model"):
        api.Translator(str(store.path(baseline)))


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [
        ("done", None, r"its weights are not here; archives hold them with `--content weights`"),
        ("failed", "no room", r"its status is failed, no room$"),
        ("diverged", None, r"its status is diverged$"),
    ],
)
def test_a_run_without_a_model_says_why(
    status: str, error: str | None, reason: str, path: Path
) -> None:
    finish(path, RESULTS)
    store, none = Store(RESULTS), _hashes(path, [], 1)[1]
    store.save({**(store.read(none) or {}), "status": status, "error": error})
    with pytest.raises(StoreError, match=reason):
        api.Translator(none)
