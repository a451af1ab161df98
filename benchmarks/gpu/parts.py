"""Does every registered part, captured, compute what it computes eagerly? Answered by `first_hour`.

Every part of a model, every objective and every optimizer, in the smallest model that takes it and
in double precision, so that any difference beyond rounding shows.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ablate.config import RunSpec
from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.parts.objective import Objective
from ablate.registry import build, choose, lookup, slots
from ablate.training.engines import Engine, make_engine
from ablate.training.step import StepConfig, make_optimizer, set_lr
from gpu.script import Item, Result, Setting, WrongError, answer
from gpu.work import n_captures, relative_difference
from tests.tiny import PARTS, TINY, fitted, ids, some_batch, tiny

_TOLERANCE = 1e-7  # relative; double precision, but sums on a GPU may be in another order


def gradient(slot: str, name: str, objective: str, setting: Setting) -> Result:
    """Compare the gradient of the third pass, unless the part declares that it is not captured."""

    def computed(engine_name: str) -> tuple[list[Tensor], Engine]:
        model = fitted(slot, name).to(setting.device).double().train()
        step_config = StepConfig(build(Objective, choose(Objective, objective), PAD))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        batch = some_batch().to(setting.device)
        engine = make_engine(engine_name, model, step_config, optimizer)
        for _ in range(2):
            engine.step([batch])
        model.zero_grad(set_to_none=False)
        engine.forward_backward(batch, 7)
        weights = list(model.parameters())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in weights]
        engine.close()
        return gradients, engine

    classes = lookup(slot, name).cls, lookup("objective", objective).cls
    if blocker := next(filter(None, (cls.capture_blocker for cls in classes)), ""):
        return _left_to_eager(blocker, computed)
    expected, _ = computed("eager")
    measured, engine = computed("cuda_graph")
    return _compared(measured, expected, engine)


def _left_to_eager(blocker: str, computed: Callable[[str], tuple[list[Tensor], Engine]]) -> Result:
    with warnings.catch_warnings(action="ignore", category=UserWarning):
        _, engine = computed("cuda_graph")
    if blocker not in engine.note:
        raise WrongError(f"is captured, though it declares that it {blocker}")
    return Result(f"trained eagerly, as it declares: {blocker}", {"capture_blocker": blocker})


def optimizer(name: str, setting: Setting) -> Result:
    """Compare the weights after updates with a rate that is another one at each."""

    def updated(engine_name: str) -> tuple[list[Tensor], Engine]:
        run = RunSpec.model_validate(
            {
                "corpus": "synthetic",
                "tokenizer": "word",
                "model": TINY,
                "training": {"steps": 1, "clip": 1.0, "optimizer": name},
            }
        )
        model = tiny().to(setting.device).double().train()
        updater = make_optimizer(run, model)
        src, tgt = ids(4, 8).to(setting.device), ids(4, 9, seed=2).to(setting.device)
        tgt_out = tgt[:, 1:].contiguous()
        batch = Batch(src, tgt[:, :-1], tgt_out, tgt_out.numel(), torch.arange(4))
        step_config = StepConfig.of(run.training, "fp32")
        engine = make_engine(engine_name, model, step_config, updater)
        for rate in (1e-3, 2e-3, 3e-3, 4e-3):
            set_lr(updater, rate)
            engine.step([batch])
        weights = [p.detach().clone() for p in model.parameters()]
        engine.close()
        return weights, engine

    expected, _ = updated("eager")
    measured, engine = updated("cuda_graph")
    return _compared(measured, expected, engine)


def _compared(measured: list[Tensor], expected: list[Tensor], engine: Engine) -> Result:
    if engine.note:
        raise WrongError(f"not captured: {engine.note}")
    difference = relative_difference(measured, expected)
    if not difference < _TOLERANCE:
        raise WrongError(f"differs from eager by {difference:.1e}, {_TOLERANCE:.0e} is allowed")
    figures = {"relative_difference": difference, "captures": n_captures(engine)}
    return Result(f"equal to {difference:.0e}", figures)


def items() -> dict[str, Item]:
    """Return an item for every part, objective and optimizer that is registered."""
    of_all: dict[str, Item] = {
        f"{slot}: {name}": partial(gradient, slot, name, "label_smoothing") for slot, name in PARTS
    }
    for name in sorted(slots()["objective"]):
        of_all[f"objective: {name}"] = partial(gradient, "position", "none", name)
    for name in sorted(slots()["optimizer"]):
        of_all[f"optimizer: {name}"] = partial(optimizer, name)
    return of_all


if __name__ == "__main__":
    sys.exit(answer(items()))
