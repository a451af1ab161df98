"""``ablate gate``: runs held against a blessed reference, and references blessed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablate import config
from ablate.analysis import evaluated_sets, summarise
from ablate.analysis.blessing import Basis, UnfitError, bless_check
from ablate.analysis.evidence import machine
from ablate.analysis.gate import Verdict, judge
from ablate.analysis.reference import LOSSES, Exact, Finding, Reference, Statistical
from ablate.analysis.reference_diff import flaws, moved, widened
from ablate.analysis.reference_file import ReferenceFile, read, write
from ablate.analysis.wording import counted, listed
from ablate.api.gate_provenance import BlessingError, gate_provenance, published_number, remarks
from ablate.api.gate_runs import Means, RunRequest, evidence_of, gather
from ablate.api.selecting import Records
from ablate.config import Experiment, Mistake, MistakesError
from ablate.errors import AblateError, RunError, SpecError
from ablate.registry import suggest
from ablate.report.gate import junit as junit_xml
from ablate.store import Store, write_whole


class WideningError(AblateError):
    """A reference would be loosened, and nobody has said that this is meant."""


@dataclass(frozen=True)
class Gated:
    """How a gate went.

    Attributes:
        experiment: its name.
        verdicts: in the order of the reference.
        remarks: about all checks.
    """

    experiment: str
    verdicts: tuple[Verdict, ...]
    remarks: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether every check holds."""
        return all(verdict.holds for verdict in self.verdicts)

    @property
    def exit_status(self) -> int:
        """Return 0 if the gate holds, else 1."""
        return 0 if self.holds else RunError.exit_status


@dataclass(frozen=True)
class Blessed:
    """A reference that has been written.

    Attributes:
        path: of the file.
        reference: what it says.
        moved: which numbers are new, in sentences.
        widened: what it lets through that the one before did not, in sentences.
    """

    path: Path
    reference: Reference
    moved: tuple[str, ...]
    widened: tuple[str, ...]


def gate(  # noqa: PLR0913 - one argument for every option of the command
    path: Path | str,
    *,
    reference: Path | str,
    seeds: Sequence[int] | None = None,
    junit: Path | str | None = None,
    device: str = "auto",
    jobs: int | None = None,
    overrides: Sequence[str] = (),
    results: Path | str = "results",
    fresh: bool = False,
    stored: bool = False,
) -> Gated:
    """Run what a reference needs and hold it against the reference.

    Args:
        path: the experiment file.
        reference: the file that `bless` has written.
        seeds: in place of those of the experiment.
        junit: where to write the verdicts for a CI server.
        device: as for `run`.
        jobs: as for `run`.
        overrides: as for `run`.
        results: the folder of results.
        fresh: whether to train even what is stored.
        stored: whether to train nothing, and take what is stored whoever made it.

    Raises:
        SpecError: with every mistake of either file; also if the reference was edited since it
            was blessed, or the seeds are too few for what it promises.
        StaleRecordError: if what is stored was made by other code, and neither ``fresh`` nor
            ``stored`` says what to do about it.
        StoreError: if ``stored`` is asked for and something is missing.
    """
    means = Means(device, jobs, overrides, results, fresh, stored)
    experiment = config.load(Path(path), overrides)
    file = read(Path(reference))
    wrong = [file.mistake(at, reason) for at, reason in flaws(file.reference)]
    _raise([*wrong, *_unknown_rows(file, experiment)])
    chosen = _seeds(experiment, seeds)
    _demand_seeds(file.reference, chosen)
    records = gather(path, _needed(file.reference, chosen), means)
    _raise(_unknown_measures(file, records))
    evidence = evidence_of(file.reference, records, Store(Path(results)))
    verdicts = tuple(
        judge(name, file.reference, evidence, chosen) for name in file.reference.checks
    )
    gated = Gated(experiment.name, verdicts, tuple(remarks(file.reference, experiment, records)))
    if junit is not None:
        write_whole(Path(junit), junit_xml(experiment.name, verdicts, gated.remarks))
    return gated


def bless(  # noqa: PLR0913 - one argument for every option of the command
    path: Path | str,
    *,
    reference: Path | str,
    seeds: Sequence[int] | None = None,
    widen: bool = False,
    device: str = "auto",
    jobs: int | None = None,
    overrides: Sequence[str] = (),
    results: Path | str = "results",
    fresh: bool = False,
    stored: bool = False,
) -> Blessed:
    """Run what a reference needs and write into it what the runs show.

    Where there is no such file, it gets two checks of the baseline: that its first losses are the
    same bit for bit, if it runs on the CPU, and that its BLEU stays where it is.

    Args:
        path: the experiment file.
        reference: the file to write; the terms of its checks stay as they are.
        seeds: in place of those of the experiment.
        widen: whether a check may become looser than it was.
        device: as for `run`.
        jobs: as for `run`.
        overrides: as for `run`.
        results: the folder of results.
        fresh: whether to train even what is stored.
        stored: whether to train nothing, and take what is stored whoever made it.

    Raises:
        SpecError: with every mistake of either file.
        BlessingError: if the runs cannot give what the checks promise; it says what it would take.
        WideningError: if a check would become looser and ``widen`` does not say so.
        StaleRecordError: as for `gate`.
        StoreError: as for `gate`, or if the file cannot be written.
    """
    means = Means(device, jobs, overrides, results, fresh, stored)
    experiment, target = config.load(Path(path), overrides), Path(reference)
    chosen = _seeds(experiment, seeds)
    store = Store(Path(results))
    if target.exists():
        file = read(target)
        _raise(_unknown_rows(file, experiment))
        old: Reference | None = file.reference
        asked = file.reference
        records = gather(path, _needed_to_bless(asked, chosen), means)
        _raise(_unknown_measures(file, records))
    else:
        old = None
        baseline = experiment.rows[0].name
        records = gather(path, {(baseline, seed) for seed in chosen}, means)
        asked = _first_reference(baseline, records)
    new = _blessed(asked, experiment, records, Basis(evidence_of(asked, records, store), chosen))
    looser = widened(old, new) if old else []
    if looser and not widen:
        told = "\n".join(f"  {reason}" for reason in looser)
        raise WideningError(
            f"{target} would be loosened, so it is left as it is:\n{told}\n"
            "say --widen if this is meant"
        )
    write(target, new)
    return Blessed(target, new, tuple(moved(old, new)) if old else (), tuple(looser))


