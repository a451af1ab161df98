"""Rows are gathered from records: what counts, what does not, and what is said to be missing."""

from __future__ import annotations

from typing import Any

from ablate.analysis.summary import TRAIN_FLOPS, evaluated_sets, summarise


def record(bleu: float, status: str = "done", **more: Any) -> dict[str, Any]:
    return {
        "status": status,
        "error": None,
        "params": {"total": 1000, "embedding": 10},
        "train": {"steps": 5, "stopped_early": True},
        "test": {"test": {"bleu": bleu, "bleu_signature": "nrefs:1"}},
        **more,
    }


def test_metrics_are_named_as_they_are_nested() -> None:
    (row,) = summarise(["baseline"], [1], {("baseline", 1): record(41.0)})
    assert {name: each.mean for name, each in row.metrics.items()} == {
        "params.total": 1000,
        "params.embedding": 10,
        "train.steps": 5,
        "test.test.bleu": 41.0,
    }


def test_every_seed_has_an_outcome() -> None:
    records = {
        ("baseline", 1): record(41.0),
        ("baseline", 2): record(0.0, "diverged", error="the loss became NaN"),
    }
    (row,) = summarise(["baseline"], [1, 2, 3], records)
    assert row.outcomes == {1: "done", 2: "diverged", 3: "missing"}
    assert [row.count(status) for status in ("done", "diverged", "missing", "oom")] == [1, 1, 1, 0]
    assert row.errors == {2: "the loss became NaN"}
    assert not row.is_complete


def test_quality_is_of_done_runs_and_cost_of_all() -> None:
    records = {("baseline", 1): record(41.0), ("baseline", 2): record(3.0, "diverged")}
    others = {("baseline", 9): record(1.0), ("x", 1): record(2.0)}  # of other rows and seeds
    (row,) = summarise(["baseline"], [1, 2], records | others)
    assert row.metrics["test.test.bleu"].values == {1: 41.0}
    assert row.metrics["params.total"].values == {1: 1000.0, 2: 1000.0}


def test_a_training_costs_what_its_tokens_do() -> None:
    flops = {"train_per_target_token": 50.0}
    records = {
        ("baseline", 1): record(40.0, flops=flops, train={"target_tokens": 1000}),
        ("baseline", 2): record(40.0, flops=flops, train={"target_tokens": 1200}),
        ("baseline", 3): record(40.0, "diverged", flops=flops),
    }
    (row,) = summarise(["baseline"], [1, 2, 3], records)
    assert row.metrics[TRAIN_FLOPS].values == {1: 50_000.0, 2: 60_000.0}


def test_test_sets_keep_their_order() -> None:
    known: dict[str, Any] = {"test2016": {}, "test2017": {}, "mscoco": {}}
    records: dict[tuple[str, int], dict[str, Any]] = {
        ("baseline", 1): {"status": "failed"},
        ("baseline", 2): {"status": "done", "test": known},
    }
    assert evaluated_sets(records) == ["test2016", "test2017", "mscoco"]
