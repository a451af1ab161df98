"""A reference: the checks of a gate by name, where the blessed numbers come from, and its YAML."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SerializeAsAny

from ablate import config
from ablate.analysis.summary import Records, summarise
from ablate.config import Experiment, Mistake, MistakesError
from ablate.config.merge import schema_of
from ablate.config.messages import validated
from ablate.config.tree import Mark, Node, UnreadableError, dump, parse, source_of
from ablate.errors import SpecError
from ablate.gate import checks as checks  # each kind of check enters `KINDS`
from ablate.gate.check import BLESS_AGAIN, KINDS, Check, CheckVerdict, Context, Flaw, Scalar, Text
from ablate.gate.evidence import Evidence, difference, machine, named
from ablate.record import scoring
from ablate.registry import Choice, Frozen
from ablate.training.engines.factory import SCHEMES
from ablate.wording import counted, listed, seeds_named, suggest

_HEAD = """\
# A reference for `ablate gate`. The terms of each check are yours to change; what stands under
# `blessed` is written by `ablate gate SPEC --reference THIS --bless`, and so is this file: notes
# belong in `note`, comments do not survive.
"""


SCHEMA = 2  # the version of the keys; a file without one is of this version
_ABOVE_CHECKS = ("schema", "source", "alpha", "pilot_seeds")
_FIRST_OF_CHECK = ("kind", "row", "against", "measure", "claim", "margin")
_LAST_OF_CHECK = ("published", "note", "blessed")
_LAST_OF_BLESSING = ("seeds", "values", "repeats", "other_machine", "derived", "terms")

Runs = set[tuple[str, int]]  # rows and seeds


class Place(Frozen):
    """What the numbers of a run depend on beside its spec and the code."""

    machine: dict[str, Scalar]  # its kind; on another kind numbers need not agree bit for bit
    versions: dict[str, str]


class Provenance(Frozen):
    """Where the blessed numbers come from."""

    experiment: Text
    date: Text  # in UTC
    machine: dict[str, Scalar]  # as in `Place`, of the first run
    versions: dict[str, str]
    other_places: tuple[Place, ...] = ()  # of further runs
    commits: tuple[str, ...]
    is_clean: bool | None = None  # whether the code was exactly that of the commits
    signatures: dict[str, str]  # how scores were computed; several ways after semicolons
    runs: dict[str, dict[str, str]]  # row to seed to the hash that is the run's identity
    checks: tuple[str, ...]  # the names of all that were blessed


class Head(Frozen):
    """The entries of a reference other than its checks."""

    source: Text | None = None  # where the numbers come from, in words
    # the share of gates in which chance alone may make a check fail; all checks of means share it
    alpha: Annotated[float, Field(gt=0.0, le=0.1)] = 0.005
    pilot_seeds: tuple[int, ...] = ()  # claims were looked for with them: no blessing, no gate
    blessed: Provenance | None = None


class Reference(Head):
    """A gate's checks, by name."""

    checks: Annotated[dict[str, SerializeAsAny[Check]], Field(min_length=1)]

    @property
    def alpha_each(self) -> float:
        """The share of gates in which chance alone may make one check of a mean fail."""
        return self.alpha / max(1, sum(check.spends_alpha for check in self.checks.values()))

    def context(self, name: str, seeds: Sequence[int]) -> Context:
        machine = self.blessed.machine if self.blessed else {}
        return Context(name, tuple(seeds), self.alpha_each, machine)

    def runs_to_bless(self, seeds: Sequence[int]) -> Runs:
        return self._runs(lambda check: check.seeds_to_bless(seeds))

    def runs_to_judge(self, seeds: Sequence[int]) -> Runs:
        return self._runs(lambda check: check.seeds_to_judge(seeds))

    def _runs(self, seeds_of: Callable[[Check], Iterable[int]]) -> Runs:
        checks = self.checks.values()
        return {(row, seed) for check in checks for row in check.rows for seed in seeds_of(check)}

    @property
    def before_blessing(self) -> Reference:
        """The same terms, without what blessed them."""
        checks = {n: c.model_copy(update={"blessed": None}) for n, c in self.checks.items()}
        return self.model_copy(update={"checks": checks, "blessed": None})

    @property
    def checks_with_chosen_seeds(self) -> dict[str, Check]:
        return {n: check for n, check in self.checks.items() if check.fixed_seeds is None}

    def seeds_to_judge(
        self, seeds: Sequence[int], are_required: bool, of_tuning: Collection[int] = ()
    ) -> tuple[int, ...]:
        """Return the seeds of a gate: these, or unless they are required new ones if refused."""
        if are_required and not self.checks_with_chosen_seeds:
            raise SpecError("every check of the reference has seeds of its own; drop --seeds")
        pilots = self.used_by_pilot(seeds) if self.checks_with_chosen_seeds else None
        reasons = [pilots] if pilots else []
        reasons += [
            f"the check {name!r} {reason}"
            for name, check in self.checks_with_chosen_seeds.items()
            if (reason := check.refused_seeds(seeds))
        ]
        if not reasons:
            return tuple(seeds)
        new = self.new_seeds(of_tuning)
        if are_required:
            raise SpecError(
                f"{'; '.join(reasons)}; the gate has {counted(len(seeds), 'seed')} "
                f"({listed(seeds)}); new ones are --seeds {','.join(map(str, new))}"
            )
        return new

    def used_by_pilot(self, seeds: Sequence[int]) -> str | None:
        """Return which of the seeds a pilot has used, in words; None if it has used none."""
        used = [seed for seed in seeds if seed in self.pilot_seeds]
        return f"a pilot has used {seeds_named(used)}" if used else None

    def new_seeds(self, of_tuning: Collection[int] = ()) -> tuple[int, ...]:
        """Return the first seeds that neither blessed a check nor served a pilot or tuning."""
        used = {seed for c in self.checks.values() if c.blessed for seed in c.blessed.seeds}
        used |= {*self.pilot_seeds, *of_tuning}
        n = max(check.seeds for check in self.checks_with_chosen_seeds.values())
        return tuple(islice((seed for seed in count(1) if seed not in used), n))

    def judge(self, evidence: Evidence, seeds: Sequence[int]) -> tuple[CheckVerdict, ...]:
        return tuple(
            check.judge(evidence, self.context(name, seeds)) for name, check in self.checks.items()
        )

    def flaws(self) -> Iterator[Flaw]:
        """Yield why a gate cannot use it: what was not blessed, or edited since it was."""
        for name in self.blessed.checks if self.blessed else ():
            if name not in self.checks:
                reason = f"the check {name!r} has been dropped since it was blessed; {BLESS_AGAIN}"
                yield ("checks",), reason
        for name, check in self.checks.items():
            if self.blessed is None:
                yield ("checks", name), "has not been blessed; bless the reference (--bless)"
            elif check.blessed and name not in self.blessed.checks:
                reason = f"was blessed in another reference, or by another name; {BLESS_AGAIN}"
                yield ("checks", name), reason
            else:
                yield from check.flaws(name, self.alpha_each)

    def loosened(self, old: Reference) -> list[str]:
        """Return what this reference would let through and an earlier one did not, in sentences."""
        sentences = []
        for name in old.blessed.checks if old.blessed else ():
            before, after = old.checks.get(name), self.checks.get(name)
            if after is None:
                sentences.append(f"{name} would be dropped")
            elif before is None or before.blessed is None:
                sentences.append(f"{name} has lost what blessed it; it may be looser than it was")
            else:
                sentences += [f"{name}: {text}" for text in after.loosened(before)]
        return sentences

    def moved(self, old: Reference) -> list[str]:
        sentences = []
        for name, check in self.checks.items():
            before = old.checks.get(name)
            if check.blessed is None:
                continue
            if before is None or before.blessed is None or before.kind != check.kind:
                sentences.append(f"{name} is new")
            elif moved := check.moved(before):
                sentences.append(f"{name}: {moved}")
        return sentences


