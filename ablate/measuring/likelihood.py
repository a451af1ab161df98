"""The likelihood of reference translations, whatever objective a model was trained with."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F

from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.model import Transformer


@torch.inference_mode()
def nll(model: Transformer, batches: Iterable[Batch], precision: str) -> tuple[float, int]:
    """Return the negative log-likelihood per target token, and the number of tokens.

    In nats, EOS counted, padding not, without label smoothing; perplexity is its exponential. The
    model's mode is left as it was.

    Args:
        model: on the device of the batches.
        batches: of the split.
        precision: ``fp32``, or ``bf16`` for autocast; the softmax is in fp32 either way.
    """
    was_training = model.training
    model.eval()
    losses, n_tokens = [], 0
    for batch in batches:
        with torch.autocast(batch.src.device.type, torch.bfloat16, enabled=precision == "bf16"):
            logits = model(batch.src, batch.tgt_in)
        loss = F.cross_entropy(
            logits.flatten(0, 1).float(),
            batch.tgt_out.flatten(),
            ignore_index=PAD,
            reduction="sum",
        )
        losses.append(loss.double())
        n_tokens += batch.n_tokens
    model.train(was_training)
    return float(torch.stack(losses).sum()) / n_tokens, n_tokens
