"""``ablate gate``: runs judged by a blessed reference, and references blessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ablate import config
from ablate.api.completion import DEFAULT, RunOptions, made_in_each, opened
from ablate.api.gate_runs import GateRuns, open_runs
from ablate.api.selection import (
    Fingerprints,
    load,
    print_remark,
    remarks_on,
)
from ablate.config import Experiment
from ablate.errors import AblateError, RunError
from ablate.gate import bless as blessing
from ablate.gate.check import CheckVerdict
from ablate.gate.evidence import Evidence
from ablate.gate.reference import (
    Reference,
    ReferenceFile,
    Runs,
    as_yaml,
    read,
    refuse_other_scores,
    remarks,
)
from ablate.report.footnotes import execution
from ablate.report.gate import junit as junit_xml
from ablate.store import write_whole

_N_FIRST_SEEDS = 3
"""Seeds that are trained before a blessing is forecast from their standard deviation."""


class LooseningError(AblateError):
    """A reference would be loosened without ``widen``."""


@dataclass(frozen=True)
class Gated:
    """The verdicts of a gate, in the order of the reference, and remarks about all of them."""

    experiment: str
    verdicts: tuple[CheckVerdict, ...]
    remarks: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(verdict.passed for verdict in self.verdicts)

    def to_json(self) -> dict[str, Any]:
        """Return the verdicts as plain data."""
        verdicts = [{**asdict(each), "passed": each.passed} for each in self.verdicts]
        return {
            "experiment": self.experiment,
            "passed": self.passed,
            "verdicts": verdicts,
            "remarks": list(self.remarks),
        }

    @property
    def exit_status(self) -> int:
        """0 if the gate passed, else 1."""
        return 0 if self.passed else RunError.exit_status


@dataclass(frozen=True)
class Blessed:
    """A reference that has been written, with sentences about it."""

    path: Path
    reference: Reference
    moved: tuple[str, ...]  # numbers that are new
    loosened: tuple[str, ...]  # what it lets through that the one before did not
    weakened: tuple[str, ...]  # checks that promise less than was requested, and why
    refused: tuple[str, ...]  # checks that are not blessed, and why
    remarks: tuple[str, ...]  # runs that were executed otherwise than was requested, and how

    def to_json(self) -> dict[str, Any]:
        """Return what was written as plain data."""
        sentences = ("moved", "loosened", "weakened", "refused", "remarks")
        checks = self.reference.checks.items()
        return {
            "path": str(self.path),
            "blessed": [name for name, check in checks if check.blessed],
            **{name: list(getattr(self, name)) for name in sentences},
        }

    @property
    def exit_status(self) -> int:
        """0 if every check is blessed, else 1."""
        return RunError.exit_status if self.refused else 0


def gate(
    path: Path | str,
    reference: Path | str,
    options: RunOptions = DEFAULT,
    *,
    junit: Path | str | None = None,
    is_stored: bool = False,
) -> Gated:
    """Make the runs that a reference needs and judge them by it; a context has its own.

    Without seeds in the options, the seeds are those of the experiment, or new ones if some check
    is about new seeds and was blessed with one of these.

    If it ``is_stored``, nothing is trained: what is stored is judged, by whatever code it was made,
    and a remark says which runs are not of this code and machine. The verdicts are also written as
    ``junit``, for a CI server.

    Raises:
        SpecError: with every mistake of either file; also if the reference was edited since it
            was blessed, or a check cannot have the seeds.
        StaleRecordError: if stored runs were made or begun by other code, without
            ``options.fresh`` and without ``is_stored``.
        StoreError: if ``is_stored`` and something is missing.
    """
    if junit is not None:
        Path(junit).unlink(missing_ok=True)  # of an earlier gate; this one may end in an error
    if contexts := config.contexts_of(path, options.overrides):
        return _gate_in_contexts(path, contexts, Path(reference), options, junit, is_stored)
    gated = _judge(_prepare(path, Path(reference), options), options, is_stored=is_stored)
    return _reported(gated, junit)


@dataclass(frozen=True)
class _Prepared:
    """An experiment, the reference that judges it, and the seeds of the gate."""

    experiment: Experiment
    file: ReferenceFile
    seeds: tuple[int, ...]


def _prepare(path: Path | str, reference: Path, options: RunOptions) -> _Prepared:
    """Read both files; raise a `SpecError` if they do not fit, or cannot have the seeds."""
    experiment, file = load(path, options.overrides), read(reference)
    file.refuse(flaws=file.reference.flaws(), rows=[row.name for row in experiment.rows])
    of_tuning = experiment.tune.seeds if experiment.tune else ()
    seeds = file.reference.seeds_to_judge(
        _seeds(experiment, options), options.seeds is not None, of_tuning
    )
    return _Prepared(experiment, file, seeds)


def _judge(prepared: _Prepared, options: RunOptions, *, is_stored: bool) -> Gated:
    """Make the missing runs and judge them all."""
    file, seeds = prepared.file, prepared.seeds
    needed = file.reference.runs_to_judge(seeds)
    with open_runs(prepared.experiment, options, is_stored=is_stored) as runs:
        records = runs.load(needed)
        records |= runs.train(needed - records.keys())
    file.refuse(records=records)
    blessed = file.reference.blessed
    assert blessed is not None, "a reference without it has a flaw"
    refuse_other_scores(blessed, records)
    verdicts = file.reference.judge(Evidence(records, runs.losses(records)), seeds)
    about = (
        *remarks(blessed, runs.experiment, records, Fingerprints().of),
        *_made_otherwise(records, is_stored=is_stored),
    )
    return Gated(prepared.experiment.name, verdicts, about)


def _gate_in_contexts(
    path: Path | str,
    contexts: Mapping[str, Path],
    reference: Path,
    options: RunOptions,
    junit: Path | str | None,
    is_stored: bool,
) -> Gated:
    """Judge each context by its own reference; the gate passes if all do."""
    prepared = {  # all of them before anything is trained
        name: _prepare(each, reference_of(reference, name), options)
        for name, each in contexts.items()
    }
    with nullcontext(options) if is_stored else opened(options) as options:
        gated = made_in_each(prepared, lambda _, each: _judge(each, options, is_stored=is_stored))
    verdicts = tuple(
        replace(each, check=f"{name}: {each.check}")
        for name, of_context in gated.items()
        for each in of_context.verdicts
    )
    about = tuple(f"{name}: {each}" for name, one in gated.items() for each in one.remarks)
    whole = config.load(path, options.overrides).name
    return _reported(Gated(whole, verdicts, about), junit)


def _reported(gated: Gated, junit: Path | str | None) -> Gated:
    """Write the verdicts of a gate as JUnit XML, if that is requested; return them."""
    if junit is not None:
        write_whole(Path(junit), junit_xml(gated.experiment, gated.verdicts, gated.remarks))
    return gated


def reference_of(reference: Path, context: str) -> Path:
    """Return the file of a context's reference: ``size-wide.reference.yaml``."""
    name, _, rest = reference.name.partition(".")
    return reference.with_name(f"{name}-{context}.{rest}")


