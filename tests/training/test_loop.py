"""The training loop: it learns, and interruptions and crashes do not change its numbers."""

from __future__ import annotations

import itertools
import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ablate.config import RunSpec
from ablate.errors import DamagedFileWarning, DivergedError
from ablate.training import Progress, TrainingResult, checkpoint, loop, train
from ablate.training.averaging import Snapshots
from ablate.training.step import make_optimizer
from ablate.writing import atomic_write
from tests.training.reversal import fresh, job, nll, run, run_spec, run_with_interruptions


def go(spec: RunSpec, folder: Path) -> tuple[TrainingResult, dict[str, Tensor]]:
    """Train to the end; return the result and the weights."""
    result, model = run(spec, folder)
    return result, model.state_dict()


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def curve(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "curve.csv").drop(columns="seconds")


@pytest.mark.train
def test_it_learns(tmp_path: Path) -> None:
    spec = run_spec(steps=150, dropout=0.0)
    before = nll(fresh(spec))
    trained, _ = go(spec, tmp_path)
    assert before > 2.0
    assert trained.best_dev_nll < before - 0.7
    losses = curve(tmp_path)["train_loss"]
    assert losses[-10:].mean() < 0.6 * losses[:10].mean()


def test_the_memory_of_steps_is_given_back_before_snapshots_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, order = run_spec(steps=2), list[str]()
    model = fresh(spec)

    def give_back() -> None:
        assert all(weight.grad is None for weight in model.parameters())
        order.append("memory")

    def mean(self: Snapshots) -> dict[str, Tensor]:
        order.append("mean")
        return original(self)

    original = Snapshots.mean
    monkeypatch.setattr(loop, "give_back_free_memory", give_back)
    monkeypatch.setattr(Snapshots, "mean", mean)
    train(model, job(spec, tmp_path), lambda _: None, lambda: False)
    assert order == ["memory", "mean"]


@pytest.mark.train
def test_the_same_seed_gives_the_same_numbers(tmp_path: Path) -> None:
    one, left = go(run_spec(), tmp_path / "one")
    two, right = go(run_spec(), tmp_path / "two")
    assert_same(left, right)
    assert one.best_dev_nll == two.best_dev_nll
    other = run_spec().model_copy(update={"seed": 2})
    assert go(other, tmp_path / "other")[0].best_dev_nll != one.best_dev_nll


