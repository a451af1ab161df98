"""The contract of a check: what its YAML says, what blesses it, and how a gate judges by it.

A kind of check is one class in one file of `ablate.gate.checks`. Users write a check's own keys,
its terms. ``ablate gate --bless`` writes what stands under ``blessed``, with a copy of the terms
that it was derived from: a check that was edited must be blessed again.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt, model_validator

from ablate.analysis.measures import SCORES, direction
from ablate.analysis.summary import is_measured_once
from ablate.gate.evidence import Evidence, UnfitError, to_scale
from ablate.registry import Frozen

Text = Annotated[str, Field(min_length=1)]
Scalar = int | float | str
Terms = dict[str, Scalar]
Loosening = dict[str, Literal["higher", "lower"]]
Flaw = tuple[tuple[str, ...], str]  # where in a reference, and what is wrong there, in a sentence

KINDS: dict[str, type[Check]] = {}  # by the name in YAML; a class is added when it is defined

BLESS_AGAIN = "bless the reference again"
_NOT_TERMS = {"note", "published", "blessed"}
SUBJECT = ("kind", "row", "against", "measure", "claim", "better")
_DERIVED = ("value", "std", "lowest", "highest", "low", "high")
_DIGITS = 10  # of derived numbers; the values that they are derived from are not rounded


class PublishedNumber(Frozen):
    """The published value of a measure, and who published it where."""

    value: float
    source: Text
    note: Text | None = None


class Blessing(Frozen):
    """The seeds that a check was blessed with, how its tolerance follows, and its terms then."""

    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    derived: Text
    terms: Terms


@dataclass(frozen=True)
class Context:
    """What a check needs to know of the gate or the blessing around it."""

    name: str  # of the check
    seeds: tuple[int, ...]
    alpha: float  # the check's share of the reference's false alarms
    machine: Mapping[str, Scalar]  # the kind that the reference was blessed on; empty before


@dataclass(frozen=True)
class Result:
    """What a check finds in the runs of a gate, in words."""

    measured: str
    failure: str | None  # which number left which tolerance and by how much; None if it passed
    remarks: tuple[str, ...] = ()
    tolerance: str | None = None  # what is allowed, if that depends on the runs


@dataclass(frozen=True)
class CheckVerdict:
    """The result of one check, in words."""

    check: str  # its name
    kind: str
    subject: str  # the row, or the two rows, and the measure
    reference: str  # what was blessed
    tolerance: str  # what is allowed
    measured: str  # what the runs of this gate have
    failure: str | None  # which number left which tolerance and by how much; None if it passed
    remarks: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        return self.failure is None


class Check(Frozen, ABC):
    """What all checks have in common."""

    # chance alone can make it fail; such checks share the reference's alpha
    spends_alpha: ClassVar[bool] = False
    # blessing it uses repeats: runs of the same seeds with other rounding
    uses_repeats: ClassVar[bool] = False

    kind: str  # the name of the class in the YAML; a kind sets it by ``Literal["x"] = "x"``
    row: Text = "baseline"
    measure: (
        Text  # as it is nested in a record, ``test.test2016.bleu``, or several, ``test.*.bleu``
    )
    seeds: PositiveInt = 3  # of a gate, at least
    note: Text | None = None
    published: PublishedNumber | None = None
    blessed: Blessing | None = None

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        kind = cls.model_fields["kind"].default
        if isinstance(kind, str):
            if kind in KINDS:
                raise TypeError(f"two kinds of check are called {kind!r}")
            KINDS[kind] = cls

    @property
    def loosening_terms(self) -> Loosening:
        """Terms that loosen the check when they become higher, or lower."""
        return {"seeds": "lower"}

    @property
    def rows(self) -> tuple[str, ...]:
        return (self.row,)

    @property
    def subject(self) -> str:
        return f"{self.row}: {self.measure}"

    @property
    def needs_one_place(self) -> bool:
        """Whether runs of one kind of machine, and of the same versions, alone can bless it."""
        return True

    @property
    def recorded_measure(self) -> str | None:
        """The measure that a record must hold; None if none."""
        return self.measure

    def terms(self, alpha: float) -> Terms:
        """Return the terms of the check, with its share of the false alarms."""
        own = self.model_dump(exclude=_NOT_TERMS, exclude_none=True)
        return own | ({"alpha": alpha} if self.spends_alpha else {})

    def seeds_to_bless(self, seeds: Sequence[int]) -> tuple[int, ...]:
        """Return which seeds bless it, of those that were chosen."""
        return tuple(seeds)

    @property
    def fixed_seeds(self) -> tuple[int, ...] | None:
        """The seeds that every gate uses; None if a gate chooses them."""
        return None

    def seeds_to_judge(self, seeds: Sequence[int]) -> tuple[int, ...]:
        """Return which seeds the check uses in a gate that has chosen ``seeds``."""
        return tuple(seeds) if self.fixed_seeds is None else self.fixed_seeds

    def refused_seeds(self, seeds: Sequence[int]) -> str | None:
        """Return why a gate cannot choose these seeds, in words; None if it can."""
        if self.fixed_seeds is not None or len(seeds) >= self.seeds:
            return None
        return f"needs {self.seeds} seeds or more to keep what it promises"

    def forecast(self, evidence: Evidence, context: Context) -> str | None:
        """Return in a sentence what the seeds can promise, if that depends on measurements.

        UnfitError if they cannot bless the check, with 95% confidence where runs are missing.
        """
        return None

    @abstractmethod
    def bless(self, evidence: Evidence, context: Context) -> Blessing:
        """Return the blessing that follows from the runs; UnfitError if they do not suffice."""

    @abstractmethod
    def derive_again(self, alpha: float) -> Blessing:
        """Return the blessing of the blessed values and the terms; UnfitError if none follows."""

    @abstractmethod
    def allowed(self, context: Context) -> tuple[str, str]:
        """Return what was blessed and what is allowed, in words."""

    @abstractmethod
    def result(self, evidence: Evidence, context: Context) -> Result:
        """Return what the runs measured, and whether that is allowed; UnfitError if unfit."""

    def judge(self, evidence: Evidence, context: Context) -> CheckVerdict:
        reference, tolerance = self.allowed(context)
        try:
            result = self.result(evidence, context)
        except UnfitError as error:
            result = Result("nothing", str(error))
        published = self.published
        remarks = [f"published: {published.value:g} ({published.source})"] if published else []
        return CheckVerdict(
            check=context.name,
            kind=self.kind,
            subject=self.subject,
            reference=reference,
            tolerance=result.tolerance or tolerance,
            measured=result.measured,
            failure=result.failure,
            remarks=(*result.remarks, *remarks),
        )

    def flaws(self, name: str, alpha: float) -> Iterator[Flaw]:
        """Yield why a gate cannot use the check: not blessed, or edited since it was."""
        at = ("checks", name)
        if self.blessed is None:
            yield at, f"has not been blessed; {BLESS_AGAIN}, or remove the check"
            return
        before, after = self.blessed.terms, self.terms(alpha)
        if changed := [term for term in before | after if before.get(term) != after.get(term)]:
            for term in changed:
                was = f"was {before[term]}" if term in before else "was not given"
                yield (*at, term), f"{was} when the check was blessed; {BLESS_AGAIN}"
            return
        try:
            again = self.derive_again(alpha)
        except UnfitError as error:
            yield (*at, "blessed"), f"{error}; {BLESS_AGAIN}"
            return
        for key in _DERIVED:
            written, follows = getattr(self.blessed, key, None), getattr(again, key, None)
            if not is_close(written, follows):
                reason = f"is {written}, but {follows} follows from the values and terms"
                yield (*at, "blessed", key), f"{reason}; {BLESS_AGAIN}"

    def loosened(self, old: Check) -> Iterator[str]:
        """Yield in what this check is looser than an earlier one; both are blessed."""
        assert self.blessed is not None, "only what is blessed is compared"
        assert old.blessed is not None, "only what is blessed is compared"
        before, after = old.blessed.terms, self.blessed.terms
        for term in SUBJECT:
            if before.get(term) != after.get(term):
                was, now = (terms.get(term, "none") for terms in (before, after))
                yield f"{term} would be {now}, not {was}"
                return  # another subject: nothing else can be compared
        for term, looser in self.loosening_terms.items():
            if term not in before or term not in after:
                continue
            rise = float(after[term]) - float(before[term])
            if rise and looser == ("higher" if rise > 0 else "lower"):
                verb = "rise" if rise > 0 else "fall"
                yield f"{term} would {verb} from {before[term]} to {after[term]}"
        if len(self.blessed.seeds) < len(old.blessed.seeds):
            fewer = f"{len(old.blessed.seeds)} to {len(self.blessed.seeds)}"
            yield f"the reference would have fewer seeds, from {fewer}"

    def moved(self, old: Check) -> str | None:
        """Return how the blessed numbers differ from earlier ones, in words; None if they agree."""
        before, after = (getattr(check.blessed, "value", None) for check in (old, self))
        if is_close(before, after):
            return None
        stds = [getattr(check.blessed, "std", None) or 0.0 for check in (old, self)]
        was, now = (
            "every run diverged" if value is None else to_scale(value, max(stds))
            for value in (before, after)
        )
        return f"{was} before, {now} now"


class Directed(Check):
    """A check that depends on which values are better: by default as `analysis.measures` says."""

    better: Literal["higher", "lower"] | None = None

    @model_validator(mode="after")
    def _seeds_and_direction_are_known(self) -> Directed:
        if is_measured_once(self.measure):
            raise ValueError(
                f"all seeds of a row share one measurement of {self.measure!r}, which does not "
                "show what chance does to it; check train.seconds, which every run has of its "
                "own, or what is counted (flops, params)"
            )
        if self.better is None and direction(self.measure) is None:
            raise ValueError(
                f"whether more of {self.measure!r} is better is not known; "
                "say better: higher, or better: lower"
            )
        return self

    @property
    def is_higher_better(self) -> bool:
        return (self.better or direction(self.measure)) == "higher"

    @property
    def is_score(self) -> bool:
        """Whether 0 is the worst value, which a model that translates nothing has."""
        return self.measure.rpartition(".")[2] in SCORES


def rounded(value: float) -> float:
    """Return a derived number as a reference keeps it."""
    return float(f"{value:.{_DIGITS}g}")


def is_close(one: float | None, other: float | None) -> bool:
    """Return whether two derived numbers are the same but for rounding."""
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
