"""Blessing a reference: the forecast before training, and the blessing from the runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablate.analysis.summary import Records, evaluated_sets
from ablate.config import Experiment
from ablate.errors import RunError
from ablate.gate.check import Check, PublishedNumber
from ablate.gate.checks.exact import Exact
from ablate.gate.checks.statistical import Statistical
from ablate.gate.evidence import Evidence, UnfitError, difference, machine, named
from ablate.gate.mean import TooWeakError
from ablate.gate.reference import Place, Provenance, Reference
from ablate.record import leaves, scoring
from ablate.runner import provenance
from ablate.wording import listed


class BlessingError(RunError):
    """The runs cannot bless a reference."""


@dataclass(frozen=True)
class Blessings:
    """A reference that runs have blessed; in sentences, what was refused or promises less."""

    reference: Reference
    refused: tuple[str, ...]
    weakened: tuple[str, ...]


def first_reference(baseline: str, records: Records) -> Reference:
    """Return the checks of a new reference; before any run, those that it will probably have."""
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
    """Return what all seeds can promise by the runs so far, and why they cannot bless a check.

    If they may, checks promise less than they ask for where they can be blessed then. It is an
    error if the seeds can bless no check, or not one that was blessed before.
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
    """Bless every check that the runs can bless; `forecast` has refused some before."""
    refuse_fallbacks(evidence.records)
    blessed: dict[str, Check] = {}
    refused = [*refused_before.values()]
    weakened: list[str] = []
    checks = reference.checks
    test_set = next(iter(evaluated_sets(evidence.records)), None)
    for name, check in checks.items():
        if name in refused_before:
            continue
        context = reference.context(name, seeds)
        try:
            try:
                blessing = check.bless(evidence, context)
            except TooWeakError as error:
                if not may_weaken:
                    raise
                check = error.instead
                blessing = check.bless(evidence, context)
                weakened.append(f"{name} promises less than was asked: {error}")
        except UnfitError as error:
            refused.append(f"{name} cannot be blessed: {error}")
            continue
        published = check.published or published_number(check, experiment, test_set)
        blessed[name] = check.model_copy(update={"blessed": blessing, "published": published})
    if not blessed or any(checks[name].blessed for name in checks.keys() - blessed):
        raise BlessingError("\n".join(refused))
    new = reference.model_copy(
        update={
            "source": reference.source or f"our own runs of {experiment.name}; see `blessed`",
            "blessed": provenance_of(experiment, evidence.records, blessed),
            "checks": {name: blessed.get(name, check) for name, check in checks.items()},
        }
    )
    return Blessings(new, tuple(refused), tuple(weakened))


def refuse_fallbacks(records: Records) -> None:
    """Refuse runs of the eager engine in place of a failed one, whose numbers would be others."""
    for (row, seed), record in records.items():
        if record.get("is_fallback"):
            raise BlessingError(
                f"{row} with seed {seed} was trained with the eager engine, "
                f"{record['engine_note']}; say --engine eager to bless what it does, or "
                "--fresh to try the other one again"
            )


def provenance_of(
    experiment: Experiment, records: Records, checks: Mapping[str, Check]
) -> Provenance:
    """Return where the runs come from; refuse several places if a check needs one.

    A run whose process was killed says nothing of a place, and blesses nothing.
    """
    records = {run: record for run, record in records.items() if record.get("hardware")}
    places = list[Place]()
    for record in records.values():
        place = Place(machine=machine(record), versions=dict(record.get("versions", {})))
        if place not in places:
            places.append(place)
    first, *others = places
    if others and (strict := [name for name, check in checks.items() if check.needs_one_place]):
        differs = difference(others[0].machine, first.machine) or difference(
            others[0].versions, first.versions
        )
        raise BlessingError(
            f"the runs come from different places ({differs}), which cannot bless "
            f"{listed(strict)}; say --fresh to make all of them on this machine"
        )
    gits: list[Mapping[str, Any]] = [record.get("git") or {} for record in records.values()]
    cleanliness = {git.get("is_clean") for git in gits}
    runs: dict[str, dict[str, str]] = {}
    for (row, seed), record in sorted(records.items()):
        runs.setdefault(row, {})[str(seed)] = record["hash"]
    of_runs = (leaves({"test": record.get("test", {})}) for record in records.values())
    scores = [(path, text) for of_run in of_runs for path, text in of_run if text]
    signatures: dict[str, str] = {}  # the test sets have several if their numbers of references do
    for check in checks.values():
        if named(f"{check.measure}_signature", dict(scores)):
            metric = check.measure.rpartition(".")[2]
            own = (text for path, text in scores if path.endswith(f".{metric}_signature"))
            ways: dict[str, str] = {}
            for text in own:
                ways.setdefault(scoring(text), text)
            signatures[metric] = "; ".join(ways.values())
    return Provenance(
        experiment=experiment.name,
        date=provenance.now(),
        machine=first.machine,
        versions=first.versions,
        other_places=tuple(others),
        commits=tuple(dict.fromkeys(git["commit"] for git in gits if git.get("commit"))),
        is_clean=None if None in cleanliness else all(cleanliness),
        signatures=signatures,
        runs=runs,
        checks=tuple(checks),
    )


def published_number(
    check: Check, experiment: Experiment, test_set: str | None
) -> PublishedNumber | None:
    """Return the published value of a check's measure that the experiment states, if any."""
    names = {
        f"test.{test_set}.bleu": "bleu",
        f"test.{test_set}.bleu_lc_tok": "bleu_lc_tok",
        "dev.perplexity": "ppl",
        "params.total": "params",
    }
    published, name = experiment.published, names.get(check.measure)
    value = published.of(check.row).get(name) if published and name else None
    if published is None or value is None or len(check.rows) > 1:
        return None
    return PublishedNumber(value=value, source=published.source, note=published.note)
