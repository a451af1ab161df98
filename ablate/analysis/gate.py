"""The judgement of a gate: which number left which tolerance, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.analysis.evidence import Effect, Evidence, effect, machine, supporting, unfinished
from ablate.analysis.reference import (
    Exact,
    ExactBlessing,
    Finding,
    Reference,
    Scalar,
    Statistical,
    StatisticalBlessing,
)
from ablate.analysis.statistics import Estimate, Interval
from ablate.analysis.tolerance import margins
from ablate.analysis.wording import counted, different, listed, number, percent, seeds_named


@dataclass(frozen=True)
class Verdict:
    """How one check went, in words.

    Attributes:
        check: its name.
        kind: of check.
        subject: the row, or the two rows, and the measure.
        reference: what was blessed.
        tolerance: what would do.
        found: what there is.
        failure: which number left which tolerance and by how much; None if the check holds.
        remarks: what one must know besides.
    """

    check: str
    kind: str
    subject: str
    reference: str
    tolerance: str
    found: str
    failure: str | None
    remarks: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether the numbers are within the tolerance."""
        return self.failure is None


@dataclass(frozen=True)
class _Told:
    """What the kinds of checks differ in."""

    reference: str
    tolerance: str
    found: str
    failure: str | None
    remarks: tuple[str, ...] = ()


def judge(name: str, reference: Reference, evidence: Evidence, seeds: Sequence[int]) -> Verdict:
    """Judge one check that has been blessed.

    Args:
        name: of the check.
        reference: what was blessed.
        evidence: the runs.
        seeds: of the gate; an exact check looks at those it was blessed with.
    """
    check = reference.checks[name]
    subject = f"{check.row}: {check.measure}"
    if isinstance(check, Exact):
        assert reference.blessed is not None, "no check is blessed without its provenance"
        told = _exact(check, evidence, reference.blessed.machine)
    elif isinstance(check, Statistical):
        told = _statistical(check, reference.share, evidence, seeds)
    else:
        told = _finding(check, evidence, seeds)
        subject = f"{check.row} against {check.against}: {check.measure}"
    published = check.published
    beside = [f"published: {published.value:g} ({published.source})"] if published else []
    return Verdict(
        check=name,
        kind=check.kind,
        subject=subject,
        reference=told.reference,
        tolerance=told.tolerance,
        found=told.found,
        failure=told.failure,
        remarks=(*told.remarks, *beside),
    )


@dataclass(frozen=True)
class _Difference:
    """The worst of an exact check's numbers.

    Attributes:
        at: which of them, counted from 1.
        size: relative to the reference's.
        n: how many are not the same bit for bit.
    """

    seed: int
    at: int
    found: float
    wanted: float
    size: float
    n: int


def _exact(check: Exact, evidence: Evidence, there: Mapping[str, Scalar]) -> _Told:
    blessed = check.blessed
    assert blessed is not None, "only what is blessed is judged"
    what = f"{counted(check.n_values, 'number')}, {seeds_named(blessed.seeds)}"
    missing = _missing(check, blessed, evidence)
    if missing:
        return _Told(what, "bit for bit", "nothing", missing)
    machines = [machine(evidence.records[check.row, seed]) for seed in blessed.seeds]
    others = [each for each in machines if each != there]
    is_same = not others
    worst = _worst(check, blessed, evidence, is_first=is_same)
    if is_same:
        found = f"{worst.n} differ" if worst else "the same"
        failure = f"{_place(check, worst)}; bit for bit was asked" if worst else None
        return _Told(what, "bit for bit", found, failure)
    other = f"on another kind of machine ({different(others[0], there)})"
    size = worst.size if worst else 0.0
    tolerance = f"within {percent(check.elsewhere)}, elsewhere"
    failure = None
    if worst and not size <= check.elsewhere:
        allowed = f"{percent(check.elsewhere)} is tolerated {other}"
        failure = f"{_place(check, worst)}; {allowed}"
    remark = f"compared {other}, so within {percent(check.elsewhere)} and not bit for bit"
    found = f"{percent(size)} off at most" if worst else "the same"
    return _Told(what, tolerance, found, failure, (remark,))


def _missing(check: Exact, blessed: ExactBlessing, evidence: Evidence) -> str | None:
    """Return what is not there to be compared, in words."""
    wrong = unfinished(evidence.summary(check.row, blessed.seeds))
    if wrong:
        return wrong
    for seed in blessed.seeds:
        n = len(evidence.numbers(check, seed))
        if n < check.n_values:
            return (
                f"{check.row} with seed {seed} has {n} of the "
                f"{counted(check.n_values, 'number')} that {check.measure} should have"
            )
    return None


def _worst(
    check: Exact, blessed: ExactBlessing, evidence: Evidence, *, is_first: bool
) -> _Difference | None:
    """Return the first number that differs, or the one that differs most; None if none does."""
    found: list[tuple[int, int, float, float]] = []
    for seed, texts in zip(blessed.seeds, blessed.values, strict=True):
        pairs = zip(evidence.numbers(check, seed), texts, strict=True)
        found += [
            (seed, at, ours, float.fromhex(text))
            for at, (ours, text) in enumerate(pairs, start=1)
            if ours.hex() != text
        ]
    if not found:
        return None
    seed, at, ours, theirs = found[0] if is_first else max(found, key=lambda each: _off(*each[2:]))
    return _Difference(seed, at, ours, theirs, _off(ours, theirs), len(found))


