"""Exports to trackers: what the tool of each reads back, and what becomes of failures."""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ablate import api
from ablate.errors import SpecError
from ablate.exports import export as module
from ablate.exports.contract import EXPORTERS, ExportedRun, Exporter, exported_run
from ablate.exports.export import Exports, exporting
from ablate.runner.backends import registry
from ablate.store import Store
from tests.layers import FILES
from tests.made_up_runs import EXPERIMENT, finish, finished

CURVE = "step,tokens,train_loss,dev_nll,seconds\n1,90,7.5,,0.25\n2,180,4.125,3.5,0.5\n"
SPEC = {"model": {"position": {"name": "none"}, "ratio": 0.5}, "betas": [0.9, 0.98], "clip": None}
RECORD: dict[str, Any] = {
    "hash": "0123456789abcdef",
    "experiment": "first",
    "variant": "other name",
    "seed": 3,
    "status": "done",
    "started": "2026-11-23T12:00:00+00:00",
    "spec": SPEC,
    "params": {
        "total": 1000,
        "embedding": 5,
        "by_part": {"norm": {"part": "layer", "parameters": 7}},
    },
    "train": {"steps": 2, "stopped_early": False},
    "speed": {"decode_sentences_per_second": 8.0, "rounds": {"a": [1.0]}, "session": "x"},
    "test": {"test": {"bleu": 41.25, "bleu_signature": "nrefs:1"}},
    "hardware": {"cpu": "Undisclosed 9"},
    "git": {"commit": "undisclosed"},
}
FINAL = {
    "params.total": 1000.0,
    "params.embedding": 5.0,
    "train.steps": 2.0,
    "speed.decode_sentences_per_second": 8.0,
    "test.test.bleu": 41.25,
}
PARAMETERS = {
    "model.position.name": "none",
    "model.ratio": 0.5,
    "betas": "[0.9, 0.98]",
    "clip": "null",
}
VALUES = [
    {"tokens": 90.0, "train_loss": 7.5},
    {"tokens": 180.0, "train_loss": 4.125, "dev_nll": 3.5},
]
STARTED = 1795435200.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with one run that has ended."""
    store = Store(tmp_path / "undisclosed" / "results")
    store.save(RECORD)
    (store.path(RECORD["hash"]) / "curve.csv").write_text(CURVE, encoding="utf-8")
    return store


class Remembering(Exporter):
    """Keeps what it gets in a list; fails at rows that are called ``bad``."""

    got: list[ExportedRun]

    def export(self, run: ExportedRun) -> None:
        if run.row == "bad":
            raise RuntimeError("no room\nand more")
        self.got.append(run)


@pytest.fixture
def got(monkeypatch: pytest.MonkeyPatch) -> list[ExportedRun]:
    """Return what the only tracker gets, which is called tensorboard."""
    monkeypatch.setattr(Remembering, "got", [], raising=False)
    monkeypatch.setattr(module, "_exporter_class", lambda name: Remembering)
    return Remembering.got


def test_a_run_is_its_spec_its_curve_and_its_numbers(store: Store) -> None:
    run = exported_run("pe", "none", RECORD, store.path(RECORD["hash"]) / "curve.csv")
    assert (run.name, run.started, run.last_step) == ("pe/none/3", STARTED, 2)
    assert run.parameters == PARAMETERS
    assert run.final == FINAL
    assert [dict(point.values) for point in run.curve] == VALUES
    assert [(point.step, point.seconds) for point in run.curve] == [(1, 0.25), (2, 0.5)]
    assert exported_run("pe", "none", RECORD, Path("missing.csv")).curve == ()
    assert "undisclosed" not in repr(run).lower()


def test_no_two_rows_have_one_folder(store: Store) -> None:
    rows = ["none", "a/b", "a_b", "a%2Fb", ".", "..", "%2E"]
    names = [exported_run("pe", row, RECORD, Path("missing.csv")).row_folder for row in rows]
    assert names[0] == "none"
    assert len({(store.results / name).resolve() for name in names}) == len(rows)
    assert {(store.results / name).resolve().parent for name in names} == {store.results.resolve()}


def test_what_has_not_changed_is_exported_once(store: Store, got: list[ExportedRun]) -> None:
    changed = {**RECORD, "speed": {"decode_sentences_per_second": 9.0}}
    for record in (RECORD, RECORD, changed, {**changed, "status": "failed"}):
        with exporting(["tensorboard"], store) as exports:
            assert exports.export("pe", "none", record) == ""
    assert [run.final["speed.decode_sentences_per_second"] for run in got] == [8.0, 9.0]


def test_a_failing_export_is_told_once_and_repeated_by_the_next_call(
    store: Store, got: list[ExportedRun]
) -> None:
    with exporting(["tensorboard"], store) as exports:
        remarks = [exports.export("pe", row, RECORD) for row in ("good", "bad", "next")]
    remark = "not exported to tensorboard: no room; the next call repeats it"
    assert remarks == ["", remark, ""]
    assert [run.row for run in got] == ["good"]
    with exporting(["tensorboard"], store) as exports:
        assert exports.export("pe", "next", RECORD) == ""
    assert [run.row for run in got] == ["good", "next"]


def test_a_tracker_that_cannot_be_opened_ends_no_run(store: Store) -> None:
    class Broken(Remembering):
        def __init__(self, folder: Path) -> None:
            raise OSError

    remark = Exports({"mlflow": Broken}, store).export("pe", "none", RECORD)
    assert remark == "not exported to mlflow: OSError; the next call repeats it"


def test_run_exports_what_is_done_already(
    tmp_path: Path, got: list[ExportedRun], capsys: pytest.CaptureFixture[str]
) -> None:
    path = finished(tmp_path, EXPERIMENT.replace("rms:", "bad:"))
    options = api.RunOptions(
        device="cpu", results=tmp_path / "results", figures=False, probes=False, log=["tensorboard"]
    )
    assert api.run(path, options).exit_status == 0
    assert [(run.row, run.seed) for run in got][:2] == [("baseline", 1), ("baseline", 2)]
    assert {run.experiment.split("/")[-1] for run in got} == {"pe"}
    assert "bad, seed 1: not exported to tensorboard: no room" in capsys.readouterr().err


def test_runs_under_overrides_replace_none_of_the_whole_experiment(
    tmp_path: Path, got: list[ExportedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path / "experiments")
    path, results, steps = Path("pe.yaml"), tmp_path / "results", "training.steps=3"
    path.write_text(EXPERIMENT, encoding="utf-8")
    finish(path, results)
    finish(path, results, [steps])
    options = api.RunOptions(
        device="cpu", results=results, figures=False, probes=False, log=["tensorboard"]
    )
    api.run(path, options)
    whole = {run.name for run in got}
    assert len(whole) == len(got) == 6
    api.run(path, replace(options, seeds=[1]), only=["none"])  # runs of the whole experiment
    assert len(got) == 6
    for seed in (1, 2):
        api.run(path, replace(options, seeds=[seed], overrides=[steps]), only=["none"])
    trial = [run.name for run in got[6:]]
    names = [f"pe/trials/{steps}/{row}/{seed}" for seed in (1, 2) for row in ("baseline", "none")]
    assert trial == names


def test_trackers_get_the_scores_of_the_table(tmp_path: Path, got: list[ExportedRun]) -> None:
    text = f"{EXPERIMENT}metrics: [{{name: bleu, tokenize: char}}]\n"
    path = finished(tmp_path, text, has_files=True)
    options = api.RunOptions(
        device="cpu", results=tmp_path / "results", figures=False, probes=False, log=["tensorboard"]
    )
    results = api.run(path, options).table.results
    assert results is not None
    for row in results.summaries:
        exported = {run.seed: run.final["test.test.bleu"] for run in got if run.row == row.name}
        assert exported == row.metrics["test.test.bleu"].values


def test_trackers_are_imported_by_their_exporters_alone() -> None:
    packages = "tensorboard|torch.utils.tensorboard|mlflow|wandb|sqlalchemy|alembic"
    imports = re.compile(rf"^ *(from|import) ({packages})\b", re.MULTILINE)
    importing = {path.stem for path in FILES if imports.search(path.read_text(encoding="utf-8"))}
    assert importing == set(EXPORTERS)


def test_a_missing_package_or_name_is_told_before_anything_runs(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name="sqlalchemy")

    monkeypatch.setattr(registry, "import_module", missing)
    hint = r"needs the package 'sqlalchemy': pip install '.*\[mlflow\]'"
    with pytest.raises(SpecError, match=hint), exporting(["mlflow"], store):
        pass
    with pytest.raises(ModuleNotFoundError), exporting(["wandb"], store):
        pass
    with pytest.raises(SpecError, match="no tracker is called 'mlfow'; did you mean 'mlflow'"):
        exporting(["mlfow"], store)


def _exported_twice(name: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Export a run, and again with another score; return the folder, which tells no secrets."""
    monkeypatch.setattr(socket, "gethostname", lambda: "undisclosed-host")
    monkeypatch.setenv("USER", "undisclosed-user")
    before = {**RECORD, "test": {"test": {"bleu": 1.0}}}
    for record in (before, RECORD):
        with exporting([name], store) as exports:
            assert exports.export("ours/pe", "none", record) == ""
    folder = store.results / "exports" / name
    for file in folder.rglob("*"):
        assert "undisclosed" not in file.name
        assert not file.is_file() or b"undisclosed" not in file.read_bytes().lower(), file
    return folder


