"""Pre-LN and its kin: the norm stands in the branch, and one more at the end of the stack.

B batch, T tokens, D d_model. f is a sub-layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from ablate.parts.attention import Attention
from ablate.parts.dims import LayerInfo
from ablate.parts.feed_forward import FeedForward
from ablate.parts.norm import NoNorm
from ablate.parts.residual.contract import NormMaker, OneByOne, Residual, Sublayer
from ablate.registry import register


@register(
    "pre",
    formula="x <- x + dropout(f(norm(x))); at the end of the stack x <- norm(x)",
    source="Xiong et al. 2020, arXiv:2002.04745, fig. 1b",
)
class PreNorm(OneByOne):
    """Norm inside the branch (Pre-LN).

    Args:
        layer_info: where the layer stands.
        norm: makes a fresh norm.
        dropout: of the sub-layers' outputs.
        final_norm: the norm at the end of the stack, without which its output keeps growing.
    """

    def __init__(
        self,
        layer_info: LayerInfo,
        norm: NormMaker,
        dropout: float,
        *,
        final_norm: bool = True,
    ) -> None:
        super().__init__(layer_info, norm, dropout)
        self.final_norm = final_norm

    def join(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return x + self.dropout(sublayer(norm(x)))

    def closing(self, norm: NormMaker) -> nn.Module:
        return norm() if self.final_norm else nn.Identity()


@register(
    "sandwich",
    formula="x <- x + norm2(dropout(f(norm1(x)))); at the end of the stack x <- norm(x)",
    source="Ding et al. 2021, arXiv:2105.13290, sec. 2.4 (CogView)",
)
class Sandwich(Residual):
    """Pre-LN with a second norm on what each branch returns (Sandwich-LN).

    Raises:
        ValueError: if model.norm is none.
    """

    needs_norm = "this wiring is its norms, one before and one after every sub-layer"

    def __init__(self, layer_info: LayerInfo, norm: NormMaker, dropout: float) -> None:
        super().__init__(layer_info, norm, dropout)
        self.after = nn.ModuleList(norm() for _ in self.norms)

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        for before, after, sublayer in zip(self.norms, self.after, sublayers, strict=True):
            x = x + after(self.dropout(sublayer(before(x))))
        return x

    def closing(self, norm: NormMaker) -> nn.Module:
        return norm()


@register(
    "peri",
    formula="x <- norm(embeddings), then as sandwich",
    source="Kim et al. 2025, arXiv:2502.02732, sec. 3 (Peri-LN)",
)
class Peri(Sandwich):
    """Sandwich-LN with a norm on the embeddings too (Peri-LN).

    Raises:
        ValueError: if model.norm is none.
    """

    def opening(self, norm: NormMaker) -> nn.Module:
        return norm()


@register(
    "normformer",
    formula="as pre with norm(attention(norm(x))), g_h head_h, and norm(phi(x W1 + b1)) W2 + b2",
    source="Shleifer et al. 2021, arXiv:2110.09456, sec. 2",
)
class NormFormer(Residual):
    """Pre-LN with a norm after each attention, trained factors of the heads, and a hidden norm.

    The paper has no cross-attention; here it is treated as self-attention is. Leaves out the
    trained factor of the stream that the paper gives to its small models alone.

    Raises:
        ValueError: if model.norm is none, or the attention scales its heads already.
    """

    needs_norm = "normformer is Pre-LN with more norms"

    def __init__(self, layer_info: LayerInfo, norm: NormMaker, dropout: float) -> None:
        super().__init__(layer_info, norm, dropout)
        after = [norm() for _ in range(layer_info.n_sublayers - 1)]
        self.after = nn.ModuleList([*after, nn.Identity()])  # the feed-forward has its own inside

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        for before, after, sublayer in zip(self.norms, self.after, sublayers, strict=True):
            x = x + self.dropout(after(sublayer(before(x))))
        return x

    def closing(self, norm: NormMaker) -> nn.Module:
        return norm()

    def modify_sublayers(
        self, attentions: Sequence[Attention], feed_forward: FeedForward, norm: NormMaker
    ) -> None:
        for attention in attentions:
            if attention.head_scale is not None:
                raise ValueError(
                    "normformer scales the heads, and so does this attention already; "
                    "say attention: full, or residual: pre"
                )
            attention.scale_heads()
        feed_forward.normalise_hidden(norm)


@register(
    "parallel",
    formula="x <- x + dropout(f_1(norm(x))) + dropout(f_2(norm(x))) + ...; at the end x <- norm(x)",
    source="Chowdhery et al. 2022, arXiv:2204.02311, sec. 2 (after Wang & Komatsuzaki 2021, GPT-J)",
)
class Parallel(Residual):
    """All sub-layers of a layer read the same input, and their outputs are added at once.

    Args:
        layer_info: where the layer stands.
        norm: makes a fresh norm.
        dropout: of the sub-layers' outputs.
        shared_norm: whether all sub-layers read through one norm, as in PaLM and GPT-J, or each
            through its own, as in GPT-NeoX.

    Raises:
        ValueError: if there is no norm to have apart.
    """

    def __init__(
        self, layer_info: LayerInfo, norm: NormMaker, dropout: float, *, shared_norm: bool = True
    ) -> None:
        super().__init__(layer_info, norm, dropout, 1 if shared_norm else None)
        if not shared_norm and isinstance(norm(), NoNorm):
            raise ValueError(
                "shared_norm: false gives each sub-layer a norm of its own, but model.norm is "
                "none; choose a norm, or leave shared_norm out"
            )
        self.readers = layer_info.n_sublayers if shared_norm else 1  # of each norm

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        normed = [norm(x) for norm in self.norms] * self.readers
        outputs = [f(y) for f, y in zip(sublayers, normed, strict=True)]
        for output in outputs:
            x = x + self.dropout(output)
        return x

    def closing(self, norm: NormMaker) -> nn.Module:
        return norm()
