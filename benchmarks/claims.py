"""Judge the registered claims: which published effects appear in runs that followed the claims.

    ablate runs restore results/registered/*/runs.tar.xz    # the records of the runs, or
    for name in parts narang averaging small_corpus depth parts_looks narang_looks averaging_looks
        do ablate run registered/$name --no-probe; done     # the runs themselves, in some hours
    python benchmarks/claims.py
    python benchmarks/claims.py --register FILE   # before the file is committed

Each results/registered/claims*.yaml is a registration: claims and the rules by which they are
judged, committed before any of their runs, and never changed. Nothing is judged before all runs of
its experiment are done, nor, where the rules adjust p values for all claims of a registration,
before those of all its experiments are. Prints the counts, and writes docs/claims.md and the
outcomes beside each file. With ``--register`` refuses a file with a claim that its seeds are not
expected to detect.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pruning
from records import ROOT, say
from registered import (
    FAILED,
    HELD,
    UNITS,
    Judged,
    Registration,
    commit_of,
    experiment_file,
    judge,
    judge_by_table,
    registration_in,
    registrations,
    undetectable,
)

from ablate import api
from ablate.store import FINISHED, write_whole

PAGE = ROOT / "docs" / "claims.md"

HEAD = """\
# Registered claims

What papers say of parts and of models, written with direction, margin and rule of judgement before
any run that judges it. The runs use seeds that no earlier run had. The models are small (2 + 2
layers of width 64 on the synthetic corpus, half a minute of one core, where nothing else is said),
so a claim that fails here may well be true of the models that it was made about.

A claim has held if p is below 5% and the difference has the claimed sign: *at least the margin* if
the whole interval lies beyond the published size, else *same direction*. With the other sign it
failed (*opposite*). A claim of equality has held if the interval lies *within the margin*, and
failed if it lies outside (*different*). *not judged*: the baseline has not learned.

Differences are in BLEU unless a unit is named; brackets hold Student's 95% interval of the paired
difference; p is Holm's, over all claims of the registration that have a direction. Two columns are
exploratory, and judge nothing: *could find* is the smallest true difference that so many pairs,
spread as these are, detect at Holm's first step with a probability of 80%; *table* is the
verdict of the experiment's own table, whose intervals hold together for its rows alone
([statistics.md](statistics.md)). In the registration with looks, interval and p are the table's.

The records of all runs are in `results/registered/*/runs.tar.xz`. `ablate runs restore
results/registered/*/runs.tar.xz` puts them into a folder of results, and `python
benchmarks/claims.py` writes this page from them.
"""

MISSTATED = """\
## What was registered badly

A registration is never changed; what we would not write again stands here.

- **multi-query**: Shazeer 2019 (Table 1) widens the feed-forward layers, so that parameters are
  equal, and has a test BLEU of 27.5 against 27.7 by greedy search and of 28.5 against 28.4 by a
  beam of 4; our row is smaller by the keys and values that it lacks.
- **Narang et al. 2021**: ten of the margins are below 0.2, from single runs, where these seeds find
  many times as much. The early loss of that paper, the mean of five runs, is the better target.
- **learned positions, longer** and **alibi, longer**, with looks: a row gets seeds until its BLEU
  on the test set is decided, which was so after three; what it does to longer sentences takes more.
- **Admin and B2T** are trained at the learning rate that suits Pre-LN, at which they hardly learn;
  at a fifth of it they do ([depth_rate](../results/registered/depth_rate/table.md)).
"""


def main() -> int:
    """Judge, print and write; return 0, or 1 while runs are missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    parser.add_argument("--register", type=Path, help="a file of claims that is not committed yet")
    parser.add_argument(
        "--sd", type=float, default=1.6 * 2**0.5, help="of paired differences, BLEU"
    )
    options = parser.parse_args()
    if options.register:
        refused = undetectable(registration_in(options.register), options.sd)
        for name, least in refused.items():
            say(f"{name}: its seeds find {least:.1f} BLEU, which is more than claimed")
        return int(bool(refused))
    sections, missing = [HEAD], 0
    for registration in registrations():
        lines, n_missing = _section(registration, options.results)
        sections += lines
        missing += n_missing
    sections += [MISSTATED, *pruning.section(commit_of(pruning.CLAIM))]
    write_whole(PAGE, "\n".join(sections))
    return int(missing > 0)


