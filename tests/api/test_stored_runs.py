"""`ablate runs`: what the store holds, and what may go."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ablate import api, config
from ablate.api.selection import (
    PRECISIONS,
    Fingerprints,
    hash_of,
    match_keys,
    select,
    tasks,
    tuning_runs,
)
from ablate.cli.app import app
from ablate.data.corpus import Corpus
from ablate.errors import DamagedFileWarning, DataError, SpecError, StoreError
from ablate.record import SCHEMA
from ablate.runner.devices import Device
from ablate.store import Store
from tests.made_up_runs import BASE, EXPERIMENT, MATCHED_ON_TIME, finish, finished
from tests.runner.conftest import SMALL

pytestmark = pytest.mark.commands

SPEC = json.dumps(
    {**SMALL, "seeds": [1, 2], "variants": {"learned": {"model.position": "learned"}}}
)


def _store(results: Path, run: str, **fields: Any) -> None:
    record = {"schema": SCHEMA, "hash": run, "status": "done", "error": None, **fields}
    Store(results).save(record)
    (Store(results).path(run) / "model.safetensors").write_bytes(bytes(2**20))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a folder with the two runs of a spec's baseline, one of another, one begun.

    The two were made on machines where ``precision: auto`` means different ones.
    """
    spec = tmp_path / "small.yaml"
    spec.write_text(SPEC)
    folder, fingerprints = tmp_path / "results", Fingerprints()
    for run in config.expand(config.load(spec)):
        if run.variant == "baseline":
            fingerprint = fingerprints.of(run.spec.corpus)
            assert fingerprint is not None
            precision = PRECISIONS[run.seed % 2]
            key = hash_of(run.spec, fingerprint, precision, "eager")
            test = {"test": {"bleu": 10.0 + run.seed}}
            _store(folder, key, experiment="small", variant="baseline", seed=run.seed, test=test)
    _store(folder, "f" * 16, experiment="other", variant="none", seed=1, status="failed")
    (folder / "runs" / ("e" * 16)).mkdir()
    (folder / "runs" / ("e" * 16) / "checkpoint.pt").write_bytes(b"half")
    return folder


def _spec(results: Path) -> Path:
    return results.parent / "small.yaml"


def test_runs_are_listed_with_what_is_known(results: Path) -> None:
    begun, other, *small = api.runs(results, specs=[_spec(results)])
    assert (begun.status, begun.experiment, begun.label) == ("unfinished", None, "e" * 16)
    assert begun.n_bytes == 4
    assert [(run.label, run.status, run.bleu) for run in small] == [
        ("small:baseline:1", "done", 11.0),
        ("small:baseline:2", "done", 12.0),
    ]
    assert (other.label, other.status, other.bleu) == ("other:none:1", "failed", None)
    assert other.n_bytes > 2**20
    name = config.load(_spec(results)).name
    experiments = [run.experiments for run in (begun, other, *small)]
    assert experiments == [(), (), (name,), (name,)]


def test_a_folder_that_cannot_be_read_is_an_error_of_the_store(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreError, match=r"small\.yaml/runs: cannot be read: Not a directory"):
        api.runs(_spec(results))
    scandir = os.scandir

    def refuse(folder: Any) -> Any:
        if str(folder).endswith("e" * 16):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(StoreError, match=r"e{16}: cannot be read: Permission denied"):
        api.runs(results)


@pytest.mark.parametrize(
    ("filters", "labels"),
    [
        ({"statuses": ["failed"]}, ["other:none:1"]),
        ({"labels": ["small"]}, ["small:baseline:1", "small:baseline:2"]),
        ({"labels": ["small:baseline"]}, ["small:baseline:1", "small:baseline:2"]),
        ({"labels": ["small:baseline:2", "other"]}, ["other:none:1", "small:baseline:2"]),
        ({"labels": ["fff"]}, ["other:none:1"]),
        ({"labels": ["sma"]}, []),
    ],
)
def test_runs_are_chosen(filters: dict[str, Any], labels: list[str], results: Path) -> None:
    assert sorted(run.label for run in api.runs(results, **filters)) == labels
    with pytest.raises(SpecError, match="no status is called 'Done'; did you mean 'done'"):
        api.runs(results, statuses=["Done"])


