"""How fast does beam search go, beside other programs, with equal weights on the same sentences?

Run it:  ABLATE_CORPORA=FOLDER python benchmarks/decoding_speed.py [--weights MODEL.safetensors]
         [--preset d256] [--only NAME] [--device cuda] [--repeats 3]
         [--output results/benchmarks/decoding_speed.json]

Side by side on one machine, in sentences per second, over the first 1,000 sentences of the first
test set, with 5 beams:

- ours: `ablate.decoding.translate`;
- marian: Hugging Face's ``MarianMTModel.generate``;
- joeynmt: JoeyNMT 2.3.0, its ``search``;
- ctranslate2: CTranslate2 4.8.5, float32, all threads on one batch;
- ctranslate2_parallel: the same, one thread and one batch for each thread (CPU alone).

The time of a search depends on the length of the translations, and so on the model: an untrained
one writes to the limit. So all contenders have the weights of one trained model: ours are mapped
into Marian's and JoeyNMT's model, and CTranslate2's converter reads that Marian model. Hypotheses
are ranked by log-probability without a length penalty, the only setting that is the same in all.
The translations of all must then be equal, but for rounding and for the conditions under which a
search ends. The share of translations that equal ours, their tokens and their BLEU are printed
below the table and show that the work was the same. The length limit is the same number of tokens
for all.

The weights are those of a finished run of the preset, given by ``--weights``, or of a short
training of 1,000 steps, kept in the user's cache: enough for translations of the right length, not
for good ones. Batches have the same largest number of source tokens for all. The first sentences
are decoded once before anything is measured. Ends with 1 if a contender fails.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers.protocol import Arrays, Decoding, Job
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
from records import say
from safetensors.torch import load_file, save_file
from torch import Tensor

from ablate.config import RunSpec
from ablate.data.batches import Batches
from ablate.data.cache import cache_folder
from ablate.data.corpus import Bitext, bleu_tokenizer
from ablate.data.prepare import Prepared
from ablate.data.tokenizer import PAD
from ablate.measuring.scores import score
from ablate.model import Transformer, assemble
from ablate.parts.schedule import Schedule
from ablate.registry import build
from ablate.runner import devices
from ablate.training.engines import Eager
from ablate.training.step import BatchStream, StepConfig, make_optimizer, set_lr

CONTENDERS = (
    Contender(OURS, "ablate.decoding.translate", "ours"),
    Contender("marian", "transformers, generate", "marian", "transformers"),
    Contender("joeynmt", "JoeyNMT 2.3.0, search", "joeynmt", "joeynmt"),
    Contender("ctranslate2", "CTranslate2, float32", "ctranslate", "transformers"),
)
RATES = "sentences_per_second"
N_SENTENCES, BEAM, N_TRAINING_STEPS = 1000, 5, 1000
MAX_TOKENS = 100  # of a sentence, either side
BATCH_TOKENS = 4096  # source tokens
CHANGES = (
    f"model.dims.max_len={MAX_TOKENS}",
    f"decoding.size={BEAM}",
    "decoding.length_penalty=none",
    "decoding.penalty_form=gnmt",  # without a penalty no other form is accepted
    f"decoding.max_extra={MAX_TOKENS}",
)
"""Of the preset."""


def main() -> int:
    """Run the contenders in turns, print and write the results; return the exit status."""
    options = _options()
    run, corpus = prepared(options, *CHANGES)
    name, test = next(iter(corpus.tests.items()))
    n = min(N_SENTENCES, len(test))
    model = assemble(run.model, corpus.tokenizers.vocabulary, PAD)
    model.load_state_dict(weights(run, corpus, options))
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "decoding.npz"
        sources = test.src.take(np.arange(n))
        ids: Arrays = {"source_ids": sources.flat, "source_lengths": sources.lengths}
        np.savez(data, allow_pickle=False, **ids, **arrays(model))
        job = Job(
            sizes=sizes_of(run, corpus),
            device=options.device,
            threads=options.threads,
            data=data,
            spec=run.model_dump(mode="json"),
            decoding=Decoding(
                beam=BEAM,
                max_tokens=MAX_TOKENS,
                batch_tokens=BATCH_TOKENS,
                length_penalty=0.0,
                norm_eps=run.model.stack("encoder").norm.options["eps"],
            ),
        )
        contenders = chosen(_contenders(options), options.only)
        entries = race(contenders, job, options.environments, options.repeats)
    judge(entries, corpus, corpus.text.tests[name])
    more = {
        "corpus": corpus.text.name,
        "test": name,
        "sentences": n,
        "spec": run.model_dump(mode="json"),
    }
    record = summary(options, entries, RATES, more)
    status = finish(options, record, RATES, "sentences/s")
    for entry in entries:
        if entry.rounds:
            facts = entry.facts
            say(
                f"{entry.contender.name:<24}{facts['n_tokens']:>8} tokens, BLEU {facts['bleu']:.2f}"
                f", {facts['equal_to_ours']:.1%} equal to ours"
            )
    return status


def weights(run: RunSpec, corpus: Prepared, options: argparse.Namespace) -> dict[str, Tensor]:
    """Return the weights to decode with: given, cached, or trained now."""
    if options.weights is not None:
        return load_file(options.weights)
    determinants = [
        run.model.model_dump(mode="json"),
        run.training.model_dump(mode="json"),
        corpus.corpus_fingerprint,
        corpus.tokenizers.fingerprint,
        N_TRAINING_STEPS,
    ]
    key = hashlib.sha256(json.dumps(determinants, sort_keys=True).encode()).hexdigest()[:16]
    file = cache_folder("benchmarks") / f"{key}.safetensors"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        torch.set_num_threads(options.threads)
        device = torch.device(options.device)
        model = trained(run, corpus, N_TRAINING_STEPS, device)
        writer = file.with_suffix(".new")
        save_file({name: w.cpu().contiguous() for name, w in model.state_dict().items()}, writer)
        writer.replace(file)
    return load_file(file)


def trained(run: RunSpec, corpus: Prepared, n_steps: int, device: torch.device) -> Transformer:
    """Train for ``n_steps`` steps, as the run begins, but with a warm-up over a third of them."""
    torch.manual_seed(1)
    model = assemble(run.model, corpus.tokenizers.vocabulary, PAD).to(device)
    precision = devices.resolve("auto", devices.find(device.type)[0])
    step_config = StepConfig.of(run.training, precision)
    choice = run.training.schedule
    short = choice.model_copy(update={"options": {**choice.options, "warmup": n_steps // 3 + 1}})
    schedule = build(Schedule, short, run.model.dims, n_steps)
    optimizer = make_optimizer(run, model)
    stream = BatchStream(Batches(corpus.train, run.training.batch_tokens, PAD), seed=1)
    engine = Eager(model.train(), step_config, optimizer)
    for step, batch in enumerate(stream.take(n_steps), start=1):
        set_lr(optimizer, RATE_SHARE * schedule.rate(step, []))
        result = engine.step([batch.to(device)])
        if step % 50 == 0:
            say(f"training, step {step} of {n_steps}: loss {float(result.loss):.2f}")
    return model


RATE_SHARE = 0.4
"""Of the preset's rate, which is meant for a warm-up of 2,000 steps."""


