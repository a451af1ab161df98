"""How fast does training go, beside other programs, on the same data, sizes and batches?

Run it:  ABLATE_CORPORA=FOLDER python benchmarks/training_speed.py [--preset d256] [--only NAME]
         [--device cuda] [--steps 20] [--warm-up 20] [--repeats 5] [--own-batches]
         [--side-by-side] [--output results/benchmarks/training_speed.json]

Side by side on one machine, in target tokens per second, padding not counted:

- ours: the package's own step, with the engine and the precision that ``auto`` means on this
  device, and with the environment that our runner gives to a run;
- plain: an eager loop written by hand over ``torch.nn.Transformer``;
- joeynmt: JoeyNMT 2.3.0, its own model, loss, builders and training loop;
- marian: Hugging Face's ``MarianMTModel`` with its ``Seq2SeqTrainer``;
- opennmt: OpenNMT-py 3.5.1, its own model, loss, optimizer and training loop;
- fairseq: fairseq 0.12, its own model, loss, optimizer, trainer and training loop.

All get the same batches, which are the first of an epoch of ours, tokenised and padded before the
clock starts; the same sizes, dropout, label smoothing, clipping, and Adam at the same constant rate
(AdamW without decay where there is no Adam). Everything after that is their own: masks, moving to
the device, logging. This compares models and loops. With ``--own-batches`` all get the same
tokenised pairs and make batches of as many tokens in their own way, in another order in each round:
ours, JoeyNMT, OpenNMT-py and fairseq; a loop by hand has no way of its own, and ``Seq2SeqTrainer``
counts sentences.

With ``--side-by-side`` each is also run as `ablate run` does it for experiments that have more runs
than the machine has cores: one run per thread, all at the same time, their tokens added up.

Each runs in fp32, by default; where ``auto`` means bf16 also in bf16, if it can (autocast). The
docstring of each program in `peers` names the differences that remain. A round is a number of
steps, after as many steps of warm-up, unless ``--warm-up`` gives another number. On CUDA the
warm-up has twice as many, and two epochs with ``--own-batches``, since ours captures a shape of a
batch when it occurs for the second time; the record has the share of the rounds that captures took
nevertheless. Each peer has a virtual environment of its own, made on first use with pip. Ends with
1 if a contender fails.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from peers.protocol import Arrays, Job, Training
from peers.race import (
    OURS,
    Contender,
    Entry,
    chosen,
    finish,
    option_parser,
    prepared,
    race,
    sizes_of,
    summary,
)

from ablate.config import RunSpec
from ablate.data.batches import Batch, Batches, Encoded
from ablate.data.tokenizer import PAD
from ablate.runner import devices

PROGRAMS = (
    Contender(OURS, "ablate.training", "ours"),
    Contender("plain", "eager torch.nn.Transformer", "plain"),
    Contender("joeynmt", "JoeyNMT 2.3.0, TrainManager", "joeynmt", "joeynmt"),
    Contender("marian", "transformers, Seq2SeqTrainer", "marian", "transformers"),
    Contender("opennmt", "OpenNMT-py 3.5.1, Trainer", "opennmt", "opennmt"),
    Contender("fairseq", "fairseq 0.12, Trainer", "fairseq", "fairseq"),
)
FP32_ALONE = ("opennmt", "fairseq")
MAKE_BATCHES = (OURS, "joeynmt", "opennmt", "fairseq")  # of so many tokens
LEARNING_RATE = 1e-4
RATES = "target_tokens_per_second"


def main() -> int:
    """Run the contenders in turns, print and write the results; return the exit status."""
    parser = option_parser(__doc__, "training_speed.json", [c.name for c in PROGRAMS])
    parser.add_argument("--steps", type=int, default=20, help="of a round, one batch each")
    parser.add_argument("--warm-up", type=int, help="steps before the first round")
    parser.add_argument(
        "--own-batches", action="store_true", help="each program's own, of the same pairs"
    )
    parser.add_argument(
        "--side-by-side", action="store_true", help="also one run per thread, at the same time"
    )
    options = parser.parse_args()
    if options.warm_up is not None and options.warm_up < 1:
        parser.error("--warm-up: at least 1, a program cannot be ready before its first step")
    run, corpus = prepared(options)
    batches = Batches(corpus.train, run.training.batch_tokens, PAD)
    if options.warm_up is None:
        options.warm_up = default_warm_up(options, batches.n_per_epoch)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        if options.own_batches:
            arrays = of_pairs(corpus.train)
        else:
            arrays = of_batches(some_batches(batches, options.steps))
        np.savez(data, allow_pickle=False, **arrays)
        job = Job(
            sizes=sizes_of(run, corpus),
            device=options.device,
            threads=options.threads,
            data=data,
            spec=run.model_dump(mode="json"),
            training=training(run, options),
        )
        programs = [p for p in PROGRAMS if p.name in MAKE_BATCHES or not options.own_batches]
        contenders = in_precisions(chosen(programs, options.only), options.device)
        if options.side_by_side:
            contenders += [one_per_thread(each, options.threads) for each in contenders]
        entries = race(contenders, job, options.environments, options.repeats)
    for entry in entries:
        measure(entry, options.steps)
    more = {
        "corpus": corpus.text.name,
        "spec": run.model_dump(mode="json"),
        "learning_rate": LEARNING_RATE,
    }
    return finish(options, summary(options, entries, RATES, more), RATES, "target tokens/s")


def default_warm_up(options: argparse.Namespace, n_per_epoch: int) -> int:
    """Return the steps before the first round.

    On CUDA every shape of a batch must have come twice: once eagerly, once to be captured.

    Args:
        options: of the command.
        n_per_epoch: batches of an epoch, for ``--own-batches``.
    """
    n_steps: int = options.steps
    if options.device == "cpu":
        return n_steps
    return 2 * (n_per_epoch if options.own_batches else n_steps)


def measure(entry: Entry, n_steps: int) -> None:
    """Put rates into the rounds, and tokens, padding and captures into the facts."""
    for of_round in entry.rounds:
        of_round[RATES] = of_round["n_tokens"] / of_round["seconds"]
    if entry.rounds:
        n_tokens, n_padded = (
            sum(of_round[name] for of_round in entry.rounds) for name in ("n_tokens", "n_places")
        )
        entry.facts["target_tokens_per_step"] = n_tokens / len(entry.rounds) / n_steps
        entry.facts["target_padding_share"] = 1 - n_tokens / n_padded
        seconds = sum(of_round["seconds"] for of_round in entry.rounds)
        preparing = sum(of_round.get("preparing_seconds", 0.0) for of_round in entry.rounds)
        entry.facts["preparing_share"] = preparing / seconds


def in_precisions(programs: list[Contender], device: str) -> list[Contender]:
    """Return the programs in fp32, and in bf16 too if ``auto`` means that on the device.

    Ours in the default precision is called `OURS`.
    """
    default = devices.resolve("auto", devices.find(device)[0])
    both = []
    for precision in dict.fromkeys((default, "fp32")):
        for program in programs:
            if precision == "fp32" or program.name not in FP32_ALONE:
                is_default = program.is_ours and precision == default
                name = program.name if is_default else f"{program.name}_{precision}"
                both.append(replace(program, name=name, options={"precision": precision}))
    return both


def one_per_thread(contender: Contender, n_threads: int) -> Contender:
    """Return the contender with ``n_threads`` runs at the same time."""
    what = f"{contender.what}, {n_threads} runs at a time"
    return replace(contender, name=f"{contender.name}_x{n_threads}", what=what, n_runs=n_threads)


def some_batches(batches: Batches, n: int) -> list[Batch]:
    """Return the first ``n`` batches of the first epoch.

    Raises:
        SystemExit: if there are not as many.
    """
    if n > batches.n_per_epoch:
        raise SystemExit(f"an epoch has {batches.n_per_epoch} batches; say fewer --steps than {n}")
    return [batches.make(rows) for rows in batches.epoch(seed=1, epoch=0)[:n]]


def of_batches(batches: list[Batch]) -> Arrays:
    """Return the arrays of contenders that train on ``batches``."""
    return {
        f"{name}_{i}": getattr(batch, name).numpy()
        for i, batch in enumerate(batches)
        for name in ("src", "tgt_in", "tgt_out")
    }


def of_pairs(data: Encoded) -> Arrays:
    """Return the arrays of contenders that make their own batches."""
    sides = {"src": data.src, "tgt": data.tgt}
    ids = {f"{name}_ids": side.flat for name, side in sides.items()}
    return ids | {f"{name}_lengths": side.lengths for name, side in sides.items()}


def training(run: RunSpec, options: argparse.Namespace) -> Training:
    """Return the training of all contenders."""
    settings, dropout = run.training, run.model.dropout
    assert dropout.embedding == dropout.residual, "the peers know one rate of dropout"
    assert settings.clip is not None, "the presets clip"
    return Training(
        dropout=dropout.residual,
        label_smoothing=settings.objective.options["epsilon"],
        betas=settings.optimizer.options["betas"],
        eps=settings.optimizer.options["eps"],
        clip=settings.clip,
        lr=LEARNING_RATE,
        steps=options.steps,
        warm_up=options.warm_up,
        batch_tokens=settings.batch_tokens,
        own_batches=options.own_batches,
    )


if __name__ == "__main__":
    sys.exit(main())
