"""The same numbers, bit for bit, on the same kind of machine; counts on every kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from ablate.gate.check import Blessing, Check, Context, Loosening, Result, Text
from ablate.gate.evidence import (
    LOSSES,
    MOST_STEPS,
    Evidence,
    UnfitError,
    difference,
    machine,
    measured,
    percentage,
)
from ablate.wording import counted, seeds_named

_STEPS = 20


class ExactBlessing(Blessing):
    """Hexadecimal numbers: for every seed one for each step, or one in all."""

    values: tuple[tuple[Text, ...], ...]

    @model_validator(mode="after")
    def _one_each(self) -> ExactBlessing:
        if len(self.values) != len(self.seeds):
            raise ValueError(f"has {len(self.seeds)} seeds but values of {len(self.values)}")
        for text in (text for of_seed in self.values for text in of_seed):
            float.fromhex(text)  # or a ValueError
        return self


class Exact(Check):
    """The same numbers, bit for bit; always with the seeds that blessed it."""

    kind: Literal["exact"] = "exact"
    measure: Text = LOSSES  # or any number of a record
    seeds: PositiveInt = 1  # how many are blessed
    steps: Annotated[int, Field(ge=1, le=MOST_STEPS)] | None = None  # losses, from the first on
    rtol_other_machine: PositiveFloat = 3e-4  # relative difference on another kind of machine
    blessed: ExactBlessing | None = None

    @model_validator(mode="before")
    @classmethod
    def _steps_of_losses(cls, data: Any) -> Any:
        is_of_losses = isinstance(data, dict) and data.get("measure", LOSSES) == LOSSES
        return {**data, "steps": data.get("steps", _STEPS)} if is_of_losses else data

    @model_validator(mode="after")
    def _steps_are_of_losses(self) -> Exact:
        if self.measure == LOSSES and self.steps is None:
            raise ValueError("needs a number of 'steps'")
        if self.measure != LOSSES and self.steps is not None:
            raise ValueError(f"'steps' is for the measure {LOSSES}; {self.measure} has one number")
        return self

    @property
    def loosening_terms(self) -> Loosening:
        return {"steps": "lower", **super().loosening_terms, "rtol_other_machine": "higher"}

    @property
    def n_values(self) -> int:
        return self.steps or 1

    @property
    def is_count(self) -> bool:
        """Whether no rounding, and so no other kind of machine, can change the measure."""
        return self.measure.partition(".")[0] in ("params", "flops")

    @property
    def recorded_measure(self) -> str | None:
        return None if self.measure == LOSSES else self.measure

    def seeds_to_bless(self, seeds: Sequence[int]) -> tuple[int, ...]:
        return tuple(seeds[: self.seeds])

    @property
    def fixed_seeds(self) -> tuple[int, ...]:
        return self.blessed.seeds if self.blessed else ()

    def bless(self, evidence: Evidence, context: Context) -> ExactBlessing:
        n_seeds = len(context.seeds)
        if n_seeds < self.seeds:
            raise UnfitError(f"needs {counted(self.seeds, 'seed')}; it was given {n_seeds}")
        seeds = self.seeds_to_bless(context.seeds)
        values = self._numbers(evidence, seeds)
        device = machine(evidence.records[self.row, seeds[0]]).get("device")
        if device != "cpu" and not self.is_count:
            raise UnfitError(
                f"only runs on the CPU repeat bit for bit, and these are of {device}; "
                "say --device cpu"
            )
        if not all(math.isfinite(value) for of_seed in values for value in of_seed):
            raise UnfitError("some of the numbers are not finite")
        return ExactBlessing(
            seeds=seeds,
            values=tuple(tuple(value.hex() for value in of_seed) for of_seed in values),
            derived="what is counted is the same on every kind of machine"
            if self.is_count
            else "a run on the CPU repeats bit for bit on machines of one kind; on others, "
            f"whose rounding differs, each number must be within {self._rtol}",
            terms=self.terms(context.alpha),
        )

    def derive_again(self, alpha: float) -> Blessing:
        assert self.blessed is not None, "only what is blessed is derived again"
        sizes = {len(of_seed) for of_seed in self.blessed.values}
        if len(self.blessed.seeds) != self.seeds or sizes != {self.n_values}:
            of_all = f"{counted(self.n_values, 'number')} of {counted(self.seeds, 'seed')}"
            raise UnfitError(f"needs {of_all}")
        return self.blessed

    def allowed(self, context: Context) -> tuple[str, str]:
        assert self.blessed is not None, "only what is blessed is judged"
        n = counted(self.n_values, "number")
        return f"{n}, {seeds_named(self.blessed.seeds)}", "bit for bit"

    def result(self, evidence: Evidence, context: Context) -> Result:
        blessed = self.blessed
        assert blessed is not None, "only what is blessed is judged"
        numbers = self._numbers(evidence, blessed.seeds)
        differing = [
            _Difference(seed, step, measured, float.fromhex(text))
            for seed, of_seed, texts in zip(blessed.seeds, numbers, blessed.values, strict=True)
            for step, (measured, text) in enumerate(zip(of_seed, texts, strict=True), start=1)
            if measured.hex() != text
        ]
        machines = [machine(evidence.records[self.row, seed]) for seed in blessed.seeds]
        others = [each for each in machines if each != context.machine and not self.is_count]
        if not others:
            if not differing:
                return Result("the same", None)
            location = self._describe(differing[0], len(differing))
            return Result(f"{len(differing)} differ", f"{location}; bit for bit was asked")
        other = f"on another kind of machine ({difference(others[0], context.machine)})"
        worst = max(differing, key=lambda each: each.size, default=None)
        failure = None
        if worst and not worst.size <= self.rtol_other_machine:
            location = self._describe(worst, len(differing))
            failure = f"{location}; {self._rtol} is tolerated {other}"
        return Result(
            measured=f"at most {percentage(worst.size)} off" if worst else "the same",
            failure=failure,
            remarks=(f"compared {other}, so within {self._rtol} and not bit for bit",),
            tolerance=f"within {self._rtol}, other machine",
        )

    def moved(self, old: Check) -> str | None:
        before, after = (getattr(check.blessed, "values", None) for check in (old, self))
        return "the numbers are new" if before != after else None

    @property
    def _rtol(self) -> str:
        return percentage(self.rtol_other_machine)

    def _numbers(self, evidence: Evidence, seeds: Sequence[int]) -> list[list[float]]:
        """Return what the check is about, by seed; refuse runs that have too few numbers."""
        summary, numbers = evidence.summary(self.row, seeds), []
        for seed in seeds:
            if self.measure == LOSSES:
                of_seed = list(evidence.losses.get((self.row, seed), ()))[: self.n_values]
            else:
                metric = measured(summary, self.measure)
                of_seed = [metric.values[seed]] if metric else []
            if len(of_seed) < self.n_values:
                raise UnfitError(
                    f"{self.row} with seed {seed} has {len(of_seed)} of the "
                    f"{counted(self.n_values, 'number')} that {self.measure} should have"
                )
            numbers.append(of_seed)
        return numbers

    def _describe(self, worst: _Difference, n: int) -> str:
        step = f" of step {worst.step}" if self.n_values > 1 else ""
        off = f"{percentage(worst.size)} off; " if math.isfinite(worst.size) else ""
        return (
            f"{self.measure}{step} of {self.row} with seed {worst.seed} is {worst.measured!r} "
            f"where the reference has {worst.blessed!r} ({off}{n} of "
            f"{counted(self.n_values * self.seeds, 'number')} differ)"
        )


@dataclass(frozen=True)
class _Difference:
    seed: int
    step: int
    measured: float
    blessed: float

    @property
    def size(self) -> float:
        """The relative difference; infinite if a number is not finite or the reference is 0."""
        if not (math.isfinite(self.measured) and math.isfinite(self.blessed)) or self.blessed == 0:
            return math.inf
        return abs(self.measured - self.blessed) / abs(self.blessed)
