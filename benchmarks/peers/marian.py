"""Hugging Face's ``MarianMTModel``: trained by its ``Seq2SeqTrainer``, decoded by ``generate``.

An item of the trainer's data set is one of our whole batches, so that it trains on the same batches
in the same order. Everything else is its own: loader, label smoother, clipping, AdamW without
decay, which is Adam, in its fused form, the library's default. Its attention is the library's
default, the fused kernel.

When it decodes it has our weights and our table of sinusoids. PAD and BOS, which our search never
writes, are ruled out by the model's own bias of the logits, at no cost.

B batch, S source tokens.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor
from transformers import (
    GenerationConfig,
    MarianConfig,
    MarianMTModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
)

from peers.protocol import (
    BOS,
    EOS,
    NEVER,
    PAD,
    Batch,
    Clock,
    Ids,
    Session,
    Sizes,
    count_parameters,
    in_batches,
    serve,
    until_eos,
)

IGNORED = -100  # the label of padding for its loss
RULED_OUT = -1e4


def main() -> None:
    """Train or decode until the last round."""
    session = Session(["transformers", "accelerate"])
    if session.job.training is not None:
        train(session)
    decode(session)


def build(sizes: Sizes, dropout: float) -> Any:
    """Return the model with weights of its own."""
    configuration = MarianConfig(
        vocab_size=sizes.vocab_size,
        max_position_embeddings=sizes.max_len,
        d_model=sizes.d_model,
        encoder_layers=sizes.n_layers,
        decoder_layers=sizes.n_layers,
        encoder_attention_heads=sizes.n_heads,
        decoder_attention_heads=sizes.n_heads,
        encoder_ffn_dim=sizes.d_ff,
        decoder_ffn_dim=sizes.d_ff,
        activation_function="relu",
        dropout=dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=BOS,
    )
    return MarianMTModel(configuration)


def train(session: Session) -> None:
    """Train in its own loop."""
    training, batches = session.training, session.batches()
    model = build(session.job.sizes, training.dropout)
    clock = Clock(session, count_parameters(model))
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=str(session.folder()),
            use_cpu=session.job.device == "cpu",
            bf16=training.precision == "bf16",
            max_steps=NEVER,
            per_device_train_batch_size=1,
            train_sampling_strategy="sequential",
            learning_rate=training.lr,
            lr_scheduler_type="constant",
            adam_beta1=training.betas[0],
            adam_beta2=training.betas[1],
            adam_epsilon=training.eps,
            weight_decay=0.0,
            max_grad_norm=training.clip,
            label_smoothing_factor=training.label_smoothing,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=_Data(batches),
        data_collator=lambda items: items[0],
        callbacks=[_Tick(clock, batches)],
    )
    trainer.train()


def decode(session: Session) -> None:
    """Translate with its own search."""
    decoding, device = session.decoding, session.job.device
    model = build(session.job.sizes, 0.0)
    load(model, session.weights())
    model.to(device).eval()
    config = GenerationConfig(
        num_beams=decoding.beam,
        do_sample=False,
        length_penalty=decoding.length_penalty,
        early_stopping=False,
        max_new_tokens=decoding.max_tokens,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )

    def generate(src: Tensor) -> list[Ids]:
        with torch.inference_mode():
            outputs = model.generate(
                input_ids=src.to(device),
                attention_mask=(src != PAD).long().to(device),
                generation_config=config,
            )
        return [[i for i in until_eos(row[1:]) if i != PAD] for row in outputs.tolist()]

    def generate_all(sources: list[Ids]) -> list[Ids]:
        return in_batches(sources, decoding.batch_tokens, generate)

    serve(session, generate_all, count_parameters(model))


def load(model: Any, weights: dict[str, Tensor]) -> None:
    """Give the model our weights, and our sinusoids as far as it has room for them."""
    theirs = {"model.shared.weight": weights["embedding.tgt_table.weight"]}
    theirs |= {f"model.{_their_name(n)}": w for n, w in weights.items() if ".layers." in n}
    missing, unknown = model.load_state_dict(theirs, strict=False)
    of_table = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}
    fixed = {"model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"}
    own_weights = {"final_logits_bias", "lm_head.weight"}
    if unknown or set(missing) - of_table - fixed - own_weights:
        raise RuntimeError(f"weights do not fit: {missing} missing, {unknown} unknown")
    for stack in (model.model.encoder, model.model.decoder):
        table = stack.embed_positions.weight
        table.data.copy_(weights["positions"][: table.size(0)])
    model.final_logits_bias[:, [PAD, BOS]] = RULED_OUT


class _Data(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Our batches, each an item, over and over."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        batch = self._batches[i]
        return {
            "input_ids": batch.src,
            "attention_mask": (batch.src != PAD).long(),
            "decoder_input_ids": batch.tgt_in,
            "labels": batch.tgt_out.masked_fill(batch.tgt_out == PAD, IGNORED),
        }


class _Tick(TrainerCallback):  # type: ignore[misc]  # it is not installed where types are checked
    """Ticks the clock at every step."""

    def __init__(self, clock: Clock, batches: list[Batch]) -> None:
        self._clock = clock
        self._batches = itertools.cycle(batches)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        batch = next(self._batches)
        self._clock.tick(batch.n_tokens, batch.tgt_out.numel())


def _their_name(name: str) -> str:
    side = name.partition(".")[0]
    pairs = {
        "residual.norms.0.norm": "self_attn_layer_norm",
        "residual.norms.1.norm": (
            "final_layer_norm" if side == "encoder" else "encoder_attn_layer_norm"
        ),
        "residual.norms.2.norm": "final_layer_norm",
        "cross_attention.": "encoder_attn.",
        "attention.": "self_attn.",
        "attn.q.": "attn.q_proj.",
        "attn.k.": "attn.k_proj.",
        "attn.v.": "attn.v_proj.",
        "attn.out.": "attn.out_proj.",
        "feed_forward.up.": "fc1.",
        "feed_forward.down.": "fc2.",
    }
    for ours, theirs in pairs.items():
        name = name.replace(ours, theirs)
    return name


if __name__ == "__main__":
    main()