def bless(  # noqa: PLR0913 - one argument for every option of the command
    path: Path | str,
    reference: Path | str,
    options: RunOptions = DEFAULT,
    *,
    widen: bool = False,
    repeats: Path | str | None = None,
    is_stored: bool = False,
    template: Path | str | None = None,
) -> Blessed:
    """Make the runs that a reference needs and write their numbers and tolerances into it.

    A new file gets two checks of the baseline: that its first losses are the same bit for bit, if
    it runs on the CPU, and that the BLEU of new seeds stays where it is. The second check
    catches a loss of 1.5 BLEU or, if the runs cannot promise that, the smallest that they can.
    What can be promised is written on standard error before training, and after the first seeds.
    The terms of an old reference's checks stay as they are; a new one takes those of a ``template``
    that exists. ``repeats`` is a folder of results with the same runs, made on another kind of
    machine. An experiment with contexts is blessed in each by itself.

    Raises:
        BlessingError: if the runs can bless no check, or not one that was blessed before; it says
            what that would take. As soon as it is so with 95% confidence, nothing more is trained.
        LooseningError: if a check would become looser and ``widen`` does not allow it.
        AblateError: as for `gate`.
    """
    experiment, target = load(path, options.overrides), Path(reference)
    seeds = _seeds(experiment, options)
    known = next((file for file in (target, template) if file and Path(file).exists()), None)
    file = read(Path(known)) if known else None
    if file and known is not target:
        file = replace(file, reference=file.reference.before_blessing)
    if file:
        pilots = file.reference.used_by_pilot(seeds)
        flaws = [(("pilot_seeds",), f"{pilots}; bless with others (--seeds)")] if pilots else []
        file.refuse(flaws=flaws, rows=[row.name for row in experiment.rows])
    baseline = experiment.rows[0].name
    with open_runs(experiment, options, is_stored=is_stored) as runs:
        first = Evidence({}, {}, runs.repeats(file.reference if file else None, seeds, repeats))
        requested, evidence, refused = _run_and_forecast(file, baseline, runs, seeds, first)
    blessings = blessing.bless(
        requested, experiment, evidence, seeds, refused, may_weaken=file is None
    )
    old, new = file.reference if file else None, blessings.reference
    looser = new.loosened(old) if old else []
    if looser and not widen:
        listing = "\n".join(f"  {reason}" for reason in looser)
        raise LooseningError(
            f"{target} would be loosened, so it is left as it is:\n{listing}\n"
            "say --widen if this is meant"
        )
    write_whole(target, as_yaml(new))
    return Blessed(
        path=target,
        reference=new,
        moved=tuple(new.moved(old)) if old else (),
        loosened=tuple(looser),
        weakened=blessings.weakened,
        refused=blessings.refused,
        remarks=_made_otherwise(evidence.records, is_stored=is_stored),
    )


