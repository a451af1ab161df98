"""The remarks that say how values were chosen that the experiment does not give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ablate.analysis import TRAIN_FLOPS, Summary
from ablate.config import Experiment, Match, Row, Tune
from ablate.report.budget import ratio
from ablate.report.cells import Footnote
from ablate.report.changes import format_value, labels
from ablate.report.numbers import TIMES, percent_change
from ablate.wording import and_list, counted

_METRICS = {"params": "params.total", "flops": TRAIN_FLOPS}


def choices(experiment: Experiment, summaries: Sequence[Summary]) -> Iterator[Footnote]:
    """Yield what rows were matched by, and what was tuned with which budget."""
    if experiment.match is not None:
        yield Footnote("matched", _matched(experiment, experiment.match))
        beyond = list(_beyond(experiment.match, summaries))
        if beyond:
            yield Footnote("not matched as trained", "; ".join(beyond))
    if experiment.tune is not None:
        yield from _tuned(experiment, experiment.tune)


def _matched(experiment: Experiment, match: Match) -> str:
    applying = [row for row in experiment.rows[1:] if match.applies_to(row.name)]
    rows = [row for row in applying if match.via not in row.pending]
    missing = [row.name for row in applying if match.via in row.pending]
    solved = [row.name for row in rows if row.chosen.get(match.via) == "matched"]
    others = [row.name for row in experiment.rows[1:] if not match.applies_to(row.name)]
    measured = ", measured by turns with the baseline" if match.on == "time" else ""
    text = (
        f"{match.quantity} equal the baseline's within {_share(match.tolerance)}{measured}: "
        f"{match.via} was solved for in {and_list(solved) if solved else 'no row'}"
    )
    text += "; all other rows are within it as they are" if len(solved) < len(rows) else ""
    text += f"; not matched: {and_list(others)}" if others else ""
    return text + (f"; not done yet: {and_list(missing)}" if missing else "")


def _beyond(match: Match, summaries: Sequence[Summary]) -> Iterator[str]:
    """Yield which matched rows are beyond the tolerance in what they trained with after all."""
    metric = _METRICS.get(match.on)
    for summary in summaries[1:]:
        times = ratio(summary, summaries[0], metric) if metric else None
        is_off = times is not None and abs(times - 1) > match.tolerance
        if times is not None and is_off and match.applies_to(summary.name):
            yield f"{summary.name}: {match.quantity} {percent_change(times - 1)}"


def _tuned(experiment: Experiment, tune: Tune) -> Iterator[Footnote]:
    names = labels(list(tune.axes))
    values = tune.values()
    grid = f" {TIMES} ".join(
        f"{name} {{{', '.join(map(format_value, axis))}}}"
        for name, axis in zip(names, values.values(), strict=True)
    )
    candidates = counted(tune.n_candidates, "candidate")
    seeds = f"{counted(len(tune.seeds), 'seed')} ({and_list([str(seed) for seed in tune.seeds])})"
    n_runs = counted(tune.n_candidates * len(tune.seeds), "run")
    text = (
        f"{grid}, the lowest mean NLL on dev for each row by itself, the baseline included: "
        f"{candidates} {TIMES} {seeds} = {n_runs} of full length for each row, none of which is in "
        "the table"
    )
    missing = [row.name for row in experiment.rows if set(row.pending) & set(tune.axes)]
    yield Footnote("tuned", text + (f"; not done yet: {and_list(missing)}" if missing else ""))
    edges = [
        f"{name}: {', '.join(rows)}"
        for name, (path, axis) in zip(names, values.items(), strict=True)
        if (rows := [row.name for row in experiment.rows if _is_at_edge(row, path, axis)])
    ]
    if edges:
        yield Footnote(
            "edge of the grid",
            f"chosen at its first or last value, so that a better one may lie outside: "
            f"{'; '.join(edges)}",
        )


def _is_at_edge(row: Row, path: str, axis: Sequence[object]) -> bool:
    """Return whether a row chose the least or the largest of some numbers."""
    numbers = [v for v in axis if isinstance(v, int | float) and not isinstance(v, bool)]
    if row.chosen.get(path) != "tuned" or len(numbers) != len(axis) or len(axis) < 2:
        return False
    return row.changes[path] in (min(numbers), max(numbers))


def _share(tolerance: float) -> str:
    return f"{100 * tolerance:.3g}%"