def _seeds(experiment: Experiment, given: Sequence[int] | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys(run.seed for run in config.expand(experiment, given)))


def _raise(mistakes: Iterable[Mistake]) -> None:
    found = list(mistakes)
    if found:
        raise MistakesError(found)


def _unknown_rows(file: ReferenceFile, experiment: Experiment) -> Iterable[Mistake]:
    names = [row.name for row in experiment.rows]
    for name, check in file.reference.checks.items():
        for key in ("row", "against"):
            row = getattr(check, key, None)
            if row is not None and row not in names:
                reason = f"no row is called {row!r};{suggest(row, names)} known: {listed(names)}"
                yield file.mistake(("checks", name, key), reason)


def _unknown_measures(file: ReferenceFile, records: Records) -> Iterable[Mistake]:
    for name, check in file.reference.checks.items():
        if check.measure == LOSSES and isinstance(check, Exact):
            continue
        for (row, seed), record in records.items():
            if row not in _rows_of(check) or record["status"] != "done":
                continue
            known = summarise([row], [seed], records)[0].metrics
            if check.measure not in known:
                told = suggest(check.measure, known) or f" known: {listed(sorted(known))}"
                reason = f"no run has a measure {check.measure!r};{told}"
                yield file.mistake(("checks", name, "measure"), reason)
                break


def _rows_of(check: Exact | Statistical | Finding) -> tuple[str, ...]:
    return (check.row, check.against) if isinstance(check, Finding) else (check.row,)


def _demand_seeds(reference: Reference, seeds: Sequence[int]) -> None:
    for name, check in reference.checks.items():
        if not isinstance(check, Exact) and len(seeds) < check.seeds:
            raise SpecError(
                f"the check {name!r} needs {check.seeds} seeds or more to keep what it promises; "
                f"the gate has {counted(len(seeds), 'seed')} ({listed(seeds)}); give --seeds"
            )


def _needed(reference: Reference, seeds: Sequence[int]) -> RunRequest:
    """Return the runs that a gate is about."""
    needed: RunRequest = set()
    for check in reference.checks.values():
        is_exact = isinstance(check, Exact) and check.blessed is not None
        of_check = check.blessed.seeds if is_exact and check.blessed else seeds
        needed |= {(row, seed) for row in _rows_of(check) for seed in of_check}
    return needed


def _needed_to_bless(reference: Reference, seeds: Sequence[int]) -> RunRequest:
    return {
        (row, seed)
        for check in reference.checks.values()
        for row in _rows_of(check)
        for seed in (seeds[: check.seeds] if isinstance(check, Exact) else seeds)
    }


def _first_reference(baseline: str, records: Records) -> Reference:
    record = next(iter(records.values()))
    sets = evaluated_sets(records)
    checks: dict[str, Exact | Statistical | Finding] = {}
    if machine(record).get("device") == "cpu":
        checks["losses"] = Exact(kind="exact", row=baseline)
    if sets:
        measure = f"test.{sets[0]}.bleu"
        checks["bleu"] = Statistical(kind="statistical", row=baseline, measure=measure)
    if not checks:
        raise BlessingError(f"{baseline} has nothing to hold it against: no run has translated")
    return Reference(checks=checks)


def _blessed(asked: Reference, experiment: Experiment, records: Records, basis: Basis) -> Reference:
    """Return the reference that the runs bless.

    Raises:
        BlessingError: with all that they cannot.
    """
    refusals, checks = [], {}
    first = next(iter(evaluated_sets(records)), None)
    for name, check in asked.checks.items():
        try:
            checks[name] = bless_check(name, asked, basis)
        except UnfitError as error:
            refusals.append(f"{name} cannot be blessed: {error}")
        else:
            published = check.published or published_number(check, experiment, first)
            checks[name] = checks[name].model_copy(update={"published": published})
    if refusals:
        raise BlessingError("\n".join(refusals))
    source = asked.source or f"our own runs of {experiment.name}, as `blessed` tells"
    return Reference(
        source=source,
        false_alarm=asked.false_alarm,
        blessed=gate_provenance(experiment, records, checks),
        checks=checks,
    )
