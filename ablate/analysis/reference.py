"""What a reference says: the checks of a gate, and what was measured when each was blessed.

A check's own keys are its terms, which people write; what stands under ``blessed`` is written by
``ablate gate --bless`` and holds a copy of the terms that it was derived from, so that nobody can
loosen a check without blessing it again.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from ablate.analysis.tolerance import Promise
from ablate.registry import Frozen

LOSSES = "train_loss"
"""The measure that is not in the record but in the curve: the loss of each of the first steps."""

Text = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(gt=0.0, lt=1.0)]
Scalar = int | float | str
Terms = dict[str, Scalar]
"""The name of a term to its value."""

_STEPS = 20
_BLEU_LOSS = 1.5
_HIGHER = ("bleu", "bleu_lc_tok", "chrf", "exact_match")
_LOWER = ("nll", "perplexity", "best_dev_nll", "final_loss", "seconds", LOSSES)


class PublishedNumber(Frozen):
    """What others have printed of the same measure.

    Attributes:
        source: who, and where.
        note: what one must know to compare.
    """

    value: float
    source: Text
    note: Text | None = None


class Blessing(Frozen):
    """What was measured when a check was blessed.

    Attributes:
        seeds: of the runs.
        derived: how the tolerance follows from the values.
        terms: the check's, at that time.
    """

    seeds: Annotated[tuple[int, ...], Field(min_length=1)]
    derived: Text
    terms: Terms


class ExactBlessing(Blessing):
    """Numbers to be met bit for bit.

    Attributes:
        values: hexadecimal, for every seed one for each step, or one in all.
    """

    values: tuple[tuple[Text, ...], ...]

    @model_validator(mode="after")
    def _one_each(self) -> ExactBlessing:
        if len(self.values) != len(self.seeds):
            raise ValueError(f"has {len(self.seeds)} seeds but values of {len(self.values)}")
        for text in (text for of_seed in self.values for text in of_seed):
            try:
                float.fromhex(text)
            except (ValueError, OverflowError):
                raise ValueError(f"{text!r} is no hexadecimal number, as in 0x1.8p+1") from None
        return self


class StatisticalBlessing(Blessing):
    """A mean and its tolerance.

    Attributes:
        value: the mean of the values.
        spread: their sample standard deviation.
        lowest: what the mean of the new seeds may be at least.
        highest: what it may be at most.
        values: by seed.
    """

    value: float
    spread: NonNegativeFloat
    lowest: float
    highest: float
    values: Annotated[tuple[float, ...], Field(min_length=2)]

    @model_validator(mode="after")
    def _one_each(self) -> StatisticalBlessing:
        if len(self.values) != len(self.seeds):
            raise ValueError(f"has {len(self.seeds)} seeds but {len(self.values)} values")
        return self


class FindingBlessing(Blessing):
    """An effect as it was seen.

    Attributes:
        value: the mean difference, row less the row it is held against; None if all diverged.
        spread: the standard deviation of the differences.
        low: where the interval of the mean difference begins.
        high: where it ends.
        values: the differences, by seed; runs that diverged have none.
    """

    value: float | None = None
    spread: NonNegativeFloat | None = None
    low: float | None = None
    high: float | None = None
    values: tuple[float, ...] = ()


class Check(Frozen):
    """What all checks say.

    Attributes:
        row: of the experiment.
        measure: as it is nested in a record, ``test.test2016.bleu``.
        note: for readers.
        published: what others have printed.
    """

    own: ClassVar[tuple[str, ...]] = ("note", "published", "blessed")
    """What is no term."""

    row: Text = "baseline"
    measure: Text
    note: Text | None = None
    published: PublishedNumber | None = None

    def terms(self) -> Terms:
        """Return what the check asks for, by name."""
        return self.model_dump(exclude=set(self.own), exclude_none=True)


class Exact(Check):
    """The same numbers, bit for bit, on the same kind of machine.

    Attributes:
        measure: ``train_loss``, or any number of a record.
        steps: how many losses from the first on; of ``train_loss`` alone.
        seeds: how many seeds are kept.
        elsewhere: the relative difference that is tolerated on another kind of machine.
    """

    kind: Literal["exact"]
    measure: Text = LOSSES
    steps: Annotated[int, Field(ge=1, le=100)] | None = None
    seeds: PositiveInt = 1
    elsewhere: PositiveFloat = 3e-4
    blessed: ExactBlessing | None = None

    @model_validator(mode="after")
    def _steps_are_of_losses(self) -> Exact:
        if self.steps is not None and self.measure != LOSSES:
            raise ValueError(f"'steps' is for the measure {LOSSES}; {self.measure} has one number")
        return self

    @property
    def n_values(self) -> int:
        """How many numbers each seed has."""
        return (self.steps or _STEPS) if self.measure == LOSSES else 1

    def terms(self) -> Terms:
        """Return what the check asks for, by name."""
        steps = {"steps": self.n_values} if self.measure == LOSSES else {}
        return super().terms() | steps


class Directed(Check):
    """A check that must know whether more is better.

    Attributes:
        better: which values are better; known of most measures.
    """

    better: Literal["higher", "lower"] | None = None

    @model_validator(mode="after")
    def _direction_is_known(self) -> Directed:
        if self.better is None and direction(self.measure) is None:
            raise ValueError(
                f"whether more of {self.measure!r} is better is not known; "
                "say better: higher, or better: lower"
            )
        return self

    @property
    def is_higher_better(self) -> bool:
        """Whether more is better."""
        return (self.better or direction(self.measure)) == "higher"


class Statistical(Directed):
    """The mean of a few new seeds within what chance explains.

    Attributes:
        seeds: how many new seeds a gate has, at least.
        loss: the smallest true loss that must be caught, in the units of the measure; 1.5 for BLEU.
        power: the share of gates in which it must be.
    """

    kind: Literal["statistical"]
    seeds: PositiveInt = 3
    loss: PositiveFloat | None = None
    power: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.9
    blessed: StatisticalBlessing | None = None

    @model_validator(mode="after")
    def _loss_is_known(self) -> Statistical:
        if self.loss is None and not _last(self.measure).startswith("bleu"):
            raise ValueError("needs 'loss', the smallest true loss that must be caught")
        return self

    def promise(self, false_alarm: float, n_new: int | None = None) -> Promise:
        """Return what the check is to keep.

        Args:
            false_alarm: its share of the reference's.
            n_new: seeds of this gate; as few as it allows unless given.
        """
        return Promise(false_alarm, self.smallest_loss, self.power, n_new or self.seeds)

    @property
    def smallest_loss(self) -> float:
        """The smallest true loss that must be caught."""
        return self.loss or _BLEU_LOSS

    def terms(self) -> Terms:
        """Return what the check asks for, by name."""
        return super().terms() | {"loss": self.smallest_loss}


class Finding(Directed):
    """An effect between two rows: its direction and how large it is at least.

    Attributes:
        against: the row that ``row`` is compared with, seed by seed.
        claim: that ``row`` is ``worse`` or ``better`` by at least ``by``, or ``near``: no further
            than ``by`` either way.
        by: in the units of the measure.
        seeds: how many a gate has, at least.
        confidence: with which the claim must be shown.
    """

    kind: Literal["finding"]
    against: Text = "baseline"
    claim: Literal["worse", "better", "near"]
    by: NonNegativeFloat
    seeds: Annotated[int, Field(ge=2)] = 3
    confidence: Annotated[float, Field(ge=0.8, lt=1.0)] = 0.95
    blessed: FindingBlessing | None = None

    @model_validator(mode="after")
    def _two_rows(self) -> Finding:
        if self.row == self.against:
            raise ValueError(f"compares the row {self.row!r} with itself; say another 'against'")
        if self.claim == "near" and self.by == 0:
            raise ValueError("no two rows are nearer than 0; say how far apart they may be in 'by'")
        return self


KINDS: dict[str, type[Exact] | type[Statistical] | type[Finding]] = {
    "exact": Exact,
    "statistical": Statistical,
    "finding": Finding,
}


class Provenance(Frozen):
    """Where the blessed numbers come from.

    Attributes:
        experiment: its name.
        date: in UTC.
        machine: its kind; where it differs, numbers need not agree bit for bit.
        versions: of everything that may move a number.
        commits: of the code.
        is_clean: whether the code was exactly theirs.
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