def test_garbage_is_what_no_experiment_needs(results: Path) -> None:
    with pytest.raises(StoreError, match="every run would go"):
        api.collect_garbage(results, [])
    for name in ("pe", "d" * 16):  # a folder beside the runs, and one that is no run
        (results / "runs" / name).mkdir()
        (results / "runs" / name / "thesis.tex").write_text("precious")
    garbage = api.collect_garbage(results, [_spec(results)], is_trial=True)
    assert sorted(run.label for run in garbage) == ["e" * 16, "other:none:1"]
    assert len(api.runs(results)) == 4
    assert api.collect_garbage(results, [_spec(results)]) == garbage
    assert [run.label for run in api.runs(results)] == ["small:baseline:1", "small:baseline:2"]
    assert len(list((results / "runs").glob("*/thesis.tex"))) == 2


@pytest.mark.parametrize("folders", [("experiments", "experiments/more"), ("a/same", "b/same")])
def test_files_of_one_name_need_the_runs_of_both(folders: tuple[str, str], tmp_path: Path) -> None:
    results, archive = tmp_path / "results", tmp_path / "both.tar"
    specs = [tmp_path / folder / "study.yaml" for folder in folders]
    for steps, spec in enumerate(specs, start=6):
        spec.parent.mkdir(parents=True, exist_ok=True)
        spec.write_text(EXPERIMENT.replace("steps: 6", f"steps: {steps}"))
        finish(spec, results)
    for given in (specs, specs[::-1]):
        assert api.collect_garbage(results, given, is_trial=True) == []
        archived = api.archive(given, archive, results=results)
        assert [run.run for run in archived] == [run.run for run in api.runs(results)]
        assert len(archived) == 12


def test_a_table_shows_the_kind_of_which_most_runs_are_finished(tmp_path: Path) -> None:
    spec, store = finished(tmp_path, only=["rms"]), Store(tmp_path / "results")
    for task in tasks(select(spec).runs, Device("cpu"), store.results, engine="cuda_graph"):
        store.save(task.record("oom", "too large"))
    records = api.report(spec, results=store.results).records.values()
    assert {record["status"] for record in records} == {"done"}


@pytest.fixture
def matched(tmp_path: Path) -> Path:
    """Return an experiment with runs of a row that has as many parameters as its baseline."""
    match = "match: {on: params, via: model.feed_forward.d_ff, tolerance: 0.05}\n"
    gated = "  gated: {model.feed_forward.name: swiglu}\n"
    return finished(tmp_path, f"{BASE}variants:\n{gated}{match}")


