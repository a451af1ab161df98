"""An effect between two rows: its direction, and how large it is at least."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, model_validator

from ablate.analysis.measures import FLOOR, PER_TOKEN
from ablate.analysis.statistics import Estimate, Interval, paired_differences, t_quantile
from ablate.analysis.summary import have_one_tokenizer, summarise
from ablate.gate.check import Blessing, Context, Directed, Loosening, Result, Text, rounded
from ablate.gate.evidence import Evidence, UnfitError, measured, percentage, to_scale
from ablate.gate.tolerance import tail
from ablate.wording import counted, listed, seeds_named

MIN_REPLICATION = 0.8  # of gates must show a claim again if the true effect is the measured one
_MOST_SEEDS = 50


class FindingBlessing(Blessing):
    """An effect as it was measured; without numbers if all runs diverged."""

    value: float | None = None  # the mean difference, row less the row it is compared with
    std: NonNegativeFloat | None = None  # of the differences
    low: float | None = None  # of the interval of the mean difference
    high: float | None = None
    values: tuple[float, ...] = ()  # the differences, by seed; runs that diverged have none


@dataclass(frozen=True)
class Effect:
    """The difference between two rows, compared with a claim."""

    differences: Estimate | None  # by seed; None if no pair of runs is done
    interval: Interval | None  # of their mean, Student's; the claim must hold at both its ends
    diverged: tuple[int, ...]  # seeds that speak for the claim because the worse row diverged
    shortfall: float  # of the claim; negative if it holds, infinite if nothing is known


class FindingCheck(Directed):
    """An effect between two rows, seed by seed.

    The claim is that ``row`` is ``worse`` or ``better`` than ``against`` by at least ``margin``, or
    ``near``: no further than ``margin`` either way.
    """

    kind: Literal["finding"] = "finding"
    against: Text = "baseline"
    claim: Literal["worse", "better", "near"]
    margin: NonNegativeFloat  # in the units of the measure
    seeds: Annotated[int, Field(ge=2)] = 3  # of a gate, at least
    confidence: Annotated[float, Field(ge=0.8, lt=1.0)] = 0.95  # with which it must be shown
    blessed: FindingBlessing | None = None

    @model_validator(mode="after")
    def _two_rows(self) -> FindingCheck:
        if self.row == self.against:
            raise ValueError(f"compares the row {self.row!r} with itself; name another 'against'")
        if self.claim == "near" and self.margin == 0:
            raise ValueError("no two rows are nearer than 0; give the distance in 'margin'")
        return self

    @property
    def loosening_terms(self) -> Loosening:
        terms: Loosening = {"confidence": "lower"}
        terms["margin"] = "higher" if self.claim == "near" else "lower"
        return super().loosening_terms | terms

    @property
    def rows(self) -> tuple[str, ...]:
        return (self.row, self.against)

    @property
    def subject(self) -> str:
        return f"{self.row} against {self.against}: {self.measure}"

    def bless(self, evidence: Evidence, context: Context) -> FindingBlessing:
        effect = self._measured(evidence, context.seeds)
        by_seed = effect.differences.values if effect.differences else {}
        in_order = tuple(by_seed[seed] for seed in context.seeds if seed in by_seed)
        blessing = self.blessing(context.seeds, in_order, context.alpha)
        if not self._holds(effect):
            raise UnfitError(self._shortcoming(effect))
        if effect.differences and self._replication(effect.differences) < MIN_REPLICATION:
            raise UnfitError(self._not_replicable(effect.differences))
        return blessing

    def blessing(
        self, seeds: tuple[int, ...], values: tuple[float, ...], alpha: float
    ) -> FindingBlessing:
        """Return the effect that differences show; refuse a single one, and one without bound."""
        terms = self.terms(alpha)
        if not values:
            derived = "a run that diverged is worse than any number"
            return FindingBlessing(seeds=seeds, derived=derived, terms=terms)
        differences = Estimate(dict(enumerate(values)))
        effect = self._effect(differences, ())
        if effect.interval is None:
            raise UnfitError(self._without_interval(differences))
        return FindingBlessing(
            seeds=seeds,
            values=values,
            value=rounded(differences.mean),
            std=rounded(differences.sd or 0.0),
            low=rounded(effect.interval.low),
            high=rounded(effect.interval.high),
            derived=f"Student's {percentage(2 * self.confidence - 1)} interval of {len(values)} "
            f"paired differences; {self._again(differences)}",
            terms=terms,
        )

    def derive_again(self, alpha: float) -> Blessing:
        assert self.blessed is not None, "only what is blessed is derived again"
        return self.blessing(self.blessed.seeds, self.blessed.values, alpha)

    def allowed(self, context: Context) -> tuple[str, str]:
        blessed, near = self.blessed, self.claim == "near"
        assert blessed is not None, "only what is blessed is judged"
        claimed = f"within ±{self.margin:g}" if near else f"{self.claim} by {self.margin:g}"
        if blessed.value is None:
            return "all diverged", claimed
        value = to_scale(blessed.value, blessed.std or 0.0, "+")
        return f"{value} ({counted(len(blessed.values), 'seed')})", claimed

    def result(self, evidence: Evidence, context: Context) -> Result:
        effect = self._measured(evidence, context.seeds)
        diverged = f"{listed(effect.diverged)} diverged, which is worse than any number"
        remarks = (diverged,) if effect.diverged else ()
        if effect.differences is None:
            assert effect.diverged, "a measure that no run has is refused before"
            return Result("all diverged", None, remarks)
        mean, interval = effect.differences.mean, effect.interval
        if interval is None:
            return Result("no interval", self._without_interval(effect.differences), remarks)
        measured = (
            f"{to_scale(mean, interval.high - interval.low, '+')}, {_interval_text(interval)}"
        )
        failure = None if self._holds(effect) else self._shortcoming(effect)
        return Result(measured, failure, remarks)

    def _measured(self, evidence: Evidence, seeds: Sequence[int]) -> Effect:
        """Return the effect that the runs show; refuse runs that are not done and must be."""
        summaries = summarise(self.rows, seeds, evidence.records)
        worse, better = summaries if self.claim == "worse" else summaries[::-1]
        diverged = tuple(  # the seeds with which the row that is claimed to be worse diverged
            seed
            for seed, status in worse.outcomes.items()
            if self.claim != "near" and status == "diverged" and better.outcomes[seed] == "done"
        )
        for name in self.rows:
            evidence.summary(name, seeds, diverged)
        if self.measure.rpartition(".")[2] in PER_TOKEN and not all(
            have_one_tokenizer(evidence.records[row, seed] for row in self.rows) for seed in seeds
        ):
            raise UnfitError(
                f"{self.row} and {self.against} have different tokenizers, so that {self.measure}, "
                "a mean per token, is not compared; check bits_per_character of a test set"
            )
        ours, theirs = (measured(summary, self.measure) for summary in summaries)
        if self.claim == "near" and self.is_score and theirs and theirs.mean < FLOOR * self.margin:
            raise UnfitError(
                f"{self.against} has {to_scale(theirs.mean, self.margin)} in {self.measure}, below "
                f"{FLOOR} times the margin, so that a row which translates nothing could be near it"
            )
        pairs = paired_differences(ours.values, theirs.values) if ours and theirs else {}
        return self._effect(Estimate(pairs) if pairs else None, diverged)

    def _effect(self, differences: Estimate | None, diverged: tuple[int, ...]) -> Effect:
        """Return the effect that differences show, and runs of the worse row that diverged."""
        if differences is None:
            return Effect(None, None, diverged, -math.inf if diverged else math.inf)
        if differences.sd is None:
            return Effect(differences, None, diverged, math.inf)
        above = 1 - self.confidence  # each end is wrong as often
        interval = Interval.of_mean(differences.mean, differences.sd, differences.n, above)
        if self.claim == "near":
            shortfall = max(interval.high, -interval.low) - self.margin
        else:
            nearest = interval.low if self._sign > 0 else -interval.high
            shortfall = self.margin - nearest
        return Effect(differences, interval, diverged, shortfall)

    def _holds(self, effect: Effect) -> bool:
        """Return whether the interval confirms the claim; with a margin of 0 it must exclude 0."""
        return effect.shortfall < 0 or (effect.shortfall == 0 and self.margin > 0)

    @property
    def _sign(self) -> int:  # 1 if the claim is that the row's values are higher
        return 1 if (self.claim == "better") == self.is_higher_better else -1

    def _replication(self, differences: Estimate, n: int | None = None) -> float:
        """Return the share of gates that show the measured effect again, for ``near`` at least."""
        assert differences.sd is not None, "a claim that holds has an interval"
        n, margin = n or self.seeds, self.margin
        if differences.sd == 0:
            return 1.0
        unit = differences.sd / math.sqrt(n)
        critical = t_quantile(1 - self.confidence, n - 1)

        def power(room: float) -> float:
            return tail(critical, n - 1, room / unit)

        if self.claim == "near":
            both = power(margin - differences.mean) + power(margin + differences.mean)
            return max(0.0, both - 1)
        return power(self._sign * differences.mean - margin)

    def _again(self, differences: Estimate) -> str:
        return (
            f"were the effect just this large, {percentage(self._replication(differences))} of "
            f"gates with {self.seeds} seeds would show the claim again"
        )

    def _not_replicable(self, differences: Estimate) -> str:
        more = range(self.seeds + 1, _MOST_SEEDS)
        enough = (n for n in more if self._replication(differences, n) >= MIN_REPLICATION)
        ways = [f"gates of {n} seeds (seeds: {n})" for n in islice(enough, 1)]
        if self.margin:
            ways.append(f"a {'larger' if self.claim == 'near' else 'smaller'} margin")
        it_takes = f"; it takes {', or '.join(ways)}" if ways else ""
        return f"{self._again(differences)}, and {percentage(MIN_REPLICATION)} is asked{it_takes}"

    def _without_interval(self, differences: Estimate) -> str:
        if differences.n > 1:
            return f"{self.measure} is not finite with some seed"
        return "a single pair of runs that are done has no interval; give more seeds"

    def _shortcoming(self, effect: Effect) -> str:
        assert effect.differences is not None, "where all diverged, the claim is shown"
        assert effect.interval is not None, "an effect without an interval was refused before"
        mean = to_scale(effect.differences.mean, effect.interval.high - effect.interval.low, "+")
        relation = f"{self.claim} than {self.against} by at least {self.margin:g}"
        if self.claim == "near":
            relation = f"within {self.margin:g} of {self.against}"
        return (
            f"{self.row} is not shown to be {relation} in {self.measure}: the difference "
            f"is {mean} over {seeds_named(sorted(effect.differences.values))}, and its "
            f"{percentage(2 * self.confidence - 1)} interval is {_interval_text(effect.interval)}, "
            f"{to_scale(effect.shortfall, effect.shortfall)} short of the claim"
        )


def _interval_text(interval: Interval) -> str:
    scale = interval.high - interval.low
    return " to ".join(to_scale(end, scale, "+") for end in (interval.low, interval.high))