def _run_and_forecast(
    file: ReferenceFile | None, baseline: str, runs: GateRuns, seeds: Sequence[int], first: Evidence
) -> tuple[Reference, Evidence, dict[str, str]]:
    """Train the runs that bless, in two stages if there are many; print a forecast before each.

    Return the checks, the runs, and the checks that they cannot bless, with the reason.
    """
    requested, evidence = file.reference if file else None, first
    refused: dict[str, str] = {}

    def needed(seeds: Sequence[int]) -> Runs:
        if requested is None:
            return {(baseline, seed) for seed in seeds}
        left = {name: check for name, check in requested.checks.items() if name not in refused}
        return requested.model_copy(update={"checks": left}).runs_to_bless(seeds)

    records, announced = runs.load(needed(seeds)), set[str]()
    for stage in ((), seeds[:_N_FIRST_SEEDS], seeds):
        if stage not in ((), seeds) and requested and not announced:
            continue  # nothing depends on the first runs
        records |= runs.train(needed(stage) - records.keys())
        if file:
            file.refuse(records=records)
        evidence = replace(first, records=records, losses=runs.losses(records))
        requested = requested or (blessing.first_reference(baseline, records) if records else None)
        if needed(seeds) - records.keys():
            checks = requested or blessing.first_reference(baseline, {})
            sentences, unfit = blessing.forecast(checks, evidence, seeds, may_weaken=file is None)
            for sentence in [each for each in sentences if each not in announced]:
                print_remark(sentence)
            announced |= set(sentences)
            refused = unfit if requested else {}
    assert requested is not None, "a blessing has runs"
    return requested, evidence, refused


def _made_otherwise(
    records: Mapping[tuple[str, int], Mapping[str, Any]], *, is_stored: bool
) -> tuple[str, ...]:
    """Return which runs were executed otherwise than was requested, or are of other code."""
    executed = (f"{note.label}: {note.text}" for note in execution(records))
    return (*executed, *(remarks_on(records) if is_stored else ()))


def _seeds(experiment: Experiment, options: RunOptions) -> tuple[int, ...]:
    return tuple(dict.fromkeys(run.seed for run in config.expand(experiment, options.seeds)))