def _off(found: float, wanted: float) -> float:
    """Return a relative difference, infinite if either is no number or the reference is 0."""
    if not (math.isfinite(found) and math.isfinite(wanted)) or wanted == 0:
        return math.inf
    return abs(found - wanted) / abs(wanted)


def _place(check: Exact, worst: _Difference) -> str:
    step = f" of step {worst.at}" if check.n_values > 1 else ""
    off = f"{percent(worst.size)} off; " if math.isfinite(worst.size) else ""
    return (
        f"{check.measure}{step} of {check.row} with seed {worst.seed} is {worst.found!r} where "
        f"the reference has {worst.wanted!r} ({off}{worst.n} of "
        f"{counted(check.n_values * check.seeds, 'number')} differ)"
    )


def _statistical(
    check: Statistical, share: float, evidence: Evidence, seeds: Sequence[int]
) -> _Told:
    blessed = check.blessed
    assert blessed is not None, "only what is blessed is judged"
    low, high = limits(check, blessed, share, len(seeds))
    scale = blessed.spread and high - low
    value, spread = (number(each, scale) for each in (blessed.value, blessed.spread))
    reference = f"{value} ± {spread} ({counted(len(blessed.values), 'seed')})"
    tolerance = f"{number(low, scale)} to {number(high, scale)}"
    summary = evidence.summary(check.row, seeds)
    wrong = unfinished(summary)
    if wrong:
        return _Told(reference, tolerance, "nothing", wrong)
    mean = summary.metrics[check.measure].mean
    found = f"{number(mean, scale)} ({counted(len(seeds), 'seed')})"
    if low <= mean <= high:
        return _Told(reference, tolerance, found, None)
    failure = (
        f"{check.measure} of {check.row} is {number(mean, scale)}, the mean of "
        f"{seeds_named(seeds)}; the reference is {value} and tolerates {tolerance}"
    )
    return _Told(reference, tolerance, found, f"{failure}: {_missed(mean, low, high)}")


def _missed(mean: float, low: float, high: float) -> str:
    if not math.isfinite(mean):
        return "it is no number"
    too, by = ("low", low - mean) if mean < low else ("high", mean - high)
    return f"{number(by, by)} too {too}"


def limits(
    check: Statistical, blessed: StatisticalBlessing, share: float, n_new: int
) -> tuple[float, float]:
    """Return what the mean of so many new seeds may be, from the blessed values."""
    values = Estimate(dict(enumerate(blessed.values)))
    assert values.sd is not None, "a blessing has two values or more"
    room = margins(values.sd, values.n, check.promise(share, n_new))
    below, above = (room.loss, room.gain) if check.is_higher_better else (room.gain, room.loss)
    rounding = 1e-12 * abs(values.mean)  # so that equal values have a mean that is equal to them
    return values.mean - below - rounding, values.mean + above + rounding


def _finding(check: Finding, evidence: Evidence, seeds: Sequence[int]) -> _Told:
    row, against = (evidence.summary(name, seeds) for name in (check.row, check.against))
    reference, tolerance = _seen(check), claimed(check)
    diverged = supporting(check, row, against)
    wrong = unfinished(row, allowed=diverged) or unfinished(against, allowed=diverged)
    if wrong:
        return _Told(reference, tolerance, "nothing", wrong)
    found = effect(check, row, against)
    remarks = (f"{listed(diverged)} diverged, which is worse than any number",) if diverged else ()
    if found.differences is None:
        assert diverged, "a measure that is missing is told before"
        return _Told(reference, tolerance, "all diverged", None, remarks)
    if found.interval is None:
        reason = (
            f"{check.measure} of {check.row} less {check.against} is {found.differences.mean:g} "
            f"with {seeds_named(found.differences.seeds)} alone, which has no interval"
        )
        return _Told(reference, tolerance, "no interval", reason, remarks)
    scale = found.interval.high - found.interval.low
    shown = f"{number(found.differences.mean, scale, '+')}, {_ends(found.interval)}"
    if found.holds(check):
        return _Told(reference, tolerance, shown, None, remarks)
    failure = shortcoming(check, found)
    return _Told(reference, tolerance, shown, failure, remarks)


def shortcoming(check: Finding, found: Effect) -> str:
    """Return what is missing of an effect that does not hold, in a sentence."""
    assert found.differences is not None, "where all diverged, the claim holds"
    assert found.interval is not None, "it is told before that there is none"
    scale = found.interval.high - found.interval.low
    mean = number(found.differences.mean, scale, "+")
    return (
        f"{check.row} is not shown to be {_relation(check)} in {check.measure}: the difference is "
        f"{mean} over {seeds_named(found.differences.seeds)}, "
        f"and its {percent(2 * check.confidence - 1)} interval is {_ends(found.interval)}, "
        f"{number(found.shortfall, found.shortfall)} short of the claim"
    )


def claimed(check: Finding) -> str:
    """Return what a finding claims, shortly."""
    return f"within ±{check.by:g}" if check.claim == "near" else f"{check.claim} by {check.by:g}"


def _relation(check: Finding) -> str:
    if check.claim == "near":
        return f"within {check.by:g} of {check.against}"
    return f"{check.claim} than {check.against} by at least {check.by:g}"


def _seen(check: Finding) -> str:
    blessed = check.blessed
    assert blessed is not None, "only what is blessed is judged"
    if blessed.value is None:
        return "all diverged"
    value = number(blessed.value, blessed.spread or 0.0, "+")
    return f"{value} ({counted(len(blessed.values), 'seed')})"


def _ends(interval: Interval) -> str:
    scale = interval.high - interval.low
    return " to ".join(number(end, scale, "+") for end in (interval.low, interval.high))