def test_runs_of_a_matched_row_are_no_garbage_while_its_value_is_not_known(
    matched: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = matched.parent / "results"
    assert api.collect_garbage(results, [matched]) == []
    monkeypatch.setattr(Corpus, "is_available", lambda _: False)
    reason = r"pe\.yaml: the matched value of model\.feed_forward\.d_ff is not known for gated"
    with pytest.raises(StoreError, match=rf"nothing is removed: .*{reason}.*synthetic.*; or leave"):
        api.collect_garbage(results, [matched])
    assert len(api.runs(results)) == 4
    assert capsys.readouterr().err == ""
    listed = api.runs(results, specs=[matched])
    assert sorted(run.row or "" for run in listed if run.experiments) == ["baseline"] * 2
    assert "the matched value" in capsys.readouterr().err


def test_runs_of_a_row_matched_on_time_are_no_garbage_without_its_match(tmp_path: Path) -> None:
    spec, store = tmp_path / "study.yaml", Store(tmp_path / "results")
    spec.write_text(MATCHED_ON_TIME)
    with pytest.raises(StoreError, match=r"the matched value of training\.steps is not known"):
        api.collect_garbage(store.results, [spec])
    for key in match_keys(config.load(spec)).values():
        store.save_match(key, {"value": 4})
    finish(spec, store.results)
    assert api.collect_garbage(store.results, [spec]) == []
    shutil.rmtree(store.results / "matches")
    with pytest.raises(StoreError, match=r"the matched value of training\.steps is not known"):
        api.collect_garbage(store.results, [spec])


def test_the_command_that_chooses_a_value_is_one_for_a_shell(tmp_path: Path) -> None:
    spec = tmp_path / "my study.yaml"
    spec.write_text(MATCHED_ON_TIME)
    with pytest.raises(StoreError, match=rf"`ablate run '{re.escape(str(spec))}'` chooses it"):
        api.collect_garbage(tmp_path / "results", [spec])


def test_runs_of_a_tuned_row_are_no_garbage_while_a_tuning_run_is_damaged(tmp_path: Path) -> None:
    spec, store = tmp_path / "study.yaml", Store(tmp_path / "results")
    tune = "tune: {training.schedule.lr: [1e-3, 2e-3], seeds: [8]}\n"
    spec.write_text(BASE + tune)
    assert api.collect_garbage(store.results, [spec]) == [], "nothing is tuned, so nothing trained"
    loaded = config.load(spec)
    tuning = tuning_runs(config.tuning_of(loaded), [row.name for row in loaded.rows])
    todo = tasks(tuning.runs, Device("cpu"), store.results)
    for loss, task in enumerate(todo, start=1):
        store.save(task.record("done", None, dev={"nll": float(loss)}))
    finish(spec, store.results)
    assert api.collect_garbage(store.results, [spec]) == []
    (store.path(todo[0].key) / "record.json").write_text("{")
    message = r"the tuned value of training\.schedule\.lr is not known for baseline"
    with pytest.warns(DamagedFileWarning), pytest.raises(StoreError, match=message):
        api.collect_garbage(store.results, [spec])


def test_garbage_is_not_known_without_the_content_of_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path))
    monkeypatch.delenv("ABLATE_CORPORA", raising=False)
    spec = tmp_path / "study.yaml"
    spec.write_text(EXPERIMENT.replace("{name: synthetic, size: 1000}", "iwslt14"))
    with pytest.raises(DataError, match=r"'iwslt14' is not known.*`ablate corpora fetch iwslt14`"):
        api.collect_garbage(tmp_path / "results", [spec])


def test_an_experiment_with_contexts_names_the_runs_of_each(tmp_path: Path) -> None:
    for key, experiment in ("a" * 16, "size/wide"), ("b" * 16, "size/deep"), ("c" * 16, "sizes"):
        _store(tmp_path, key, experiment=experiment, variant="none", seed=1)
    of_size = api.runs(tmp_path, labels=["size"])
    assert [run.experiment for run in of_size] == ["size/deep", "size/wide"]


@pytest.mark.parametrize("label", ["e1", "e1:none", "e1:none:1"])
def test_a_name_takes_no_run_by_its_hash(label: str, tmp_path: Path) -> None:
    named, hashed = "a" * 16, "e1" + "0" * 14
    _store(tmp_path, named, experiment="e1", variant="none", seed=1)
    _store(tmp_path, hashed, experiment="pe", variant="none", seed=1, status="failed")
    assert [run.run for run in api.runs(tmp_path, labels=[label])] == [named]
    assert api.runs(tmp_path, labels=[label], statuses=["failed"]) == []
    assert [run.run for run in api.runs(tmp_path, labels=[label, "e10"])] == [named, hashed]
    assert [run.run for run in api.remove(tmp_path, [label])] == [named]
    assert [run.run for run in api.runs(tmp_path, labels=["e1"])] == [hashed]


def test_runs_are_removed_unless_a_label_fits_none(results: Path) -> None:
    with pytest.raises(StoreError, match="no run 'smal'"):
        api.remove(results, ["other", "smal"])
    with pytest.raises(StoreError, match="did you mean 'small:baseline:2'"):
        api.remove(results, ["all:baseline:2"])
    assert len(api.runs(results)) == 4
    api.remove(results, ["other", "small:baseline:2"])
    assert [run.label for run in api.runs(results)] == ["e" * 16, "small:baseline:1"]


