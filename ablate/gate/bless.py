"""Blessing a reference: the forecast before training, and the blessing from the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablate.analysis.summary import Records, evaluated_sets
from ablate.config import Experiment
from ablate.gate.check import Check
from ablate.gate.checks.exact import Exact
from ablate.gate.checks.statistical import Statistical
from ablate.gate.evidence import Evidence, UnfitError, machine
from ablate.gate.mean import TooWeakError
from ablate.gate.provenance import BlessingError, provenance_of, published_number, refuse_fallbacks
from ablate.gate.reference import Reference


@dataclass(frozen=True)
class Blessings:
    """A reference that runs have blessed, with every check; refused ones are not blessed.

    The reasons of refusals, and of checks that promise less than was asked, are sentences.
    """

    reference: Reference
    refused: tuple[str, ...]
    weakened: tuple[str, ...]


def first_reference(baseline: str, records: Records) -> Reference:
    """Return the default checks, for a reference that has no file yet.

    Before any run they are those that it will probably have.

    Raises:
        BlessingError: if the runs have nothing to compare.
    """
    sets = evaluated_sets(records) if records else ["test"]
    checks: dict[str, Check] = {}
    if not records or machine(next(iter(records.values()))).get("device") == "cpu":
        checks["losses"] = Exact.model_validate({"row": baseline})
    if sets:
        measure = f"test.{sets[0]}.bleu"
        checks["bleu"] = Statistical.model_validate({"row": baseline, "measure": measure})
    if not checks:
        raise BlessingError(f"{baseline} has nothing to compare: no run has translated")
    return Reference(checks=checks)


def forecast(
    reference: Reference, evidence: Evidence, seeds: Sequence[int], *, may_weaken: bool
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return what the seeds of all runs can promise according to the runs so far.

    If they may, checks promise less than they ask for where they can be blessed then.

    Returns:
        Sentences for users; by the name of a check, why the seeds cannot bless it, with 95%
        confidence where that depends on the missing runs.

    Raises:
        BlessingError: if they can bless no check, or not one that was blessed before; or if the
            engine of a run has failed.
    """
    refuse_fallbacks(evidence.records)
    checks, sentences, refused = reference.checks, [], {}
    for name, check in checks.items():
        try:
            sentence = check.forecast(evidence, reference.context(name, seeds))
        except UnfitError as error:
            if may_weaken and isinstance(error, TooWeakError):
                sentences.append(f"{name} will promise less than was asked: {error}")
            else:
                refused[name] = f"{name} cannot be blessed: {error}"
        else:
            sentences += [f"{name}: {sentence}"] if sentence else []
    if len(refused) == len(checks) or any(checks[name].blessed for name in refused):
        raise BlessingError("\n".join(refused.values()))
    return (*sentences, *refused.values()), refused


def bless(
    reference: Reference,
    experiment: Experiment,
    evidence: Evidence,
    seeds: Sequence[int],
    refused_before: Mapping[str, str],
    *,
    may_weaken: bool,
) -> Blessings:
    """Bless every check that the runs can bless; `forecast` has refused some before.

    Raises:
        BlessingError: if no check can be blessed, or one cannot that was blessed before; or if the
            engine of a run has failed.
    """
    refuse_fallbacks(evidence.records)
    blessed: dict[str, Check] = {}
    refused = [*refused_before.values()]
    weakened: list[str] = []
    checks = reference.checks
    for name, check in checks.items():
        if name in refused_before:
            continue
        context, weaker = reference.context(name, seeds), ""
        try:
            try:
                blessing = check.bless(evidence, context)
            except TooWeakError as error:
                if not may_weaken:
                    raise
                check, weaker = error.instead, str(error)
                blessing = check.bless(evidence, context)
        except UnfitError as error:
            refused.append(f"{name} cannot be blessed: {error}")
            continue
        blessed[name] = check.model_copy(update={"blessed": blessing})
        weakened += [f"{name} promises less than was asked: {weaker}"] if weaker else []
    if not blessed or any(checks[name].blessed for name in checks.keys() - blessed):
        raise BlessingError("\n".join(refused))
    test_set = next(iter(evaluated_sets(evidence.records)), None)
    for name, check in blessed.items():
        published = check.published or published_number(check, experiment, test_set)
        blessed[name] = check.model_copy(update={"published": published})
    new = reference.model_copy(
        update={
            "source": reference.source or f"our own runs of {experiment.name}; see `blessed`",
            "blessed": provenance_of(experiment, evidence.records, blessed),
            "checks": {name: blessed.get(name, check) for name, check in checks.items()},
        }
    )
    return Blessings(new, tuple(refused), tuple(weakened))
