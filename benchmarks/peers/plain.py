"""A loop written by hand: ``torch.nn.Transformer``, eager, written to be fast.

It has all that such a loop can have without an engine: the fused attention kernel without needless
masks, the fused Adam, the library's own smoothed cross-entropy, no waiting for the device. As in
all contenders, dropout is on embeddings and sub-layers only, and no norm follows a stack.

B batch, S source tokens, T target tokens, D d_model, V vocabulary.
"""

from __future__ import annotations

import itertools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peers.protocol import PAD, Clock, Session, Sizes, count_parameters


class Translator(nn.Module):
    """Embeddings, sinusoids, ``nn.Transformer`` and an output that is tied.

    Args:
        sizes: of the model.
        dropout: of embeddings and sub-layers.
    """

    positions: Tensor  # (max_len, D)
    causal: Tensor  # (max_len, max_len), True = may not attend

    def __init__(self, sizes: Sizes, dropout: float) -> None:
        super().__init__()
        d_model = sizes.d_model
        self.table = nn.Embedding(sizes.vocab_size, d_model)
        self.scale = math.sqrt(d_model)
        self.dropout = nn.Dropout(dropout)
        self.stacks = nn.Transformer(
            d_model,
            sizes.n_heads,
            num_encoder_layers=sizes.n_layers,
            num_decoder_layers=sizes.n_layers,
            dim_feedforward=sizes.d_ff,
            dropout=dropout,
            batch_first=True,
        )
        self.stacks.encoder.norm = self.stacks.decoder.norm = None
        for layer in (*self.stacks.encoder.layers, *self.stacks.decoder.layers):
            layer.dropout.p = 0.0  # of the activations
        for module in self.stacks.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        nn.init.normal_(self.table.weight, std=d_model**-0.5)
        self.register_buffer("positions", _sinusoids(sizes.max_len, d_model))
        causal = torch.ones(sizes.max_len, sizes.max_len, dtype=torch.bool).triu(1)
        self.register_buffer("causal", causal)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Return logits (B, T, V) from ``src`` (B, S) and ``tgt`` (B, T).

        Padding stands at the end, where the causal mask hides it from all tokens of the target.
        """
        is_pad, n = src == PAD, tgt.size(1)
        x = self.stacks(
            self.embed(src),
            self.embed(tgt),
            tgt_mask=self.causal[:n, :n],
            tgt_is_causal=True,
            src_key_padding_mask=is_pad,
            memory_key_padding_mask=is_pad,
        )
        return F.linear(x, self.table.weight)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed ``ids`` (B, T) as (B, T, D)."""
        return self.dropout(self.table(ids) * self.scale + self.positions[: ids.size(1)])


def main() -> None:
    """Train until the last round."""
    session = Session([])
    job, training = session.job, session.training
    model = Translator(job.sizes, training.dropout).to(job.device)
    optimizer = torch.optim.Adam(
        model.parameters(), training.lr, training.betas, training.eps, fused=True
    )
    model.train()
    clock = Clock(session, count_parameters(model))
    for cpu_batch in clock.around(itertools.cycle(session.batches())):
        batch = cpu_batch.to(job.device)
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(job.device, torch.bfloat16, enabled=training.precision == "bf16"):
            logits = model(batch.src, batch.tgt_in)
            loss = F.cross_entropy(
                logits.flatten(0, 1),
                batch.tgt_out.flatten(),
                ignore_index=PAD,
                reduction="sum",
                label_smoothing=training.label_smoothing,
            )
        (loss / batch.n_tokens).backward()
        nn.utils.clip_grad_norm_(model.parameters(), training.clip)
        optimizer.step()


def _sinusoids(n: int, d_model: int) -> Tensor:
    """Return sines and cosines in turn, (n, D)."""
    speed = 10_000.0 ** (-torch.arange(0, d_model, 2) / d_model)
    angle = torch.outer(torch.arange(n), speed)
    return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)


if __name__ == "__main__":
    main()
