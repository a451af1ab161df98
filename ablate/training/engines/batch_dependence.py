"""What ties the pairs of a batch together, so that the batch must not be done in pieces.

B batch, S source tokens, T target tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.registry import Part, label

_APART = 1e-3  # of the largest number: what rounding does not explain


def batch_dependence(model: Transformer, batch: Batch) -> str:
    """Return which part looks at a batch as a whole, and how; empty if none does.

    On the first two pairs three things are looked for: losses that parts add, since these are
    statistics of a batch; numbers that are kept from one batch to the next; and outputs that,
    without dropout, are others where a pair is alone.

    Args:
        model: in training mode, and so it is left; nor are the random numbers to come touched.
        batch: on the model's device.
    """
    if model.encoder.layer_dropout or model.decoder.layer_dropout:
        return "layer dropout leaves out a layer for the whole batch"
    src, tgt = batch.src[:2], batch.tgt_in[:2]
    versions = {name: kept._version for name, kept in model.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        in_training = _calls(model, src, tgt)
        together, alone = (_calls(model.eval(), src[:n], tgt[:n]) for n in (len(src), 1))
    model.train()
    for call in in_training:
        if call.has_loss:
            return f"{call.name} adds a loss that is of the whole batch"
    for name, kept in model.named_buffers():
        if kept._version != versions[name]:
            owner = model.get_submodule(name.rpartition(".")[0])
            return f"{_name(owner)} keeps {name} from batch to batch"
    for one, other in zip(together, alone, strict=False):
        if one.is_by_pair and not _are_alike(one.output[:1], other.output):
            return f"{one.name} makes pairs of a batch depend on each other"
    return ""


@dataclass(frozen=True)
class _Call:
    """One part's, or the whole model's.

    Attributes:
        name: of the part.
        output: of it.
        is_by_pair: whether that has a row for each pair.
        has_loss: whether it has added a loss, or a part in it has.
    """

    name: str
    output: Tensor
    is_by_pair: bool
    has_loss: bool


def _calls(model: Transformer, src: Tensor, tgt: Tensor) -> list[_Call]:
    """Return what the parts do on the way of ``src`` (B, S) and ``tgt`` (B, T), inner ones first.

    Some of them are not called as modules; what these do, others show, the model in the end.
    """
    calls: list[_Call] = []
    losses: list[Tensor] = []
    n_losses: list[int] = []  # when those began that are not at their end

    def begin(*_: object) -> None:
        n_losses.append(len(losses))

    def end(part: nn.Module, _: object, output: object) -> None:
        has_loss = len(losses) > n_losses.pop()
        if isinstance(output, Tensor):
            is_by_pair = output.shape[:1] == src.shape[:1]
            calls.append(_Call(_name(part), output, is_by_pair, has_loss))

    parts = [module for module in model.modules() if isinstance(module, Part)]
    hooks = [part.register_forward_pre_hook(begin) for part in parts]
    hooks += [part.register_forward_hook(end) for part in parts]
    try:
        hidden = model.hidden(tgt, model.encode(src, losses), losses)
    finally:
        for hook in hooks:
            hook.remove()
    return [*calls, _Call("the model", hidden, True, bool(losses))]


def _name(module: nn.Module) -> str:
    return label(type(module)) if isinstance(module, Part) else type(module).__name__


def _are_alike(x: Tensor, y: Tensor) -> bool:
    largest = float(x.abs().max()) if x.is_floating_point() else 0.0
    return x.shape == y.shape and torch.allclose(x, y, atol=_APART * largest, equal_nan=True)
