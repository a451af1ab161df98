"""What a run reports on its way, and what its record says of how it was made."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ablate.config import RunSpec
from ablate.data.batches import Batches
from ablate.data.prepare import prepare
from ablate.data.tokenizer import PAD
from ablate.decoding import translate
from ablate.errors import DamagedFileWarning, DataError
from ablate.registry import load_plugin, temporary_registrations
from ablate.runner import run
from ablate.runner.run import run_one
from ablate.runner.task import WAITING, Task
from ablate.store import Store
from tests.runner.conftest import SMALL, MakeTask, small_spec
from tests.runner.test_matching import PLUGIN

PHASES = ["reading the corpus", "training", "measuring dev"]
TESTS = ["test", "test_long", "test_novel"]


def test_phases_are_reported_and_every_batch_that_is_evaluated_or_translated(
    task: MakeTask, store: Store
) -> None:
    phases: list[str] = []
    batches: dict[str, int] = {}
    largest: list[int | None] = []

    def report(phase: str, progress: Any = None, largest_batch: int | None = None) -> None:
        if progress is None:
            phases.append(phase)
            largest.append(largest_batch)

    def goes_on() -> None:
        batches[phases[-1]] = batches.get(phases[-1], 0) + 1

    small = task("none", spec=small_spec())
    record = run_one(small, store, report, lambda: False, goes_on=goes_on)
    translations = [f"translating {name}" for name in TESTS]
    assert phases == [WAITING, *PHASES, *translations]
    spec = RunSpec.model_validate(small.spec)
    prepared = prepare(spec)
    splits = [prepared.dev, *prepared.tests.values()]
    n_batches = [
        len(list(Batches(split, spec.training.batch_tokens, PAD).in_order())) for split in splits
    ]
    with (store.path(small.key) / "curve.csv").open(encoding="utf-8") as file:
        n_evaluations = sum(bool(row["dev_nll"]) for row in csv.DictReader(file))
    assert batches["training"] == n_evaluations * n_batches[0]
    assert batches["measuring dev"] == n_batches[0]
    for phase, n in zip(translations, n_batches[1:], strict=True):
        assert batches[phase] > n, "a batch is translated, and its references are scored"
    order = Batches(prepared.train, spec.training.batch_tokens, PAD).of_epoch(0, 0)
    assert largest[2] == max(map(len, order.epoch(spec.seed, 0)))
    assert all(seconds == round(seconds, 3) for seconds in record["timings"].values())
    text = prepared.text
    assert (record["corpus"]["src"], record["corpus"]["tgt"]) == (text.src, text.tgt)
    assert text.src != text.tgt
    assert set(record["timings"]) == {
        f"{phase.replace(' ', '_')}_seconds" for phase in (*PHASES, *translations)
    }


def test_the_speed_of_a_row_is_in_the_records_of_its_runs(task: MakeTask, store: Store) -> None:
    small = task("none", spec=small_spec(), probe="measured")
    speeds = {"train_target_tokens_per_second": 7.0, "decode_sentences_per_second": 3.0}
    store.save_probe("measured", {**speeds, "session": "today", "train_peak_mib": 9.0, "n_src": 5})
    record = run_one(small, store, lambda *_: None, lambda: False)
    assert record["speed"] == {**speeds, "session": "today"}
    assert record["memory"] == {"train_peak_mib": 9.0}


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


def test_sentences_have_the_tokens_of_their_references(
    task: MakeTask, store: Store, tmp_path: Path
) -> None:
    small = task("none", spec=small_spec())
    run_one(small, store, lambda *_: None, lambda: False)
    prepared = prepare(RunSpec.model_validate(small.spec))
    for name in TESTS:
        with (store.path(small.key) / f"sentences.{name}.csv").open(encoding="utf-8") as file:
            n_tokens = [int(row["target_tokens"]) for row in csv.DictReader(file)]
        assert n_tokens == [len(ids) for ids in prepared.tests[name].tgt]


def test_sources_are_translated_and_scored_in_the_language_of_the_target(
    task: MakeTask, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def spy(model: Any, search: Any, sources: Any, *others: Any) -> Any:
        given.append(sources)
        return translate(model, search, sources, *others)

    languages: list[str] = []

    def tokenizer(language: str) -> str:
        languages.append(language)
        return "char"

    monkeypatch.setattr(run, "translate", spy)
    monkeypatch.setattr(run, "bleu_tokenizer", tokenizer)
    small = task("none", spec=small_spec())
    record = run_one(small, store, lambda *_: None, lambda: False)
    prepared = prepare(RunSpec.model_validate(small.spec))
    assert languages == [prepared.text.tgt] * len(TESTS)
    assert "tok:char" in record["test"]["test"]["bleu_signature"]
    for name, sources in zip(TESTS, given, strict=True):
        expected = prepared.tests[name].src
        assert [ids.tolist() for ids in sources] == [ids.tolist() for ids in expected]


def test_the_record_says_why_the_engine_is_not_the_one_asked_for(
    task: MakeTask, store: Store
) -> None:
    small = replace(task("none", spec=small_spec()), engine_note="no capture")
    record = run_one(small, store, lambda *_: None, lambda: False)
    assert (record["engine"], record["engine_note"]) == ("eager", "no capture")
    assert record["is_fallback"]


def test_a_run_that_failed_is_made_again_and_one_that_is_done_is_not(
    task: MakeTask, store: Store
) -> None:
    small = task("none", spec=small_spec())
    store.path(small.key).mkdir(parents=True)
    store.save(small.record("failed", "no reason"))
    record = run_one(small, store, lambda *_: None, lambda: False)
    assert record["status"] == "done"
    again = run_one(small, store, lambda *_: None, lambda: False)
    assert again["timings"] == record["timings"]
    fresh = run_one(replace(small, fresh=True), store, lambda *_: None, lambda: False)
    assert fresh["timings"] != record["timings"]


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


def test_a_failure_leaves_its_traceback(
    task: MakeTask, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise DataError("no network")

    monkeypatch.setattr(run, "prepare", fail)
    small = task("none", spec=small_spec())
    with pytest.raises(DataError):
        run_one(small, store, lambda *_: None, lambda: False)
    assert (store.load(small.key) or {})["error"] == "no network"
    last = (store.path(small.key) / "error.txt").read_text().splitlines()[-1]
    assert last.endswith("DataError: no network")


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
