"""Judge the registered claims: which published effects appear in runs that followed the claims.

    ablate runs restore results/registered/*/runs.tar.xz    # the records of the runs, or
    for name in parts narang averaging small_corpus depth    # the runs themselves, in some hours
        do ablate run registered/$name --no-probe; done
    python benchmarks/claims.py
    python benchmarks/claims.py --register FILE --sd 1.6   # before the file is committed

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
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pruning
import yaml
from scipy import stats

from ablate import api, config
from ablate.analysis.dunnett import single_value, smallest_detectable
from ablate.analysis.statistics import t_quantile
from ablate.report.results import Results
from ablate.store import FINISHED, write_whole

ROOT = Path(__file__).parents[1]
REGISTERED = ROOT / "results" / "registered"
PAGE = ROOT / "docs" / "claims.md"
ALPHA = 0.05
UNITS = {"dev.nll": "nats"}
"""Of measures that are not BLEU."""

HEAD = """\
# Registered claims

What papers say of parts and of models, written with direction, margin and rule of judgement before
any run that judges it. The runs use seeds that no earlier run had. The models are small (2 + 2
layers of width 64 on the synthetic corpus, half a minute of one core, where nothing else is said),
so a claim that fails here may well be true of the models that it was made about.

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

Records = Mapping[tuple[str, int], Mapping[str, Any]]
Verdict = Literal[
    "at least the margin",
    "same direction",
    "within the margin",
    "cannot tell",
    "different",
    "opposite",
    "not judged",
]
HELD: tuple[Verdict, ...] = ("at least the margin", "same direction", "within the margin")
FAILED: tuple[Verdict, ...] = ("opposite", "different")


@dataclass(frozen=True)
class Claim:
    """What a source says of one row.

    Attributes:
        claim: its name.
        experiment: file under experiments/, without its suffix.
        row: the row that it is about.
        measure: dotted path of a number of the record.
        direction: whether the row is better or worse than `against`, or as good.
        margin: the size of the effect in the source, in the unit of the measure; 0 if unknown.
        source: paper and table.
        against: the row that it is compared with.
    """

    claim: str
    experiment: str
    row: str
    measure: str
    direction: Literal["better", "worse", "equal"]
    margin: float
    source: str
    against: str = "baseline"

    @property
    def sign(self) -> int:
        """Return +1 if the claimed effect raises the measure, -1 if it lowers it."""
        is_lower_better = self.measure.rpartition(".")[2] in ("nll", "perplexity")
        return (1 if self.direction == "better" else -1) * (-1 if is_lower_better else 1)


@dataclass(frozen=True)
class Registration:
    """Claims that were committed together, and are judged together.

    Attributes:
        file: claims*.yaml.
        title: what they are about.
        claims: in the order of the file.
        learned: BLEU that the row a claim is compared with must reach.
        by_table: whether the tables of the experiments judge, whose rows have looks, in place of
            paired tests of fixed seeds.
    """

    file: Path
    title: str
    claims: Sequence[Claim]
    learned: float
    by_table: bool = False

    @property
    def outcomes(self) -> Path:
        """Return the file of the verdicts."""
        return self.file.with_name(self.file.name.replace("claims", "outcomes", 1)).with_suffix(
            ".json"
        )

    @property
    def experiments(self) -> list[str]:
        """Return the experiments whose runs judge the claims."""
        return sorted({claim.experiment for claim in self.claims})

    def without(self, unfinished: Collection[str]) -> Registration:
        """Return the claims that can be judged while experiments are unfinished.

        A table judges its own rows; p values are adjusted for all claims of a registration.
        """
        claims = [one for one in self.claims if one.experiment not in unfinished]
        if unfinished and not self.by_table:
            claims = []
        return replace(self, claims=claims)


def commit_of(file: Path) -> str:
    """Return the commit that registered the claims of a file.

    Raises:
        ValueError: if the file was never committed, or was changed since.
    """
    command = ["git", "log", "--format=%H", "--", str(file)]
    log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    commits = log.stdout.split()
    is_changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", file], cwd=ROOT).returncode
    if len(commits) != 1 or is_changed:
        raise ValueError(
            f"{file} is to be committed once, before its runs; it has {len(commits)} commits"
            f"{' and changes that are not committed' if is_changed else ''}"
        )
    return commits[0]


def registrations() -> list[Registration]:
    """Read all files of claims."""
    return [_registration(file) for file in sorted(REGISTERED.glob("claims*.yaml"))]


def _registration(file: Path) -> Registration:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    claims = [Claim(**claim) for claim in content["claims"]]
    title = content.get("title", "Single parts")
    by_table = content.get("by_table", False)
    return Registration(file, title, claims, content["learned"]["at_least"], by_table)


