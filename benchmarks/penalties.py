"""Translate with trained runs again, by other length penalties than theirs.

    ablate run experiments/reference/multi30k_en_de.yaml --no-probe
    python benchmarks/penalties.py reference/multi30k_en_de

Prints lower-cased BLEU of tokens as they are, and the ratio of lengths to those of the references,
for every seed, search and test set. It tells how much of a difference between two programs can be
due to their length penalties.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from sacrebleu.metrics.bleu import BLEU, BLEUScore

from ablate import config, decoding
from ablate.api.trained_run import LoadedRun
from ablate.data.corpus import Bitext, Corpus
from ablate.data.ragged import Ragged
from ablate.decoding import Search
from ablate.decoding.beam import Beam
from ablate.registry import build

ROOT = Path(__file__).parents[1]
SEARCHES: Mapping[str, Search] = MappingProxyType(
    {
        "greedy": Beam(size=1),
        "beam 5, none": Beam(length_penalty="none"),
        "beam 5, gnmt 0.6": Beam(length_penalty=0.6),
        "beam 5, gnmt 1": Beam(length_penalty=1.0),
        "beam 5, power 0.6": Beam(length_penalty=0.6, penalty_form="power"),
        "beam 5, power 1": Beam(length_penalty=1.0, penalty_form="power"),
    }
)


def main() -> int:
    """Translate, score and print; return 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("experiment", help="its name, below experiments/")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    experiment = config.load(ROOT / "experiments" / f"{options.experiment}.yaml")
    tests = build(Corpus, experiment.rows[0].spec.corpus).load().tests
    for seed in experiment.seeds:
        run = LoadedRun(f"{options.experiment}:baseline:{seed}", results=options.results)
        for name, search in SEARCHES.items():
            scores = {test: score(run, search, bitext) for test, bitext in tests.items()}
            cells = (f"{test} {x.score:.2f} ({x.ratio:.3f})" for test, x in scores.items())
            sys.stdout.write(f"seed {seed}  {name:18}{'  '.join(cells)}\n")
    return 0


def score(run: LoadedRun, search: Search, bitext: Bitext) -> BLEUScore:
    """Return the BLEU of a search on a test set."""
    sources = Ragged.of(run.tokenizers.encode_src(bitext.src)).cut(run.model.max_len)
    n_best = decoding.translate(
        run.model, search, sources, run.spec.training.batch_tokens, torch.device("cpu"), None
    )
    texts = [run.tokenizers.decode_tgt(hypotheses[0].tokens) for hypotheses in n_best]
    return BLEU(lowercase=True, tokenize="none", force=True).corpus_score(texts, [bitext.tgt])


if __name__ == "__main__":
    sys.exit(main())