@pytest.mark.exports
@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_back_what_was_exported(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = _exported_twice("tensorboard", store, monkeypatch)
    events = EventAccumulator(str(folder / "ours" / "pe" / "none" / "3"))
    events.Reload()
    read = {
        tag: [(e.step, e.value, e.wall_time - STARTED) for e in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    assert read == {
        "tokens": [(1, 90.0, 0.25), (2, 180.0, 0.5)],
        "train_loss": [(1, 7.5, 0.25), (2, 4.125, 0.5)],
        "dev_nll": [(2, 3.5, 0.5)],
        **{f"final/{name}": [(2, value, 0.5)] for name, value in FINAL.items()},
    }
    hparams = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert b"model.position.name" in hparams


@pytest.mark.exports
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_back_what_was_exported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in EXPORTERS["mlflow"][1]:
        pytest.importorskip(package)
    from mlflow.tracking import MlflowClient

    folder = _exported_twice("mlflow", store, monkeypatch)
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("ours/pe")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "none/3"
    assert run.info.status == "FINISHED"
    assert (run.info.start_time, run.info.end_time) == (1000 * STARTED, 1000 * STARTED + 500)
    assert run.data.params == {name: str(value) for name, value in PARAMETERS.items()}
    assert run.data.metrics == {
        **VALUES[-1],
        **{f"final/{name}": value for name, value in FINAL.items()},
    }
    history = client.get_metric_history(run.info.run_id, "train_loss")
    assert [(m.step, m.value, m.timestamp - 1000 * STARTED) for m in history] == [
        (1, 7.5, 250),
        (2, 4.125, 500),
    ]


@pytest.mark.exports
@pytest.mark.filterwarnings("ignore")
def test_wandb_reads_back_what_was_exported(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    folder = _exported_twice("wandb", store, monkeypatch)
    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    records = [Record.FromString(content) for content in _wandb_records(file.read_bytes())]
    (run,) = [record.run for record in records if record.HasField("run")]
    assert (run.project, run.display_name) == ("ours-pe", "none/3")
    config = {each.key: json.loads(each.value_json) for each in run.config.update}
    assert {key: value for key, value in config.items() if key != "_wandb"} == PARAMETERS
    history = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in r.history.item}
        for r in records
        if r.HasField("history")
    ]
    timed = [{**of_step, "seconds": s} for of_step, s in zip(VALUES, (0.25, 0.5), strict=True)]
    assert [{k: v for k, v in row.items() if k[0] != "_"} for row in history] == timed
    assert [row["_step"] for row in history] == [1, 2]
    summary = {
        ".".join([item.key, *item.nested_key]).strip("."): json.loads(item.value_json)
        for r in records
        for item in r.summary.update
    }
    assert summary.items() >= FINAL.items()


def _wandb_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of an offline run: LevelDB's log format after a header of 7 bytes."""
    block, at, whole = 32 * 1024, 7, b""
    while at + 7 <= len(data):
        if block - at % block < 7:
            at += block - at % block
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or last of several
            yield whole
            whole = b""
