"""Why a model cannot be trained with an engine, as its parts declare it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

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
    return _first_reason((part, part.batch_dependence) for part in _parts_of(model, objective))


def capture_blocker(model: Transformer, objective: Objective | None = None) -> str:
    """Return why a pass through a model cannot be captured in a CUDA graph; empty if it can.

    Without an objective, it is a pass of decoding.
    """
    return _first_reason((part, part.capture_blocker) for part in _parts_of(model, objective))


def shard_blocker(training: TrainingSpec) -> str:
    """Return why the weights of a run cannot be split over devices; empty if they can."""
    optimizer = build(Optimizer, training.optimizer, at="training.optimizer")
    return _first_reason([(optimizer, optimizer.shard_blocker)])


def _parts_of(model: Transformer, objective: Objective | None) -> Iterator[Part]:
    yield from (module for module in model.modules() if isinstance(module, Part))
    yield from (stack.mask for stack in (model.encoder, model.decoder))
    if objective is not None:
        yield objective


def _first_reason(reasons: Iterable[tuple[Part, str]]) -> str:
    """Return the first part and reason as a sentence; empty if there are only empty reasons."""
    return next((f"{label(type(part))} {reason}" for part, reason in reasons if reason), "")
