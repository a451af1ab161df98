"""A run in parts: its numbers, its clock, and what it writes on the way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pandas as pd
import pytest
import torch

from ablate.config import RunSpec
from ablate.data.batches import Batch, Batches
from ablate.data.tokenizer import PAD
from ablate.errors import DivergedError, StoppedError
from ablate.training import Progress, TrainingResult, averaging, checkpoint, loop
from ablate.training.curve import has_row
from ablate.training.engines.contract import Eager
from ablate.training.step import StepResult
from ablate.writing import atomic_write
from tests.training.reversal import pairs, run, run_spec
from tests.training.test_protocol import Renewed

EPOCHS = {"steps": None, "epochs": 4, "evaluate_every": "epoch"}
STEP_S = 10.0
"""How long a step takes by `clock`."""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of the loop, which does not begin at 0 and advances in steps alone."""
    clock = SimpleNamespace(now=1000.0)
    step = Eager.step

    def slow(engine: Eager, batches: Sequence[Batch]) -> StepResult:
        clock.now += STEP_S
        return step(engine, batches)

    monkeypatch.setattr(Eager, "step", slow)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def in_parts(spec: RunSpec, folder: Path, stops: Sequence[int], **changes: Any) -> Any:
    """Train in processes that are stopped after so many steps of their own, and then to the end."""
    for n in stops:
        with pytest.raises(StoppedError):
            run(spec, folder, [*[False] * (n - 1), True], **changes)
    return run(spec, folder, **changes)


def table(file: Path) -> pd.DataFrame:
    return pd.read_csv(file).drop(columns="seconds", errors="ignore")


