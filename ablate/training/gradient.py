"""The gradient of a batch: through both stacks, then logits a few rows at a time, and back.

B batch, S source tokens, T target tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.model import Transformer
from ablate.parts.objective.risk import MinimumRisk
from ablate.training.candidates import Candidates, autocast, draw_candidates
from ablate.training.step import StepConfig


@dataclass(frozen=True)
class StepInputs:
    """The inputs of one pass forward and backward."""

    src: Tensor  # (B, S)
    tgt_in: Tensor  # decoder input, shifted right, (B, T)
    tgt_out: Tensor  # labels, (B, T)
    n_tokens: int | Tensor  # target tokens that are not padding; a tensor is ()
    normalizer: float | Tensor  # what losses are divided by before the gradient is taken; likewise
    token_index: Tensor | None = None
    """The places of those tokens among all B T, (n_tokens,). With None, logits are made for padding
    too, so that all shapes follow from B, S and T."""

    @classmethod
    def of(cls, batch: Batch, normalizer: float) -> StepInputs:
        """Return the inputs of a batch, for a pass without the logits of padding."""
        is_token = batch.tgt_out.flatten() != PAD
        token_index = torch.nonzero_static(is_token, size=batch.n_tokens)[:, 0]
        return cls(batch.src, batch.tgt_in, batch.tgt_out, batch.n_tokens, normalizer, token_index)

    def of_candidates(self, candidates: Candidates) -> StepInputs:
        tgt_out = candidates.tgt_out
        return replace(
            self,
            src=self.src.repeat_interleave(candidates.costs.size(1), dim=0),
            tgt_in=candidates.tgt_in,
            tgt_out=tgt_out,
            token_index=(tgt_out.flatten() != PAD).nonzero()[:, 0],
        )


Gradient = list[Tensor | None]
"""The gradient of each trained weight, in the order of the model; None if a weight has none."""

ForwardHidden = Callable[[Transformer, Tensor, Tensor], tuple[Tensor, list[Tensor]]]
"""From a model, source ids and target ids to the last hidden states and auxiliary losses."""


def forward_hidden(model: Transformer, src: Tensor, tgt: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return the last hidden states, (B, T, D), and the losses that parts add, () each."""
    aux_losses: list[Tensor] = []
    return model.hidden(tgt, model.encode(src, aux_losses), aux_losses), aux_losses


def forward_backward(
    model: Transformer,
    step_config: StepConfig,
    inputs: StepInputs,
    forward_hidden: ForwardHidden = forward_hidden,
) -> Tensor:
    """Run forward and backward on a batch, adding to the gradients of the parameters.

    Returns two losses, both summed over the target tokens, (2,): the objective's, and what parts of
    the model add to it.
    """
    losses, roots, gradients = backward_to_hidden(model, step_config, inputs, forward_hidden)
    torch.autograd.backward(roots, gradients)
    return losses


def backward_to_hidden(
    model: Transformer,
    step_config: StepConfig,
    inputs: StepInputs,
    forward_hidden: ForwardHidden = forward_hidden,
) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """Run forward, and backward through the output layer, adding to its gradients.

    Logits are made, used and freed a few rows at a time. A risk depends on the probabilities of
    whole sentences, which are computed first and determine the weights of the tokens'
    cross-entropies.

    Returns the two losses of `forward_backward`; and for `torch.autograd.backward` the tensors from
    which the gradient flows on, and their gradients.
    """
    objective, precision = step_config.objective, step_config.precision
    candidates: Candidates | None = None
    if isinstance(objective, MinimumRisk):
        candidates = draw_candidates(model, objective, inputs.src, inputs.tgt_out, precision)
        inputs = inputs.of_candidates(candidates)
    n_passes = objective.n_passes
    src, tgt_in = (ids.repeat(n_passes, 1) for ids in (inputs.src, inputs.tgt_in))
    with autocast(src.device, precision):
        hidden, aux_losses = forward_hidden(model, src, tgt_in)  # (passes B, T, D)
    hidden = hidden.unflatten(0, (n_passes, -1)).flatten(1, 2)  # (passes, B T, D)
    targets, context = inputs.tgt_out.flatten(), objective.context(inputs.tgt_out)
    loss: Tensor | None = None
    if candidates is not None:
        loss, context = candidates.loss_and_weights(model, hidden[0], precision)
    context = targets.new_empty(len(targets), 0) if context is None else context.flatten(0, 1)
    if inputs.token_index is not None:
        hidden, targets = hidden[:, inputs.token_index], targets[inputs.token_index]
        context = context[inputs.token_index]
    n_rows = _n_rows(model, step_config, src.device)
    chunks = [chunk.detach().requires_grad_() for chunk in hidden.split(n_rows, dim=1)]
    total = hidden.new_zeros((), dtype=torch.promote_types(hidden.dtype, torch.float32))
    labels = zip(targets.split(n_rows), context.split(n_rows), strict=True)
    for chunk, (ids, ids_context) in zip(chunks, labels, strict=True):
        with autocast(src.device, precision):
            logits = model.embedding.logits(chunk.flatten(0, 1))  # (passes n_rows, V)
        labels_of_passes = (x.expand(n_passes, *x.shape).flatten(0, 1) for x in (ids, ids_context))
        chunk_loss = objective.loss_in_context(logits, *labels_of_passes)
        (chunk_loss / inputs.normalizer).backward()
        total = total + chunk_loss.detach()
    aux_loss = sum(aux_losses, start=total.new_zeros(())) * inputs.n_tokens
    gradient = _gradient(chunks)
    roots = [hidden, aux_loss / inputs.normalizer] if aux_loss.requires_grad else [hidden]
    losses = torch.stack((total if loss is None else loss, aux_loss.detach()))
    return losses, roots, [gradient, None][: len(roots)]


def _n_rows(model: Transformer, step_config: StepConfig, device: torch.device) -> int:
    """Return of how many rows of each pass to make logits at a time."""
    n_rows = model.embedding.rows_at_once(device) // step_config.objective.n_passes
    if device.type == "cpu" and step_config.precision == "bf16":
        n_rows //= 2  # of what is then in a CPU's cache, they and their loss are in both precisions
    return max(1, n_rows)


def _gradient(chunks: Sequence[Tensor]) -> Tensor:
    """Return the gradient (passes, N, ...) of what was split into ``chunks`` along N."""
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in chunks]
    return torch.cat(gradients, dim=1) if len(gradients) > 1 else gradients[0]


def pop_gradients(model: nn.Module) -> Gradient:
    """Return the gradient of a model, and set it to None."""
    weights = trainable_parameters(model)
    gradient = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    return gradient


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights that require gradients."""
    return [weight for weight in model.parameters() if weight.requires_grad]
