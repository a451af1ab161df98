"""Checkpoints: what is written is what is read, and damage begins the run anew."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ablate.errors import DamagedFileWarning
from ablate.model import Transformer
from ablate.training import checkpoint
from ablate.training.checkpoint import _has_groups
from ablate.training.step import make_optimizer
from ablate.training.weights import Weights
from tests.training.reversal import fresh, run_spec

Parts = tuple[Transformer, Weights, torch.optim.Optimizer]


def parts_of(optimizer: str = "adam") -> Parts:
    """Return a model, its weights, and an optimizer that has made a step."""
    spec = run_spec(optimizer=optimizer)
    model = fresh(spec)
    made = make_optimizer(spec, model)
    for weight in model.parameters():
        weight.grad = torch.ones_like(weight)
    made.step()
    return model, Weights(model), made


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, Parts]:
    """A checkpoint at step 7, and what it was made of."""
    file, (model, weights, optimizer) = tmp_path / "checkpoint.pt", parts_of()
    checkpoint.save(file, weights, optimizer, {"step": 7})
    return file, (model, weights, optimizer)


def assert_begins_anew(file: Path, weights: Weights, optimizer: Any, reason: str) -> None:
    """Restore what must not be used: nothing is loaded, and the file is removed."""
    before = {name: tensor.clone() for name, tensor in weights.state_dict().items()}
    with pytest.warns(DamagedFileWarning, match=f"checkpoint.pt: {reason}; the run begins anew"):
        assert checkpoint.restore(file, weights, optimizer) is None
    assert not file.exists(), "a checkpoint that cannot be used must be removed"
    torch.testing.assert_close(dict(weights.state_dict()), before, rtol=0, atol=0)


def test_what_is_restored_is_what_was_saved(saved: tuple[Path, Parts]) -> None:
    file, (model, _, optimizer) = saved
    weights, moments = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    for weight in model.parameters():
        weight.data.add_(1.0)
    optimizer.step()
    assert checkpoint.restore(file, Weights(model), optimizer) == {"step": 7}
    torch.testing.assert_close(dict(model.state_dict()), dict(weights), rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], moments, rtol=0, atol=0)


def test_only_the_first_rank_writes(tmp_path: Path) -> None:
    _, weights, optimizer = parts_of()
    checkpoint.save(tmp_path / "checkpoint.pt", weights, optimizer, {}, is_first=False)
    assert not list(tmp_path.iterdir())


def test_a_run_without_a_checkpoint_begins_and_removes_what_a_killed_one_left(
    tmp_path: Path,
) -> None:
    (tmp_path / ".checkpoint.pt.123").touch()
    (tmp_path / ".curve.csv.123").touch()
    _, weights, optimizer = parts_of()
    assert checkpoint.restore(tmp_path / "checkpoint.pt", weights, optimizer) is None
    assert [file.name for file in tmp_path.iterdir()] == [".curve.csv.123"]


@pytest.mark.parametrize(
    ("offset", "bits"),
    [(0, 1), (6, 0xFF), (8, 1), (10, 1), (21, 1), (-50, 1), (-22, 1), (0.3, 1), (0.5, 1), (0.7, 1)],
    ids=lambda x: f"{x}",
)
def test_one_flipped_bit_is_damage(offset: float, bits: int, saved: tuple[Path, Parts]) -> None:
    """Also in the table of parts at the end, which has no checksum of its own.

    An offset is a share of the file, or from the beginning of that table or the end of the file: in
    its magic number, version, flag, method, size and offset, or in its end.
    """
    file, (_, weights, optimizer) = saved
    content = bytearray(file.read_bytes())
    start = content.index(b"PK\x01\x02") if offset >= 0 else len(content)
    place = int(offset * len(content)) if isinstance(offset, float) else start + offset
    content[place] ^= bits
    file.write_bytes(content)
    assert_begins_anew(file, weights, optimizer, "is damaged")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("the device is lost"),
        PermissionError(13, "permission denied"),
    ],
    ids=repr,
)
def test_a_checkpoint_stays_where_something_else_fails(
    error: Exception, saved: tuple[Path, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, (_, weights, optimizer) = saved

    def load(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(torch, "load", load)
        with pytest.raises(type(error)):
            checkpoint.restore(file, weights, optimizer)
    assert checkpoint.restore(file, weights, optimizer) == {"step": 7}


def test_one_that_would_run_code_is_not_loaded(saved: tuple[Path, Parts]) -> None:
    file, (_, weights, optimizer) = saved
    content = torch.load(file, weights_only=True)
    torch.save(content | {"loop": {"step": file}}, file)  # a path is an object of Python
    assert_begins_anew(file, weights, optimizer, "is damaged")


def test_one_of_another_model_begins_the_training_anew(saved: tuple[Path, Parts]) -> None:
    file, (_, _, optimizer) = saved
    other = fresh(run_spec(feed_forward="swiglu"))
    reason = "has lost its snapshots, or is of other code"
    assert_begins_anew(file, Weights(other), optimizer, reason)


def join_groups(state: dict[str, Any]) -> None:
    first, second = state["param_groups"]
    state["param_groups"] = [first | {"params": first["params"] + second["params"]}]


def move_a_weight(state: dict[str, Any]) -> None:
    matrices, others = (part["param_groups"][0] for part in state["optimizers"])
    others["params"].append(matrices["params"].pop())


@pytest.mark.parametrize(("name", "change"), [("adam", join_groups), ("soap", move_a_weight)])
def test_one_of_other_groups_begins_the_training_anew(
    name: str, change: Callable[[dict[str, Any]], None], tmp_path: Path
) -> None:
    file, (_, weights, optimizer) = tmp_path / "checkpoint.pt", parts_of(name)
    checkpoint.save(file, weights, optimizer, {"step": 7})
    content = torch.load(file, weights_only=True)
    change(content["optimizer"])
    torch.save(content, file)
    assert_begins_anew(file, weights, optimizer, "has lost its snapshots, or is of other code")


def test_one_of_several_optimizers_may_have_no_groups() -> None:
    optimizer = parts_of()[2]
    groups = optimizer.state_dict()
    assert _has_groups({"optimizers": [groups, {}]}, optimizer)
    assert _has_groups({"optimizers": [groups]}, optimizer)
    assert not _has_groups({"optimizers": [groups, groups]}, optimizer)


def test_the_loop_may_refuse_its_state(saved: tuple[Path, Parts]) -> None:
    file, (_, weights, optimizer) = saved
    assert checkpoint.restore(file, weights, optimizer, lambda s: s["step"] == 7) == {"step": 7}
    with pytest.warns(DamagedFileWarning, match="has lost its snapshots, or is of other code"):
        assert checkpoint.restore(file, weights, optimizer, lambda _: False) is None


def test_an_optimizer_may_save_what_it_wants(
    saved: tuple[Path, Parts], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of a plugin, without groups that could be compared."""
    file, (_, weights, optimizer) = saved
    loaded: list[Any] = []
    monkeypatch.setattr(optimizer, "state_dict", lambda: {"moments": 3})
    monkeypatch.setattr(optimizer, "load_state_dict", loaded.append)
    checkpoint.save(file, weights, optimizer, {"step": 8})
    assert checkpoint.restore(file, weights, optimizer) == {"step": 8}
    assert loaded == [{"moments": 3}]
