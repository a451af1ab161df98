"""A residual scheme to start from.

B batch, T tokens, D d_model. Try it: ablate check my_residual.py
"""

from __future__ import annotations

from pydantic import PositiveFloat
from torch import Tensor, nn

from ablate.parts.dims import LayerInfo
from ablate.parts.residual import NormMaker, PerSublayer, Sublayer
from ablate.registry import register


# `PerSublayer` treats all sub-layers of a layer alike; for schemes that do not, derive from
# `Residual` and write `forward`.
@register(
    "my_residual",
    formula="x <- x + weight dropout(f(norm(x))); at the end of the stack x <- norm(x)",
    source="you, 2026, sec. 1",
)
class MyResidual(PerSublayer):
    """Pre-LN with a fixed weight on every branch.

    Args:
        weight: of the branches.
    """

    def __init__(
        self, layer_info: LayerInfo, norm: NormMaker, dropout: float, *, weight: PositiveFloat = 0.5
    ) -> None:
        super().__init__(layer_info, norm, dropout)
        self.weight = weight

    def apply_sublayer(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return x + self.weight * self.dropout(sublayer(norm(x)))

    def output_transform(self, norm: NormMaker) -> nn.Module:
        return norm()
