"""Registered claims: what a source says of a row, and the rules by which runs judge it.

Each results/registered/claims*.yaml is a registration: claims and rules that were committed before
any of their runs, and are never changed. `claims.py` writes the page.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml
from records import ROOT
from scipy import stats

from ablate import config
from ablate.analysis.dunnett import single_value, smallest_detectable
from ablate.analysis.statistics import t_quantile
from ablate.report.results import Results

REGISTERED = ROOT / "results" / "registered"
ALPHA = 0.05
UNITS = {"dev.nll": "nats"}
"""Of measures that are not BLEU."""

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


def registrations() -> list[Registration]:
    """Read all files of claims."""
    return [registration_in(file) for file in sorted(REGISTERED.glob("claims*.yaml"))]


def registration_in(file: Path) -> Registration:
    """Read a file of claims."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    claims = [Claim(**claim) for claim in content["claims"]]
    title = content.get("title", "Single parts")
    by_table = content.get("by_table", False)
    return Registration(file, title, claims, content["learned"]["at_least"], by_table)


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


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for all of them together.

    Source: Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
    """
    order = np.argsort(p_values)
    steps = np.asarray(p_values)[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.tolist()


def undetectable(registration: Registration, sd: float) -> dict[str, float]:
    """Return the claims that their seeds are not expected to detect, with what these could find.

    Args:
        registration: with the claims.
        sd: standard deviation of a paired difference, in BLEU.
    """
    n_claims = sum(claim.direction != "equal" for claim in registration.claims)
    claims = {}
    for claim in registration.claims:
        n = len(config.load(experiment_file(claim.experiment)).seeds)  # of all looks
        half = single_value(n - 1) * sd / math.sqrt(n)
        least = detectable(Effect(0.0, -half, half, 1.0, n), n_claims)
        is_directed = claim.direction != "equal" and claim.measure not in UNITS
        if is_directed and claim.margin and least and claim.margin < least:
            claims[claim.claim] = least
    return claims


def detectable(effect: Effect, n_claims: int) -> float | None:
    """Return the difference that Holm's first step finds with a probability of 80%."""
    df = effect.n - 1
    error = (effect.high - effect.low) / 2 / single_value(df)
    return smallest_detectable(error, t_quantile(ALPHA / 2 / n_claims, df), df) if error else None


def experiment_file(name: str) -> Path:
    """Return the file of an experiment."""
    return ROOT / "experiments" / f"{name}.yaml"


def _score(claim: Claim, records: Records) -> float | None:
    scores = [
        value_of(record, "test.test.bleu")
        for (row, _), record in records.items()
        if row == claim.against
    ]
    return float(np.mean(scores)) if scores else None