def remarks(
    blessed: Provenance,
    experiment: Experiment,
    records: Records,
    fingerprint_of: Callable[[Choice], str | None],
) -> Iterable[str]:
    """Yield how the runs differ from those that the reference was blessed with."""
    machines = (machine(record) for record in records.values() if record.get("hardware"))
    ours = next(machines, blessed.machine)  # a run whose process was killed has none
    if ours not in (blessed.machine, *(place.machine for place in blessed.other_places)):
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


def refuse_other_scores(blessed: Provenance, records: Records) -> None:
    """Raise a `SpecError` if scores are computed otherwise than those that were blessed."""
    for record in records.values():
        for scores in record.get("test", {}).values():
            for metric, signature in blessed.signatures.items():
                own, ways = scores.get(f"{metric}_signature"), signature.split("; ")
                if own and scoring(own) not in map(scoring, ways):
                    raise SpecError(
                        f"the reference was blessed with {metric} by "
                        f"{'; '.join(map(scoring, ways))}; these "
                        f"runs have it by {scoring(own)}, which is not compared; {BLESS_AGAIN}"
                    )


@dataclass(frozen=True)
class ReferenceFile:
    """A reference, and the tree of its YAML, which has the positions of its entries."""

    reference: Reference
    tree: Node

    def refuse(
        self,
        *,
        flaws: Iterable[Flaw] = (),
        rows: Sequence[str] | None = None,
        records: Records | None = None,
    ) -> None:
        """Refuse a reference that has flaws, or names no row or measure of an experiment."""
        wrong = [*flaws]
        for name, check in self.reference.checks.items():
            for key, row in zip(("row", "against"), check.rows, strict=False):
                if rows is not None and row not in rows:
                    reason = f"no row is called {row!r};{suggest(row, rows)} known: {listed(rows)}"
                    wrong.append((("checks", name, key), reason))
            of_runs = [
                set(summarise([row], [seed], {(row, seed): record})[0].metrics)
                for (row, seed), record in (records or {}).items()
                if check.recorded_measure and row in check.rows and record["status"] == "done"
            ]
            measures = set.intersection(*of_runs) if of_runs else set()
            asked = check.recorded_measure
            if measures and asked and not named(asked, measures):
                near = suggest(check.measure, measures) or f" known: {listed(sorted(measures))}"
                reason = f"no run has a measure {check.measure!r};{near}"
                wrong.append((("checks", name, "measure"), reason))
        if wrong:
            raise MistakesError(
                Mistake(self.tree.descend(at)[0].mark, ".".join(at), reason) for at, reason in wrong
            )