class Head(Frozen):
    """What a reference says beside its checks.

    Attributes:
        source: where the numbers come from, in words.
        false_alarm: the share of gates in which a statistical check may fail although nothing has
            changed; all statistical checks share it.
        blessed: where the blessed numbers come from.
    """

    source: Text | None = None
    false_alarm: Annotated[float, Field(gt=0.0, le=0.1)] = 0.005
    blessed: Provenance | None = None


class Reference(Head):
    """A gate's checks, by name."""

    checks: Annotated[dict[str, Exact | Statistical | Finding], Field(min_length=1)]

    @property
    def share(self) -> float:
        """The false alarms that each statistical check may give."""
        n = sum(isinstance(check, Statistical) for check in self.checks.values())
        return self.false_alarm / max(1, n)

    def terms(self, name: str) -> Terms:
        """Return what a check asks for, and its share of the false alarms."""
        check = self.checks[name]
        is_sharing = isinstance(check, Statistical)
        return check.terms() | ({"false_alarm": self.share} if is_sharing else {})

    def rows(self) -> tuple[str, ...]:
        """Return the names of all rows that some check is about."""
        named = (
            row
            for check in self.checks.values()
            for row in (check.row, *([check.against] if isinstance(check, Finding) else []))
        )
        return tuple(dict.fromkeys(named))


def direction(measure: str) -> Literal["higher", "lower"] | None:
    """Return which values of a measure are better, if that is known."""
    section, last = measure.partition(".")[0], _last(measure)
    if last in _HIGHER or section == "speed":
        return "higher"
    if last in _LOWER or section in ("memory", "params", "flops"):
        return "lower"
    return None


def plain(model: Frozen) -> dict[str, Any]:
    """Return a model as plain data, without what is not said."""
    return model.model_dump(mode="json", exclude_none=True)


def _last(measure: str) -> str:
    return measure.rpartition(".")[2]
