"""Judge a registered claim about trained heads: how many of them matter to a translation.

    ablate run experiments/registered/pruning.yaml --no-probe    # ten minutes of one core
    python benchmarks/pruning.py

Each head of a trained run is pruned by itself, the test set is translated without it, and
sacreBLEU's paired bootstrap tells whether BLEU has changed. The claim and the rules are in
results/registered/pruning.yaml, which was committed before any of the runs. Prints a line for each
run and the verdict, and writes results/registered/pruning.json, which claims.py puts on its page.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.significance import PairedTest, Result
from scipy import stats

import ablate
from ablate import config
from ablate.api.trained_run import LoadedRun
from ablate.data.corpus import Bitext, Corpus
from ablate.registry import build
from ablate.store import write_whole

ROOT = Path(__file__).parents[1]
CLAIM = ROOT / "results" / "registered" / "pruning.yaml"
OUTCOME = ROOT / "results" / "registered" / "pruning.json"
ALPHA = 0.01
"""At which a head matters."""

N_RESAMPLES = 1000


def main() -> int:
    """Prune, judge, print and write; return 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    claim = yaml.safe_load(CLAIM.read_text(encoding="utf-8"))
    experiment = config.load(ROOT / "experiments" / f"{claim['experiment']}.yaml")
    test = build(Corpus, experiment.rows[0].spec.corpus).load().tests["test"]
    runs = []
    for seed in experiment.seeds:
        run = ablate.load_run(f"{claim['experiment']}:baseline:{seed}", results=options.results)
        runs.append({"seed": seed, **pruned(run, test)})
        share = share_of(runs[-1]["heads"], claim["stack"])
        sys.stdout.write(f"seed {seed}: BLEU {runs[-1]['bleu']:.1f}, {share:.0%} of heads matter\n")
    outcome = {"claim": claim, **judge(claim, runs), "runs": runs}
    write_whole(OUTCOME, json.dumps(outcome, indent=1, ensure_ascii=False) + "\n")
    sys.stdout.write(f"{sentence(outcome)}\n")
    return 0


def pruned(run: LoadedRun, test: Bitext) -> dict[str, Any]:
    """Return BLEU of a run as it is, and of each head BLEU without it and the p of the difference.

    Args:
        run: a trained one.
        test: what is translated.
    """
    sources, references = list(test.src), list(test.tgt)
    systems: list[tuple[str, Sequence[str]]] = [("whole", run.translate(sources))]
    for name in run.attention_parts():
        for head in range(run.spec.model.dims.n_heads):
            with run.without_heads({name: [head]}):
                systems.append((f"{name}:{head}", run.translate(sources)))
    test_of = PairedTest(
        systems,
        {"BLEU": BLEU(references=[references], force=True)},
        None,
        "bs",
        n_samples=N_RESAMPLES,
    )
    results = [result for result in test_of()[1]["BLEU"] if isinstance(result, Result)]
    whole = systems[0][1]
    heads = {  # sacreBLEU's p of equal translations is not 1 but 1 / (N_RESAMPLES + 1)
        name: {"bleu": result.score, "p": 1.0 if text == whole else result.p_value}
        for (name, text), result in zip(systems[1:], results[1:], strict=True)
    }
    return {"bleu": results[0].score, "heads": heads}


def share_of(heads: Mapping[str, Mapping[str, float]], stack: str) -> float:
    """Return the share of the heads of a stack that matter."""
    return float(
        np.mean([head["p"] < ALPHA for name, head in heads.items() if name.startswith(stack)])
    )


def judge(claim: Mapping[str, Any], runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Apply the registered rules to the pruned runs of all seeds."""
    shares = [share_of(run["heads"], claim["stack"]) for run in runs]
    mean = float(np.mean(shares))
    half = float(stats.t.ppf(0.975, len(shares) - 1) * stats.sem(shares))
    bleu = float(np.mean([run["bleu"] for run in runs]))
    verdict = "cannot tell"
    if bleu < claim["learned"]:
        verdict = "not judged"
    elif mean + half < claim["below"]:
        verdict = "held"
    elif mean - half > claim["below"]:
        verdict = "failed"
    interval = {"low": mean - half, "high": mean + half}
    return {"verdict": verdict, "share": mean, **interval, "bleu": bleu}


def sentence(outcome: Mapping[str, Any]) -> str:
    """Return the outcome in words."""
    interval = f"[{outcome['low']:.0%}, {outcome['high']:.0%}]"
    return (
        f"{outcome['claim']['claim']}: **{outcome['verdict']}**; {outcome['share']:.0%} {interval} "
        f"of them matter, in {len(outcome['runs'])} runs of {outcome['bleu']:.1f} BLEU on average"
    )


def section(commit: str) -> list[str]:
    """Return the lines of a page about the outcome.

    Args:
        commit: the one that registered the claim.
    """
    stacks = {"encoder": "the encoder", "decoder": "the decoder", "cross": "cross-attention"}
    link = f"[{CLAIM.name}](../results/registered/{CLAIM.name})"
    lines = [
        "## Heads after training",
        "",
        f"Registered in {link} at commit {commit[:12]}.",
        "",
        "Each head is pruned by itself after training.",
        "",
    ]
    if not OUTCOME.exists():
        return [*lines, "Not judged yet; `python benchmarks/pruning.py` does it.", ""]
    outcome = json.loads(OUTCOME.read_text(encoding="utf-8"))
    lines += [
        f"{sentence(outcome)}.",
        "",
        "| heads of | matter | BLEU without one, at least | at most |",
        "|---|---:|---:|---:|",
    ]
    for stack, name in stacks.items():
        share = np.mean([share_of(run["heads"], stack) for run in outcome["runs"]])
        bleu = [
            head["bleu"]
            for run in outcome["runs"]
            for key, head in run["heads"].items()
            if key.startswith(stack)
        ]
        lines.append(f"| {name} | {share:.0%} | {min(bleu):.1f} | {max(bleu):.1f} |")
    return [*lines, "", f"Source: {outcome['claim']['source']}.", ""]


if __name__ == "__main__":
    sys.exit(main())