@dataclass(frozen=True)
class Effect:
    """The difference of two rows, paired by seed.

    Attributes:
        mean: of the differences, in the unit of the measure.
        low: lower end of Student's 95% interval of the mean.
        high: upper end.
        p: two-sided, of the paired t test that the effect is zero; 1 if all differences are.
        n: pairs.
    """

    mean: float
    low: float
    high: float
    p: float
    n: int


@dataclass(frozen=True)
class Judged:
    """A claim, its effect in our runs, and the verdict.

    Attributes:
        claim: what was claimed.
        effect: what was measured; None without runs.
        score: BLEU of the row it is compared with, the mean over seeds.
        p_adjusted: Holm's, over all claims with a direction, None for claims of equality; or the
            table's.
        verdict: by the registered rules.
        detectable: the true difference that these pairs find with a probability of 80%.
        table: the verdict of the experiment's table; None where it compares other rows.
    """

    claim: Claim
    effect: Effect | None
    score: float | None
    p_adjusted: float | None
    verdict: Verdict
    detectable: float | None = None
    table: str | None = None


def value_of(record: Mapping[str, Any], measure: str) -> float:
    """Return a measure of a run; BLEU 0 of one that diverged.

    Raises:
        ValueError: if a diverged run has no such number and the measure is not BLEU.
    """
    if record["status"] == "diverged":
        if measure.endswith(".bleu"):
            return 0.0
        raise ValueError(f"{record['hash']} has diverged and has no {measure}")
    value: Any = record
    for key in measure.split("."):
        value = value[key]
    return float(value)


def effect_of(claim: Claim, records: Records) -> Effect | None:
    """Return the effect of a claim; None if fewer than two seeds have both rows."""
    seeds = sorted(
        seed for row, seed in records if row == claim.row and (claim.against, seed) in records
    )
    if len(seeds) < 2:
        return None
    differences = np.array(
        [
            value_of(records[claim.row, seed], claim.measure)
            - value_of(records[claim.against, seed], claim.measure)
            for seed in seeds
        ]
    )
    mean = float(differences.mean())
    half = float(stats.t.ppf(1 - ALPHA / 2, len(seeds) - 1) * stats.sem(differences))
    p = float(stats.ttest_1samp(differences, 0.0).pvalue) if differences.any() else 1.0
    return Effect(mean, mean - half, mean + half, p, len(seeds))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for all of them together.

    Source: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
    """
    order = np.argsort(p_values)
    steps = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.tolist()


def verdict_of(claim: Claim, effect: Effect, p_adjusted: float | None) -> Verdict:
    """Apply the registered rules to one claim."""
    if claim.direction == "equal":
        if max(-effect.low, effect.high) <= claim.margin:
            return "within the margin"
        is_outside = effect.low > claim.margin or effect.high < -claim.margin
        return "different" if is_outside else "cannot tell"
    assert p_adjusted is not None, "claims with a direction have one"
    if p_adjusted >= ALPHA:
        return "cannot tell"
    if claim.sign * effect.mean < 0:
        return "opposite"
    nearest = effect.low if claim.sign > 0 else -effect.high
    return "at least the margin" if claim.margin and nearest >= claim.margin else "same direction"


def judge(claims: Sequence[Claim], records: Mapping[str, Records], learned: float) -> list[Judged]:
    """Judge claims together, as the adjustment of their p values asks for.

    Args:
        claims: all that were registered.
        records: of each experiment, by row and seed.
        learned: BLEU that the row a claim is compared with must reach.
    """
    effects = [effect_of(claim, records.get(claim.experiment, {})) for claim in claims]
    scores = [_score(claim, records.get(claim.experiment, {})) for claim in claims]
    directed = [
        i
        for i, (claim, effect) in enumerate(zip(claims, effects, strict=True))
        if claim.direction != "equal" and effect is not None
    ]
    p_values = [effect.p for i in directed if (effect := effects[i]) is not None]
    adjusted = dict(zip(directed, holm(p_values), strict=True))
    judged = []
    for i, (claim, effect, score) in enumerate(zip(claims, effects, scores, strict=True)):
        has_learned = score is not None and score >= learned
        verdict: Verdict = "not judged"
        if effect is not None and has_learned:
            verdict = verdict_of(claim, effect, adjusted.get(i))
        found = detectable(effect, len(directed)) if i in adjusted and effect else None
        judged.append(Judged(claim, effect, score, adjusted.get(i), verdict, found))
    return judged


def judge_by_table(
    claims: Sequence[Claim], tables: Mapping[str, Results], learned: float
) -> list[Judged]:
    """Judge claims about a row and the baseline by the intervals of their experiments' tables.

    Args:
        claims: all that were registered.
        tables: of each experiment.
        learned: BLEU that the baseline must reach.
    """
    judged = []
    for claim in claims:
        table = tables[claim.experiment]
        score = table.summaries[0].metrics["test.test.bleu"].mean
        difference = table.difference(claim.row, claim.measure)
        effect, p = None, None
        verdict: Verdict = "cannot tell"
        if difference and difference.simultaneous and difference.estimate is not None:
            low, high = difference.simultaneous.low, difference.simultaneous.high
            p = 1.0 if difference.p is None else difference.p
            effect = Effect(difference.estimate, low, high, p, difference.n)
            verdict = verdict_of(claim, effect, p)
        if score < learned:
            verdict = "not judged"
        judged.append(Judged(claim, effect, score, p, verdict))
    return judged


def detectable(effect: Effect, n_claims: int) -> float | None:
    """Return the difference that Holm's first step finds with a probability of 80%."""
    df = effect.n - 1
    error = (effect.high - effect.low) / 2 / single_value(df)
    return smallest_detectable(error, t_quantile(ALPHA / 2 / n_claims, df), df) if error else None


