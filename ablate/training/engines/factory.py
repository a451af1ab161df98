"""Engines by name: which one a run gets, what rules it out, and which random numbers it draws."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

import torch

from ablate.config.experiment import RunSpec, TrainingSpec
from ablate.cuda_graphs import GraphCapturer
from ablate.errors import SpecError
from ablate.model import Transformer
from ablate.parts.objective import Objective
from ablate.parts.optimizer import Optimizer
from ablate.registry import Part, build, label
from ablate.training.engines.compiled import Compiled
from ablate.training.engines.contract import Eager, Engine
from ablate.training.engines.cuda_graph import CudaGraph
from ablate.training.engines.data_parallel import DataParallel, max_n_shards
from ablate.training.engines.distributed import Distributed
from ablate.training.engines.fully_sharded import FullySharded
from ablate.training.step import StepConfig

_OF_ONE_DEVICE: dict[str, type[Engine]] = {
    cls.name: cls for cls in (Eager, DataParallel, CudaGraph, Compiled)
}
_OF_SEVERAL: dict[str, type[Engine]] = {cls.name: cls for cls in (Distributed, FullySharded)}
_ENGINES = _OF_ONE_DEVICE | _OF_SEVERAL
OF_ONE_DEVICE = tuple(_OF_ONE_DEVICE)
NAMES = ("auto", *OF_ONE_DEVICE, FullySharded.name)
"""The values of ``--engine``; runs on several devices use `Distributed` or `FullySharded`."""

RandomDraws = Literal["whole_batch", "micro_batches", "padded_batch", "ranks"]
SCHEMES: tuple[RandomDraws, ...] = get_args(RandomDraws)


def resolve(name: str, device: str) -> str:
    """Return the engine that ``name`` means on a kind of device; a `SpecError` if it supports none.

    ``auto`` is `cuda_graph` on CUDA, where launching kernels is most of the cost at usual sizes,
    and `data_parallel` on a CPU.
    """
    if name == "auto":
        return CudaGraph.name if device == "cuda" else DataParallel.name
    if name not in NAMES:
        raise SpecError(f"there is no engine {name!r}; say {', '.join(NAMES)}")
    if name == CudaGraph.name and device != "cuda":
        raise SpecError(
            f"the engine {name} captures CUDA graphs, which a {device.upper()} does not have; say "
            f"--engine auto, which is {DataParallel.name} there, or --device cuda"
        )
    return name


def engine_of(run: RunSpec, name: str) -> str:
    """Return the engine of a run: on one device ``name``, as `resolve` returns it."""
    if run.devices_per_run > 1:
        return name if name == FullySharded.name else Distributed.name
    if name == FullySharded.name:
        raise SpecError(
            f"the engine {name} splits a model over the devices of a run, and the runs of this "
            "experiment have one device; say devices_per_run: 2 in it, or more, or --engine auto"
        )
    return name


def capturer_for(name: str, model: Transformer, device: torch.device) -> GraphCapturer | None:
    """Return what captures training and decoding, on one of PyTorch's 32 streams, if any."""
    if not _ENGINES[name].captures or capture_blocker(model):
        return None
    return GraphCapturer(device)


def make_engine(
    name: str,
    model: Transformer,
    step_config: StepConfig,
    optimizer: torch.optim.Optimizer,
    capturer: GraphCapturer | None = None,
) -> Engine:
    """Return an engine of that name; if a part rules it out, the eager one, with a ``note``."""
    reason = ""
    if name in (CudaGraph.name, Compiled.name):
        reason = capture_blocker(model, step_config.objective)
    elif name == DataParallel.name:
        is_cuda = next(model.parameters()).is_cuda
        dependence = batch_dependence(model, step_config.objective)
        reason = "a GPU computes batches whole" if is_cuda else dependence
    if reason:
        engine = Eager(model, step_config, optimizer)
        engine.note = f"not {name}: {reason}"
        warnings.warn(f"{reason}, so that training goes on eagerly, not as {name}", stacklevel=2)
        return engine
    if name == CudaGraph.name:
        return CudaGraph(model, step_config, optimizer, capturer)
    return _ENGINES[name](model, step_config, optimizer)


def random_draws(engine: str, training: TrainingSpec) -> RandomDraws:
    """Return the scheme of random draws of a run, which is part of its identity.

    Engines compute the same function of a batch, but may draw dropout masks of other shapes, for
    which PyTorch's generators give other numbers: ``whole_batch``: each mask for all pairs of a
    batch at once; ``micro_batches``: for each shard from its own seed, unless all batches are too
    small to be split; ``padded_batch``: for sources padded to the captured length; ``ranks``: for
    the share of each rank from its own seed.
    """
    if engine in _OF_SEVERAL:
        return "ranks"
    if engine == DataParallel.name and max_n_shards(training.batch_tokens) > 1:
        return "micro_batches"
    return "padded_batch" if engine == CudaGraph.name else "whole_batch"


def batch_dependence(model: Transformer, objective: Objective) -> str:
    """Return why a batch must not be computed in parts; empty if its pairs are independent."""
    if model.encoder.layer_dropout or model.decoder.layer_dropout:
        return "layer dropout leaves out a layer for the whole batch"
    return _first_reason((part, part.batch_dependence) for part in _parts_of(model, objective))


def capture_blocker(model: Transformer, objective: Objective | None = None) -> str:
    """Return why a pass cannot be captured, without an objective one of decoding; else nothing."""
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
    return next((f"{label(type(part))} {reason}" for part, reason in reasons if reason), "")
