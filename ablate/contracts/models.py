"""Contracts of the parts of a model, tested on a small model that has them."""

from __future__ import annotations

import torch
from torch import Tensor

from ablate.contracts.tiny import PAD, VOCABULARY, Case, choices, ids, spec
from ablate.model import Transformer, assemble

_LEAST_GRADIENT = 1e-9


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
    before, after = case.model(src, tgt), case.model(src, changed)
    case.demand(
        torch.equal(before[:, :3], after[:, :3]),
        "logits of earlier target tokens change with later ones, which the decoder may not see",
    )
    case.demand(
        not torch.allclose(before[:, 3:], after[:, 3:]),
        "logits do not change with the target tokens before them",
    )


def padding(case: Case) -> None:
    """Padding after a sentence changes no logit of its tokens."""
    src, tgt = ids(2, 7), ids(2, 5)
    padded_src = torch.cat((src, torch.full((2, 3), PAD)), dim=1)
    padded_tgt = torch.cat((tgt, torch.full((2, 2), PAD)), dim=1)
    case.demand(
        _is_close(case.model(padded_src, padded_tgt)[:, :5], case.model(src, tgt)),
        "padding after a sentence changes the logits of its tokens",
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
    state = model.decoder_state(model.encode(src))
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
    state = model.decoder_state(model.encode(src))
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
