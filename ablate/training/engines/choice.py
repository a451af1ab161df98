"""Which engine a run gets."""

from __future__ import annotations

import warnings

import torch

from ablate.data.batches import Batch
from ablate.errors import SpecError
from ablate.model import Transformer
from ablate.training.engines.batch_dependence import batch_dependence
from ablate.training.engines.capture_blocker import capture_blocker
from ablate.training.engines.compiled import Compiled
from ablate.training.engines.contract import Engine
from ablate.training.engines.cuda_graph import CudaGraph
from ablate.training.engines.data_parallel import DataParallel
from ablate.training.engines.eager import Eager
from ablate.training.step import StepConfig

_ENGINES: dict[str, type[Engine]] = {
    cls.name: cls for cls in (Eager, DataParallel, CudaGraph, Compiled)
}
NAMES = ("auto", *_ENGINES)


def resolve(name: str, device: str) -> str:
    """Return the engine that ``name`` means on a kind of device.

    ``auto`` is `cuda_graph` on CUDA, where launching kernels is most of the cost at usual sizes,
    and `data_parallel` on a CPU, where that is next to nothing.

    Raises:
        SpecError: if there is no such engine.
    """
    if name == "auto":
        return CudaGraph.name if device == "cuda" else DataParallel.name
    if name not in _ENGINES:
        raise SpecError(f"there is no engine {name!r}; say {', '.join(NAMES)}")
    return name


def choose(
    name: str,
    model: Transformer,
    step_config: StepConfig,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
) -> Engine:
    """Return an engine of that name, or the eager one where a part rules it out.

    Then a warning names the part, and so does the engine's ``note``.

    Args:
        name: as `resolve` returns it.
        model: in training mode, on its device.
        step_config: how a step is made.
        optimizer: of the model's parameters.
        batch: any of those to come, on the model's device.
    """
    reason = _reason(name, model, step_config, batch)
    if not reason:
        return _ENGINES[name](model, step_config, optimizer)
    engine = Eager(model, step_config, optimizer)
    engine.note = f"not {name}: {reason}"
    warnings.warn(f"{reason}, so that training goes on eagerly, not as {name}", stacklevel=2)
    return engine


def _reason(name: str, model: Transformer, step_config: StepConfig, batch: Batch) -> str:
    """Return what rules an engine out; empty if nothing does."""
    if name == Eager.name:
        return ""
    if name != DataParallel.name:
        return capture_blocker(model, step_config, batch)
    return batch_dependence(model, batch) if batch.src.is_cpu else "a GPU does no batch in pieces"