@pytest.mark.parametrize(
    "training",
    [
        {"average": {"last": 2}},
        {"average": {"best": 2}, "evaluate_every": "epoch", "accumulate": 3},
        {"average": {"ema": 0.9}},
        {"patience": 2, "schedule": {"name": "plateau", "lr": 0.3, "warmup": 2, "patience": 0}},
        {"optimizer": {"name": "sophia", "every": 2}},
        {"optimizer": "schedule_free_adamw", "average": {"last": 2}},
        {"feed_forward": "loss_free_experts"},
    ],
    ids=str,
)
def test_parts_have_the_numbers_files_and_weights_of_the_whole(
    training: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped within a row of the curve, and a second time."""
    monkeypatch.setattr(loop, "has_row", lambda *_: False)
    spec = run_spec(0.3, **{"steps": 9, "evaluate_every": 4, "clip": 1.0} | training)
    made_by = [{"commit": name} for name in ("first", "second")]
    whole, expected = run(spec, tmp_path / "whole", made_by=made_by[0])
    with pytest.raises(StoppedError, match=r"^stopped after step 2 of 9$"):
        run(spec, tmp_path / "parts", [False, True], made_by=made_by[0])
    parts, actual = in_parts(spec, tmp_path / "parts", [3], made_by=made_by[1])
    torch.testing.assert_close(
        dict(actual.state_dict()), dict(expected.state_dict()), rtol=0, atol=0
    )
    for name in ("curve.csv", "layers.csv"):
        left, right = (table(tmp_path / folder / name) for folder in ("whole", "parts"))
        pd.testing.assert_frame_equal(left, right, obj=f"{name} of a run in parts")
    assert replace(parts, seconds=0.0) == replace(whole, seconds=0.0)
    assert parts.made_by == {"commit": "first"}


def test_patience_counts_the_evaluations_of_earlier_parts(tmp_path: Path) -> None:
    """Against the best of them; each part has one or two."""
    nlls = iter([2.0, 1.0, 1.5, 1.4, 1.3, 1.2])
    spec = run_spec(steps=12, evaluate_every=2, patience=3)
    result, _ = in_parts(spec, tmp_path, [3, 4], evaluate=lambda _: next(nlls))
    assert (result.steps, result.stopped_early, result.best_dev_nll) == (10, True, 1.0)


def test_a_finished_run_is_read_and_not_made_again(tmp_path: Path) -> None:
    reports: list[Progress] = []
    first, model = run(run_spec(steps=4, evaluate_every=2), tmp_path)
    again, other = run(run_spec(steps=4, evaluate_every=2), tmp_path, progress=reports.append)
    assert not reports, "no step may be made of a finished run"
    assert again == first
    assert not other.training, "the model must end in evaluation mode"
    torch.testing.assert_close(dict(other.state_dict()), dict(model.state_dict()), rtol=0, atol=0)


def test_seconds_are_those_of_all_parts(tmp_path: Path, clock: SimpleNamespace) -> None:
    spec = run_spec(steps=6, evaluate_every=3)
    result = in_parts(spec, tmp_path, [2, 2])[0]
    seconds = pd.read_csv(tmp_path / "curve.csv")["seconds"].tolist()
    assert seconds == [STEP_S * n for n in range(1, 7)]
    assert result.seconds == 6 * STEP_S


def test_progress_is_at_the_pace_of_this_part(tmp_path: Path, clock: SimpleNamespace) -> None:
    spec = run_spec(steps=6, evaluate_every=3)
    in_parts(spec, tmp_path / "whole", [])
    tokens = pd.read_csv(tmp_path / "whole" / "curve.csv")["tokens"].tolist()
    reports: list[Progress] = []
    in_parts(spec, tmp_path / "parts", [2], progress=reports.append)
    assert [(p.step, p.n_steps) for p in reports] == [(n, 6) for n in range(1, 7)]
    curve = pd.read_csv(tmp_path / "parts" / "curve.csv")
    assert [p.loss for p in reports] == pytest.approx(curve["train_loss"].tolist())
    assert [p.dev_nll is None for p in reports] == [True, True, False, False, False, False]
    assert reports[4].dev_nll == pytest.approx(curve["dev_nll"][2])
    for p in reports:
        before = 2 if p.step > 2 else 0  # steps of an earlier part
        n_tokens = tokens[p.step - 1] - (tokens[before - 1] if before else 0)
        pace = n_tokens / (STEP_S * (p.step - before))
        assert p.tokens_per_second == pytest.approx(pace), f"step {p.step}: only those of this part"
        left = tokens[p.step - 1] / p.step * (6 - p.step) / pace
        assert p.seconds_left == pytest.approx(left), f"step {p.step}: at that pace"


def test_progress_is_reported_when_the_curve_has_a_new_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "has_row", lambda step, _: step == 2)
    reports: list[Progress] = []
    run(run_spec(steps=7, evaluate_every=4), tmp_path, progress=reports.append)
    assert [p.step for p in reports] == [2, 4, 7]
    assert pd.read_csv(tmp_path / "curve.csv")["step"].tolist() == [2, 4, 7]


def test_a_checkpoint_is_written_when_more_than_twenty_seconds_have_passed(
    tmp_path: Path, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And when a snapshot is to be kept or the run is finished."""
    steps: list[int] = []
    save = checkpoint.save

    def count(*args: Any) -> None:
        steps.append(args[3]["step"])
        save(*args)

    monkeypatch.setattr(checkpoint, "save", count)
    run(run_spec(steps=12, evaluate_every=4, average={"last": 2}), tmp_path)
    assert steps == [3, 6, 8, 11, 12]


@pytest.mark.parametrize(
    ("training", "written"),
    [
        ({"steps": 8, "evaluate_every": 2}, [8]),
        (EPOCHS | {"average": {"last": 2}}, [-2, -1]),
        (EPOCHS | {"average": {"last": 2}, "accumulate": 2}, [-2, -1]),
        ({"steps": 8, "evaluate_every": 2, "average": {"last": 2}}, [6, 8]),
        ({"steps": 9, "evaluate_every": 2, "average": {"last": 2}}, [6, 8, 9]),
        ({"steps": 8, "evaluate_every": 2, "average": {"best": 2}}, [2, 4, 6, 8]),
        ({"steps": 8, "evaluate_every": 2, "patience": 9}, [2, 4, 6, 8]),
    ],
    ids=str,
)
def test_snapshots_are_not_written_that_later_ones_will_surely_replace(
    training: dict[str, Any], written: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []

    def note(file: Path) -> AbstractContextManager[IO[Any]]:
        steps.append(int(file.stem))
        return atomic_write(file)

    monkeypatch.setattr(averaging, "atomic_write", note)
    falling = iter(range(100, 0, -1))
    spec = run_spec(batch_tokens=120, **training)
    run(spec, tmp_path, evaluate=lambda _: float(next(falling)))
    evaluated = pd.read_csv(tmp_path / "curve.csv").dropna()["step"].tolist()
    if written[0] < 0:
        written = evaluated[written[0] :]
    assert steps == written, f"of the evaluations after steps {evaluated}"


def test_of_an_epoch_of_unknown_length_every_snapshot_may_be_the_last(tmp_path: Path) -> None:
    """An epoch that is segmented anew may have any number of batches."""
    spec = run_spec(steps=6, batch_tokens=24, evaluate_every=2)
    seen: list[list[str]] = []

    def evaluate(_: object) -> float:
        seen.append([file.stem for file in (tmp_path / "snapshots").glob("*")])
        return 1.0

    run(spec, tmp_path, evaluate=evaluate, batches=Batches(Renewed.make(), 24, PAD))
    assert seen == [[], ["2"], ["4"]]


def test_a_result_describes_the_run(tmp_path: Path) -> None:
    spec = run_spec(0.1, feed_forward="mixture_of_experts", steps=5, evaluate_every=2)
    result, model = run(spec, tmp_path)
    curve = pd.read_csv(tmp_path / "curve.csv")
    batches = Batches(pairs(), 64, PAD)
    assert isinstance(result, TrainingResult)
    assert result.steps == 5
    assert result.batches_per_epoch == batches.n_per_epoch
    assert result.target_tokens == curve["tokens"].iloc[-1]
    assert result.final_loss == pytest.approx(curve["train_loss"].iloc[-1])
    assert result.final_aux_loss == pytest.approx(curve["own_loss"].iloc[-1])
    assert result.final_aux_loss > 0
    assert result.best_dev_nll == pytest.approx(curve["dev_nll"].min())
    assert result.averaged_steps == [5]
    assert (result.engine, result.engine_note, result.engine_seconds) == ("eager", "", 0.0)
    assert (result.micro_batches, result.stopped_early) == (1, False)
    assert not model.training
    assert all(weight.grad is None for weight in model.parameters())


def test_epochs_that_differ_are_counted_as_the_first_of_seed_0(tmp_path: Path) -> None:
    """Neither as those of the run's seed, nor as later ones."""
    batches = Batches(Renewed.make(), 12, PAD)
    lengths = [batches.of_epoch(*of).n_per_epoch for of in ((0, 0), (1, 0), (0, 1))]
    assert len(set(lengths)) == 3, "this test says nothing unless they differ"
    result = run(run_spec(steps=2, batch_tokens=12), tmp_path, batches=batches)[0]
    assert result.batches_per_epoch == lengths[0]


def test_an_evaluation_that_is_no_number_ends_the_run_with_a_row(tmp_path: Path) -> None:
    spec = run_spec(steps=4, evaluate_every=2)
    with pytest.raises(DivergedError, match=r"^after step 2 the NLL on dev is inf"):
        run(spec, tmp_path, evaluate=lambda _: float("inf"))
    rows = pd.read_csv(tmp_path / "curve.csv")
    assert rows["step"].tolist() == [1, 2]
    assert rows["dev_nll"].isna().all()


def test_the_first_hundred_steps_have_a_row_and_then_about_a_thousand_of_a_run() -> None:
    for n_steps, n_rows in ((50, 50), (1500, 1500), (10**5, 1000), (10**6, 1000)):
        rows = [step for step in range(1, n_steps + 1) if has_row(step, n_steps)]
        assert rows[:100] == list(range(1, n_steps + 1))[:100], "each of the first hundred"
        assert n_rows <= len(rows) <= n_rows + 100, f"{len(rows)} rows of {n_steps} steps"
        assert len({later - step for step, later in pairwise(rows[150:])}) < 2
