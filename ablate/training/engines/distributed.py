"""A step by several ranks, each on a device of its own, with a part of every batch.

B batch, T target tokens, D d_model.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor, distributed, nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from ablate.cuda_graphs import generator_of
from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.training.engines.contract import Engine, divide
from ablate.training.gradient import (
    StepInputs,
    backward_to_hidden,
    pop_gradients,
    trainable_parameters,
)
from ablate.training.step import StepConfig


class Distributed(Engine):
    """Splits every batch over the ranks of a process group, and sums their gradients.

    All ranks make the same batches; each computes its share of the pairs. Losses are divided by the
    tokens or sentences of the whole step, and then summed, so that the step is that of one device.
    Gradients are exchanged once per step, during the backward pass of its last batch.

    Dropout: for each batch all ranks draw the same N seeds from the generator of the step, and rank
    r draws the masks of its share from the r-th seed.

    Source: Li et al. 2020, "PyTorch Distributed", VLDB 13(12), sec. 3.
    """

    name = "distributed"
    shares_draws = False

    def __init__(
        self, model: Transformer, step_config: StepConfig, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(model, step_config, optimizer)
        self._rank, self._n_ranks = distributed.get_rank(), distributed.get_world_size()
        self._generator = generator_of(next(model.parameters()).device)
        self._n_left = 0  # batches of the step, with the current one
        self._pass = self._make_pass()
        self._parallel = self._parallelise(self._pass)

    def accumulate(self, batches: Sequence[Batch]) -> tuple[Tensor, int]:
        self._n_left = len(batches)
        losses, n_tokens = super().accumulate(batches)
        distributed.all_reduce(losses)
        return losses, n_tokens

    def forward_backward(self, batch: Batch, normalizer: int) -> Tensor:
        shares = divide(batch, self._n_ranks)
        self.last_engine_batch = shares[0]  # fits into one device, as the self-check requires
        self._n_left -= 1
        with self._own_draws(), self._exchange(is_last=not self._n_left):
            if self._rank < len(shares):
                return self._compute(shares[self._rank], normalizer)
            # Every rank takes part in the exchange; one that has no pairs adds nothing
            return self._compute(shares[0], math.inf).zero_()

    def _make_pass(self) -> "ForwardPass":
        return ForwardPass(self.model, self.step_config)

    def _parallelise(self, module: nn.Module) -> nn.Module:
        # `find_unused_parameters` also keeps DDP from rebuilding its buckets after the first step,
        # after which a run that goes on from a checkpoint would sum in another order
        parallel = DistributedDataParallel(module, find_unused_parameters=True)
        parallel.broadcast_buffers = False  # the argument has another name from PyTorch 2.13 on
        parallel.register_comm_hook(None, _sum_over_ranks)
        return parallel

    def _exchange(self, *, is_last: bool) -> AbstractContextManager[None]:
        assert isinstance(self._parallel, DistributedDataParallel)
        return nullcontext() if is_last else self._parallel.no_sync()

    def _compute(self, share: Batch, normalizer: float) -> Tensor:
        roots = self._parallel(StepInputs.of(share, normalizer))
        torch.autograd.backward(roots, self._pass.gradients)
        return self._pass.losses

    @contextmanager
    def _own_draws(self) -> Iterator[None]:
        """Draw from the seed of this rank; restore the generator, which all ranks share, after."""
        device = self._generator.device
        seeds = torch.randint(2**62, (self._n_ranks,), generator=self._generator, device=device)
        state = self._generator.get_state()
        self._generator.manual_seed(int(seeds[self._rank]))
        try:
            yield
        finally:
            self._generator.set_state(state)


class ForwardPass(nn.Module):
    """Forward, and backward through the output layer, as a module that DDP can wrap.

    DDP expects one backward pass, and the output layer makes one for each chunk of the logits. So
    its gradients are removed from its weights, and enter that one pass through views of them.
    """

    def __init__(self, model: Transformer, step_config: StepConfig) -> None:
        super().__init__()
        self.model = model
        self._step_config = step_config
        self.losses = torch.empty(0)  # of the last pass, as `forward_backward` returns them, (2,)
        self.gradients: list[Tensor | None] = []  # of the tensors that the last pass has returned

    def forward(self, inputs: StepInputs) -> list[Tensor]:
        """Return the tensors from which the gradient flows on: hidden (B T, D), losses, views."""
        weights, before = trainable_parameters(self.model), pop_gradients(self.model)
        self.losses, roots, gradients = backward_to_hidden(self.model, self._step_config, inputs)
        output_gradient = pop_gradients(self.model)
        for weight, gradient in zip(weights, before, strict=True):
            weight.grad = gradient
        pairs = zip(weights, output_gradient, strict=True)
        views = [(w.view_as(w), gradient) for w, gradient in pairs if gradient is not None]
        self.gradients = [*gradients, *(gradient for _, gradient in views)]
        return [*roots, *(view for view, _ in views)]


# DDP checks the annotation of ``bucket``: here it must not be a string (`annotations`)
def _sum_over_ranks(_: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Sum gradients, of which DDP by default takes the mean."""
    reduced = distributed.all_reduce(bucket.buffer(), async_op=True)
    return reduced.get_future().then(lambda future: future.value()[0])
