"""The schemes by which engines draw random numbers, on which the numbers of a run depend.

Engines compute the same function of a batch, but may draw different dropout masks: they draw masks
of different shapes, and PyTorch's generators give different numbers for different shapes.
"""

from __future__ import annotations

from typing import Literal, get_args

from ablate.config.experiment import TrainingSpec
from ablate.training.engines.cuda_graph import CudaGraph
from ablate.training.engines.data_parallel import DataParallel
from ablate.training.engines.distributed import Distributed
from ablate.training.engines.fully_sharded import FullySharded
from ablate.training.engines.shards import max_n_shards

RandomDraws = Literal["whole_batch", "micro_batches", "padded_batch", "ranks"]
SCHEMES: tuple[RandomDraws, ...] = get_args(RandomDraws)


def random_draws(engine: str, training: TrainingSpec) -> RandomDraws:
    """Return the scheme of random draws of a run, which is part of its identity.

    Args:
        engine: as `engine_of` returns it.
        training: for the size of the batches, since small ones are never split.

    Returns:
        ``whole_batch``: each mask for all pairs of a batch at once; ``micro_batches``: for each
        shard from its own seed; ``padded_batch``: for sources padded to the captured length;
        ``ranks``: for the share of each rank from its own seed.
    """
    if engine in (Distributed.name, FullySharded.name):
        return "ranks"
    if engine == DataParallel.name and max_n_shards(training.batch_tokens) > 1:
        return "micro_batches"
    return "padded_batch" if engine == CudaGraph.name else "whole_batch"
