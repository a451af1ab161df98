"""OpenNMT-py: its own model, loss, optimizer and training loop.

Its ``Trainer.train`` is given batches as its own iterator would make them, from ours. Where each
program makes its own, that iterator makes them, in the process that trains: of a bucket of its
usual size, sorted by length, with at most ``batch_tokens`` on the longer side, padding included.

It was written for an older PyTorch and asks for packages that its training never uses; it runs on
the common one unchanged, with empty modules in place of two of those (spacy, fasttext).

Its Transformer is always pre-norm with a norm after each stack. Dropout of the activations, which
has the rate of the sub-layers' dropout, is switched off from outside. The work is then the same but
for those two norms and the bias of its output.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from peers.protocol import NEVER, PAD, Clock, Session, count_parameters


def main() -> None:
    """Train until the last round."""
    session = Session(["OpenNMT-py"])
    _replace_unused_packages()
    import pyonmttok
    from onmt.model_builder import build_model
    from onmt.modules.position_ffn import PositionwiseFeedForward
    from onmt.trainer import build_trainer
    from onmt.utils.optimizers import Optimizer

    if session.training.precision != "fp32":
        raise SystemExit("it has no mixed precision in bf16")
    n_words = session.job.sizes.vocab_size
    words = ["<blank>", "<s>", "</s>", "<unk>", *(str(i) for i in range(4, n_words))]
    vocabulary = pyonmttok.build_vocab_from_tokens(words)
    vocabularies = {
        "src": vocabulary,
        "tgt": vocabulary,
        "data_task": "seq2seq",
        "decoder_start_token": "<s>",
    }
    options = _options(session)
    model = build_model(options, options, vocabularies, None, -1)
    for module in model.modules():
        if isinstance(module, PositionwiseFeedForward):
            module.dropout_1.p = 0.0  # of the activations
    optimizer = Optimizer.from_opt(model, options)
    device_id = 0 if session.job.device == "cuda" else -1
    trainer = build_trainer(options, device_id, model, vocabularies, optimizer)
    clock = Clock(session, count_parameters(model))
    make_batches = _own_batches if session.training.own_batches else _batches
    trainer.train(clock.around(make_batches(session, options, vocabularies), _size), NEVER)


def _replace_unused_packages() -> None:
    """Put empty modules in place of packages that its pre-processing imports and training not."""
    for name in ("fasttext", "spacy", "spacy.language", "spacy.tokens"):
        sys.modules[name] = ModuleType(name)
    vars(sys.modules["spacy.language"])["Language"] = object
    vars(sys.modules["spacy.tokens"])["Doc"] = object


def _options(session: Session) -> Any:
    """Return its options as its command line would read them."""
    from onmt.opts import train_opts
    from onmt.utils.parse import ArgumentParser

    sizes, training = session.job.sizes, session.training
    parser = ArgumentParser()
    train_opts(parser)
    facts = {
        "data": "{}",
        "src_vocab": "none",
        "encoder_type": "transformer",
        "decoder_type": "transformer",
        "layers": sizes.n_layers,
        "heads": sizes.n_heads,
        "hidden_size": sizes.d_model,
        "word_vec_size": sizes.d_model,
        "transformer_ff": sizes.d_ff,
        "dropout": training.dropout,
        "attention_dropout": 0.0,
        "label_smoothing": training.label_smoothing,
        "normalization": "tokens",
        "batch_type": "tokens",
        "batch_size": training.batch_tokens,
        "num_workers": 0,
        "optim": "adam",
        "adam_beta1": training.betas[0],
        "adam_beta2": training.betas[1],
        "learning_rate": training.lr,
        "max_grad_norm": training.clip,
        "report_every": 100,
        "model_dtype": "fp32",
    }
    words = [word for name, value in facts.items() for word in (f"--{name}", str(value))]
    words += ["--position_encoding", "--share_vocab", "--share_embeddings"]
    words += ["--share_decoder_embeddings", "--param_init_glorot", "--param_init", "0"]
    words += ["--add_qkvbias", "--add_ffnbias"]
    if session.job.device == "cuda":
        words += ["--gpu_ranks", "0", "--world_size", "1"]
    options = parser.parse_args(words)
    options.data = {}
    ArgumentParser.update_model_opts(options)
    return options


Batch = tuple[dict[str, Tensor], int]  # a batch of its iterator


def _batches(session: Session, *_: Any) -> Iterator[Batch]:
    """Yield our batches as its iterator would, for ever."""
    device = session.job.device
    for batch in itertools.cycle(session.batches()):
        first = batch.tgt_in[:, :1]
        whole = torch.cat((first, batch.tgt_out), dim=1)
        yield (
            {
                "src": batch.src[..., None].to(device),
                "tgt": whole[..., None].to(device),
                "srclen": (batch.src != PAD).sum(dim=1).to(device),
            },
            0,
        )


def _own_batches(session: Session, options: Any, vocabularies: dict[str, Any]) -> Iterator[Batch]:
    """Yield the batches of its own iterator, for ever."""
    from onmt.inputters.dynamic_iterator import build_dynamic_dataset_iter

    src, tgt = session.write_pairs()
    corpus = {"path_src": str(src), "path_tgt": str(tgt), "path_align": None}
    options.data = {"pairs": {**corpus, "transforms": [], "weight": 1}}
    device_id = 0 if session.job.device == "cuda" else -1
    return iter(build_dynamic_dataset_iter(options, {}, vocabularies, device_id=device_id))


def _size(batch: Batch) -> tuple[int, int]:
    target = batch[0]["tgt"][:, 1:]
    return int((target != PAD).sum()), target.numel()


if __name__ == "__main__":
    main()
