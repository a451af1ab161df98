"""fairseq: its own model, loss, optimizer, trainer and training loop.

The loop of ``fairseq-train`` is given batches as its own iterator would make them, from ours. Where
each program makes its own, that iterator makes them: sorted by length, with at most
``batch_tokens`` on the longer side, padding included, in rows by the eight where there are more.

The package is fairseq-fixed, which is fairseq 0.12 for newer versions of Python. It pads sources on
the left, unlike ours, and has no BOS. In its bf16 the weights are bf16 too, unlike in all others
here, so it runs in fp32 only.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from peers.protocol import BOS, NEVER, PAD, Clock, Session, count_parameters


def main() -> None:
    """Train until the last round."""
    session = Session(["fairseq-fixed"])
    from fairseq.data import Dictionary
    from fairseq.data.iterators import CountingIterator
    from fairseq.tasks.translation import TranslationTask
    from fairseq.trainer import Trainer
    from fairseq_cli.train import train

    if session.training.precision != "fp32":
        raise SystemExit("its bf16 is not that of the others")
    options = _options(session)
    words = Dictionary()
    while len(words) < session.job.sizes.vocab_size:
        words.add_symbol(str(len(words)))
    assert (words.pad(), words.bos()) == (BOS, PAD), "they are the other way round, see _ids"
    task = TranslationTask(options.task, words, words)
    model = task.build_model(options.model)
    trainer = Trainer(options, task, model, task.build_criterion(options.criterion))
    clock = Clock(session, count_parameters(model))
    is_own = session.training.own_batches
    batches = _own_batches(session, words, trainer) if is_own else _batches(session)
    around = CountingIterator(clock.around(batches, _size), start=0, total=NEVER)
    epoch = SimpleNamespace(epoch=1, next_epoch_idx=1, next_epoch_itr=lambda **_: around)
    train(options, trainer, task, epoch)


def _options(session: Session) -> Any:
    """Return its options as its command line would read them."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.options import get_training_parser, parse_args_and_arch

    sizes, training = session.job.sizes, session.training
    facts = {
        "arch": "transformer",
        "criterion": "label_smoothed_cross_entropy",
        "label-smoothing": training.label_smoothing,
        "dropout": training.dropout,
        "optimizer": "adam",
        "adam-betas": str(training.betas),
        "adam-eps": training.eps,
        "clip-norm": training.clip,
        "lr": training.lr,
        "lr-scheduler": "fixed",
        "max-tokens": training.batch_tokens,
        "num-workers": 0,
        "seed": session.job.seed,
        "save-dir": session.folder(),
    }
    for stack in ("encoder", "decoder"):
        facts[f"{stack}-layers"] = sizes.n_layers
        facts[f"{stack}-embed-dim"] = sizes.d_model
        facts[f"{stack}-ffn-embed-dim"] = sizes.d_ff
        facts[f"{stack}-attention-heads"] = sizes.n_heads
    words = ["none", "--share-all-embeddings", "--no-save", "--disable-validation"]
    words += ["--no-progress-bar", *(["--cpu"] if session.job.device == "cpu" else [])]
    words += [word for name, value in facts.items() for word in (f"--{name}", str(value))]
    return convert_namespace_to_omegaconf(parse_args_and_arch(get_training_parser(), words))


def _batches(session: Session) -> Iterator[dict[str, Any]]:
    """Yield our batches as its iterator would, for ever."""
    for batch in itertools.cycle(session.batches()):
        yield {
            "id": torch.arange(batch.src.size(0)),
            "nsentences": batch.src.size(0),
            "ntokens": batch.n_tokens,
            "net_input": {
                "src_tokens": _ids(batch.src),
                "src_lengths": (batch.src != PAD).sum(dim=1),
                "prev_output_tokens": _ids(batch.tgt_in),
            },
            "target": _ids(batch.tgt_out),
        }


def _own_batches(session: Session, words: Any, trainer: Any) -> Iterator[dict[str, Any]]:
    """Yield the batches of its own iterator, for ever."""
    from fairseq.data import LanguagePairDataset, ListDataset

    sides = []
    for sentences in session.pairs():
        sizes = [len(ids) for ids in sentences]
        sides.append(ListDataset([_ids(torch.tensor(ids)) for ids in sentences], sizes))
    src, tgt = sides
    trainer.task.datasets["train"] = LanguagePairDataset(
        src, src.sizes, words, tgt, tgt.sizes, words
    )
    epochs = trainer.get_train_iterator(epoch=1, load_dataset=False)
    while True:
        yield from epochs.next_epoch_itr(shuffle=True)


def _ids(ids: Tensor) -> Tensor:
    """Return ids as it numbers them: BOS is 0 and padding 1, all others as here."""
    return torch.where(ids <= max(PAD, BOS), PAD + BOS - ids, ids)


def _size(batch: dict[str, Any]) -> tuple[int, int]:
    return batch["ntokens"], batch["target"].numel()


if __name__ == "__main__":
    main()
