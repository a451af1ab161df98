"""Looks: for which rows more seeds are needed, and what was decided at which look.

A row is decided, and gets no more seeds, once it is better or worse than the baseline or differs
by less than is negligible, by BLEU on the first test set; or has diverged. It is given up if its
chance to be decided by the last look is small. What is decided or given up follows from the records
of a look's seeds alone, in whatever order they were made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod

from ablate.analysis import sequential
from ablate.analysis.comparison import Comparison, Difference, Promise
from ablate.analysis.measures import (
    FLOOR,
    Comparisons,
    Sentences,
    Verdict,
    comparisons,
    verdict,
)
from ablate.analysis.summary import Records, Summary, evaluated_sets, summarise
from ablate.config import Experiment
from ablate.store import is_finished


@dataclass(frozen=True)
class Looks:
    """What the looks at an experiment have come to; empty for one without.

    Attributes:
        planned: numbers of seeds, ascending.
        n_seeds: of each row by name, that it has or is to get for the present look.
        decided: after how many seeds rows were decided or diverged.
        given_up: after how many seeds others were given up.
        comparisons: of every row at the last look that it was part of.
        n_looks: that are complete.
        n_expected: runs after the next look, by what the last one shows.
        staged: the comparisons at each of these, of the rows that were open then.
    """

    planned: tuple[int, ...] = ()
    n_seeds: Mapping[str, int] = field(default_factory=dict)
    decided: Mapping[str, int] = field(default_factory=dict)
    given_up: Mapping[str, int] = field(default_factory=dict)
    comparisons: Comparisons = field(default_factory=dict, repr=False)
    n_looks: int = 0
    n_expected: float = 0.0
    staged: Sequence[Comparisons] = field(default=(), repr=False)


def judge(
    experiment: Experiment,
    records: Records,
    sentences: Sentences | None = None,
    metrics: Sequence[str] = (),
) -> Looks:
    """Return what the looks at an experiment come to, which has some."""
    baseline, *undecided = (row.name for row in experiment.rows)
    n_rows, decided, given_up = len(undecided), dict[str, int](), dict[str, int]()
    metric = f"test.{next(iter(evaluated_sets(records)), '')}.bleu"
    staged: list[Comparisons] = []
    levels, of_one = (sequential.levels(experiment.looks, n) if n_rows else () for n in (n_rows, 1))
    for n, level, level_of_one in zip(experiment.looks, levels, of_one, strict=False):
        rows, seeds = [baseline, *undecided], experiment.seeds[:n]
        of_look = {(r, s): records[r, s] for r in rows for s in seeds if (r, s) in records}
        if not all(is_finished(of_look.get((r, s))) for r in rows for s in seeds):
            break
        summaries = summarise(rows, seeds, of_look)
        promise = Promise(level, level_of_one, n_closed=n_rows - len(undecided))
        compared = comparisons(summaries, sentences, metrics, promise=promise)
        staged.append(compared)
        score = summaries[0].metrics.get(metric)
        mean = score.mean if score else None
        closed = [*_closed(summaries, compared.get(metric), experiment.negligible.bleu, mean)]
        if metric in compared:
            staged[-1] = {**compared, metric: _unbiased(staged, metric, closed, experiment)}
        decided |= dict.fromkeys(closed, n)
        undecided = [row for row in undecided if row not in decided]
        if metric in compared and n < experiment.looks[-1]:
            hopeless = _hopeless(compared[metric], undecided, n, n_rows, experiment, mean)
            given_up |= dict.fromkeys(hopeless, n)
        undecided = [row for row in undecided if row not in given_up]
        if not undecided:
            break
    at = min(len(staged), len(experiment.looks) - 1) if undecided else len(staged) - 1
    n_now = experiment.looks[max(0, at)]
    n_seeds = {baseline: n_now, **decided, **given_up, **dict.fromkeys(undecided, n_now)}
    if not staged:
        seeds = experiment.seeds[:n_now]
        before = comparisons(summarise([baseline, *undecided], seeds, records), None, metrics)
        known = {name: each.without_intervals() for name, each in before.items()}
        return Looks(experiment.looks, n_seeds, decided, given_up, known)
    n_expected = 0.0
    if undecided and metric in staged[-1]:
        n_expected = _expected(staged[-1][metric], undecided, len(staged), n_rows, experiment)
    joined = _joined(staged)
    return Looks(
        experiment.looks, n_seeds, decided, given_up, joined, len(staged), n_expected, staged
    )


def _closed(
    summaries: Sequence[Summary], compared: Comparison | None, band: float, mean: float | None
) -> Iterator[str]:
    """Yield the rows that need no more seeds; beside a baseline that diverged, all.

    ``mean`` is the baseline's score.
    """
    baseline, *rows = summaries
    for row in rows:
        each = compared.differences.get(row.name) if compared else None
        judged = verdict(each.simultaneous, band, baseline=mean) if each else None
        is_decided = judged not in (None, Verdict.CANNOT_TELL) or (each and each.method == "same")
        if is_decided or baseline.count("diverged") or row.count("diverged"):
            yield row.name


def _hopeless(
    compared: Comparison,
    rows: Sequence[str],
    n: int,
    n_rows: int,
    experiment: Experiment,
    mean: float | None,
) -> Iterator[str]:
    """Yield the rows that the last look will hardly decide; all if the baseline has not learned."""
    is_at_floor = mean is not None and mean < FLOOR * experiment.negligible.bleu
    for row in rows:
        by_last = 0.0 if is_at_floor else _chance(compared.differences[row], n, n_rows, experiment)
        if by_last is not None and by_last < sequential.GIVE_UP:
            yield row


def _chance(
    each: Difference, n: int, n_rows: int, experiment: Experiment, later: int | None = None
) -> float | None:
    if each.estimate is None or not each.standard_error:
        return None
    band, looks = experiment.negligible.bleu, experiment.looks
    return sequential.chance(each.estimate, each.standard_error, looks, n, n_rows, band, later)


def _expected(
    compared: Comparison, rows: Sequence[str], at: int, n_rows: int, experiment: Experiment
) -> float:
    """Return how many runs are to be expected after the next look, the ``at``-th from 0."""
    looks, runs = experiment.looks, 0.0
    n, decided = looks[at - 1], dict.fromkeys(rows, 0.0)
    for here, after in pairwise(looks[at:]):
        for row in rows:
            by_here = _chance(compared.differences[row], n, n_rows, experiment, here) or 0.0
            decided[row] = max(decided[row], by_here)
        any_is_open = 1 - prod(decided.values())
        runs += (after - here) * (any_is_open + sum(1 - share for share in decided.values()))
    return runs


def _unbiased(
    staged: Sequence[Comparisons], metric: str, closed: Sequence[str], experiment: Experiment
) -> Comparison:
    """Return the last look's comparison with median unbiased estimates of rows that it decides."""
    known, looks = [each[metric].differences for each in staged], experiment.looks[: len(staged)]
    last = dict(known[-1])
    for row in closed:
        each = last[row]
        constants = [of_look[row].critical or 0.0 for of_look in known]
        interval, error = each.simultaneous, each.standard_error
        is_beyond = interval is not None and not interval.low <= 0 <= interval.high
        if is_beyond and each.estimate is not None and error and all(constants):
            value = sequential.median_unbiased(
                each.estimate, error, looks, constants, experiment.negligible.bleu
            )
            last[row] = replace(each, median_unbiased=value)
    return replace(staged[-1][metric], differences=last)


def _joined(staged: Sequence[Comparisons]) -> Comparisons:
    """Return each metric's comparison at the last look, with every row as it last was."""
    result = dict(staged[-1])
    for metric, last in result.items():
        earlier = [compared[metric] for compared in staged if metric in compared]
        result[metric] = replace(
            last,
            differences={row: each for one in earlier for row, each in one.differences.items()},
            departed=tuple(dict.fromkeys(row for one in earlier for row in one.departed)),
            sharing={row: by for one in earlier for row, by in one.sharing.items()},
            diverged=tuple(dict.fromkeys(row for one in earlier for row in one.diverged)),
        )
    return result
