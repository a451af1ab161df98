"""Contracts of the parts of a model, tested on a small model that has them, and of options."""

from __future__ import annotations

import functools
import math
from itertools import combinations
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from ablate.contracts.tiny import (
    LARGE,
    PAD,
    VOCABULARY,
    Case,
    accepted,
    accepts,
    alternatives,
    choices,
    ids,
    scrambled,
    spec,
)
from ablate.model import Transformer, assemble

_LEAST_GRADIENT = 1e-9

_ODD: tuple[Any, ...] = (None, True, -1e30, "something else", [], {"a": 1})
"""No option may accept all of these values."""


def shapes(case: Case) -> None:
    """The model has a row of logits for every target token, each a number."""
    logits = case.model(ids(2, 7), ids(2, 5))
    expected = (2, 5, VOCABULARY.n_tgt)
    case.demand(
        logits.shape == expected, f"the logits have shape {tuple(logits.shape)}, not {expected}"
    )
    case.demand(bool(logits.isfinite().all()), "some logits are infinite or NaN")


def causality(case: Case) -> None:
    """A logit does not depend on later target tokens, but on those so far."""
    src, tgt = ids(2, 7), ids(2, 5)
    changed = tgt.clone()
    changed[:, 3:] = (changed[:, 3:] + 1) % VOCABULARY.n_tgt
    for setting, model in case.variants():
        case.demand(
            torch.equal(model(src, tgt)[:, :3], model(src, changed)[:, :3]),
            f"{setting}logits of earlier target tokens change with later ones, which the decoder "
            "may not see",
        )
    before, after = case.model(src, tgt), case.model(src, changed)
    case.demand(
        not torch.allclose(before[:, 3:], after[:, 3:]),
        "logits do not change with the target tokens before them",
    )


def padding(case: Case) -> None:
    """Padding after a sentence changes no logit of its tokens."""
    src, tgt = ids(2, 7), ids(2, 5)
    padded_src = torch.cat((src, torch.full((2, 3), PAD)), dim=1)
    padded_tgt = torch.cat((tgt, torch.full((2, 2), PAD)), dim=1)
    for setting, model in case.variants():
        case.demand(
            _is_close(model(padded_src, padded_tgt)[:, :5], model(src, tgt)),
            f"{setting}padding after a sentence changes the logits of its tokens",
        )


def source(case: Case) -> None:
    """Every logit depends on every source token."""
    src, tgt = ids(2, 7), ids(2, 5)
    n_rows, length = src.shape
    changed = src.repeat(length + 1, 1, 1)  # (S + 1, B, S); the last with nothing changed
    for s in range(length):
        changed[s, :, s] = (src[:, s] - 3) % (VOCABULARY.n_src - 4) + 4
    logits = case.model(changed.flatten(0, 1), tgt.repeat(length + 1, 1))[:, 0]
    *each, before = logits.split(n_rows)
    for s, after in enumerate(each):
        case.demand(
            not torch.allclose(after, before),
            f"the logits do not depend on the source token at position {s}",
        )


def token_by_token(case: Case) -> None:
    """Decoding token by token gives the logits of the whole target at once."""
    model, src, tgt = case.model, ids(3, 7), ids(3, 6)
    src[1, 4:] = PAD
    state = model.start(src, model.max_len)
    steps = [model.step(tgt[:, t], state) for t in range(tgt.size(1))]
    case.demand(
        _is_close(torch.stack(steps, dim=1), model(src, tgt)),
        "decoding token by token gives other logits than all at once; a part gets positions as a "
        "tensor and keeps nothing from call to call, so that one token at position 7 is treated "
        "like the eighth of a sequence",
    )


def beams(case: Case) -> None:
    """Beams can be reordered and sentences removed while decoding."""
    model, src, n_beams = case.model, ids(3, 7), 2
    state = model.start(src, model.max_len)
    first, second, third = ids(6, 3, seed=2).unbind(dim=1)
    first = first[::n_beams].repeat_interleave(n_beams)
    model.step(first[::n_beams], state)
    state.widen(n_beams)
    swap = torch.tensor([1, 0, 3, 2, 5, 4])
    state.select(swap)
    model.step(second, state)
    keep = torch.tensor([5, 4, 0, 1])  # the second sentence is removed
    state.select(keep, torch.tensor([2, 0]))
    logits = model.step(third[keep], state)
    histories = torch.stack((first[swap], second, third), dim=1)[keep]
    expected = model(src.repeat_interleave(n_beams, dim=0)[keep], histories)[:, -1]
    case.demand(_is_close(logits, expected), "beams that change rows get other logits")


def gradients(case: Case) -> None:
    """Gradients reach every parameter.

    With initial weights or others: zeros stop gradients, and routers may select few experts.
    """
    gradients = _gradients(case.model)
    suspects = [name for name, gradient in gradients.items() if not _reaches(name, gradient)]
    if not suspects:
        return
    initial = _gradients(case.fresh())
    for name in suspects:
        case.demand(
            gradients[name] is not None and initial[name] is not None,
            f"no gradient reaches {name}; every parameter must have a part in the output",
        )
        case.demand(
            _reaches(name, initial[name]),
            f"the gradient of {name} is zero; every parameter must change the output",
        )


def meta_device(case: Case) -> None:
    """The part can be made on the meta device, where ``plan`` and ``run`` check experiments."""
    with torch.device("meta"):
        meta = assemble(spec(**choices(case.entry.slot, case.entry.name)), VOCABULARY, PAD)
    case.demand(
        _shapes_of(meta) == _shapes_of(case.model),
        "on the meta device, which holds no numbers, its parameters have other names or shapes",
    )


