"""From a spec to a Transformer: the only module that knows both."""

from __future__ import annotations

from collections.abc import Mapping

from ablate.config.experiment import ModelSpec, StackSpec
from ablate.config.inheritance import SIDES
from ablate.model.stack import Layer, Stack
from ablate.model.transformer import Transformer
from ablate.parts.attention import Attention
from ablate.parts.dims import Dims, LayerInfo, Side, StackInfo
from ablate.parts.dropout import WordDropout
from ablate.parts.embedding import Embedding, Vocabulary
from ablate.parts.feed_forward import FeedForward
from ablate.parts.initialisation import Initialisation
from ablate.parts.mask import Mask
from ablate.parts.norm import Norm
from ablate.parts.position import Position
from ablate.parts.residual import Residual
from ablate.parts.scaling import Scaling
from ablate.parts.sharing import Sharing
from ablate.registry import Choice, build, label, refusals


def assemble(spec: ModelSpec, vocabulary: Vocabulary, pad: int) -> Transformer:
    """Build the Transformer that ``spec`` describes, from the inside out.

    Every block of weights has its own parts, except the position encoding, of which there is one
    per stack. The weights are drawn from PyTorch's global generator.

    Raises:
        RefusedError: if a part refuses its arguments, with the path of the choice.
    """
    stacks = {side: spec.stack(side) for side in SIDES}
    model = Transformer(
        embedding=build(Embedding, spec.embedding, spec.dims, vocabulary, at="model.embedding"),
        encoder=_stack(spec.dims, stacks, "encoder", vocabulary, pad),
        decoder=_stack(spec.dims, stacks, "decoder", vocabulary, pad),
        pad=pad,
        max_len=spec.dims.max_len,
    )
    initialisation = build(
        Initialisation, spec.initialisation, spec.dims, at="model.initialisation"
    )
    initialisation.initialise(model)
    for stack in (model.encoder, model.decoder):
        for layer in stack.blocks:
            layer.residual.rescale(layer.attentions, layer.feed_forward)
    return model


def _stack(
    dims: Dims, stacks: Mapping[Side, StackSpec], side: Side, vocabulary: Vocabulary, pad: int
) -> Stack:
    stack, depths = stacks[side], {f"n_{s}_layers": stacks[s].n_layers for s in SIDES}
    stack_info = StackInfo(side=side, **depths)

    def at(slot: str) -> str:
        return f"model.{side}.{slot}"

    def norm(width: int | None = None) -> Norm:
        of_norm = dims if width is None else dims.model_copy(update={"d_model": width})
        return build(Norm, stack.norm, of_norm, at=at("norm"))

    def attention(choice: Choice, slot: str = "attention") -> Attention:
        scaling = build(Scaling, stack.scaling, dims, at=at("scaling"))
        return build(Attention, choice, dims, scaling, stack.dropout, at=at(slot))

    def layer(number: int) -> Layer:
        layer_info = LayerInfo(side=side, layer=number, **depths)
        dropout = stack.dropout
        attentions = [attention(stack.attention)]
        if side == "decoder":
            cross = stack.cross_attention or stack.attention
            attentions.append(attention(cross, "cross_attention"))
        feed_forward = build(
            FeedForward, stack.feed_forward, dims, dropout.activation, at=at("feed_forward")
        )
        residual = build(
            Residual, stack.residual, layer_info, norm, dropout.residual, at=at("residual")
        )
        with refusals(at("residual")):
            if dropout.layer and residual.layer_dropout_blocker:
                raise ValueError(
                    f"{label(type(residual))} {residual.layer_dropout_blocker}; set dropout.layer "
                    f"({dropout.layer}) to 0, or choose another residual"
                )
            residual.modify_sublayers(attentions, feed_forward, norm)
        return Layer(attentions, feed_forward, residual)

    order = build(Sharing, stack.sharing, stack_info, at=at("sharing")).order()
    blocks = {block: layer(order.index(block)) for block in sorted(set(order))}
    position = build(Position, stack.position, dims, stack_info, at=at("position"))
    with refusals(at("position")):
        _check_hidden_keys(position, blocks[0].attentions[0])
    return Stack(
        position=position,
        mask=build(Mask, stack.mask, stack_info, at=at("mask")),
        layers=[blocks[block] for block in order],
        input_transform=blocks[order[0]].residual.input_transform(norm),
        output_transform=blocks[order[-1]].residual.output_transform(norm),
        dropout=stack.dropout,
        word_dropout=WordDropout(stack.dropout, unknown=vocabulary.unknown, pad=pad),
    )


def _check_hidden_keys(position: Position, attention: Attention) -> None:
    """Refuse to hide keys from single heads where that has another effect."""
    kind = type(attention)
    effect = ""
    if kind.mix_scores is not Attention.mix_scores:
        effect = "mixes their scores, which would show them again"
    elif kind.counts_keys:
        effect = "counts all keys that the mask allows, hidden ones too"
    if position.hides_keys_from_heads and effect:
        raise ValueError(
            f"{position.hides_keys_from_heads}, and {label(kind)} {effect}; choose another "
            "attention, or encoder: symmetric"
        )
