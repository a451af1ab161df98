"""From runs to a reference: what each check is to hold the next runs against."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ablate.analysis.evidence import (
    Evidence,
    effect,
    effect_of,
    machine,
    repetition,
    supporting,
    unfinished,
)
from ablate.analysis.gate import limits, shortcoming
from ablate.analysis.reference import (
    LOSSES,
    Blessing,
    Exact,
    ExactBlessing,
    Finding,
    FindingBlessing,
    Reference,
    Statistical,
    StatisticalBlessing,
    Terms,
)
from ablate.analysis.statistics import Estimate
from ablate.analysis.tolerance import (
    Promise,
    largest_spread,
    margins,
    power,
    seeds_needed,
)
from ablate.analysis.wording import counted, number, percent

_DIGITS = 10  # of what is derived; what it is derived from is kept whole
_MOST_NEW = 50


class UnfitError(Exception):
    """The runs cannot bless a check; the message says what it would take."""


@dataclass(frozen=True)
class Basis:
    """What a check is blessed on.

    Attributes:
        evidence: the runs.
        seeds: of them.
    """

    evidence: Evidence
    seeds: tuple[int, ...]


def bless_check(name: str, reference: Reference, basis: Basis) -> Exact | Statistical | Finding:
    """Return a check with what the runs show.

    Raises:
        UnfitError: if they cannot give what the check promises.
    """
    check, terms = reference.checks[name], reference.terms(name)
    blessed: Blessing
    if isinstance(check, Exact):
        blessed = _exact(check, terms, basis)
    elif isinstance(check, Statistical):
        _demand(unfinished(basis.evidence.summary(check.row, basis.seeds)))
        found = basis.evidence.summary(check.row, basis.seeds).metrics[check.measure]
        values = tuple(found.values[seed] for seed in basis.seeds)
        blessed = statistical(check, terms, basis.seeds, values)
    else:
        blessed = _finding(check, terms, basis)
    return check.model_copy(update={**_defaults(check), "blessed": blessed})


def _defaults(check: Exact | Statistical | Finding) -> dict[str, float]:
    """Return the terms that go without saying, so that the reference says them all the same."""
    if isinstance(check, Exact):
        return {"steps": check.n_values} if check.measure == LOSSES else {}
    return {"loss": check.smallest_loss} if isinstance(check, Statistical) else {}


def _demand(wrong: str | None) -> None:
    if wrong:
        raise UnfitError(wrong)


def _exact(check: Exact, terms: Terms, basis: Basis) -> ExactBlessing:
    if len(basis.seeds) < check.seeds:
        raise UnfitError(f"needs {counted(check.seeds, 'seed')}; it was given {len(basis.seeds)}")
    seeds = basis.seeds[: check.seeds]
    _demand(unfinished(basis.evidence.summary(check.row, seeds)))
    device = machine(basis.evidence.records[check.row, seeds[0]]).get("device")
    if device != "cpu":
        raise UnfitError(
            f"only runs on the CPU repeat bit for bit, and these are of {device}; say --device cpu"
        )
    values = [basis.evidence.numbers(check, seed) for seed in seeds]
    shortest = min(map(len, values))
    if shortest < check.n_values:
        raise UnfitError(f"needs {counted(check.n_values, 'step')}; the runs have {shortest}")
    if not all(math.isfinite(value) for of_seed in values for value in of_seed):
        raise UnfitError("some of the numbers are not finite")
    return ExactBlessing(
        seeds=seeds,
        values=tuple(tuple(value.hex() for value in of_seed) for of_seed in values),
        derived="a run on the CPU repeats bit for bit on machines of one kind; on others, whose "
        f"rounding differs, each number must be within {percent(check.elsewhere)}",
        terms=terms,
    )


def statistical(
    check: Statistical, terms: Terms, seeds: tuple[int, ...], values: tuple[float, ...]
) -> StatisticalBlessing:
    """Return the tolerance that follows from values, one for each seed.

    Raises:
        UnfitError: if it cannot be what the check promises.
    """
    estimate = Estimate(dict(zip(seeds, values, strict=True)))
    promise = check.promise(float(terms["false_alarm"]))
    if estimate.n < 2:
        few = f"even a spread of a tenth of the loss takes {_fewest(promise)} seeds"
        raise UnfitError(f"one seed has no spread; {few}")
    if estimate.sd is None:
        raise UnfitError(f"{check.measure} is not finite with some seed")
    if estimate.sd > largest_spread(estimate.n, promise):
        raise UnfitError(_too_weak(estimate.n, estimate.sd, promise))
    writer = StatisticalBlessing(
        seeds=seeds,
        values=values,
        value=_rounded(estimate.mean),
        spread=_rounded(estimate.sd),
        lowest=0.0,
        highest=0.0,
        derived=_derivation(check, estimate, promise),
        terms=terms,
    )
    low, high = limits(check, writer, promise.false_alarm, promise.n_new)
    return writer.model_copy(update={"lowest": _rounded(low), "highest": _rounded(high)})


def _fewest(promise: Promise) -> int:
    enough = seeds_needed(promise.loss / 10, promise)
    assert enough is not None, "so small a spread is seen with few seeds"
    return enough


def _too_weak(n: int, spread: float, promise: Promise) -> str:
    """Return what a reference lacks, and what it would take."""
    most = largest_spread(n, promise)
    told = (
        f"{counted(n, 'seed')} with a spread of {number(spread, spread)} cannot promise a gate of "
        f"{counted(promise.n_new, 'seed')} that catches a loss of {promise.loss:g} in "
        f"{percent(promise.power)} of cases and raises a false alarm in "
        f"{percent(promise.false_alarm)}; with this spread it takes "
    )
    needed = seeds_needed(spread, promise)
    if needed is not None:
        return f"{told}{needed} seeds, or a spread of {number(most, most)} at most"
    for n_new in range(promise.n_new + 1, _MOST_NEW):
        wider = Promise(promise.false_alarm, promise.loss, promise.power, n_new)
        needed = seeds_needed(spread, wider)
        if needed is not None:
            return f"{told}gates of {n_new} seeds (seeds: {n_new}) and a reference of {needed}"
    return f"{told}a larger 'loss'"


def _derivation(check: Statistical, estimate: Estimate, promise: Promise) -> str:
    assert estimate.sd is not None, "a reference has a spread"
    room = margins(estimate.sd, estimate.n, promise)
    worse, better = ("below", "above") if check.is_higher_better else ("above", "below")
    steps = margins(1 / math.sqrt(1 / estimate.n + 1 / promise.n_new), estimate.n, promise)
    return (
        f"the mean of {promise.n_new} new seeds may lie {number(room.loss, room.loss)} {worse} and "
        f"{number(room.gain, room.gain)} {better}: {steps.loss:.3f} and {steps.gain:.3f} x spread "
        f"x sqrt(1/{estimate.n} + 1/{promise.n_new}), Student's t with {estimate.n - 1} degrees "
        f"of freedom, beyond which chance goes in {percent(promise.false_alarm)} of gates; a true "
        f"loss of {promise.loss:g} is caught in "
        f"{percent(power(estimate.sd, estimate.n, promise))}"
    )


def _finding(check: Finding, terms: Terms, basis: Basis) -> FindingBlessing:
    row = basis.evidence.summary(check.row, basis.seeds)
    against = basis.evidence.summary(check.against, basis.seeds)
    diverged = supporting(check, row, against)
    _demand(unfinished(row, allowed=diverged) or unfinished(against, allowed=diverged))
    found = effect(check, row, against)
    values = found.differences.values if found.differences else {}
    in_order = tuple(values[seed] for seed in basis.seeds if seed in values)
    blessed = finding(check, terms, basis.seeds, in_order)
    _demand(None if found.holds(check) else shortcoming(check, found))
    return blessed


def finding(
    check: Finding, terms: Terms, seeds: tuple[int, ...], values: tuple[float, ...]
) -> FindingBlessing:
    """Return the effect that differences show; runs that diverged have none.

    Raises:
        UnfitError: if there is only one.
    """
    if not values:
        derived = "a run that diverged is worse than any number"
        return FindingBlessing(seeds=seeds, derived=derived, terms=terms)
    differences = Estimate(dict(enumerate(values)))
    found = effect_of(check, differences, ())
    if found.interval is None:
        raise UnfitError(f"one pair of runs has no interval; give {check.seeds} seeds or more")
    again = repetition(check, differences)
    return FindingBlessing(
        seeds=seeds,
        values=values,
        value=_rounded(differences.mean),
        spread=_rounded(differences.sd or 0.0),
        low=_rounded(found.interval.low),
        high=_rounded(found.interval.high),
        derived=f"Student's {percent(2 * check.confidence - 1)} interval of {len(values)} paired "
        f"differences; were the effect just this large, {percent(again)} of gates with "
        f"{check.seeds} seeds would show the claim again",
        terms=terms,
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
