"""The weights of a run as its optimizer has them: whole, or split over the ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn


class Weights:
    """The weights of a model, which its optimizer updates in place."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parameters = list(model.parameters())  # found once: of a small step that is a share

    @property
    def map_location(self) -> torch.device:
        return self._parameters[0].device

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self._model.named_parameters()

    def local_state_dict(self) -> dict[str, Tensor]:
        """Return the model's state dict, with the part of every weight that this rank updates."""
        return self._model.state_dict()

    def shapes(self) -> dict[str, torch.Size]:
        return {name: tensor.shape for name, tensor in self.local_state_dict().items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the whole state dict in the first rank; all ranks call this together."""
        return self.gather(self.local_state_dict())

    def load_state_dict(self, whole: Mapping[str, Tensor]) -> None:
        self._model.load_state_dict(whole)

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the whole of `split` tensors in the first rank; all ranks call this together."""
        return tensors

    def split(self, whole: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the parts of whole tensors that `local_state_dict` has."""
        return whole

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Let the first rank's model have whole weights; all ranks call this together."""
        yield

    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the norm, (), of gradients or weights together; all ranks call this together."""
        return torch.stack([tensor.norm() for tensor in tensors]).float().norm()

    def clip(self, max_norm: float) -> Tensor:
        """Scale the gradient to a norm of at most ``max_norm``; return the norm before, ()."""
        return nn.utils.clip_grad_norm_(self._parameters, max_norm)


class ShardedWeights(Weights):
    """This rank's parts of a model's weights, and of the optimizer's moments.

    A weight is split along its first dimension, as ``fully_shard`` has split those of ``sharded``.
    The optimizer, which has made no step, gets the parts in place of the weights, so it must treat
    every element by itself. The state dicts that it returns (in the first rank) and loads are
    whole. The model's own weights have memory only within `in_model`.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, sharded: nn.Module
    ) -> None:
        super().__init__(model)
        self._rank, self._n_ranks = distributed.get_rank(), distributed.get_world_size()
        self._device = next(model.parameters()).device
        self._sharded: dict[str, Any] = dict(sharded.named_parameters())
        self._parts = {
            name: nn.Parameter(weight.detach().to_local(), requires_grad=weight.requires_grad)
            for name, weight in self._sharded.items()
        }
        names = {weight: name for name, weight in model.named_parameters()}
        # A weight may be in several modules, and so have several names in a state dict
        self._aliases = {
            alias: names[weight] for alias, weight in model.named_parameters(remove_duplicate=False)
        }
        self._names: list[str] = []  # in the order of the optimizer's state dict
        for group in optimizer.param_groups:
            group_names = [names[weight] for weight in group["params"]]
            group["params"] = [self._parts[name] for name in group_names]
            self._names += group_names
        optimizer.register_state_dict_post_hook(self._gather_moments)
        optimizer.register_load_state_dict_pre_hook(self._split_moments)
        self._set_sizes(whole=False)

    @property
    def map_location(self) -> torch.device:
        return torch.device("cpu")

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._parts.items()

    def local_state_dict(self) -> dict[str, Tensor]:
        return {
            name: self._parts[self._aliases[name]].detach() if name in self._aliases else tensor
            for name, tensor in self._model.state_dict().items()
        }

    def shapes(self) -> dict[str, torch.Size]:
        return {
            name: self._sharded[self._aliases[name]].shape if name in self._aliases else part.shape
            for name, part in self.local_state_dict().items()
        }

    @torch.no_grad()
    def load_state_dict(self, whole: Mapping[str, Tensor]) -> None:
        local = self.local_state_dict()
        for name, part in self.split(dict(whole)).items():
            local[name].copy_(part)

    def gather(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: self._gather_one(self._aliases[name], tensor) if name in self._aliases else tensor
            for name, tensor in tensors.items()
        }

    def split(self, whole: dict[str, Tensor]) -> dict[str, Tensor]:
        return {
            name: self._part(tensor).to(self._device) if name in self._aliases else tensor
            for name, tensor in whole.items()
        }

    @contextmanager
    def in_model(self) -> Iterator[None]:
        for name, weight in self._model.named_parameters():
            whole = self._whole(name, self._parts[name].detach())
            if self._rank == 0:
                weight.data = whole
        try:
            yield
        finally:
            self._set_sizes(whole=False)

    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        square = super().norm(tensors).square()
        distributed.all_reduce(square)
        return square.sqrt()

    def clip(self, max_norm: float) -> Tensor:
        parts = self._parts.values()
        norm = self.norm([part.grad for part in parts if part.grad is not None])
        nn.utils.clip_grads_with_norm_(parts, max_norm, norm)
        return norm

    def take_gradients(self) -> None:
        """Move the gradients of the last backward pass to the optimizer's parameters."""
        for name, weight in self._sharded.items():
            self._parts[name].grad = None if weight.grad is None else weight.grad.to_local()
            weight.grad = None

    def release(self) -> None:
        """Give the model's weights memory again, with undefined content."""
        self._set_sizes(whole=True)

    def _set_sizes(self, *, whole: bool) -> None:
        for name, weight in self._model.named_parameters():
            weight.data = weight.new_empty(self._sharded[name].shape if whole else 0)

    def _part(self, whole: Tensor) -> Tensor:
        """Return this rank's part, split as by ``fully_shard``."""
        parts = whole.chunk(self._n_ranks)
        return parts[self._rank] if self._rank < len(parts) else whole[:0]

    def _whole(self, name: str, part: Tensor) -> Tensor:
        from torch.distributed.tensor import DTensor

        like = self._sharded[name]
        return DTensor.from_local(
            part, like.device_mesh, like.placements, shape=like.shape, stride=like.stride()
        ).full_tensor()

    def _gather_one(self, name: str, part: Tensor) -> Tensor:
        """Return the whole on the CPU in the first rank, and the part in the others."""
        whole = self._whole(name, part)
        return whole.cpu() if self._rank == 0 else part

    def _gather_moments(self, _: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return self._convert(state, self._parts, self._gather_one)

    def _split_moments(self, _: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
        return self._convert(state, self._sharded, lambda _, whole: self._part(whole))

    def _convert(
        self,
        state: dict[str, Any],
        weights: Mapping[str, Tensor],
        convert: Callable[[str, Tensor], Tensor],
    ) -> dict[str, Any]:
        """Convert the tensors of an optimizer's state that have the shapes of weights."""
        moments = {number: dict(state["state"][number]) for number in sorted(state["state"])}
        for number, of_weight in moments.items():
            name = self._names[number]
            for key, value in of_weight.items():
                if isinstance(value, Tensor) and value.shape == weights[name].shape:
                    of_weight[key] = convert(name, value)
        return state | {"state": moments}
