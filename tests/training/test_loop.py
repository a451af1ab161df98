"""The training loop: it learns, and interruptions and crashes do not change its numbers."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from ablate.config import RunSpec
from ablate.errors import DamagedFileWarning
from ablate.training import TrainingResult, checkpoint
from ablate.training.step import make_optimizer
from tests.training.reversal import fresh, nll, run, run_spec


def go(spec: RunSpec, folder: Path) -> tuple[TrainingResult, dict[str, Tensor]]:
    """Train to the end; return the result and the weights."""
    result, model = run(spec, folder)
    return result, model.state_dict()


def assert_same(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def curve(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "curve.csv").drop(columns="seconds")


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
