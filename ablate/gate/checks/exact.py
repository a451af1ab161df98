"""The same numbers, bit for bit, on the same kind of machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from ablate.analysis.wording import counted, percent, seeds_named
from ablate.gate.check import Blessing, Check, Context, Text, UnfitError, Verdict
from ablate.gate.evidence import LOSSES, MOST_STEPS, Evidence, difference, machine, unfinished

_STEPS = 20


class ExactBlessing(Blessing):
    """Numbers to be met bit for bit.

    Attributes:
        values: hexadecimal, for every seed one for each step, or one in all.
    """

    values: tuple[tuple[Text, ...], ...]

    @model_validator(mode="after")
    def _one_each(self) -> ExactBlessing:
        if len(self.values) != len(self.seeds):
            raise ValueError(f"has {len(self.seeds)} seeds but values of {len(self.values)}")
        for text in (text for of_seed in self.values for text in of_seed):
            try:
                float.fromhex(text)
            except (ValueError, OverflowError):
                raise ValueError(f"{text!r} is no hexadecimal number, as in 0x1.8p+1") from None
        return self


class Exact(Check):
    """The same numbers, bit for bit; always with the seeds that blessed it.

    Attributes:
        measure: ``train_loss``, or any number of a record.
        steps: how many losses from the first on; of ``train_loss`` alone.
        seeds: how many seeds are kept.
        rtol_other_machine: the relative difference that is tolerated on another kind of machine.
    """

    kind: Literal["exact"] = "exact"
    measure: Text = LOSSES
    seeds: PositiveInt = 1
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None = None
    rtol_other_machine: PositiveFloat = 3e-4
    blessed: ExactBlessing | None = None

    @model_validator(mode="before")
    @classmethod
    def _steps_of_losses(cls, given: Any) -> Any:
        is_of_losses = isinstance(given, dict) and given.get("measure", LOSSES) == LOSSES
        return {**given, "steps": given.get("steps", _STEPS)} if is_of_losses else given

    @model_validator(mode="after")
    def _steps_are_of_losses(self) -> Exact:
        if self.measure == LOSSES and self.steps is None:
            raise ValueError("needs a number of 'steps'")
        if self.measure != LOSSES and self.steps is not None:
            raise ValueError(f"'steps' is for the measure {LOSSES}; {self.measure} has one number")
        return self

    @property
    def looser(self) -> dict[str, Literal["higher", "lower"]]:
        return {"steps": "lower", **super().looser, "rtol_other_machine": "higher"}

    @property
    def n_values(self) -> int:
        """How many numbers each seed has."""
        return self.steps or 1

    @property
    def recorded_measure(self) -> str | None:
        return None if self.measure == LOSSES else self.measure

    def seeds_to_bless(self, seeds: Sequence[int]) -> tuple[int, ...]:
        return tuple(seeds[: self.seeds])

    @property
    def fixed_seeds(self) -> tuple[int, ...]:
        return self.blessed.seeds if self.blessed else ()

    def bless(self, evidence: Evidence, context: Context) -> ExactBlessing:
        if len(context.seeds) < self.seeds:
            given = f"it was given {len(context.seeds)}"
            raise UnfitError(f"needs {counted(self.seeds, 'seed')}; {given}")
        seeds = self.seeds_to_bless(context.seeds)
        wrong = unfinished(evidence.summary(self.row, seeds))
        if wrong:
            raise UnfitError(wrong)
        device = machine(evidence.records[self.row, seeds[0]]).get("device")
        if device != "cpu":
            raise UnfitError(
                f"only runs on the CPU repeat bit for bit, and these are of {device}; "
                "say --device cpu"
            )
        values = [self._numbers(evidence, seed) for seed in seeds]
        shortest = min(map(len, values))
        if shortest < self.n_values:
            raise UnfitError(f"needs {counted(self.n_values, 'step')}; the runs have {shortest}")
        if not all(math.isfinite(value) for of_seed in values for value in of_seed):
            raise UnfitError("some of the numbers are not finite")
        return ExactBlessing(
            seeds=seeds,
            values=tuple(tuple(value.hex() for value in of_seed) for of_seed in values),
            derived="a run on the CPU repeats bit for bit on machines of one kind; on others, "
            "whose rounding differs, each number must be within "
            f"{percent(self.rtol_other_machine)}",
            terms=self.terms(context.alpha),
        )

    def derive_again(self, alpha: float) -> Blessing:
        assert self.blessed is not None, "only what is blessed is derived again"
        sizes = {len(of_seed) for of_seed in self.blessed.values}
        if len(self.blessed.seeds) != self.seeds or sizes != {self.n_values}:
            of_all = f"{counted(self.n_values, 'number')} of {counted(self.seeds, 'seed')}"
            raise UnfitError(f"needs {of_all}")
        return self.blessed

    def judge(self, evidence: Evidence, context: Context) -> Verdict:
        blessed = self.blessed
        assert blessed is not None, "only what is blessed is judged"
        reference = f"{counted(self.n_values, 'number')}, {seeds_named(blessed.seeds)}"
        missing = self._missing(blessed, evidence)
        if missing:
            return self.verdict(context, (reference, "bit for bit", "nothing"), missing)
        machines = [machine(evidence.records[self.row, seed]) for seed in blessed.seeds]
        others = [each for each in machines if each != context.machine]
        worst = self._worst(blessed, evidence, is_first=not others)
        if not others:
            measured = f"{worst.n} differ" if worst else "the same"
            failure = f"{self._place(worst)}; bit for bit was asked" if worst else None
            return self.verdict(context, (reference, "bit for bit", measured), failure)
        rtol = percent(self.rtol_other_machine)
        other = f"on another kind of machine ({difference(others[0], context.machine)})"
        failure = None
        if worst and not worst.size <= self.rtol_other_machine:
            failure = f"{self._place(worst)}; {rtol} is tolerated {other}"
        measured = f"at most {percent(worst.size)} off" if worst else "the same"
        remark = f"compared {other}, so within {rtol} and not bit for bit"
        texts = (reference, f"within {rtol}, other machine", measured)
        return self.verdict(context, texts, failure, [remark])

    def moved(self, old: Check) -> str | None:
        before, after = (getattr(check.blessed, "values", None) for check in (old, self))
        return "the numbers are new" if before != after else None

    def _numbers(self, evidence: Evidence, seed: int) -> list[float]:
        """Return what the check is about, as much of it as there is."""
        if self.measure == LOSSES:
            return list(evidence.losses.get((self.row, seed), ()))[: self.n_values]
        return list(evidence.done(self.row, self.measure, [seed]).values())

    def _missing(self, blessed: ExactBlessing, evidence: Evidence) -> str | None:
        """Return what is not there to be compared, in words."""
        wrong = unfinished(evidence.summary(self.row, blessed.seeds))
        if wrong:
            return wrong
        for seed in blessed.seeds:
            n = len(self._numbers(evidence, seed))
            if n < self.n_values:
                return (
                    f"{self.row} with seed {seed} has {n} of the "
                    f"{counted(self.n_values, 'number')} that {self.measure} should have"
                )
        return None

    def _worst(
        self, blessed: ExactBlessing, evidence: Evidence, *, is_first: bool
    ) -> _Difference | None:
        """Return the first number that differs, or the one that differs most; None if none does."""
        differing: list[tuple[int, int, float, float]] = []
        for seed, texts in zip(blessed.seeds, blessed.values, strict=True):
            pairs = zip(self._numbers(evidence, seed), texts, strict=True)
            differing += [
                (seed, at, ours, float.fromhex(text))
                for at, (ours, text) in enumerate(pairs, start=1)
                if ours.hex() != text
            ]
        if not differing:
            return None
        worst = differing[0] if is_first else max(differing, key=lambda each: _off(*each[2:]))
        return _Difference(*worst, size=_off(*worst[2:]), n=len(differing))

    def _place(self, worst: _Difference) -> str:
        step = f" of step {worst.at}" if self.n_values > 1 else ""
        off = f"{percent(worst.size)} off; " if math.isfinite(worst.size) else ""
        return (
            f"{self.measure}{step} of {self.row} with seed {worst.seed} is {worst.measured!r} "
            f"where the reference has {worst.blessed!r} ({off}{worst.n} of "
            f"{counted(self.n_values * self.seeds, 'number')} differ)"
        )


@dataclass(frozen=True)
class _Difference:
    """The worst of the numbers.

    Attributes:
        at: which of them, counted from 1.
        size: relative to the reference's.
        n: how many are not the same bit for bit.
    """

    seed: int
    at: int
    measured: float
    blessed: float
    size: float
    n: int


def _off(measured: float, blessed: float) -> float:
    """Return a relative difference, infinite if either is no number or the reference is 0."""
    if not (math.isfinite(measured) and math.isfinite(blessed)) or blessed == 0:
        return math.inf
    return abs(measured - blessed) / abs(blessed)
