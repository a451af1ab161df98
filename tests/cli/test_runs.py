"""Whole runs from the command line: what they leave, and how they continue."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pandas as pd
import pytest

from ablate import api
from ablate.analysis.sentences import bleu
from ablate.data.corpus import Corpus
from ablate.errors import DataError
from ablate.measuring import SentenceStatistics
from ablate.registry import build
from tests.cli.conftest import (
    COMMAND,
    EXPERIMENT,
    Ablate,
    environment,
    records_of,
    run_in_a_process,
)

pytestmark = pytest.mark.e2e
RUN_NONE = ["run", "pe.yaml", "--only", "none"]


def test_a_run_prints_the_table_and_leaves_whole_folders(run_folder: Path) -> None:
    stdout, stderr = ((run_folder / name).read_text("utf-8") for name in ("stdout", "stderr"))
    assert "BLEU" in stdout
    assert "\x1b[" not in stdout + stderr
    assert "started on cpu" in stderr
    assert "started on cpu" not in stdout
    records = records_of(run_folder)
    assert sorted(records) == [("baseline", 1), ("baseline", 2), ("none", 1), ("none", 2)]
    for file in (run_folder / "results" / "runs").glob("*/record.json"):
        left = {path.name for path in file.parent.iterdir()}
        assert {"curve.csv", "model.safetensors", "tokenizer.json", "log.txt"} <= left
        tests = json.loads(file.read_text())["test"]
        assert {f"hypotheses.{name}.txt" for name in tests} <= left
        assert {scores["sentences"] for scores in tests.values()} <= left
        assert "checkpoint.pt" not in left
    tables = {path.name for path in (run_folder / "results" / "pe").iterdir()}
    assert {"table.md", "table.tex", "table.csv"} <= tables


def test_what_is_kept_of_sentences_adds_up_to_the_scores(run_folder: Path) -> None:
    records = records_of(run_folder)
    assert len(records) == 4
    for record in records.values():
        assert record["test"]
        for scores in record["test"].values():
            file = run_folder / "results" / "runs" / record["hash"] / scores["sentences"]
            statistics = SentenceStatistics.from_csv(file.read_text(encoding="utf-8"))
            assert len(statistics.nll) == scores["n_sentences"]
            assert bleu(statistics.bleu.sum(axis=0)) == pytest.approx(scores["bleu"])
            nll = statistics.nll.sum() / statistics.target_tokens.sum()
            assert nll == pytest.approx(scores["nll"], abs=1e-5)


def test_a_file_of_sentences_that_is_broken_is_named(after_run: Ablate, run_folder: Path) -> None:
    record = records_of(run_folder)["none", 2]
    file = run_folder / "results" / "runs" / record["hash"] / "sentences.test.csv"
    whole = file.read_text(encoding="utf-8")
    file.write_text(whole[:100], encoding="utf-8")
    done = after_run("report", "pe.yaml")
    file.write_text(whole, encoding="utf-8")
    assert done.returncode == 0
    remark = "sentences.test.csv: damaged, and left out of the intervals; `ablate run` makes"
    assert f"{record['hash']}/{remark}" in " ".join(done.stderr.split())


def test_a_run_makes_again_what_has_left_damaged_files(after_run: Ablate, run_folder: Path) -> None:
    before = records_of(run_folder)
    folder = run_folder / "results" / "runs" / before["none", 2]["hash"]
    written = (folder / "record.json").stat().st_mtime_ns
    text = (folder / "hypotheses.test.txt").read_text(encoding="utf-8")
    (folder / "hypotheses.test.txt").write_text(text[:-5], encoding="utf-8")
    done = after_run("run", "pe.yaml", "--device", "cpu", "--jobs", "1")
    assert done.returncode == 0, done.stderr
    stderr = " ".join(done.stderr.split())
    assert "hypotheses.test.txt: damaged; none seed 2 is made again" in stderr
    assert "none seed 1: started" not in stderr
    assert (folder / "hypotheses.test.txt").read_text(encoding="utf-8") == text
    assert (folder / "record.json").stat().st_mtime_ns > written
    assert records_of(run_folder)["none", 2]["files"] == before["none", 2]["files"]


def test_what_is_stored_is_reported_and_planned(after_run: Ablate, run_folder: Path) -> None:
    table = (run_folder / "results" / "pe" / "table.csv").read_text(encoding="utf-8")
    assert after_run("report", "pe.yaml", "--format", "csv").stdout == table
    done = after_run("report", "pe.yaml", "--format", "json")
    assert done.returncode == 0, done.stderr
    (none,) = [row for row in json.loads(done.stdout)["rows"] if row["name"] == "none"]
    assert len(none["differences"]["test.test.bleu"]["sentences"]) == 2
    assert len(none["differences"]["test.test.nll"]["sentences"]) == 2
    planned = json.loads(after_run("plan", "pe.yaml", "--json").stdout)
    assert planned["n_missing"] == 0
    assert all(row["train_peak_mib"] > 0 for row in planned["rows"])
    more = json.loads(after_run("plan", "pe.yaml", "--seeds", "2,3", "--json").stdout)
    assert more["n_missing"] == 2


def test_a_second_run_trains_nothing_and_prints_the_same(run_folder: Path, cache: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in run_folder.rglob("record.json")}
    done = run_in_a_process(run_folder, cache)
    assert done.returncode == 0
    assert done.stdout == (run_folder / "stdout").read_text(encoding="utf-8")
    assert done.stderr == ""
    assert before == {file: file.stat().st_mtime_ns for file in run_folder.rglob("record.json")}


def _type(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_trained_runs_translate(
    after_run: Ablate, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is named, or found by the beginning of its hash; or several together."""
    by_hash = str(records_of(run_folder)["baseline", 1]["hash"])[:6]
    outputs = []
    for runs in (["pe:baseline:1"], [by_hash], ["pe:baseline:1", "pe:none:1"]):
        _type(monkeypatch, b"the dog sleeps\n\nthe cat sees the bird\n")
        done = after_run("translate", *runs)
        assert (done.returncode, done.stderr) == (0, "")
        assert [bool(line) for line in done.stdout.splitlines()] == [True, False, True]
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1]
    run = tmp_path / "other"
    shutil.copytree(
        run_folder / "results" / "runs" / records_of(run_folder)["none", 1]["hash"], run
    )
    tokenizer = json.loads((run / "tokenizer.json").read_text(encoding="utf-8"))
    words = json.loads(tokenizer["src"])
    vocabulary = words["model"]["vocab"]
    vocabulary["another"] = vocabulary.pop(max(vocabulary, key=vocabulary.__getitem__))
    (run / "tokenizer.json").write_text(json.dumps({**tokenizer, "src": json.dumps(words)}))
    record = json.loads((run / "record.json").read_text(encoding="utf-8"))
    del record["digest"], record["files"]
    (run / "record.json").write_text(json.dumps(record))
    refused = after_run("translate", "pe:baseline:1", str(run))
    assert refused.returncode == 2
    assert "has another tokenizer than pe:baseline:1" in refused.stderr


