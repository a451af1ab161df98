"""From runs to a reference: what can be promised before there are any, and what they bless."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ablate.analysis.summary import Records, evaluated_sets
from ablate.config import Experiment
from ablate.gate.check import Check
from ablate.gate.checks.exact import Exact
from ablate.gate.checks.statistical import Statistical
from ablate.gate.evidence import Evidence, UnfitError, machine
from ablate.gate.mean import TooWeakError
from ablate.gate.provenance import BlessingError, provenance_of, published_number
from ablate.gate.reference import Reference


@dataclass(frozen=True)
class Blessings:
    """What runs have blessed.

    Attributes:
        reference: with every check, of which those that were refused are not blessed.
        refused: why they were, in sentences.
        weakened: which checks promise less than was asked, and why, in sentences.
    """

    reference: Reference
    refused: tuple[str, ...]
    weakened: tuple[str, ...]


def first_reference(baseline: str, records: Records) -> Reference:
    """Return what to bless where no file says it.

    Raises:
        BlessingError: if the runs have nothing to compare.
    """
    sets = evaluated_sets(records)
    checks: dict[str, Check] = {}
    if machine(next(iter(records.values()))).get("device") == "cpu":
        checks["losses"] = Exact.model_validate({"row": baseline})
    if sets:
        measure = f"test.{sets[0]}.bleu"
        checks["bleu"] = Statistical.model_validate({"row": baseline, "measure": measure})
    if not checks:
        raise BlessingError(f"{baseline} has nothing to compare: no run has translated")
    return Reference(checks=checks)


def forecast(
    asked: Reference, evidence: Evidence, seeds: Sequence[int], *, may_weaken: bool
) -> tuple[str, ...]:
    """Return what so many seeds can promise, as far as the runs so far tell, in sentences.

    Args:
        asked: the checks.
        evidence: the runs so far.
        seeds: of all runs.
        may_weaken: whether a check may promise less than it asks for, if it can be blessed then.

    Raises:
        BlessingError: if they cannot bless some check, whatever the other runs will be.
    """
    sentences, refused = [], []
    for name, check in asked.checks.items():
        try:
            sentence = check.forecast(evidence, asked.context(name, seeds))
        except UnfitError as error:
            is_weaker = may_weaken and isinstance(error, TooWeakError)
            what = "will promise less than was asked" if is_weaker else "cannot be blessed"
            refused.append(f"{name} {what}: {error}")
        else:
            sentences += [f"{name}: {sentence}"] if sentence else []
    if refused and not may_weaken:
        raise BlessingError("\n".join(refused))
    return (*sentences, *refused)


def bless(
    asked: Reference,
    experiment: Experiment,
    evidence: Evidence,
    seeds: Sequence[int],
    *,
    may_weaken: bool,
) -> Blessings:
    """Bless every check that the runs can bless.

    Args:
        asked: the checks.
        experiment: whose runs they are.
        evidence: the runs.
        seeds: of them.
        may_weaken: whether a check may promise less than it asks for, if it can be blessed then.

    Raises:
        BlessingError: if no check can be blessed, or one cannot that had been.
    """
    blessed: dict[str, Check] = {}
    refused: list[str] = []
    weakened: list[str] = []
    for name, check in asked.checks.items():
        context, instead = asked.context(name, seeds), check
        try:
            try:
                blessing = check.bless(evidence, context)
            except TooWeakError as error:
                if not may_weaken:
                    raise
                instead, blessing = error.instead, error.instead.bless(evidence, context)
                weakened.append(f"{name} promises less than was asked: {error}")
        except UnfitError as error:
            refused.append(f"{name} cannot be blessed: {error}")
        else:
            blessed[name] = instead.model_copy(update={"blessed": blessing})
    if not blessed or any(asked.checks[name].blessed for name in asked.checks.keys() - blessed):
        raise BlessingError("\n".join(refused))
    test_set = next(iter(evaluated_sets(evidence.records)), None)
    for name, check in blessed.items():
        published = check.published or published_number(check, experiment, test_set)
        blessed[name] = check.model_copy(update={"published": published})
    reference = asked.model_copy(
        update={
            "source": asked.source or f"our own runs of {experiment.name}; see `blessed`",
            "blessed": provenance_of(experiment, evidence.records, blessed),
            "checks": {name: blessed.get(name, check) for name, check in asked.checks.items()},
        }
    )
    return Blessings(reference, tuple(refused), tuple(weakened))
