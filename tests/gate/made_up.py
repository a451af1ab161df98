"""Evidence that nothing has trained, and references that it has blessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ablate.gate.check import Check, CheckVerdict
from ablate.gate.checks.exact import Exact
from ablate.gate.checks.finding import FindingCheck
from ablate.gate.checks.statistical import Statistical
from ablate.gate.evidence import Evidence
from ablate.gate.reference import Provenance, Reference

MACHINE: dict[str, Any] = {
    "device": "cpu",
    "device_name": "Abacus 9",
    "cpu": "Abacus 9",
    "threads": 1,
}
TINY = (40.73, 41.54, 41.25, 40.69, 40.81, 41.13, 41.02)
"""BLEU of seven seeds, with the spread that Multi30k has."""
CONFIRMED = {"baseline": [41.0, 41.5, 40.5], "none": [28.0, 28.2, 27.9]}

SEEDS = (1, 2, 3)
NEW = (11, 12, 13)
"""Seeds that bless nothing."""

BLEU = Statistical.model_validate({"measure": "test.test.bleu"})
LOSSES = Exact(steps=3)
WORSE = FindingCheck(row="none", measure="test.test.bleu", claim="worse", margin=3.0)


def record(bleu: float, status: str = "done", **hardware: Any) -> dict[str, Any]:
    return {
        "status": status,
        "error": None if status == "done" else "a reason",
        "test": {"test": {"bleu": bleu}},
        "dev": {"nll": 100 - bleu},
        "hardware": {**MACHINE, "memory_gib": 1.0, **hardware},
        "versions": {"torch": "2.13.0"},
    }


def evidence(
    bleu: Mapping[str, Sequence[float]],
    losses: Sequence[float] = (),
    first: int = 1,
    **hardware: Any,
) -> Evidence:
    """Return runs with seeds from ``first`` on; below BLEU 0 a run has diverged."""
    records = {
        (row, seed): record(value, "done" if value >= 0 else "diverged", **hardware)
        for row, values in bleu.items()
        for seed, value in enumerate(values, start=first)
    }
    return Evidence(records, {key: list(losses) for key in records})


def blessed(of: Evidence, seeds: Sequence[int] = SEEDS, **checks: Check) -> Reference:
    reference = Reference(checks=checks)
    provenance = Provenance(
        experiment="e",
        date="today",
        machine={**MACHINE, "torch": "2.13.0"},
        versions={"torch": "2.13.0"},
        commits=(),
        is_clean=None,
        signatures={},
        runs={},
        checks=tuple(checks),
    )
    blessed_checks = {
        name: check.model_copy(update={"blessed": check.bless(of, reference.context(name, seeds))})
        for name, check in checks.items()
    }
    return Reference(checks=blessed_checks, blessed=provenance)


def verdict(reference: Reference, of: Evidence, seeds: Sequence[int] = SEEDS) -> CheckVerdict:
    (judged,) = reference.judge(of, seeds)
    return judged


def failure_of(reference: Reference, of: Evidence, seeds: Sequence[int] = SEEDS) -> str:
    failure = verdict(reference, of, seeds).failure
    assert failure is not None
    return failure


def new(bleu: Sequence[float]) -> Evidence:
    return evidence({"baseline": bleu}, first=NEW[0])