def test_a_teacher_translates_its_training_text(
    after_run: Ablate, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first lines of it; a student can be planned with all of them."""
    translator = api.Translator("pe:baseline:1", results=run_folder / "results")
    sources = translator.training_sources()
    assert list(sources) == list(
        build(Corpus, translator.spec.corpus, at="corpus").load().train.src
    )
    read = translator.record["corpus"]
    monkeypatch.setitem(translator.record, "corpus", {**read, "fingerprint": "other"})
    with pytest.raises(DataError, match="and runs have read other: its files have changed since"):
        translator.training_sources()
    monkeypatch.setattr(api.Translator, "training_sources", lambda _: sources[:3])
    done = after_run("translate", "pe:baseline:1", "--training-text")
    assert (done.returncode, done.stderr) == (0, "")
    expected = [best[0].text for best in translator.translate(sources[:3])]
    assert done.stdout.splitlines() == expected


def test_the_best_translations_have_scores_and_their_line(
    after_run: Ablate, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of an empty line, and of a run that was tested with another number."""
    record = records_of(run_folder)["none", 1]
    run = str(tmp_path / "beam")
    shutil.copytree(run_folder / "results" / "runs" / str(record["hash"]), run)
    spec = {
        **cast("dict[str, object]", record["spec"]),
        "decoding": {"name": "beam", "size": 3, "n_best": 2},
    }
    Path(run, "record.json").write_text(json.dumps({**record, "spec": spec}), encoding="utf-8")
    _type(monkeypatch, b"the dog sleeps\n\nthe cat sees the bird\n")
    done = after_run("translate", run, "--n-best", "3")
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ||| ") for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == [*"000111222"]
    scores = [float(line[2]) for line in lines]
    assert scores[3:6] == [0.0] * 3
    assert all(scores[i : i + 3] == sorted(scores[i : i + 3], reverse=True) for i in (0, 6))
    assert [line[1] for line in lines[3:6]] == [""] * 3
    assert after_run("translate", run, "--n-best", "4").returncode == 2
    _type(monkeypatch, b"the dog sleeps\n\nthe cat sees the bird\n")
    assert after_run("translate", run).stdout.splitlines() == [lines[i][1] for i in (0, 3, 6)]


def test_a_line_that_is_too_long_or_not_utf_8_is_named(
    after_run: Ablate, monkeypatch: pytest.MonkeyPatch
) -> None:
    _type(monkeypatch, b"the dog sleeps\n" + b"dog " * 100 + b"\n")
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["ablate.api.translate"], "_BATCH", 1)
        done = after_run("translate", "pe:none:1")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr.startswith("line 2 has 100 tokens; only the first 63 are translated, becaus")
    _type(monkeypatch, "\ufeffthe dog sleeps\nder B".encode() + b"\xe4r\n")
    done = after_run("translate", "pe:none:1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("standard input, line 2, byte 6: is not valid UTF-8; convert")


def test_a_diverging_run_is_a_row_and_runs_are_shared(after_run: Ablate, run_folder: Path) -> None:
    wild = "  wild: {training.schedule: {name: constant, lr: 1e30}}\n"
    (run_folder / "wild.yaml").write_text(EXPERIMENT + wild, encoding="utf-8")
    done = after_run("run", "wild.yaml", "--seeds", "1")
    assert done.returncode == 1, done.stderr
    assert "training 1 run" in done.stderr
    rows = done.stdout.splitlines()
    assert any("wild" in row and "diverged" in row for row in rows)
    assert any(row.startswith("none") and " 1/1 " in row for row in rows)
    assert any(row.startswith("wild") and " 0/1§ " in row for row in rows)
    record = records_of(run_folder)["wild", 1]
    assert record["status"] == "diverged"
    shutil.rmtree(run_folder / "results" / "runs" / record["hash"])  # other tests count runs


def test_another_engine_computes_the_same_under_a_hash_of_its_own(
    ablate: Ablate, folder: Path
) -> None:
    calm = ["--set", "model.dropout={embedding: 0.0, residual: 0.0}"]
    words = [*RUN_NONE, "--no-probe", "--seeds", "1", *calm, "--set", "training.precision=fp32"]
    words += ["--set", "training.batch_tokens=3000"]  # from here on batches may be done in shards
    curves = []
    for engine in ("eager", "data_parallel"):
        done = ablate(*words, "--engine", engine, "--results", f"{engine}/results", "--notes")
        assert done.returncode == 0, done.stderr
        assert f"engine: {engine}, " in done.stdout
        (record,) = records_of(folder / engine).values()
        assert record["engine"] == engine
        run = folder / engine / "results" / "runs" / str(record["hash"])
        curves.append(pd.read_csv(run / "curve.csv")["train_loss"].to_list())
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)
    names = {path.name for path in folder.glob("*/results/runs/*")}
    assert len(names) == 2, "engines that draw other dropout masks make other runs"


