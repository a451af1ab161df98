"""JoeyNMT: its own model, loss, builders, training loop and search.

Training is its ``TrainManager.train_and_validate``. Where all train on the same batches, that is
given its own ``Batch`` objects made from ours. Where each makes its own, it reads its own
``PlaintextDataset``, shuffled, with its token batches: as many pairs, in random order, as have
``batch_tokens`` on the longer side, padding included. The text has our subwords as words, so that
its quickest tokeniser, which splits at spaces, will do. Decoding is its ``search`` on its own
``Batch`` objects.

Nothing of it is patched. Three settings are changed from outside, so that all do the same work:
dropout, of which it has one rate, is switched off where the others have none (attention weights,
activations); when it decodes, its norms get our epsilon and its tables our sinusoids, so that equal
weights are an equal model. Its four special tokens have fixed ids, so the first four ids are
renumbered. Its label smoothing gives padding no share; it has no fused optimizer, and its learning
rate falls with the step, because it has no constant schedule.

B batch, S source tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from joeynmt.batch import Batch as JoeyBatch
from joeynmt.config import TrainConfig
from joeynmt.datasets import PlaintextDataset
from joeynmt.model import build_model
from joeynmt.search import search
from joeynmt.tokenizers import BasicTokenizer
from joeynmt.training import TrainManager
from joeynmt.transformer_layers import MultiHeadedAttention, PositionwiseFeedForward
from joeynmt.vocabulary import Vocabulary
from torch import Tensor, nn

from peers.protocol import (
    NEVER,
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

UNK, PAD, BOS, EOS = range(4)  # its ids; ours are these less one, modulo 4


def main() -> None:
    """Train or decode until the last round."""
    session = Session(["joeynmt"])
    sizes = session.job.sizes
    dropout = 0.0 if session.job.training is None else session.training.dropout
    vocabulary = _vocabulary(sizes.vocab_size)
    model = build_model(_configuration(sizes, dropout), vocabulary, vocabulary)
    for module in model.modules():
        if isinstance(module, MultiHeadedAttention):
            module.dropout.p = 0.0
        if isinstance(module, PositionwiseFeedForward):
            module.pwff_layer[2].p = 0.0  # of the activations
    model.to(session.job.device)
    if session.job.training is not None:
        train(session, model, vocabulary)
    decode(session, model)


def train(session: Session, model: Any, vocabulary: Vocabulary) -> None:
    """Train in its own loop."""
    training, device = session.training, torch.device(session.job.device)
    model.loss_function = ("crossentropy", training.label_smoothing)
    manager = TrainManager(
        rank=0,
        model=model,
        model_dir=session.folder(),
        device=device,
        n_gpu=int(device.type == "cuda"),
        seed=session.job.seed,
        autocast={
            "device_type": device.type,
            "enabled": training.precision == "bf16",
            "dtype": torch.bfloat16,
        },
        train_args=_training_configuration(session),
    )
    clock = Clock(session, count_parameters(model))
    data: Any = _own_data(session, vocabulary) if training.own_batches else _Data(session, device)
    make_iter = data.make_iter
    data.make_iter = lambda **options: _Timed(make_iter(**options), clock)
    manager.train_and_validate(train_data=data, valid_data=SimpleNamespace())


def decode(session: Session, model: Any) -> None:
    """Translate with its own search."""
    decoding, device = session.decoding, torch.device(session.job.device)
    load(model, session.weights(), decoding.norm_eps)
    model.eval()

    def search_batch(src: Tensor) -> list[Ids]:
        outputs, _, _ = search(
            model,
            _joey_batch(src, None, device),
            max_output_length=decoding.max_tokens,
            beam_size=decoding.beam,
            beam_alpha=decoding.length_penalty,
            min_output_length=0,
        )
        return [[_ours(i) for i in until_eos(row.tolist(), EOS) if i != PAD] for row in outputs]

    def search_all(sources: list[Ids]) -> list[Ids]:
        return in_batches(sources, decoding.batch_tokens, search_batch)

    serve(session, search_all, count_parameters(model))


def load(model: Any, weights: dict[str, Tensor], norm_eps: float) -> None:
    """Give the model our weights."""
    ours = weights["embedding.tgt_table.weight"]
    table = torch.cat((ours[:4].roll(1, dims=0), ours[4:]))
    tables = ("src_embed.lut", "trg_embed.lut", "decoder.output_layer")
    theirs = {f"{name}.weight": table for name in tables}
    theirs |= {_their_name(name): w for name, w in weights.items() if ".layers." in name}
    missing, unknown = model.load_state_dict(theirs, strict=False)
    if unknown or set(missing) - {"encoder.pe.pe", "decoder.pe.pe"}:
        raise RuntimeError(f"weights do not fit: {missing} missing, {unknown} unknown")
    for stack in (model.encoder, model.decoder):
        stack.pe.pe = weights["positions"][None].to(stack.pe.pe.device)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = norm_eps


class _Timed:
    """A loader that ticks the clock at every step.

    Args:
        loader: of a data set.
        clock: of the contender.
    """

    def __init__(self, loader: Any, clock: Clock) -> None:
        self._loader = loader
        self._clock = clock
        self.batch_sampler = loader.batch_sampler

    def __iter__(self) -> Iterator[Any]:
        return self._clock.around(self._loader, lambda batch: (batch.ntokens, batch.trg.numel()))


def _own_data(session: Session, vocabulary: Vocabulary) -> PlaintextDataset:
    """Return its own data set of all pairs."""
    src, tgt = session.write_pairs()
    sides = [file.suffix[1:] for file in (src, tgt)]
    tokenizer = BasicTokenizer(level="word")
    tokenizer.set_vocab(vocabulary)
    return PlaintextDataset(
        path=str(src.with_suffix("")),
        src_lang=sides[0],
        trg_lang=sides[1],
        has_trg=True,
        has_prompt=dict.fromkeys(sides, False),
        tokenizer=dict.fromkeys(sides, tokenizer),
        sequence_encoder=dict.fromkeys(sides, vocabulary.sentences_to_ids),
    )


class _Data:
    """Stands in for the data set, and for the loader that its loop makes of that."""

    def __init__(self, session: Session, device: torch.device) -> None:
        self._batches = session.batches()
        self._device = device
        self.seed = 0
        self.batch_sampler = SimpleNamespace(set_seed=lambda seed: None)

    def make_iter(self, **_: Any) -> _Data:
        return self

    def __iter__(self) -> Iterator[Any]:
        return map(self._made, itertools.cycle(self._batches))

    def _made(self, batch: Batch) -> Any:
        """Return its own batch object, as its loader's ``collate_fn`` would."""
        whole = torch.cat((batch.tgt_in, batch.tgt_out.new_full((len(batch.src), 1), 0)), dim=1)
        whole[:, 1:] = batch.tgt_out
        return _joey_batch(batch.src, _renumbered(whole), self._device)