def test_a_label_that_fits_no_run_is_said_with_the_names_that_there_are(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where study/small.yaml is called by its last part."""
    assert api.runs(results, labels=["mall", "other"]) == api.runs(results, labels=["other"])
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("no stored run or experiment is called 'mall'; did you mean")
    assert said.endswith("known: other, small")


def test_one_text_is_refused_as_labels(results: Path) -> None:
    """Of the text each letter would be a label: the beginning of the hash of any run."""
    for choose in (lambda: api.remove(results, "e" * 16), lambda: api.runs(results, labels="eee")):
        with pytest.raises(SpecError, match=r"labels are a list, as in \['eee"):
            choose()
    assert len(api.runs(results)) == 4


def test_what_is_at_work_stays(results: Path) -> None:
    with Store(results).lock("e" * 16):
        assert [run.run for run in api.runs(results) if run.is_at_work] == ["e" * 16]
        assert api.remove(results, ["eee"]) == []
    assert [run.run for run in api.remove(results, ["eee"])] == ["e" * 16]


def test_of_a_run_that_is_a_link_the_link_alone_is_removed(results: Path, tmp_path: Path) -> None:
    link, elsewhere = results / "runs" / ("e" * 16), tmp_path / "elsewhere"
    link.rename(elsewhere)
    link.symlink_to(elsewhere)
    assert [run.status for run in api.runs(results, labels=["eee"])] == ["link"]
    assert [run.run for run in api.remove(results, ["eee"])] == ["e" * 16]
    assert not link.is_symlink()
    assert [file.name for file in elsewhere.iterdir()] == ["checkpoint.pt"]


def test_a_folder_that_a_run_removes_meanwhile_has_no_size(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (results / "runs" / ("e" * 16) / "snapshots").mkdir()
    scandir = os.scandir

    def vanishing(path: Any) -> Any:
        if Path(path).name == "snapshots":
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert [run.n_bytes for run in api.runs(results, labels=["e" * 16])] == [4]


def test_what_is_removed_halfway_counts_as_unfinished(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(folder: Path, **_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", "log.txt")

    (run,) = api.runs(results, labels=["small:baseline:1"])
    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with pytest.raises(StoreError, match=rf"{run.run}: cannot be removed: Read-only file system"):
        api.remove(results, [run.label])
    assert [each.status for each in api.runs(results, labels=[run.run])] == ["unfinished"]


def test_the_commands_say_what_they_would_do_and_do_it_with_yes(results: Path) -> None:
    def output_of(*words: str) -> str:
        outcome = CliRunner().invoke(app, ["runs", *words, "--results", str(results)])
        assert outcome.exit_code == 0, outcome.output
        return outcome.output

    spec = str(_spec(results))
    listed = output_of("list", "--experiment", spec)
    assert "4 runs, 3.0 MiB" in listed
    assert "needed by" in listed
    statuses = {run["status"] for run in json.loads(output_of("list", "--json"))}
    assert statuses == {"done", "failed", "unfinished"}
    assert json.loads(output_of("show", "other:none:1"))["status"] == "failed"
    assert "2 runs, 1.0 MiB, would be removed; --yes removes them" in output_of("gc", spec)
    assert "other:none:1  failed" in output_of("gc", spec, "--yes")
    assert "2 runs, 2.0 MiB" in output_of("list")
    assert "1 run, 1.0 MiB, removed" in output_of("remove", "small:baseline:1", "--yes")
    quiet = CliRunner().invoke(app, ["status", "--results", str(results)])
    assert (quiet.exit_code, quiet.output) == (0, f"nothing is at work on {results}\n")
    absent = CliRunner().invoke(app, ["runs", "list", "--results", str(results / "nowhere")])
    assert (absent.exit_code, absent.stderr) == (0, f"there is no folder {results / 'nowhere'}\n")