def _section(registration: Registration, results: Path) -> tuple[list[str], int]:
    """Judge what is ripe and write its outcomes; return lines of the page and the missing runs."""
    commit, name = commit_of(registration.file), registration.file.name
    missing = {
        experiment: n_missing
        for experiment in registration.experiments
        if (n_missing := api.plan(experiment_file(experiment), results=results).n_missing)
    }
    ripe, state, table = registration.without(missing), [], list[str]()
    if ripe.claims:
        judged = _judged(ripe, results)
        state.append(f"Of {_counts(judged)}.")
        table = _table(judged)
        plain = {"registered": commit, "claims": [asdict(one) for one in judged]}
        text = json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
        write_whole(registration.outcomes, text)
    if missing:
        n_open = len(registration.claims) - len(ripe.claims)
        state.append(
            f"{sum(missing.values())} runs of {', '.join(missing)} are missing; {n_open} "
            "claims are judged when none is."
        )
    say(f"{registration.title}: {' '.join(state)}")
    link = f"[{name}](../results/registered/{name})"
    lines = [f"## {registration.title}", "", f"Registered in {link} at commit {commit[:12]}.", ""]
    return [*lines, " ".join(state), "", *table], sum(missing.values())


def _judged(registration: Registration, results: Path) -> list[Judged]:
    reports = {
        name: api.report(experiment_file(name), results=results)
        for name in registration.experiments
    }
    tables = {name: of.table.results for name, of in reports.items() if of.table.results}
    claims = registration.claims
    if registration.by_table:
        judged = judge_by_table(claims, tables, registration.learned)
    else:
        records = {
            name: {key: each for key, each in of.records.items() if each["status"] in FINISHED}
            for name, of in reports.items()
        }
        judged = judge(claims, records, registration.learned)
    verdicts = [tables[one.experiment].verdict(one.row, one.measure) for one in claims]
    return [
        replace(one, table=str(verdict) if verdict and one.claim.against == "baseline" else None)
        for one, verdict in zip(judged, verdicts, strict=True)
    ]


def _counts(judged: Sequence[Judged]) -> str:
    counts = Counter(one.verdict for one in judged)
    n_held, n_failed = (sum(counts[v] for v in kind) for kind in (HELD, FAILED))
    n_open = counts["cannot tell"]
    return (
        f"{len(judged)} claims: {n_held} held, {n_failed} failed, {n_open} cannot be told, "
        f"{counts['not judged']} not judged"
    )


def _table(judged: Sequence[Judged]) -> list[str]:
    scores = {one.claim.experiment: one.score for one in judged if one.score is not None}
    return [
        "| claim | published | here | p | n | verdict | could find | table |",
        "|---|---:|---:|---:|---:|---|---:|---|",
        *map(_line, judged),
        "",
        "Sources:",
        "",
        *(f"- {one.claim.claim}: {one.claim.source}" for one in judged),
        "",
        "The rows that claims are compared with:",
        "",
        *(f"- {name}: {score:.1f} BLEU" for name, score in sorted(scores.items())),
        "",
    ]


def _line(one: Judged) -> str:
    claim, effect = one.claim, one.effect
    unit = f" {UNITS[claim.measure]}" if claim.measure in UNITS else ""
    stated: str = claim.direction
    if claim.margin:
        stated += f" {'within' if stated == 'equal' else 'by'} {claim.margin:g}{unit}"
    if effect is None:
        return f"| {claim.claim} | {stated} | | | 0 | {one.verdict} | | |"
    digits = 3 if unit else 1
    interval = f"[{effect.low:+.{digits}f}, {effect.high:+.{digits}f}]{unit}"
    p = "" if one.p_adjusted is None else f"{one.p_adjusted:.2g}"
    found = "" if one.detectable is None else f"{one.detectable:.{digits}f}{unit}"
    return (
        f"| {claim.claim} | {stated} | {effect.mean:+.{digits}f} {interval} | {p} | {effect.n} "
        f"| **{one.verdict}** | {found} | {one.table or ''} |"
    )


if __name__ == "__main__":
    sys.exit(main())