@pytest.mark.train
@pytest.mark.parametrize(
    "changes",
    [
        {"average": {"last": 2}},
        {"average": {"best": 2}},
        {"feed_forward": "loss_free_experts"},
        {"optimizer": {"name": "schedule_free_adamw"}, "average": {"last": 2}},
        {"optimizer": {"name": "sophia", "every": 3}},
    ],
)
def test_an_interrupted_run_ends_like_one_that_was_not(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    spec = run_spec(accumulate=2, evaluate_every="epoch", clip=1.0, **changes)
    whole, weights = go(spec, tmp_path / "whole")
    parts, model = run_with_interruptions(spec, tmp_path / "parts")
    assert_same(weights, model.state_dict())
    pd.testing.assert_frame_equal(curve(tmp_path / "whole"), curve(tmp_path / "parts"))
    assert parts.averaged_steps == whole.averaged_steps
    assert (parts.epochs, parts.target_tokens) == (whole.epochs, whole.target_tokens)


@pytest.mark.parametrize("average", [{"last": 1}, {"ema": 1e-9}])
def test_the_optimizers_averages_are_evaluated_and_saved(
    tmp_path: Path, average: dict[str, Any]
) -> None:
    spec = run_spec(
        steps=6, evaluate_every=3, optimizer={"name": "schedule_free_adamw"}, average=average
    )
    trained, weights = go(spec, tmp_path)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    model = fresh(spec)
    name_of = {id(p): name for name, p in model.named_parameters()}
    groups = make_optimizer(spec, model).param_groups
    names = [name_of[id(p)] for group in groups for p in group["params"]]
    for number, name in enumerate(names):
        y, z = saved["model"][name], saved["optimizer"]["state"][number]["z"]
        torch.testing.assert_close(weights[name], y.lerp(z, 1 - 1 / 0.9), atol=1e-6, rtol=1e-6)
    assert any(not torch.equal(weights[name], y) for name, y in saved["model"].items())
    model.load_state_dict(weights)
    evaluated = nll(model)
    model.load_state_dict(saved["model"])
    assert abs(evaluated - nll(model)) > 1e-4
    assert trained.best_dev_nll <= evaluated + 1e-6
    curve_of_dev = curve(tmp_path)["dev_nll"].dropna()
    assert curve_of_dev.iloc[-1] == pytest.approx(evaluated, abs=1e-5)


@pytest.mark.train
def test_a_crash_between_snapshot_and_checkpoint_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_spec(average={"last": 2})
    _, weights = go(spec, tmp_path / "whole")
    crashed = tmp_path / "crashed"
    saves, save = itertools.count(), checkpoint.save

    def fails_the_second_time(*args: Any) -> None:
        if next(saves) == 1:
            raise OSError("no space left")
        save(*args)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", fails_the_second_time)
        with pytest.raises(OSError, match="no space"):
            go(spec, crashed)
    assert_same(weights, go(spec, crashed)[1])


@pytest.mark.train
@pytest.mark.parametrize(("name", "is_cut"), [("checkpoint.pt", False), ("snapshots/*", True)])
def test_a_damaged_file_begins_the_training_anew(name: str, is_cut: bool, tmp_path: Path) -> None:
    """One flipped bit of a weight is enough, which PyTorch and safetensors would read."""
    spec = run_spec(steps=8, average={"last": 2}, evaluate_every=4)
    _, weights = go(spec, tmp_path)
    file = next(tmp_path.glob(name))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content[: len(content) // 2] if is_cut else content)
    with pytest.warns(DamagedFileWarning, match="checkpoint.pt: .*; the run begins anew"):
        _, again = go(spec, tmp_path)
    assert_same(weights, again)


@pytest.mark.train
def test_a_checkpoint_of_other_code_begins_the_training_anew(tmp_path: Path) -> None:
    spec = run_spec(steps=4)
    _, weights = go(spec, tmp_path)
    file = tmp_path / "checkpoint.pt"
    content = torch.load(file, weights_only=True)
    content["loop"]["a_field_of_tomorrow"] = 1
    torch.save(content, file)
    with pytest.warns(DamagedFileWarning, match="of other code"):
        _, again = go(spec, tmp_path)
    assert_same(weights, again)


@pytest.mark.train
def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    first, weights = go(run_spec(), tmp_path)
    reports: list[Progress] = []
    again, model = run(run_spec(), tmp_path, progress=reports.append)
    assert not reports
    assert again.target_tokens == first.target_tokens
    assert_same(weights, model.state_dict())


@pytest.mark.train
def test_the_last_snapshots_are_averaged(tmp_path: Path) -> None:
    trained, weights = go(run_spec(average={"last": 3}, steps=50), tmp_path)
    assert trained.averaged_steps == [30, 40, 50]
    files = [load_file(tmp_path / "snapshots" / f"{step}.safetensors") for step in (30, 40, 50)]
    assert len(list((tmp_path / "snapshots").iterdir())) == 3
    for name, weight in weights.items():
        mean = torch.stack([file[name].double() for file in files]).mean(dim=0)
        torch.testing.assert_close(weight, mean.float(), atol=0, rtol=0)


@pytest.mark.train
def test_the_best_snapshots_are_averaged(tmp_path: Path) -> None:
    trained, _ = go(run_spec(average={"best": 2}, steps=60), tmp_path)
    evaluations = curve(tmp_path).dropna().sort_values("dev_nll")
    assert trained.averaged_steps == sorted(evaluations["step"][:2].tolist())
    assert trained.best_dev_nll == evaluations["dev_nll"].iloc[0]


@pytest.mark.train
def test_patience_ends_training_early(tmp_path: Path) -> None:
    spec = run_spec(
        steps=400, patience=2, evaluate_every=5, schedule={"name": "constant", "lr": 0.1}
    )
    trained, _ = go(spec, tmp_path)
    assert trained.stopped_early
    dev = curve(tmp_path).dropna()["dev_nll"].tolist()
    assert trained.steps == 5 * len(dev)
    assert min(dev[-2:]) >= min(dev[:-2])
    assert not go(run_spec(patience=20), tmp_path / "patient")[0].stopped_early


@pytest.mark.train
@pytest.mark.parametrize("lr", [1e3, 1e30])
def test_divergence_ends_the_run_at_once(tmp_path: Path, lr: float) -> None:
    spec = run_spec(schedule={"name": "constant", "lr": lr}, steps=1000)
    with pytest.raises(
        DivergedError, match=r"the loss of step \d+ is .* nats per token; the bound"
    ):
        go(spec, tmp_path)
    rows = curve(tmp_path)
    assert len(rows) < 20
    assert not rows["train_loss"].iloc[-1] < 2 * math.log(12)


@pytest.mark.train
def test_the_bound_on_the_loss_is_an_option(tmp_path: Path) -> None:
    spec = run_spec(schedule={"name": "constant", "lr": 1e3}, diverged_above=1e9)
    assert go(spec, tmp_path)[0].steps == 30


@pytest.mark.train
def test_an_update_that_destroys_the_weights_is_a_divergence(tmp_path: Path) -> None:
    spec = run_spec(optimizer={"name": "sgd"}, schedule={"name": "constant", "lr": 1e38}, steps=1)
    with pytest.raises(DivergedError, match="after step 1 the NLL on dev is nan"):
        go(spec, tmp_path)
    assert curve(tmp_path)["step"].tolist() == [1]


@pytest.mark.train
def test_the_curve_has_a_row_for_every_step(tmp_path: Path) -> None:
    trained, _ = go(run_spec(), tmp_path)
    rows = curve(tmp_path)
    assert rows["step"].tolist() == list(range(1, 31))
    assert rows["tokens"].iloc[-1] == trained.target_tokens
    assert rows["dev_nll"].notna().sum() == 3
    assert set(rows["learning_rate"]) == {1e-2}
    assert (rows["gradient_norm"] > 0).all()


@pytest.mark.train
def test_progress_is_reported(tmp_path: Path) -> None:
    reports: list[Progress] = []
    run(run_spec(), tmp_path, progress=reports.append)
    assert [p.step for p in reports] == list(range(1, 31))
    assert reports[-1].seconds_left == 0
    assert all(p.tokens_per_second > 0 for p in reports)
    assert reports[-1].dev_nll is not None


@pytest.mark.train
@pytest.mark.parametrize(
    "options",
    [
        {"evaluate_every": 4, "average": {"last": 2}},
        {"evaluate_every": 7, "average": {"last": 3}},
        {"evaluate_every": "epoch", "average": {"last": 2}},
        {"evaluate_every": "epoch", "average": {"last": 3}, "accumulate": 3},
        {"evaluate_every": 30, "average": {"last": 1}, "patience": 2},
        {"evaluate_every": 4, "average": {"best": 2}},
    ],
)
def test_snapshots_that_others_will_replace_are_not_written(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_spec(steps=30, **options)
    written: list[int] = []

    def save(file: Path) -> AbstractContextManager[IO[Any]]:
        written.append(int(file.stem))
        return atomic_write(file)

    monkeypatch.setattr("ablate.training.averaging.atomic_write", save)
    few, left = go(spec, tmp_path / "few")
    n_written = len(written)
    monkeypatch.setattr("ablate.training.loop._Loop._n_evaluations_left", lambda _: 0)
    all_of_them, right = go(spec, tmp_path / "all")
    assert few.averaged_steps == all_of_them.averaged_steps
    assert_same(left, right)
    n_evaluations = len(written) - n_written
    if "last" in options["average"] and "patience" not in options:
        assert n_written <= options["average"]["last"] + 1 < n_evaluations
    if "best" in options["average"]:
        assert n_written == n_evaluations
