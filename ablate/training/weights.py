"""The weights of a run as its optimizer has them: whole, or a part of every weight.

They are whole here; ranks that split them use `ablate.training.engines.split_weights`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Weights:
    """The weights of a model, which its optimizer updates in place."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @property
    def map_location(self) -> torch.device:
        """Return the device to load a checkpoint to."""
        return next(self._model.parameters()).device

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the names and parameters that the optimizer updates."""
        return self._model.named_parameters()

    def local_state_dict(self) -> dict[str, Tensor]:
        """Return the model's state dict, with the part of every weight that this rank updates."""
        return self._model.state_dict()

    def shapes(self) -> dict[str, torch.Size]:
        """Return the shapes of the whole state dict."""
        return {name: tensor.shape for name, tensor in self.local_state_dict().items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the whole state dict in the first rank; all ranks call this together."""
        return self.gather(self.local_state_dict())

    def load_state_dict(self, whole: Mapping[str, Tensor]) -> None:
        """Load a whole state dict."""
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
        return nn.utils.clip_grad_norm_(self._model.parameters(), max_norm)