def arrays(model: Transformer) -> Arrays:
    """Return the weights as the contenders read them."""
    state: dict[str, Tensor] = dict(model.state_dict())
    state["positions"] = model.encoder.position.get_buffer("table")
    return {f"weights/{name}": tensor.numpy() for name, tensor in state.items()}


def judge(entries: Sequence[Entry], corpus: Prepared, test: Bitext) -> None:
    """Replace the hypotheses of the rounds by rates, and by facts of the entries."""
    hypotheses_of: dict[str, list[list[int]]] = {}
    for entry in entries:
        for of_round in entry.rounds:
            hypotheses = of_round.pop("hypotheses")
            of_round[RATES] = len(hypotheses) / of_round["seconds"]
            hypotheses_of[entry.contender.name] = hypotheses
    for entry in entries:
        own = hypotheses_of.get(entry.contender.name)
        if own is not None:
            entry.facts |= facts(own, hypotheses_of.get(OURS, own), corpus, test)


def facts(
    own: list[list[int]], ours: list[list[int]], corpus: Prepared, test: Bitext
) -> dict[str, Any]:
    """Return a contender's number of tokens, EOS included, its BLEU, and how many equal ours."""
    references = [lines[: len(own)] for lines in test.references]
    text = [corpus.tokenizers.decode_tgt(ids) for ids in own]
    tokenizer = bleu_tokenizer(corpus.text.tgt)
    scores = score(text, references, tokenizer=tokenizer, is_tokenised=corpus.text.is_tokenised)
    return {
        "n_tokens": sum(len(ids) + 1 for ids in own),
        "bleu": scores["bleu"],
        "bleu_signature": scores["bleu_signature"],
        "equal_to_ours": sum(a == b for a, b in zip(own, ours, strict=True)) / len(own),
    }


def _options() -> argparse.Namespace:
    parser = option_parser(__doc__, "decoding_speed.json", [c.name for c in _all_contenders(2)])
    parser.add_argument("--weights", type=Path, help="safetensors of a run of this preset")
    options = parser.parse_args()
    absent = {*(options.only or ())} - {contender.name for contender in _contenders(options)}
    if absent:
        parser.error(f"--only: {', '.join(absent)} needs --device cpu and at least 2 --threads")
    return options


def _contenders(options: argparse.Namespace) -> tuple[Contender, ...]:
    return _all_contenders(options.threads if options.device == "cpu" else 1)


def _all_contenders(n_at_once: int) -> tuple[Contender, ...]:
    if n_at_once == 1:
        return CONTENDERS
    parallel = Contender(
        "ctranslate2_parallel",
        f"CTranslate2, float32, {n_at_once} batches at once",
        "ctranslate",
        "transformers",
        {"inter": n_at_once},
    )
    return (*CONTENDERS, parallel)


if __name__ == "__main__":
    sys.exit(main())
