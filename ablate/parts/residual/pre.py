"""Pre-LN and related schemes: norms in the branches, and one more at the end of the stack.

B batch, T tokens, D d_model. f is a sub-layer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from ablate.parts.attention import Attention
from ablate.parts.dims import Fraction, LayerInfo
from ablate.parts.feed_forward import FeedForward
from ablate.parts.norm import NoNorm
from ablate.parts.residual.contract import NormMaker, PerSublayer, Residual, Sublayer, norm_of
from ablate.registry import register


@register(
    "pre",
    formula="x <- x + dropout(f(norm(x))); at the end of the stack x <- norm(x)",
    source="Xiong et al. 2020, arXiv:2002.04745, fig. 1b",
)
class PreNorm(PerSublayer):
    """Norm inside the branch (Pre-LN).

    Args:
        final_norm: the norm at the end of the stack, without which the output grows with depth.
    """

    def __init__(
        self, layer_info: LayerInfo, norm: NormMaker, dropout: float, *, final_norm: bool = True
    ) -> None:
        super().__init__(layer_info, norm, dropout)
        self.final_norm = final_norm

    def apply_sublayer(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return x + self.dropout(sublayer(norm(x)))


@register(
    "sandwich",
    formula="x <- x + norm2(dropout(f(norm1(x)))); at the end of the stack x <- norm(x)",
    source="Ding et al. 2021, arXiv:2105.13290, sec. 2.4 (CogView)",
)
class Sandwich(Residual):
    """Pre-LN with a second norm on the output of each branch (Sandwich-LN)."""

    needs_norm = "this scheme is defined by its norms, one before and one after every sub-layer"
    final_norm = True

    def __init__(self, layer_info: LayerInfo, norm: NormMaker, dropout: float) -> None:
        super().__init__(layer_info, norm, dropout)
        self.after = nn.ModuleList(norm() for _ in self.norms)

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        for before, after, sublayer in zip(self.norms, self.after, sublayers, strict=True):
            x = x + after(self.dropout(sublayer(before(x))))
        return x


@register(
    "peri",
    formula="x <- norm(embeddings), then as sandwich",
    source="Kim et al. 2025, arXiv:2502.02732, sec. 3 (Peri-LN)",
)
class Peri(Sandwich):
    """Sandwich-LN with a norm on the embeddings too (Peri-LN)."""

    def input_transform(self, norm: NormMaker) -> nn.Module:
        return norm()


@register(
    "normformer",
    formula="as pre with norm(attention(norm(x))), g_h head_h, and norm(phi(x W1 + b1)) W2 + b2",
    source="Shleifer et al. 2021, arXiv:2110.09456, sec. 2",
)
class NormFormer(Residual):
    """Pre-LN with a norm after each attention, trained factors of the heads, and a hidden norm.

    The paper has no cross-attention; this part treats it like self-attention. Leaves out the
    trained factor of the stream that only the paper's small models have.

    Raises:
        ValueError: if model.norm is none, or the attention scales its heads already.
    """

    needs_norm = "normformer is Pre-LN with more norms"
    final_norm = True

    def __init__(self, layer_info: LayerInfo, norm: NormMaker, dropout: float) -> None:
        super().__init__(layer_info, norm, dropout)
        after = [norm() for _ in range(layer_info.n_sublayers - 1)]
        self.after = nn.ModuleList([*after, nn.Identity()])  # the feed-forward has its own inside

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        for before, after, sublayer in zip(self.norms, self.after, sublayers, strict=True):
            x = x + self.dropout(after(sublayer(before(x))))
        return x

    def modify_sublayers(
        self, attentions: Sequence[Attention], feed_forward: FeedForward, norm: NormMaker
    ) -> None:
        for attention in attentions:
            if attention.head_scale is not None:
                raise ValueError(
                    "normformer scales the heads, and so does this attention already; "
                    "choose attention: full, or residual: pre"
                )
            attention.add_head_scale()
        feed_forward.normalise_hidden(norm)


@register(
    "parallel",
    formula="x <- x + dropout(f_1(norm(x))) + dropout(f_2(norm(x))) + ...; at the end x <- norm(x)",
    source="Chowdhery et al. 2022, arXiv:2204.02311, sec. 2 (after Wang & Komatsuzaki 2021, GPT-J)",
)
class Parallel(Residual):
    """All sub-layers of a layer read the same input, and their outputs are added at once.

    Args:
        shared_norm: whether one norm serves all sub-layers, as in PaLM and GPT-J, or each has its
            own, as in GPT-NeoX.

    Raises:
        ValueError: if each is to have its own norm and model.norm is none.
    """

    final_norm = True

    def __init__(
        self, layer_info: LayerInfo, norm: NormMaker, dropout: float, *, shared_norm: bool = True
    ) -> None:
        super().__init__(layer_info, norm, dropout, 1 if shared_norm else None)
        if not shared_norm and isinstance(norm(), NoNorm):
            raise ValueError(
                "shared_norm: false gives each sub-layer a norm of its own, but "
                f"{norm_of(layer_info)} is none; choose a norm, or leave shared_norm out"
            )
        self.uses_per_norm = layer_info.n_sublayers if shared_norm else 1

    def forward(self, x: Tensor, *sublayers: Sublayer) -> Tensor:
        normed = [norm(x) for norm in self.norms] * self.uses_per_norm
        outputs = [f(y) for f, y in zip(sublayers, normed, strict=True)]
        for output in outputs:
            x = x + self.dropout(output)
        return x


@register(
    "post_branch",
    formula="x <- x + dropout(norm(f(x))); at the end of the stack x <- norm(x)",
    source="Liu et al. 2022, arXiv:2111.09883, sec. 3.2 (Swin V2, res-post-norm); OLMo Team 2025, "
    "arXiv:2501.00656, sec. 3.3.2 (OLMo 2)",
)
class PostBranch(PerSublayer):
    """Norm on the output of each branch alone, so that all branches add outputs of one size.

    Gains start at 1, as in OLMo 2; in the code of Swin V2 they start at 0, so that every layer is
    the identity at first.
    """

    needs_norm = "post_branch normalises what is added to the stream"
    final_norm = True

    def apply_sublayer(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return x + self.dropout(norm(sublayer(x)))


@register(
    "layernorm_scaling",
    formula="x <- x + dropout(f(norm(x) / sqrt(l))), l = 1, 2, ...; at the end x <- norm(x)",
    source="Sun et al. 2025, arXiv:2502.05795, sec. 4 (LayerNorm Scaling)",
)
class LayerNormScaling(PerSublayer):
    """Pre-LN with norms that are smaller in higher layers, so that the stream grows less.

    A block that serves several layers has the factor of the lowest.
    """

    needs_norm = "layernorm_scaling scales the outputs of norms"
    final_norm = True

    def __init__(self, layer_info: LayerInfo, norm: NormMaker, dropout: float) -> None:
        super().__init__(layer_info, norm, dropout)
        self.factor = (layer_info.layer + 1) ** -0.5

    def apply_sublayer(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        return x + self.dropout(sublayer(self.factor * norm(x)))


@register(
    "mix",
    formula="as post in the first ceil(share n_layers) layers, as pre in those above",
    source="Li et al. 2024, arXiv:2412.13795, sec. 3 (Mix-LN)",
)
class Mix(PerSublayer):
    """Post-LN in the lower layers of a stack and Pre-LN in the upper ones.

    A block that serves several layers is what the lowest of them is, so that with sharing: block
    all layers are Post-LN.

    Args:
        share: share of the layers that are Post-LN, rounded up to whole layers, so that there is at
            least one; the paper rounds down: 1 of 6 layers at a quarter, where this part has 2.
    """

    needs_norm = "mix is defined by the positions of its norms"

    def __init__(
        self, layer_info: LayerInfo, norm: NormMaker, dropout: float, *, share: Fraction = 0.25
    ) -> None:
        super().__init__(layer_info, norm, dropout)
        self.is_post = layer_info.layer < math.ceil(share * layer_info.n_layers)
        self.final_norm = not self.is_post

    def apply_sublayer(self, x: Tensor, sublayer: Sublayer, norm: nn.Module) -> Tensor:
        if self.is_post:
            return norm(x + self.dropout(sublayer(x)))
        return x + self.dropout(sublayer(norm(x)))
