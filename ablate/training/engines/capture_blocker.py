"""What keeps a step from being recorded: a part that lets numbers decide what Python does next.

PyTorch can run a model on tensors that have shapes and no content. Where a part asks such a tensor
for a number, or makes a shape depend on one, that run ends, and the traceback says in which part.
"""

from __future__ import annotations

from types import TracebackType

import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.func import functional_call

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.registry import Part, label
from ablate.training.step import StepConfig


def capture_blocker(model: Transformer, step_config: StepConfig, batch: Batch) -> str:
    """Return which part a recording would fail at, and why; empty if at none.

    Args:
        model: in training mode; neither its weights nor the random numbers to come are touched.
        step_config: whose objective must be recorded too.
        batch: on the model's device.
    """
    mode = FakeTensorMode()
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    fake: dict[str, Tensor] = {name: mode.from_tensor(x) for name, x in state.items()}
    n_passes = step_config.objective.n_passes
    src, tgt_in, tgt_out = (
        mode.from_tensor(ids.repeat(n_passes, 1))
        for ids in (batch.src, batch.tgt_in, batch.tgt_out)
    )
    try:
        with mode, torch.no_grad():
            logits = functional_call(model, fake, (src, tgt_in, []))
            step_config.objective.loss(logits.flatten(0, 1), tgt_out.flatten())
    except Exception as error:  # whatever it is, a recording would meet it too
        return f"{_part(error.__traceback__)} {_why(error)}"
    return ""


def _why(error: Exception) -> str:
    kind = type(error).__name__
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return f"depends on numbers that only the device knows ({str(error).strip()})"
    return f"cannot run without numbers ({kind}: {str(error).strip().partition(chr(10))[0]})"


def _part(traceback: TracebackType | None) -> str:
    """Return the innermost part on the way to an error, as ``slot: name``."""
    found = "the model"
    while traceback is not None:
        inside = traceback.tb_frame.f_locals.get("self")
        if isinstance(inside, Part):
            found = label(type(inside))
        traceback = traceback.tb_next
    return found
