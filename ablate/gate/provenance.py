"""Where blessed numbers come from, and how later runs differ from those that were blessed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ablate import config
from ablate.analysis.summary import Records
from ablate.config import Experiment
from ablate.errors import RunError
from ablate.gate.check import Check, PublishedNumber, Scalar, Text
from ablate.gate.evidence import difference, machine
from ablate.registry import Choice, Frozen
from ablate.runner import provenance
from ablate.training.engines.factory import SCHEMES


class BlessingError(RunError):
    """The runs cannot bless a reference."""


class Provenance(Frozen):
    """Where the blessed numbers come from.

    Attributes:
        date: in UTC.
        machine: its kind; on another kind numbers need not agree bit for bit.
        is_clean: whether the code was exactly that of the commits.
        signatures: how scores were computed.
        runs: row to seed to the hash that is the run's identity.
        checks: the names of all that were blessed.
    """

    experiment: Text
    date: Text
    machine: dict[str, Scalar]
    versions: dict[str, str]
    commits: tuple[str, ...]
    is_clean: bool | None = None
    signatures: dict[str, str]
    runs: dict[str, dict[str, str]]
    checks: tuple[str, ...]


def refuse_fallbacks(records: Records) -> None:
    """Refuse runs that the eager engine trained because the requested one had failed.

    The requested engine, where it works, computes other numbers.

    Raises:
        BlessingError: naming the first of them.
    """
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
    """Return where the runs come from.

    Raises:
        BlessingError: if they come from machines or versions that differ.
    """
    first, *others = records.values()
    for other in others:
        versions = first.get("versions", {}), other.get("versions", {})
        for ours, theirs in ((machine(first), machine(other)), versions):
            if ours != theirs:
                raise BlessingError(
                    f"the runs come from different places ({difference(theirs, ours)}); say "
                    "--fresh to make all of them on this machine"
                )
    gits: list[Mapping[str, Any]] = [record.get("git") or {} for record in records.values()]
    cleanliness = {git.get("is_clean") for git in gits}
    runs: dict[str, dict[str, str]] = {}
    for (row, seed), record in sorted(records.items()):
        runs.setdefault(row, {})[str(seed)] = record["hash"]
    signatures = {}
    for check in checks.values():
        section, *steps = check.measure.split(".")
        if section == "test" and len(steps) == 2:
            scores = (record.get("test", {}).get(steps[0], {}) for record in records.values())
            written = (each.get(f"{steps[1]}_signature") for each in scores)
            if signature := next(filter(None, written), None):  # a run that diverged has none
                signatures[steps[1]] = signature
    return Provenance(
        experiment=experiment.name,
        date=provenance.now(),
        machine=machine(first),
        versions=dict(first.get("versions", {})),
        commits=tuple(dict.fromkeys(git["commit"] for git in gits if git.get("commit"))),
        is_clean=None if None in cleanliness else all(cleanliness),
        signatures=signatures,
        runs=runs,
        checks=tuple(checks),
    )


def remarks(
    blessed: Provenance,
    experiment: Experiment,
    records: Records,
    fingerprint_of: Callable[[Choice], str | None],
) -> Iterable[str]:
    """Yield how the runs differ from those that the reference was blessed with."""
    ours = machine(next(iter(records.values())))
    if ours != blessed.machine:
        yield f"the reference is of another kind of machine: {difference(ours, blessed.machine)}"
    for row in dict.fromkeys(row for row, _ in records):
        seed, blessed_hash = next(iter(blessed.runs[row].items()))
        record = next(record for (name, _), record in records.items() if name == row)
        (run,) = config.expand(experiment, [int(seed)], [row])
        fingerprint = fingerprint_of(run.spec.corpus)
        precisions = [
            precision
            for precision in ("fp32", "bf16")
            for draws in SCHEMES
            if fingerprint is not None
            and config.identity(run.spec, fingerprint, precision, draws) == blessed_hash
        ]
        if not precisions:
            yield (
                f"{row} is not the run that was blessed: the experiment, its corpus or the "
                f"version of a part has changed since ({blessed_hash} was seed {seed})"
            )
        elif record["spec"]["training"]["precision"] not in precisions:
            yield f"{row} was blessed in {precisions[0]}"


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
