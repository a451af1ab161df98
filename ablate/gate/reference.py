"""A reference: the checks of a gate by name, and where the blessed numbers come from."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import count, islice
from typing import Annotated

from pydantic import Field, SerializeAsAny

from ablate.errors import SpecError
from ablate.gate import checks as checks  # each kind of check enters `KINDS`
from ablate.gate.check import BLESS_AGAIN, Check, CheckVerdict, Context, Flaw, Text
from ablate.gate.evidence import Evidence
from ablate.gate.provenance import Provenance
from ablate.registry import Frozen
from ablate.wording import counted, listed, seeds_named

Runs = set[tuple[str, int]]
"""Rows and seeds."""


class Head(Frozen):
    """The entries of a reference other than its checks.

    Attributes:
        source: where the numbers come from, in words.
        alpha: the share of gates in which chance alone may make a check fail; all checks of means
            share it.
        pilot_seeds: seeds with which the claims were looked for; they neither bless nor judge.
    """

    source: Text | None = None
    alpha: Annotated[float, Field(gt=0.0, le=0.1)] = 0.005
    pilot_seeds: tuple[int, ...] = ()
    blessed: Provenance | None = None


class Reference(Head):
    """A gate's checks, by name."""

    checks: Annotated[dict[str, SerializeAsAny[Check]], Field(min_length=1)]

    @property
    def alpha_each(self) -> float:
        """The share of gates in which chance alone may make one check of a mean fail."""
        return self.alpha / max(1, sum(check.spends_alpha for check in self.checks.values()))

    def context(self, name: str, seeds: Sequence[int]) -> Context:
        """Return what a check needs to know of this gate, or of this blessing."""
        machine = self.blessed.machine if self.blessed else {}
        return Context(name, tuple(seeds), self.alpha_each, machine)

    def runs_to_bless(self, seeds: Sequence[int]) -> Runs:
        """Return the runs that bless it with these seeds."""
        return {
            (row, seed)
            for check in self.checks.values()
            for row in check.rows
            for seed in check.seeds_to_bless(seeds)
        }

    def runs_to_judge(self, seeds: Sequence[int]) -> Runs:
        """Return the runs that a gate with these seeds needs."""
        return {
            (row, seed)
            for check in self.checks.values()
            for row in check.rows
            for seed in check.seeds_to_judge(seeds)
        }

    @property
    def checks_with_chosen_seeds(self) -> dict[str, Check]:
        """The checks whose seeds a gate chooses."""
        return {n: check for n, check in self.checks.items() if check.fixed_seeds is None}

    def seeds_to_judge(
        self, seeds: Sequence[int], are_required: bool, of_tuning: Collection[int] = ()
    ) -> tuple[int, ...]:
        """Return the seeds of a gate: these, or new ones if a check refuses them.

        Seeds of tuning, by which values of rows were chosen, are not new.

        Raises:
            SpecError: if some check refuses seeds that are required.
        """
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
        """Judge runs by every check; each has been blessed."""
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
                yield ("checks", name), f"has not been blessed; {BLESS_AGAIN}"
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
        """Return which blessed numbers are new, in sentences."""
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
