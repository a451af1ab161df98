"""What keeps a model from being trained with an engine, as its parts declare it."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.config.experiment import TrainingSpec
from ablate.model import Transformer
from ablate.parts.objective import Objective
from ablate.parts.optimizer import Optimizer
from ablate.registry import Part, build, label


def batch_dependence(model: Transformer, objective: Objective) -> str:
    """Return why the pairs of a batch depend on each other; empty if they do not.

    Such a batch must not be computed in parts.
    """
    if model.encoder.layer_dropout or model.decoder.layer_dropout:
        return "layer dropout leaves out a layer for the whole batch"
    parts = [*_parts_of(model), objective]
    reasons = [(part, part.batch_dependence) for part in parts if part.batch_dependence]
    return _sentence(*reasons[0]) if reasons else ""


def capture_blocker(model: Transformer, objective: Objective | None = None) -> str:
    """Return why a pass through a model cannot be captured in a CUDA graph; empty if it can.

    Args:
        model: in any mode.
        objective: what the model is trained with, if it is.
    """
    parts = [*_parts_of(model), *([] if objective is None else [objective])]
    reasons = [(part, part.capture_blocker) for part in parts if part.capture_blocker]
    return _sentence(*reasons[0]) if reasons else ""


def shard_blocker(training: TrainingSpec) -> str:
    """Return why the weights of a run cannot be split over devices; empty if they can."""
    optimizer = build(Optimizer, training.optimizer, at="training.optimizer")
    return _sentence(optimizer, optimizer.shard_blocker) if optimizer.shard_blocker else ""


def _parts_of(model: Transformer) -> Iterator[Part]:
    yield from (module for module in model.modules() if isinstance(module, Part))
    yield from (stack.mask for stack in (model.encoder, model.decoder))


def _sentence(part: Part, reason: str) -> str:
    return f"{label(type(part))} {reason}"
