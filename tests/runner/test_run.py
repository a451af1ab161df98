"""One run: what it reports, what its record says, and how it ends if something goes wrong."""

from __future__ import annotations

import csv
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors import SafetensorError

import ablate.data
import ablate.decoding
import ablate.parts  # noqa: F401 - with the two above, every part is registered
from ablate.config import RunSpec
from ablate.data.batches import Batches
from ablate.data.prepare import prepare
from ablate.data.tokenizer import PAD
from ablate.decoding import translate
from ablate.errors import (
    DamagedFileWarning,
    DataError,
    DivergedError,
    EngineError,
    StoppedError,
    StoreError,
)
from ablate.registry import load_plugin
from ablate.runner import provenance, run
from ablate.runner.devices import Device
from ablate.runner.run import run_one
from ablate.runner.task import WAITING, Task
from ablate.store import Store
from tests.registrations import temporary_registrations
from tests.runner.conftest import PLUGIN, SMALL, MakeTask, finish, small_spec, task_of

PHASES = ["reading the corpus", "training", "measuring dev"]
TESTS = ["test", "test_long", "test_novel"]
SPEEDS = {"train_target_tokens_per_second": 7.0, "decode_sentences_per_second": 3.0}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A run with what was called on its way; its row was measured, and its engine is a fallback."""
    store = Store(tmp_path_factory.mktemp("made"))
    probe = {**SPEEDS, "session": "today", "train_peak_mib": 9.0, "n_src": 5}
    store.save_probe("measured", probe)
    fields = {"spec": small_spec(), "probe": "measured", "engine_note": "no capture"}
    small = task_of(store.results, "none", **fields)
    made = SimpleNamespace(phases=[], largest=[], batches=Counter(), sources=[], languages=[])
    made.spec = RunSpec.model_validate(small.spec)
    made.prepared = prepare(made.spec)  # of which nothing is then reported

    def report(phase: str, progress: Any = None, largest_batch: int | None = None) -> None:
        if progress is None:
            made.phases.append(phase)
            made.largest.append(largest_batch)

    def goes_on() -> None:
        made.batches[made.phases[-1]] += 1

    def spy(model: Any, search: Any, sources: Any, *others: Any) -> Any:
        made.sources.append(sources)
        return translate(model, search, sources, *others)

    def tokenizer(language: str) -> str:
        made.languages.append(language)
        return "char"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "translate", spy)
        patch.setattr(run, "bleu_tokenizer", tokenizer)
        made.record = run_one(small, store, report, lambda: False, goes_on=goes_on)
    made.folder = store.path(small.key)
    return made


def test_phases_are_reported_and_every_batch_that_is_evaluated_or_translated(
    made: SimpleNamespace,
) -> None:
    translations = [f"translating {name}" for name in TESTS]
    assert made.phases == [WAITING, *PHASES, *translations]
    prepared, batch_tokens = made.prepared, made.spec.training.batch_tokens
    n_batches = [
        len(list(Batches(split, batch_tokens, PAD).in_order()))
        for split in (prepared.dev, *prepared.tests.values())
    ]
    with (made.folder / "curve.csv").open(encoding="utf-8") as file:
        n_evaluations = sum(bool(row["dev_nll"]) for row in csv.DictReader(file))
    assert made.batches["training"] == n_evaluations * n_batches[0]
    assert made.batches["measuring dev"] == n_batches[0]
    for phase, n in zip(translations, n_batches[1:], strict=True):
        assert made.batches[phase] > n, "a batch is translated, and its references are scored"
    order = Batches(prepared.train, batch_tokens, PAD).of_epoch(0, 0)
    assert made.largest[2] == max(map(len, order.epoch(made.spec.seed, 0)))
    timings, text = made.record["timings"], prepared.text
    assert all(seconds == round(seconds, 3) for seconds in timings.values())
    assert set(timings) == {f"{p.replace(' ', '_')}_seconds" for p in (*PHASES, *translations)}
    assert (made.record["corpus"]["src"], made.record["corpus"]["tgt"]) == (text.src, text.tgt)
    assert text.src != text.tgt


def test_the_record_has_the_speed_of_its_row_and_why_the_engine_is_another(
    made: SimpleNamespace,
) -> None:
    assert made.record["speed"] == {**SPEEDS, "session": "today"}
    assert made.record["memory"] == {"train_peak_mib": 9.0}
    assert (made.record["engine"], made.record["engine_note"]) == ("eager", "no capture")
    assert made.record["is_fallback"]


def test_the_record_says_in_how_many_parts_batches_were_computed(
    task: MakeTask, store: Store
) -> None:
    def division(spec: dict[str, Any], factor: int) -> Any:
        experts = spec["model"]["feed_forward"]["name"]
        divided = replace(task(f"{experts} {factor}", spec=spec), micro_batch_factor=factor)
        return run_one(divided, store, lambda *_: None, lambda: False)["micro_batching"]

    note = "each micro-batch draws dropout of its own"
    mixed = {
        **SMALL["model"],
        "feed_forward": {"name": "mixture_of_experts", "d_ff": 16, "n_experts": 2},
    }
    assert division(small_spec(), 2) == {"factor": 2, "n": 2, "note": note}
    reason = "adds a loss that is of the whole batch"
    of_mixture = division(small_spec(model=mixed), 2)
    assert of_mixture["note"].startswith(f"{note}, and is looked at by itself: ")
    assert of_mixture["note"].endswith(reason)


def test_sources_are_translated_and_scored_in_the_language_of_the_target(
    made: SimpleNamespace,
) -> None:
    """And sentences have the tokens of their references."""
    assert made.languages == [made.prepared.text.tgt] * len(TESTS)
    assert "tok:char" in made.record["test"]["test"]["bleu_signature"]
    for name, sources in zip(TESTS, made.sources, strict=True):
        expected = made.prepared.tests[name]
        assert [ids.tolist() for ids in sources] == [ids.tolist() for ids in expected.src]
        with (made.folder / f"sentences.{name}.csv").open(encoding="utf-8") as file:
            n_tokens = [int(row["target_tokens"]) for row in csv.DictReader(file)]
        assert n_tokens == [len(ids) for ids in expected.tgt]


def test_a_run_that_failed_is_made_again_and_one_that_is_done_is_not(
    task: MakeTask, store: Store
) -> None:
    small = task("none", spec=small_spec())
    store.path(small.key).mkdir(parents=True)
    store.save(small.record("failed", "no reason"))

    def time_of_record(task: Task) -> int:
        assert run_one(task, store, lambda *_: None, lambda: False)["status"] == "done"
        return (store.path(task.key) / "record.json").stat().st_mtime_ns

    made = time_of_record(small)
    assert time_of_record(small) == made
    assert time_of_record(replace(small, fresh=True)) > made


@pytest.mark.parametrize("by", ["target", "source", "bucket"])
def test_batches_are_those_that_the_spec_asks_for(task: MakeTask, store: Store, by: Any) -> None:
    spec = small_spec()
    spec["training"] = {**spec["training"], "batch_tokens": 60, "batch_by": by}
    made = task("none", spec=spec)
    record = run_one(made, store, lambda *_: None, lambda: False)
    run = RunSpec.model_validate(made.spec)
    batches = Batches(prepare(run).train, run.training.batch_tokens, PAD, by=by)
    n_tokens = [batches.count_tokens(rows) for rows in batches.epoch(run.seed, 0)]
    curve = pd.read_csv(store.path(record["hash"]) / "curve.csv")
    assert curve["tokens"].tolist() == np.cumsum(n_tokens)[: len(curve)].tolist()


def test_a_run_is_of_the_text_that_it_was_planned_with(task: MakeTask, store: Store) -> None:
    small = task("none", spec=small_spec())
    planned = prepare(RunSpec.model_validate(small.spec)).corpus_fingerprint
    with pytest.raises(DataError, match=f"has the content {planned[:12]}, and the run was planned"):
        run_one(replace(small, corpus_fingerprint="0" * 64), store, lambda *_: None, lambda: False)
    right = replace(small, corpus_fingerprint=planned, teacher_sha256="of no teacher")
    assert run_one(right, store, lambda *_: None, lambda: False)["status"] == "done"


def test_a_damaged_record_is_kept_and_the_run_made(task: MakeTask, store: Store) -> None:
    small = task("none", spec=small_spec())
    store.path(small.key).mkdir(parents=True)
    (store.path(small.key) / "record.json").write_text("half a rec")
    with pytest.warns(DamagedFileWarning, match="cannot be read"):
        record = run_one(small, store, lambda *_: None, lambda: False)
    assert record["status"] == "done"
    assert (store.path(small.key) / "record.damaged.json").read_text() == "half a rec"


def test_the_record_names_the_plugins_whose_parts_the_run_has(
    tmp_path: Path, task: MakeTask
) -> None:
    (tmp_path / "mine.py").write_text(PLUGIN.replace("SLOPE", "0.1"))
    with temporary_registrations():
        load_plugin(tmp_path / "mine.py")
        plain = task("plain", spec=small_spec())
        ramp = task("ramp", spec=small_spec(model={**SMALL["model"], "position": "ramp"}))
        assert plain.record("done")["plugins"] == []
        (own,) = ramp.record("done")["plugins"]
        assert own["name"] == str(tmp_path / "mine.py")
        assert Task.from_line(ramp.to_line()) == ramp


def test_evaluation_batches_are_divided_as_those_of_training(task: MakeTask) -> None:
    """So that a run that was out of memory does not run out of it again on dev."""

    def tokens(factor: int, device: str) -> int:
        attempt = run._Attempt(_task(task, factor), Path(), lambda *_: None)
        attempt.device = torch.device(device)
        return attempt._tokens_without_gradient()

    assert [tokens(n, "cpu") for n in (1, 2, 3, 1000)] == [200, 100, 66, 1]
    assert tokens(1, "cuda") == 8 * 200


def _task(make: MakeTask, factor: int) -> Task:
    return replace(make("none", spec=small_spec()), micro_batch_factor=factor)


KEY = "0123456789abcdef"


@pytest.fixture
def job(task: MakeTask) -> Task:
    return task("none", key=KEY, spec=small_spec(training={**SMALL["training"], "steps": 3}))


def _raising(error: BaseException) -> Any:
    def prepare(spec: RunSpec, *_: str) -> None:
        raise error

    return prepare


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (DivergedError("the loss of step 3 is nan"), "diverged", "the loss of step 3 is nan"),
        (MemoryError("no room"), "oom", "MemoryError: no room"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes\nmore"),
            "oom",
            "RuntimeError: DefaultCPUAllocator: can't allocate memory: 8 bytes",
        ),
        (EngineError("no capture"), "failed", "no capture"),
        (DataError("no network"), "failed", "no network"),
        (ZeroDivisionError("division by zero"), "failed", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_failure_is_a_record_with_its_reason_and_what_was_known(
    job: Task,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: str,
    reason: str,
) -> None:
    monkeypatch.setattr(run, "prepare", _raising(error))
    turns = {"session": "today", "rounds": {"decode_sentences_per_second": [8.0, 9.0, 9.5]}}
    measured = {"train_peak_mib": 7.0, "decode_sentences_per_second": 9.0, "n_src": 5}
    store.save_probe(job.probe, measured | turns)
    if status == "diverged":
        finish(job, store)
    else:
        with pytest.raises(type(error), match=re.escape(str(error))):
            finish(job, store)
    record = store.load(KEY) or {}
    assert (record["status"], record["error"]) == (status, reason)
    assert record["memory"] == {"train_peak_mib": 7.0}
    assert record["speed"] == {"decode_sentences_per_second": 9.0, **turns}
    assert record["versions"]["torch"]
    traceback = (store.path(KEY) / "error.txt").read_text(encoding="utf-8")
    assert traceback.startswith("Traceback")


def test_bits_are_per_character_of_what_is_left_of_the_references(
    task: MakeTask, store: Store
) -> None:
    model = {**SMALL["model"], "dims": {**SMALL["model"]["dims"], "max_len": 8}}
    spec = small_spec(model=model, training={**SMALL["training"], "steps": 1})
    text = prepare(RunSpec.model_validate(spec)).text.tests["test_long"].tgt
    scores = finish(task("cut", key=KEY, spec=spec), store)["test"]["test_long"]
    table = pd.read_csv(store.path(KEY) / "sentences.test_long.csv")
    words = [line.split()[:8] for line in text]  # seven tokens of a sentence are left
    assert (table["characters"] <= [len(" ".join(of)) for of in words]).all()
    bits = table["nll"].sum() / math.log(2) / table["characters"].sum()
    assert scores["bits_per_character"] == pytest.approx(bits, abs=1e-4)


def test_being_stopped_leaves_no_record(
    job: Task, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "prepare", _raising(StoppedError("stopped")))
    with pytest.raises(StoppedError):
        finish(job, store)
    assert store.load(KEY) is None
    with pytest.raises(StoppedError, match="before reading the corpus"):
        run_one(job, store, lambda *_: None, lambda: True)


def test_a_second_try_keeps_the_checkpoint_and_a_fresh_one_does_not(
    job: Task, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed: list[list[str]] = []

    def prepare(spec: RunSpec, *_: str) -> None:
        observed.append(sorted(path.name for path in store.path(KEY).iterdir()))
        raise DataError("again")

    monkeypatch.setattr(run, "prepare", prepare)
    folder = store.path(KEY)
    for name in ("checkpoint.pt", "snapshots/1.pt", "error.txt", "log.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    store.save({"hash": KEY, "status": "failed"})
    for again in (job, replace(job, fresh=True)):
        with pytest.raises(DataError, match="again"):
            finish(again, store)
    assert observed == [["checkpoint.pt", "lock", "log.txt", "snapshots"], ["lock", "log.txt"]]


def test_the_record_of_a_run_that_other_code_began_is_not_of_this_code(
    job: Task, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress: list[object] = []
    monkeypatch.setattr(provenance, "code_digest", lambda: "of yesterday")
    with pytest.raises(StoppedError):
        run_one(job, store, lambda *report: progress.extend(report[1:2]), lambda: any(progress))
    monkeypatch.undo()
    record = finish(job, store)
    assert (record["status"], record["git"]["code"]) == ("done", "of yesterday")
    assert provenance.stale_reason(record, Device("cpu")) == "the code has changed since"
    again = finish(replace(job, fresh=True), store)
    assert again["git"]["code"] == provenance.code_digest()


def test_the_log_of_a_resumed_run_names_the_step_of_its_checkpoint(job: Task, store: Store) -> None:
    progress: list[object] = []
    with pytest.raises(StoppedError) as stopped:
        run_one(job, store, lambda *report: progress.extend(report[1:2]), lambda: any(progress))
    assert not job.log.exists()
    finish(job, store)
    step = re.findall(r"\d+", str(stopped.value))[0]
    assert job.log.read_text(encoding="utf-8").endswith(f"  continues after step {step}\n")


@pytest.fixture(params=[0o077, 0o002], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    """Return a umask that the process has during a test."""
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_files_and_folders_keep_the_umask(
    umask: int, job: Task, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "cache"))
    assert finish(job, store)["status"] == "done"
    cache, results = tmp_path / "cache", store.path(KEY)
    paths = [*cache.rglob("*"), *results.rglob("*")]
    assert results / "model.safetensors" in paths
    assert any(path.parts[-3:-1] == ("encodings", path.parent.name) for path in paths)
    for path in paths:
        most = 0o777 if path.is_dir() else 0o666
        assert oct(stat.S_IMODE(path.stat().st_mode)) == oct(most & ~umask), path


def test_a_full_disk_is_told_of_the_model_as_of_other_files(
    job: Task, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(run, "save_model", fail)
    with pytest.raises(StoreError, match=r"model\.safetensors: cannot be written: .*No space left"):
        finish(job, store)
    record = store.load(KEY) or {}
    assert record["status"] == "failed"
    assert "model.safetensors: cannot be written" in record["error"]
