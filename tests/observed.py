"""What parts do with a batch, and what keeps them from being captured, found out by running them.

Parts declare both (`ablate.registry.Part`); this is what their declarations are compared with.

B batch, S source tokens, T target tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.func import functional_call

from ablate.data.batches import Batch
from ablate.model import Transformer
from ablate.parts.objective.risk import MinimumRisk
from ablate.registry import Part, label
from ablate.training.candidates import draw_candidates
from ablate.training.step import StepConfig

_DISTANCE = 1e-3  # of the largest number: what rounding does not explain


def observed_batch_dependence(model: Transformer, batch: Batch) -> str:
    """Return which part depends on the batch as a whole, and how; empty if none does.

    Observed with the first two pairs: losses that parts add, since these are statistics of a batch;
    numbers that are kept from one batch to the next; and outputs that, without dropout, are others
    where a pair is alone.
    """
    src, tgt = batch.src[:2], batch.tgt_in[:2]
    versions = {name: buffer._version for name, buffer in model.named_buffers()}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        in_training = _calls(model, src, tgt)
        together, alone = (_calls(model.eval(), src[:n], tgt[:n]) for n in (len(src), 1))
    model.train()
    for call in in_training:
        if call.has_loss:
            return f"{call.name} adds a loss that is of the whole batch"
    for name, buffer in model.named_buffers():
        if buffer._version != versions[name]:
            path, _, own = name.rpartition(".")
            return f"{_name(model.get_submodule(path))} keeps {own} from batch to batch"
    for one, other in zip(together, alone, strict=False):
        if one.is_by_pair and not _are_alike(one.output[:1], other.output):
            return f"{one.name} makes pairs of a batch depend on each other"
    return ""


@dataclass(frozen=True)
class _Call:
    """One part's, or the whole model's."""

    name: str
    output: Tensor
    is_by_pair: bool  # the output has a row for each pair
    has_loss: bool  # the part, or one in it, has added a loss


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
    return x.shape == y.shape and torch.allclose(x, y, atol=_DISTANCE * largest, equal_nan=True)


def observed_capture_blocker(model: Transformer, step_config: StepConfig, batch: Batch) -> str:
    """Return which part a capture would fail at, and why; empty if at none.

    PyTorch can run a model on tensors that have shapes and no content. Where a part asks such a
    tensor for a number, or makes a shape depend on one, that run ends.
    """
    mode = FakeTensorMode()
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    fake: dict[str, Tensor] = {name: mode.from_tensor(x) for name, x in state.items()}
    n_passes = step_config.objective.n_passes
    src, tgt_in, tgt_out = (
        mode.from_tensor(ids.repeat(n_passes, 1))
        for ids in (batch.src, batch.tgt_in, batch.tgt_out)
    )
    try:
        if isinstance(step_config.objective, MinimumRisk):
            with mode, torch.no_grad():
                draw_candidates(model, step_config.objective, src, tgt_out, "fp32")
        with mode, torch.no_grad():
            logits = functional_call(model, fake, (src, tgt_in, []))
            step_config.objective.loss(logits.flatten(0, 1), tgt_out.flatten())
    except Exception as error:  # whatever it is, a capture would end with it too
        part, kind, reason = _part(error.__traceback__), type(error).__name__, str(error).strip()
        if kind in ("DataDependentOutputException", "DynamicOutputShapeException"):
            return f"{part} depends on numbers that only the device knows ({reason})"
        return f"{part} cannot run without numbers ({kind}: {reason.partition(chr(10))[0]})"
    return ""


def _part(traceback: TracebackType | None) -> str:
    """Return the innermost part on the way to an error, as ``slot: name``."""
    name = "the model"
    while traceback is not None:
        inside = traceback.tb_frame.f_locals.get("self")
        if isinstance(inside, Part):
            name = label(type(inside))
        traceback = traceback.tb_next
    return name