def read(path: Path) -> ReferenceFile:
    """Read a reference; every mistake of the file is reported together."""
    wrong: list[Mistake] = []
    try:
        tree = _tree(path, wrong)
    except UnreadableError as error:
        raise MistakesError([*wrong, error.mistake]) from None
    schema, node = tree.get("schema"), tree.get("checks")
    if schema is not None and schema.value != SCHEMA:
        reason = f"this version of ablate reads schema {SCHEMA}; it is {schema.value!r}"
        wrong.append(Mistake(schema.mark, "schema", reason))
    checks = {}
    if node is None or not dict(node.items()):
        reason = f"needs 'checks', a mapping from names to checks of a kind: {', '.join(KINDS)}"
        wrong.append(Mistake((node or tree).mark, "checks" if node else "", reason))
    else:
        read_checks = ((name, _check(check, wrong)) for name, check in node.items())
        checks = {name: check for name, check in read_checks if check is not None}
    rest = {key: node for key, node in tree.items() if key not in ("checks", "schema")}
    head, mistakes = validated(Head, replace(tree, value=rest), schema_of(Reference))
    wrong += mistakes
    if wrong or head is None:
        raise MistakesError(wrong)
    return ReferenceFile(Reference(**dict(head), checks=checks), tree)


def as_yaml(reference: Reference) -> str:
    """Return a reference as YAML."""
    content = {"schema": SCHEMA, **reference.model_dump(mode="json", exclude_none=True)}
    if not reference.pilot_seeds:
        del content["pilot_seeds"]
    for name, check in content["checks"].items():  # its terms first, the values of its runs last
        content["checks"][name] = arranged = _sorted(check, _FIRST_OF_CHECK, _LAST_OF_CHECK)
        if "blessed" in arranged:
            arranged["blessed"] = _sorted(arranged["blessed"], (), _LAST_OF_BLESSING)
    content = _sorted(content, _ABOVE_CHECKS, ("checks", "blessed"))  # people read the checks first
    return _HEAD + dump(content, width=88, flow=None)


def _tree(path: Path, wrong: list[Mistake]) -> Node:
    try:
        content = path.read_bytes()
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        hint = "; `ablate gate SPEC --bless` writes a reference" if is_missing else ""
        raise SpecError(f"{path} cannot be read: {error.strerror}{hint}") from error
    source = source_of(str(path), content, path)
    root = parse(source, wrong)
    if root is None or not isinstance(root.value, dict):
        reason = "a reference is a mapping with 'checks'; `ablate gate --bless` writes one"
        raise UnreadableError(Mistake(root.start if root else Mark(source, 1, 1), "", reason))
    return root


def _check(node: Node, wrong: list[Mistake]) -> Check | None:
    kind = node.get("kind")
    name = None if kind is None else kind.value
    if not isinstance(name, str) or name not in KINDS:
        reason = (
            f"there is no kind {name!r};{suggest(str(name), KINDS)} " if kind else "needs 'kind'; "
        )
        wrong.append(Mistake((kind or node).mark, node.path, f"{reason}known: {', '.join(KINDS)}"))
        return None
    check, mistakes = validated(KINDS[name], node, schema_of(KINDS[name]))
    wrong += mistakes
    return check


def _sorted(mapping: dict[str, Any], first: Sequence[str], last: Sequence[str]) -> dict[str, Any]:
    between = [key for key in mapping if key not in last]
    keys = dict.fromkeys([*first, *between, *last])
    return {key: mapping[key] for key in keys if key in mapping}