def _joey_batch(src: Tensor, trg: Tensor | None, device: torch.device) -> JoeyBatch:
    """Return its own batch object; without ``trg`` for decoding."""
    return JoeyBatch(
        src=_renumbered(src),
        src_length=(src != _ours(PAD)).sum(dim=1),
        src_prompt_mask=None,
        trg=trg,
        trg_prompt_mask=None,
        indices=torch.arange(len(src)),
        device=device,
        pad_index=PAD,
        eos_index=EOS,
        is_train=trg is not None,
    )


def _vocabulary(size: int) -> Vocabulary:
    symbols = SimpleNamespace(
        unk_token="<unk>",
        unk_id=UNK,
        pad_token="<pad>",
        pad_id=PAD,
        bos_token="<s>",
        bos_id=BOS,
        eos_token="</s>",
        eos_id=EOS,
        sep_token=None,
        sep_id=None,
        lang_tags=[],
    )
    return Vocabulary([str(i) for i in range(4, size)], symbols)


def _configuration(sizes: Sizes, dropout: float) -> dict[str, Any]:
    stack = {
        "type": "transformer",
        "num_layers": sizes.n_layers,
        "num_heads": sizes.n_heads,
        "hidden_size": sizes.d_model,
        "ff_size": sizes.d_ff,
        "dropout": dropout,
        "layer_norm": "post",
        "activation": "relu",
        "embeddings": {"embedding_dim": sizes.d_model, "scale": True, "dropout": dropout},
    }
    return {
        "encoder": stack,
        "decoder": stack,
        "tied_embeddings": True,
        "tied_softmax": True,
        "initializer": "xavier_uniform",
        "embed_initializer": "normal",
        "embed_init_weight": 1 / math.sqrt(sizes.d_model),
    }


def _training_configuration(session: Session) -> Any:
    training = session.training
    return TrainConfig(
        load_model=None,
        load_encoder=None,
        load_decoder=None,
        loss="crossentropy",
        normalization="tokens",
        label_smoothing=training.label_smoothing,
        optimizer="adam",
        adam_betas=list(training.betas),
        learning_rate=training.lr,
        learning_rate_min=0.0,
        learning_rate_factor=1,
        learning_rate_warmup=1,
        scheduling="warmupinversesquareroot",
        patience=NEVER,
        decrease_factor=0.5,
        weight_decay=0.0,
        clip_grad_norm=training.clip,
        clip_grad_val=None,
        keep_best_ckpts=0,
        logging_freq=100,
        validation_freq=NEVER,
        print_valid_sents=[],
        early_stopping_metric="loss",
        minimize_metric=True,
        shuffle=training.own_batches,
        epochs=NEVER,
        max_updates=NEVER,
        batch_size=training.batch_tokens,
        batch_type="token",
        batch_multiplier=1,
        reset_best_ckpt=False,
        reset_scheduler=False,
        reset_optimizer=False,
        reset_iter_state=False,
    )


def _their_name(name: str) -> str:
    side = name.partition(".")[0]
    pairs = {
        "residual.norms.0.norm": "layer_norm" if side == "encoder" else "x_layer_norm",
        "residual.norms.1.norm": (
            "feed_forward.layer_norm" if side == "encoder" else "dec_layer_norm"
        ),
        "residual.norms.2.norm": "feed_forward.layer_norm",
        "cross_attention.": "src_trg_att.",
        "attention.": "src_src_att." if side == "encoder" else "trg_trg_att.",
        "att.q.": "att.q_layer.",
        "att.k.": "att.k_layer.",
        "att.v.": "att.v_layer.",
        "att.out.": "att.output_layer.",
        "feed_forward.up.": "feed_forward.pwff_layer.0.",
        "feed_forward.down.": "feed_forward.pwff_layer.3.",
    }
    for ours, theirs in pairs.items():
        name = name.replace(ours, theirs)
    return name


def _renumbered(ids: Tensor) -> Tensor:
    return torch.where(ids < 4, (ids + 1) % 4, ids)


def _ours(i: int) -> int:
    return (i - 1) % 4 if i < 4 else i


if __name__ == "__main__":
    main()
