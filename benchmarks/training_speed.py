"""How fast does training go, beside other programs, on the same data, sizes and batches?

Run it:  ABLATE_CORPORA=FOLDER python benchmarks/training_speed.py [--preset d256] [--only NAME]
         [--device cuda] [--steps 20] [--repeats 5]
         [--output results/benchmarks/training_speed.json]

Side by side on one machine, in target tokens per second, padding not counted:

- ours: the package's own step, with the engine and the precision that ``auto`` means on this
  device, and with the environment that our runner gives to a run;
- plain: an eager loop written by hand over ``torch.nn.Transformer``;
- joeynmt: JoeyNMT 2.3.0, its own model, loss, builders and training loop;
- marian: Hugging Face's ``MarianMTModel`` with its ``Seq2SeqTrainer``;
- opennmt: OpenNMT-py 3.5.1, its own model, loss, optimizer and training loop.

All get the same batches, which are the first of an epoch of ours, tokenised and padded before the
clock starts; the same sizes, dropout, label smoothing, clipping, and Adam at the same constant rate
(as AdamW without decay where there is no other). Everything after that is their own: masks, moving
to the device, logging. Each runs in fp32, as it comes; where ``auto`` means bf16 also in bf16,
if it can (autocast). What cannot be made the same is told in the docstring of each program in
`peers`. A round is one step on each batch; the first round warms up. Each peer has a virtual
environment of its own, made on first use with pip. Ends with 1 if a contender fails.
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
    chosen,
    finish,
    parser,
    prepared,
    race,
    sizes_of,
    summary,
)

from ablate.data.batches import Batch, Batches
from ablate.data.tokenizer import PAD
from ablate.runner import devices
from ablate.spec import RunSpec

PROGRAMS = (
    Contender(OURS, "ablate.training", "ours"),
    Contender("plain", "eager torch.nn.Transformer", "plain"),
    Contender("joeynmt", "JoeyNMT 2.3.0, TrainManager", "joeynmt", "joeynmt"),
    Contender("marian", "transformers, Seq2SeqTrainer", "marian", "transformers"),
    Contender("opennmt", "OpenNMT-py 3.5.1, Trainer", "opennmt", "opennmt"),
)
FP32_ALONE = ("opennmt",)
LEARNING_RATE = 1e-4
RATES = "target_tokens_per_second"


def main() -> int:
    """Run the contenders in turns, print and write what came of it; return the exit status."""
    made = parser(__doc__, "training_speed.json", [c.name for c in PROGRAMS])
    made.add_argument("--steps", type=int, default=20, help="of a round, one batch each")
    options = made.parse_args()
    run, corpus = prepared(options)
    batches = some_batches(Batches(corpus.train, run.training.batch_tokens, PAD), options.steps)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "batches.npz"
        np.savez(data, allow_pickle=False, **arrays(batches))
        job = Job(
            sizes=sizes_of(run, corpus),
            device=options.device,
            threads=options.threads,
            data=data,
            spec=run.model_dump(mode="json"),
            training=training(run, options),
        )
        contenders = in_precisions(chosen(PROGRAMS, options.only), options.device)
        entries = race(contenders, job, options.environments, options.repeats)
    for entry in entries:
        for of_round in entry.rounds:
            of_round[RATES] = of_round["n_tokens"] / of_round["seconds"]
    n_tokens = sum(batch.n_tokens for batch in batches)
    n_places = sum(batch.tgt_out.numel() for batch in batches)
    more = {
        "corpus": corpus.text.name,
        "spec": run.model_dump(mode="json"),
        "learning_rate": LEARNING_RATE,
        "target_tokens_per_step": n_tokens / options.steps,
        "target_padding_share": 1 - n_tokens / n_places,
    }
    return finish(options, summary(options, entries, RATES, more), RATES, "target tokens/s")


def in_precisions(programs: list[Contender], device: str) -> list[Contender]:
    """Return the programs in fp32, and in bf16 too if that is what ``auto`` means here.

    What we run by default is called `OURS`.
    """
    place = devices.find(device)[0]
    default = devices.resolve("auto", place)
    found = []
    for precision in dict.fromkeys((default, "fp32")):
        for program in programs:
            if precision == "fp32" or program.name not in FP32_ALONE:
                is_default = program.is_ours and precision == default
                name = program.name if is_default else f"{program.name}_{precision}"
                found.append(replace(program, name=name, options={"precision": precision}))
    return found


def some_batches(batches: Batches, n: int) -> list[Batch]:
    """Return the first ``n`` batches of the first epoch.

    Raises:
        SystemExit: if there are not as many.
    """
    if n > batches.n_per_epoch:
        raise SystemExit(f"an epoch has {batches.n_per_epoch} batches; say fewer --steps than {n}")
    return [batches.make(rows) for rows in batches.epoch(seed=1, epoch=0)[:n]]


def arrays(batches: list[Batch]) -> Arrays:
    """Return what the contenders read."""
    return {
        f"{name}_{i}": getattr(batch, name).numpy()
        for i, batch in enumerate(batches)
        for name in ("src", "tgt_in", "tgt_out")
    }


def training(run: RunSpec, options: argparse.Namespace) -> Training:
    """Return how all of them train."""
    asked, dropout = run.training, run.model.dropout
    assert dropout.embedding == dropout.residual, "the peers know one rate of dropout"
    assert asked.clip is not None, "the presets clip"
    return Training(
        dropout=dropout.residual,
        label_smoothing=asked.objective.options["epsilon"],
        betas=asked.optimizer.options["betas"],
        eps=asked.optimizer.options["eps"],
        clip=asked.clip,
        lr=LEARNING_RATE,
        steps=options.steps,
    )


if __name__ == "__main__":
    sys.exit(main())
