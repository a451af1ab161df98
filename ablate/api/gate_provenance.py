"""Where blessed numbers come from, and what about later runs is not as it was then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ablate import config
from ablate.analysis.evidence import machine
from ablate.analysis.reference import Check, Finding, Provenance, PublishedNumber, Reference
from ablate.analysis.wording import different
from ablate.api.selecting import Fingerprints, Record, Records
from ablate.config import Experiment
from ablate.errors import RunError
from ablate.runner import provenance
from ablate.training.engines.random_draws import SCHEMES


class BlessingError(RunError):
    """The runs cannot bless a reference."""


def published_number(
    check: Check, experiment: Experiment, test_set: str | None
) -> PublishedNumber | None:
    """Return what the experiment says others have printed of a check's measure."""
    names = {
        f"test.{test_set}.bleu": "bleu",
        f"test.{test_set}.bleu_lc_tok": "bleu_lc_tok",
        "dev.perplexity": "ppl",
        "params.total": "params",
    }
    published, name = experiment.published, names.get(check.measure)
    value = published.of(check.row).get(name) if published and name else None
    if published is None or value is None or isinstance(check, Finding):
        return None
    return PublishedNumber(value=value, source=published.source, note=published.note)


def gate_provenance(
    experiment: Experiment, records: Records, checks: Mapping[str, Check]
) -> Provenance:
    """Return where the runs come from.

    Raises:
        BlessingError: if they come from machines or versions that differ.
    """
    first, *others = records.values()
    for other in others:
        for here, there in ((machine(first), machine(other)), _versions(first, other)):
            if here != there:
                raise BlessingError(
                    f"the runs come from different places ({different(there, here)}); say --fresh "
                    "to make them all here"
                )
    gits: list[Mapping[str, Any]] = [record.get("git") or {} for record in records.values()]
    cleanliness = {git.get("is_clean") for git in gits}
    runs: dict[str, dict[str, str]] = {}
    for (row, seed), record in sorted(records.items()):
        runs.setdefault(row, {})[str(seed)] = record["hash"]
    return Provenance(
        experiment=experiment.name,
        date=provenance.now(),
        machine=machine(first),
        versions=dict(first.get("versions", {})),
        commits=tuple(dict.fromkeys(git["commit"] for git in gits if git.get("commit"))),
        is_clean=None if None in cleanliness else all(cleanliness),
        signatures=_signatures(first, checks),
        runs=runs,
        checks=tuple(checks),
    )


def remarks(reference: Reference, experiment: Experiment, records: Records) -> Iterable[str]:
    """Yield what about the runs is not as it was when the reference was blessed."""
    blessed = reference.blessed
    assert blessed is not None, "only what is blessed is judged"
    here = machine(next(iter(records.values())))
    if here != blessed.machine:
        yield f"the reference is of another kind of machine: {different(here, blessed.machine)}"
    fingerprints = Fingerprints()
    for row in reference.rows():
        seed, wanted = next(iter(blessed.runs[row].items()))
        record = next(record for (name, _), record in records.items() if name == row)
        (wanted_run,) = config.expand(experiment, [int(seed)], [row])
        fingerprint = fingerprints.of(wanted_run.spec.corpus)
        precisions = [
            precision
            for precision in ("fp32", "bf16")
            for draws in SCHEMES
            if fingerprint is not None
            and config.identity(wanted_run.spec, fingerprint, precision, draws) == wanted
        ]
        if not precisions:
            yield (
                f"{row} is not the run that was blessed: the experiment, its corpus or the "
                f"version of a part has changed since ({wanted} was seed {seed})"
            )
        elif record["spec"]["training"]["precision"] not in precisions:
            yield f"{row} was blessed in {precisions[0]}"


def _versions(first: Record, other: Record) -> tuple[Any, Any]:
    return first.get("versions", {}), other.get("versions", {})


def _signatures(record: Record, checks: Mapping[str, Check]) -> dict[str, str]:
    """Return how the scores that checks are about were computed."""
    found: dict[str, str] = {}
    for check in checks.values():
        section, *steps = check.measure.split(".")
        if section == "test" and len(steps) == 2:
            signature = record["test"].get(steps[0], {}).get(f"{steps[1]}_signature")
            found |= {steps[1]: signature} if signature else {}
    return found