def state_dict(case: Case) -> None:
    """Saved and loaded weights give the same logits."""
    torch.manual_seed(1)  # not that of `case.model`: what is drawn and not saved is another now
    other = assemble(spec(**choices(case.entry.slot, case.entry.name)), VOCABULARY, PAD)
    other.eval().double()
    other.load_state_dict(case.model.state_dict())
    src, tgt = ids(2, 7), ids(2, 5)
    case.demand(
        torch.equal(other(src, tgt), case.model(src, tgt)),
        "a new model with the saved weights gives other logits; what is trained must be a "
        "parameter, and what is fixed must follow from the options",
    )


def _gradients(model: Transformer) -> dict[str, Tensor | None]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    loss = model(ids(24, 12), ids(24, 11)).square().sum()
    return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


def _reaches(name: str, gradient: Tensor | None) -> bool:
    """Return whether there is a gradient, and not zero unless it may be."""
    # These biases add the same number to all scores of a query
    may_be_zero = name.endswith(("k.bias", "key_norm.bias"))
    return gradient is not None and (may_be_zero or bool(gradient.abs().max() > _LEAST_GRADIENT))


def _shapes_of(model: Transformer) -> dict[str, torch.Size]:
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def _is_close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-7, atol=1e-7)


def typed(case: Case) -> None:
    """Every option has a type that refuses some values, and a line in the docstring."""
    docs = case.entry.option_docs
    for name, field in case.entry.options.model_fields.items():
        reader: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation(), config={"strict": True})
        case.demand(
            not all(accepts(reader, value) for value in _ODD),
            f"the option {name!r} accepts any value; give it a type, as in `{name}: PositiveFloat`",
        )
        case.demand(
            name in docs,
            f"the option {name!r} has no line under Args: in the docstring of the class, which "
            "`ablate parts` and editors show",
        )


def effective(case: Case) -> None:
    """Every option changes the model: its initial weights, or what it computes."""

    @functools.cache
    def default(n_layers: int) -> Behaviour | None:
        return _behaviour(case, n_layers)

    for option, field in case.entry.options.model_fields.items():
        values = [*alternatives(case.entry, option)]
        for n_layers in (1, 2, 4):  # an option that relates layers may need four
            models = [(value, _behaviour(case, n_layers, **{option: value})) for value in values]
            # A limit beyond the sentences is as none, so it is tried where no other is accepted.
            is_less_accepted = any(b is not None for value, b in models if value != LARGE)
            behaviours = {
                str({option: value}): b
                for value, b in models
                if value != LARGE or not is_less_accepted
            }
            # One that must be given has no default: the model without it has the first value.
            unchanged = {} if field.is_required() else {"{}": default(n_layers)}
            named = [(name, b) for name, b in (unchanged | behaviours).items() if b is not None]
            pairs = combinations(named, 2)
            same = next((f"{x[0]} and {y[0]}" for x, y in pairs if not differ(x[1], y[1])), "")
            if not same and None not in behaviours.values():
                break
        case.demand(
            not same, f"the option {option!r} changes nothing: the models with {same} are the same"
        )


class Behaviour:
    """A model's initial weights, its output, and its output in training, computed when read.

    An output includes the buffers of the model after an update.
    """

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._state = {name: value.clone() for name, value in model.state_dict().items()}
        self.weights = {name: self._state[name] for name, _ in model.named_parameters()}

    @functools.cached_property
    def output(self) -> Tensor:
        """Logits and losses in evaluation."""
        return self._output(is_training=False)

    @functools.cached_property
    def trained_output(self) -> Tensor:
        """Logits and losses in training, with dropout."""
        return self._output(is_training=True)

    def _output(self, *, is_training: bool) -> Tensor:
        """Return logits, padding included, and losses, with fixed weights and random numbers."""
        model = self._model.double().train(is_training)
        model.load_state_dict(self._state)
        scrambled(model)
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.3 if is_training else 0.0
        src, tgt = ids(3, 14), ids(3, 13)
        src[1, 9:] = tgt[1, 7:] = PAD
        torch.manual_seed(5)
        losses: list[Tensor] = []
        logits = model(src, tgt, losses)
        model.after_update()
        buffers = [value for name, value in model.state_dict().items() if name not in self.weights]
        return torch.cat([x.flatten() for x in (logits, *losses, *buffers)])


def _behaviour(case: Case, n_layers: int, **options: Any) -> Behaviour | None:
    """Return the behaviour of the small model with the part; None if a part refuses."""
    changes = choices(case.entry.slot, case.entry.name, **options) | {"n_layers": n_layers}
    model = accepted(**changes)
    return None if model is None else Behaviour(model)


def differ(left: Behaviour, right: Behaviour) -> bool:
    """Return whether two models differ in initial weights, output, or output in training.

    Weights are compared by their shapes and the distribution of each.
    """

    def outputs_differ(one: Tensor, other: Tensor) -> bool:
        return one.shape != other.shape or not torch.allclose(one, other, atol=1e-9, rtol=0)

    shapes, others = ({n: w.shape for n, w in x.weights.items()} for x in (left, right))
    if shapes != others:
        return True
    return (
        any(not _are_alike(w, right.weights[name]) for name, w in left.weights.items())
        or outputs_differ(left.output, right.output)
        or outputs_differ(left.trained_output, right.trained_output)
    )


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Compare distributions by mean absolute values, and by tails if there are many weights."""
    means = [float(weight.abs().mean()) for weight in (one, other)]
    if not math.isclose(*means, rel_tol=0.1):
        return False
    tails = [float(w.abs().max()) / max(m, 1e-30) for w, m in zip((one, other), means, strict=True)]
    return one.numel() <= 200 or math.isclose(*tails, rel_tol=0.3)
