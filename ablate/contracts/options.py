"""Contracts of options: values are accepted and refused by their types, and each does something."""

from __future__ import annotations

import functools
import math
from itertools import combinations
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from ablate.contracts.tiny import (
    PAD,
    Case,
    accepted,
    accepts,
    alternatives,
    choices,
    ids,
    scrambled,
)
from ablate.model import Transformer

_ODD: tuple[Any, ...] = (None, True, -1e30, "something else", [], {"a": 1})
"""No option may accept all of these values."""


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
        values = [{option: value} for value in alternatives(case.entry, option)]
        for n_layers in (1, 2, 4):  # an option that relates layers may need four
            behaviours = {str(value): _behaviour(case, n_layers, **value) for value in values}
            # One that must be given has no default: the model without it has the first value.
            unchanged = {} if field.is_required() else {"{}": default(n_layers)}
            models = [(name, b) for name, b in (unchanged | behaviours).items() if b is not None]
            pairs = combinations(models, 2)
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
