"""Judge a registered claim about trained heads: how many of them matter to a translation.

Each head of a trained run was pruned by itself, the test set was translated without it, and
sacreBLEU's paired bootstrap told whether BLEU had changed. The claim and the rules are in
results/registered/pruning.yaml, which was committed before any of the runs. What was measured is in
results/registered/pruning.json; the script that measured it is in the history of this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

ROOT = Path(__file__).parents[1]
CLAIM = ROOT / "results" / "registered" / "pruning.yaml"
OUTCOME = ROOT / "results" / "registered" / "pruning.json"
ALPHA = 0.01
"""At which a head matters."""


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
