"""Estimates of the loss' curvature, for optimizers that divide by it.

N tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.model import Transformer
from ablate.parts.objective.likelihood import CrossEntropy
from ablate.parts.optimizer import EstimatesCurvature
from ablate.training.candidates import autocast, logits_of_chunks
from ablate.training.engines import Engine
from ablate.training.gradient import StepInputs, forward_backward
from ablate.training.step import StepConfig


def estimate_curvature(engine: Engine, step: int, batch: Batch) -> bool:
    """Give the optimizer of an engine an estimate before a step, if it wants one; return whether.

    The labels of the batch are replaced. Apart from random draws nothing else changes.

    Source: Liu et al. 2023, arXiv:2305.14342, alg. 2.
    """
    optimizer = engine.optimizer
    if not isinstance(optimizer, EstimatesCurvature) or (step - 1) % optimizer.every:
        return False
    model = engine.model.eval()
    gradients = [weight.grad for weight in model.parameters()]
    model.zero_grad(set_to_none=True)
    try:
        engine.run_on_engine_stream(partial(_gradient, model, batch, engine.step_config.precision))
        optimizer.add_curvature(batch.n_tokens)
    finally:
        model.train()
        for weight, gradient in zip(model.parameters(), gradients, strict=True):
            weight.grad = gradient
    return True


def _gradient(model: Transformer, batch: Batch, precision: str) -> Tensor:
    sampled = StepInputs.of(with_sampled_labels(model, batch, precision), batch.n_tokens)
    return forward_backward(model, StepConfig(CrossEntropy(PAD), precision=precision), sampled)


@torch.no_grad()
def with_sampled_labels(model: Transformer, batch: Batch, precision: str) -> Batch:
    """Return a batch whose labels are drawn from the model's predictions, never padding."""
    with autocast(batch.src.device, precision):
        hidden = model.hidden(batch.tgt_in, model.encode(batch.src)).flatten(0, 1)  # (N, D)
    pad = torch.tensor([PAD], device=hidden.device)
    samples = []
    for logits, labels in logits_of_chunks(model, hidden, batch.tgt_out.flatten(), precision):
        p = logits.float().index_fill(1, pad, -torch.inf).softmax(-1)
        sample = (p / torch.empty_like(p).exponential_()).argmax(dim=-1)  # as multinomial
        samples.append(sample.masked_fill(labels == PAD, PAD))
    return replace(batch, tgt_out=torch.cat(samples).view_as(batch.tgt_out))
