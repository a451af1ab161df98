"""The weights of a run as its optimizer has them: whole, or of every weight a part.

They are whole here; ranks that split them use `ablate.training.engines.sharding`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Weights:
    """The weights of a model, as its optimizer updates them: whole, and in the model.

    Args:
        model: on its device.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    @property
    def map_location(self) -> torch.device:
        """Return where a checkpoint is read to."""
        return next(self._model.parameters()).device

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield what the optimizer updates, with its gradients."""
        return self._model.named_parameters()

    def own(self) -> dict[str, Tensor]:
        """Return the model's state dict with what of the weights this process updates."""
        return self._model.state_dict()

    def shapes(self) -> dict[str, torch.Size]:
        """Return the shapes of the whole state dict."""
        return {name: tensor.shape for name, tensor in self.own().items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the whole state dict in the first rank; all ranks call this together."""
        return self.gathered(self.own())

    def load_state_dict(self, whole: Mapping[str, Tensor]) -> None:
        """Take over a whole state dict."""
        self._model.load_state_dict(whole)

    def gathered(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors like `own` as wholes, in the first rank; all ranks call this together."""
        return tensors

    def split(self, whole: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return of whole tensors what belongs to `own`."""
        return whole

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Have the weights whole in the model of the first rank; all ranks call this together."""
        yield

    def norm(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the norm, (), of gradients or weights together; all ranks call this together."""
        return torch.stack([tensor.norm() for tensor in tensors]).float().norm()

    def clip(self, largest: float) -> Tensor:
        """Scale the gradient so that its norm is at most ``largest``; return what it was, ()."""
        return nn.utils.clip_grad_norm_(self._model.parameters(), largest)
