"""Snapshots: which are kept, that damage is noticed, and their mean."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ablate.config.experiment import Average
from ablate.errors import RunError
from ablate.parts.optimizer import Group, Optimizer
from ablate.registry import build, choose
from ablate.training.averaging import Snapshots, evaluated_weights


def model_of(value: float) -> nn.Module:
    """Return a model whose weights all have one value."""
    model = nn.Linear(2, 3)
    for weight in model.parameters():
        nn.init.constant_(weight, value)
    return model


def snapshots(folder: Path, nlls: list[float], **average: int) -> Snapshots:
    """Return what is kept of one snapshot every ten steps, whose weights are their steps."""
    folder.mkdir(exist_ok=True)
    kept = Snapshots(folder, Average(**average))
    for step, nll in enumerate(nlls, start=1):
        kept.add(model_of(10 * step), 10 * step, nll)
    return kept


def values(weights: dict[str, Tensor]) -> list[float]:
    return sorted({float(x) for weight in weights.values() for x in weight.flatten()})


@pytest.mark.parametrize(
    ("nlls", "average", "steps"),
    [
        ([4.0, 1.0, 3.0, 2.0], {"last": 1}, [40]),
        ([4.0, 1.0, 3.0, 2.0], {"last": 3}, [20, 30, 40]),
        ([4.0, 1.0, 3.0, 2.0], {"best": 1}, [20]),
        ([4.0, 1.0, 3.0, 2.0], {"best": 2}, [20, 40]),
        ([4.0, 1.0, 3.0, 2.0], {"best": 3}, [20, 30, 40]),
        ([2.0, 1.0, 1.0], {"best": 1}, [20]),
    ],
    ids=str,
)
def test_the_last_or_the_best_are_kept_named_in_order_and_averaged(
    nlls: list[float], average: dict[str, int], steps: list[int], tmp_path: Path
) -> None:
    kept = snapshots(tmp_path, nlls, **average)
    assert kept.steps == steps
    assert values(kept.mean()) == pytest.approx([sum(steps) / len(steps)])


def test_files_are_pruned_that_are_not_kept(tmp_path: Path) -> None:
    kept = snapshots(tmp_path, [3.0, 2.0, 1.0], last=2)
    (tmp_path / "other.txt").touch()
    assert len(list(tmp_path.glob("*.safetensors"))) == 3, "the list is not yet on disk"
    kept.prune()
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "20.safetensors",
        "30.safetensors",
        "other.txt",
    ]


def test_a_mean_is_summed_in_double_and_has_the_type_of_the_weights(tmp_path: Path) -> None:
    """In half precision 2049 would be 2048, and the sum of the three infinite."""
    kept = Snapshots(tmp_path, Average(last=3))
    for step, value in enumerate((30_000.0, 30_016.0, 30_032.0), start=1):
        kept.add(model_of(value).half(), step, 1.0)
    mean = kept.mean()
    assert {weight.dtype for weight in mean.values()} == {torch.float16}
    assert values(mean) == [30_016.0], "the sum of three must not overflow the type of the weights"


def test_damage_is_noticed_and_an_entry_without_a_hash_is_trusted(tmp_path: Path) -> None:
    kept = snapshots(tmp_path, [2.0, 1.0], last=2)
    assert kept.are_intact()
    of_earlier_code = Snapshots(tmp_path, Average(last=2), kept.entries)
    assert of_earlier_code.are_intact(), "what another process has written is intact, too"
    file = tmp_path / "10.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not kept.are_intact(), "one flipped bit must be noticed"
    with pytest.raises(RunError, match="is damaged; the next call begins anew"):
        kept.mean()
    without_hash = [entry.copy() for entry in kept.entries]
    for entry in without_hash:
        del entry["sha256"]
    assert Snapshots(tmp_path, Average(last=2), without_hash).are_intact()
    file.unlink()
    assert not Snapshots(tmp_path, Average(last=2), without_hash).are_intact()


def test_averages_of_an_optimizer_are_in_the_model_only_meanwhile() -> None:
    """Also where an error ends the evaluation."""
    model = model_of(1.0)
    group = Group(list(model.parameters()), is_matrix=False)
    optimizer = build(Optimizer, choose(Optimizer, "schedule_free_adamw")).make([group])
    for of_group in optimizer.param_groups:
        of_group["lr"] = 0.1
    for _ in range(3):
        for weight in model.parameters():
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    own = [weight.detach().clone() for weight in model.parameters()]
    averages = [average.clone() for _, average in optimizer.averages()]  # type: ignore[attr-defined]
    assert not torch.equal(own[0], averages[0])

    def evaluate() -> None:
        with evaluated_weights(optimizer):
            torch.testing.assert_close(list(model.parameters()), averages, rtol=0, atol=0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    torch.testing.assert_close([w.detach() for w in model.parameters()], own, rtol=0, atol=0)


def test_an_optimizer_without_averages_evaluates_the_weights_themselves() -> None:
    model = model_of(1.0)
    with evaluated_weights(torch.optim.SGD(model.parameters(), lr=0.1)):
        nn.init.zeros_(model.get_parameter("bias"))
    assert not model.get_parameter("bias").any(), "nothing is restored, since nothing was replaced"
