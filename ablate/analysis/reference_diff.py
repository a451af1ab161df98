"""A reference against an earlier one and against itself: what was loosened, moved or edited."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ablate.analysis.blessing import UnfitError, finding, statistical
from ablate.analysis.reference import (
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
from ablate.analysis.wording import counted, number

Flaw = tuple[tuple[str, ...], str]
"""Where in a reference, and what is wrong there, in a sentence."""

_AGAIN = "bless the reference again"
_SUBJECT = ("kind", "row", "against", "measure", "claim", "better")
_LOOSER = {"steps": -1, "seeds": -1, "power": -1, "confidence": -1, "elsewhere": 1, "loss": 1}
"""Terms that loosen a check when they fall, or when they rise."""


def flaws(reference: Reference) -> Iterator[Flaw]:
    """Yield why a gate cannot use a reference: what was not blessed, or edited since it was."""
    for name in reference.blessed.checks if reference.blessed else ():
        if name not in reference.checks:
            yield ("checks",), f"the check {name!r} has been dropped since it was blessed; {_AGAIN}"
    for name, check in reference.checks.items():
        if check.blessed is None or reference.blessed is None:
            yield ("checks", name), f"has not been blessed; {_AGAIN}"
            continue
        before, after = check.blessed.terms, reference.terms(name)
        changed = [term for term in before | after if before.get(term) != after.get(term)]
        for term in changed:
            was = f"was {before[term]}" if term in before else "was not said"
            yield ("checks", name, term), f"{was} when the check was blessed; {_AGAIN}"
        if not changed:
            yield from _inconsistencies(name, check, after)


def widened(old: Reference, new: Reference) -> list[str]:
    """Return what the new reference would let through and the old one does not, in sentences."""
    found = []
    for name in old.blessed.checks if old.blessed else ():
        before, after = old.checks.get(name), new.checks.get(name)
        if after is None:
            found.append(f"{name} would be dropped")
        elif before is not None and before.blessed is not None and after.blessed is not None:
            found += [f"{name}: {text}" for text in _widened(before.blessed, after.blessed)]
    return found


def moved(old: Reference, new: Reference) -> list[str]:
    """Return which blessed numbers are new, in sentences."""
    found = []
    for name, check in new.checks.items():
        before = old.checks[name].blessed if name in old.checks else None
        after = check.blessed
        if before is None or after is None:
            found.append(f"{name} is new")
        elif isinstance(before, ExactBlessing) or isinstance(after, ExactBlessing):
            if getattr(before, "values", None) != getattr(after, "values", None):
                found.append(f"{name}: the numbers are new")
        elif not _is_close(before.value, after.value):
            scale = max(before.spread or 0.0, after.spread or 0.0)
            was, now = (_shown(each.value, scale) for each in (before, after))
            found.append(f"{name}: {was} was, {now} is")
    return found


def _inconsistencies(
    name: str, check: Exact | Statistical | Finding, terms: Terms
) -> Iterator[Flaw]:
    """Yield what of a blessing does not follow from its own values and terms."""
    at = ("checks", name, "blessed")
    blessed = check.blessed
    if isinstance(check, Exact) and isinstance(blessed, ExactBlessing):
        sizes = {len(of_seed) for of_seed in blessed.values}
        if len(blessed.seeds) != check.seeds or sizes != {check.n_values}:
            wanted = f"{counted(check.n_values, 'number')} of {counted(check.seeds, 'seed')}"
            yield (*at, "values"), f"needs {wanted}; {_AGAIN}"
        return
    try:
        again = _derived_again(check, terms)
    except UnfitError as error:
        yield at, f"{error}; {_AGAIN}"
        return
    for key in ("value", "spread", "lowest", "highest", "low", "high"):
        said, follows = getattr(blessed, key, None), getattr(again, key, None)
        if not _is_close(said, follows):
            reason = f"is {said}, but {follows} follows from the values and terms; {_AGAIN}"
            yield (*at, key), reason


def _derived_again(check: Exact | Statistical | Finding, terms: Terms) -> Blessing | None:
    blessed = check.blessed
    if isinstance(check, Statistical) and isinstance(blessed, StatisticalBlessing):
        return statistical(check, terms, blessed.seeds, blessed.values)
    if isinstance(check, Finding) and isinstance(blessed, FindingBlessing):
        return finding(check, terms, blessed.seeds, blessed.values)
    return None


def _widened(before: Blessing, after: Blessing) -> Iterator[str]:
    old, new = before.terms, after.terms
    for term in _SUBJECT:
        if old.get(term) != new.get(term):
            yield f"{term} would be {new.get(term, 'unsaid')}, not {old.get(term, 'unsaid')}"
            return  # another subject: nothing else can be compared
    looser = {**_LOOSER, "by": 1 if new.get("claim") == "near" else -1}
    for term, way in looser.items():
        if term in old and term in new and way * (float(new[term]) - float(old[term])) > 0:
            yield f"{term} would {'rise' if way > 0 else 'fall'} from {old[term]} to {new[term]}"
    if len(after.seeds) < len(before.seeds):
        fewer = f"{len(before.seeds)} to {len(after.seeds)}"
        yield f"the reference would have fewer seeds, from {fewer}"
    if isinstance(before, StatisticalBlessing) and isinstance(after, StatisticalBlessing):
        yield from _wider(before, after)


def _wider(before: StatisticalBlessing, after: StatisticalBlessing) -> Iterator[str]:
    for side, was, would in (
        ("below", before.value - before.lowest, after.value - after.lowest),
        ("above", before.highest - before.value, after.highest - after.value),
    ):
        if would > was and not _is_close(would, was):
            wider = f"from {number(was, was)} to {number(would, would)}"
            yield f"the tolerance {side} would widen {wider}"


def _shown(value: float | None, scale: float) -> str:
    return "every run diverged" if value is None else number(value, scale)


def _is_close(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