def test_a_killed_run_continues_to_the_very_same_numbers(
    ablate: Ablate, folder: Path, cache: Path
) -> None:
    words = [*RUN_NONE, "--no-probe", "--seeds", "1", "--set", "training.steps=150"]
    for sight in ("runs/*/checkpoint.pt", "runs/*/hypotheses.*.txt"):
        process = _start(folder, cache, words)
        _wait_for(folder / "results", sight)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert ablate(*words).returncode == 0
    killed = records_of(folder)
    assert ablate(*words, "--results", "calm/results").returncode == 0
    calm = records_of(folder / "calm")
    assert killed.keys() == calm.keys()
    for key, record in calm.items():
        assert _determined(killed[key]) == _determined(record)
        weights = Path("results", "runs", str(record["hash"]), "model.safetensors")
        calm_weights = (folder / "calm" / weights).read_bytes()
        assert (folder / weights).read_bytes() == calm_weights


def test_ctrl_c_ends_with_130_and_leaves_no_process_behind(folder: Path, cache: Path) -> None:
    (folder / "pe.yaml").write_text(EXPERIMENT, encoding="utf-8")
    best = ["training.average={best: 1}", "training.evaluate_every=20", "training.steps=100000"]
    words = [word for override in best for word in ("--set", override)]
    process = _start(folder, cache, [*RUN_NONE, "--no-probe", *words])
    _wait_for(folder / "results", "runs/*/snapshots/*")
    runs = folder / "results" / "runs"
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stdout == ""
    assert "the same command continues" in stderr
    assert "Traceback" not in stderr
    assert list(runs.glob("*/checkpoint.pt"))
    assert not list(runs.glob("*/record.json"))
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


_STOPPED_TWICE = """\
import os, signal
from ablate.cli import app

def command():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        os.kill(os.getpid(), signal.SIGTERM)
        print("saved")

app.app = command
app.main()
"""


def test_a_second_sigterm_does_not_cut_the_end_short(folder: Path, cache: Path) -> None:
    command = [sys.executable, "-c", _STOPPED_TWICE]
    ended = subprocess.run(
        command, cwd=folder, env=environment(cache), capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (130, "saved\n")


def _start(folder: Path, cache: Path, words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *words],
        cwd=folder,
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _wait_for(folder: Path, sight: str) -> None:
    deadline = time.monotonic() + 60
    while not list(folder.glob(sight)):
        assert time.monotonic() < deadline, f"{sight} was never seen"
        time.sleep(0.02)


def _determined(record: Mapping[str, object]) -> dict[str, object]:
    """Return what may not depend on when, where and in how many goes a run was done."""
    free = ("started", "finished", "timings", "speed", "memory", "git", "train")
    train = record["train"]
    assert isinstance(train, dict)
    fields = {key: value for key, value in record.items() if key not in free}
    return {**fields, "train": {k: v for k, v in train.items() if k != "seconds"}}