def undetectable(registration: Registration, sd: float) -> dict[str, float]:
    """Return the claims that their seeds are not expected to detect, with what these could find.

    Args:
        registration: with the claims.
        sd: standard deviation of a paired difference, in BLEU.
    """
    n_claims = sum(claim.direction != "equal" for claim in registration.claims)
    claims = {}
    for claim in registration.claims:
        n = len(config.load(_path(claim.experiment)).seeds)  # of all looks
        half = single_value(n - 1) * sd / math.sqrt(n)
        least = detectable(Effect(0.0, -half, half, 1.0, n), n_claims)
        is_directed = claim.direction != "equal" and claim.measure not in UNITS
        if is_directed and claim.margin and least and claim.margin < least:
            claims[claim.claim] = least
    return claims


def _score(claim: Claim, records: Records) -> float | None:
    scores = [
        value_of(record, "test.test.bleu")
        for (row, _), record in records.items()
        if row == claim.against
    ]
    return float(np.mean(scores)) if scores else None


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
        refused = undetectable(_registration(options.register), options.sd)
        for name, least in refused.items():
            sys.stdout.write(
                f"{name}: its seeds find {least:.1f} BLEU, which is more than claimed\n"
            )
        return int(bool(refused))
    parts, is_whole = [HEAD], True
    for registration in registrations():
        commit = commit_of(registration.file)
        missing = {
            name: n_missing
            for name in registration.experiments
            if (n_missing := api.plan(_path(name), results=options.results).n_missing)
        }
        ripe = registration.without(missing)
        sentences = []
        if ripe.claims:
            judged = _judged(ripe, options.results)
            sentences.append(f"Of {_counts(judged)}.")
            plain = {"registered": commit, "claims": [asdict(one) for one in judged]}
            text = json.dumps(plain, indent=1, ensure_ascii=False) + "\n"
            write_whole(registration.outcomes, text)
        if missing:
            is_whole = False
            n_open = len(registration.claims) - len(ripe.claims)
            sentences.append(
                f"{sum(missing.values())} runs of {', '.join(missing)} are missing; {n_open} "
                "claims are judged when none is."
            )
        state = " ".join(sentences)
        parts += [_heading(registration, commit), state, ""]
        if ripe.claims:
            parts += _section(judged)
        sys.stdout.write(f"{registration.title}: {state}\n")
    parts += [MISSTATED, *pruning.section(commit_of(pruning.CLAIM))]
    write_whole(PAGE, "\n".join(parts))
    return int(not is_whole)


def _judged(registration: Registration, results: Path) -> list[Judged]:
    reports = {name: api.report(_path(name), results=results) for name in registration.experiments}
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


def _path(name: str) -> Path:
    return ROOT / "experiments" / f"{name}.yaml"


def _counts(judged: Sequence[Judged]) -> str:
    counts = Counter(one.verdict for one in judged)
    n_held, n_failed = (sum(counts[v] for v in kind) for kind in (HELD, FAILED))
    n_open = counts["cannot tell"]
    return (
        f"{len(judged)} claims: {n_held} held, {n_failed} failed, {n_open} cannot be told, "
        f"{counts['not judged']} not judged"
    )


def _heading(registration: Registration, commit: str) -> str:
    name = registration.file.name
    return (
        f"## {registration.title}\n\nRegistered in [{name}](../results/registered/{name}) at "
        f"commit {commit[:12]}.\n"
    )


def _section(judged: Sequence[Judged]) -> list[str]:
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
