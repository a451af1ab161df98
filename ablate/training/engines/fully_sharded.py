"""A step by several ranks, each of which has a part of every weight, gradient and moment.

B batch, T tokens, D d_model.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.training.engines.distributed import Distributed, ForwardPass
from ablate.training.gradient import StepInputs, backward_to_hidden
from ablate.training.step import StepConfig
from ablate.training.weights import ShardedWeights


class FullySharded(Distributed):
    """Makes the steps of `Distributed` for models whose state is too large for one device.

    Each rank has only its part of the weights, the gradients and the optimizer's moments. The
    weights of a layer are gathered before each use and freed after it; those outside of layers stay
    for the whole batch. Gradients are summed and split after every batch, because whole ones would
    not fit into memory. The first rank has all weights when it evaluates, and at the end.

    The optimizer must treat every element of a weight by itself. There is no self-check, since one
    device cannot make the step. A weight that no batch of a step uses has a gradient of zeros.

    Source: Rajbhandari et al. 2020, arXiv:1910.02054, sec. 5 (ZeRO, stage 3); PyTorch's
    ``fully_shard``.
    """

    name = "fully_sharded"

    def __init__(
        self, model: Transformer, step_config: StepConfig, optimizer: torch.optim.Optimizer
    ) -> None:
        super().__init__(model, step_config, optimizer)
        self.weights: ShardedWeights = ShardedWeights(model, optimizer, self._pass.model)

    def accumulate(self, batches: Sequence[Batch]) -> tuple[Tensor, int]:
        losses, n_tokens = super().accumulate(batches)
        self.weights.take_gradients()
        return losses, n_tokens

    def forward_backward(self, batch: Batch, normalizer: int) -> Tensor:
        losses = super().forward_backward(batch, normalizer)
        self.last_engine_batch = None
        return losses

    def close(self) -> None:
        del self._parallel, self._pass
        self.weights.release()

    def _exchange(self, *, is_last: bool) -> AbstractContextManager[None]:
        return nullcontext()

    def _make_pass(self) -> ForwardPass:
        # `fully_shard` changes modules, so it gets a copy of them, with the same tensors
        tensors = (*self.model.parameters(), *self.model.buffers())
        model = copy.deepcopy(self.model, {id(tensor): tensor for tensor in tensors})
        return _ShardedPass(model, self.step_config)

    def _parallelise(self, module: nn.Module) -> nn.Module:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        model = self._pass.model
        mesh = init_device_mesh(self._generator.device.type, (self._n_ranks,))
        layers = [*model.encoder.blocks, *model.decoder.blocks]
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(module, mesh=mesh)
        in_layers = {m for layer in layers for m in layer.modules()}
        others = [m for m in module.modules() if m not in in_layers]
        for number, layer in enumerate(layers):
            # Gradients outside of layers are exchanged last, after those of the first layer
            modules = [*layer.modules(), *(others if number == 0 else ())]
            layer.register_forward_pre_hook(_hide, prepend=True)
            layer.register_forward_pre_hook(partial(_reveal, modules))
            layer.register_forward_hook(_without_view, prepend=True)
        for fsdp_module in module.modules():
            if isinstance(fsdp_module, FSDPModule):
                fsdp_module.set_gradient_divide_factor(1.0)  # a sum, not a mean
                fsdp_module.set_force_sum_reduction_for_comms(True)  # gloo supports no other
        return module


class _Hidden:
    """A layer's inputs but the first: ``fully_shard`` would copy lists that layers share."""

    def __init__(self, inputs: tuple[Any, ...]) -> None:
        self.inputs = inputs


def _hide(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return inputs[0], _Hidden(inputs[1:])


def _reveal(modules: Sequence[nn.Module], _: nn.Module, inputs: tuple[Any, ...]) -> Any:
    """Undo `_hide`, and give all weights a gradient: all ranks must exchange those of the same."""
    parameters = chain.from_iterable(module.parameters(recurse=False) for module in modules)
    weights = [weight for weight in parameters if weight.requires_grad]
    x, hidden = inputs
    return _ZerosForNone.apply(x, *weights), *hidden.inputs


def _without_view(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    """Copy a view: a change of a view in place would remove the hooks of ``fully_shard``."""
    return output.clone() if output._is_view() else output


class _ZerosForNone(torch.autograd.Function):
    """Passes on a tensor; the backward pass gives zeros to weights that have no gradient yet."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> Tensor:
        ctx.weights = weights
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *(torch.zeros_like(w) if w.grad is None else None for w in ctx.weights)


class _ShardedPass(ForwardPass):
    """A pass for ``fully_shard``: the output layer's gradients stay in the gathered weights."""

    def forward(self, inputs: StepInputs) -> list[Tensor]:
        self.losses, roots, self.gradients = backward_to_hidden(
            self.model, self._step_config, inputs
        )
        return roots
