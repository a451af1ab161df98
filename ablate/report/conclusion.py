"""One sentence that says what the numbers of a table come to, and no more than that."""

from __future__ import annotations

from collections.abc import Sequence

from ablate.analysis import Verdict
from ablate.report.numbers import of_seeds
from ablate.report.results import Results
from ablate.wording import and_list, counted

_MOST_NAMES = 4
_CHANCE = "With one seed no difference can be told from chance"


def conclusion(results: Results) -> str:
    """Return what the rows are, beside the baseline, by their verdicts."""
    rows = [row.name for row in results.summaries[1:]]
    if not rows:
        return "There is nothing to compare: the experiment has no row but the baseline."
    n_diverged, n = results.baseline.count("diverged"), len(results.seeds)
    if n_diverged:
        return f"The baseline diverged with {n_diverged} of {counted(n, 'seed')}: no verdicts."
    if not results.baseline.count("done"):
        return "The baseline has no result yet: no row can be compared with it."
    if n == 1:
        return f"{_CHANCE}: no verdicts."
    by_bleu = _verdicts(results, rows, results.bleu)
    parts = _parts(results, by_bleu)
    parts += _diverged(results)
    unjudged = [row for row in rows if row not in by_bleu and row not in results.diverged]
    parts += [f"{and_list(unjudged, _MOST_NAMES)} cannot be compared"] if unjudged else []
    text = f"By BLEU on {results.sets[0]}, {'; '.join(parts)}"
    return f"{text}{_by_loss(results, rows, by_bleu)}."


def _verdicts(results: Results, rows: Sequence[str], metric: str | None) -> dict[str, Verdict]:
    """Return the verdicts by one metric, of the rows that have one."""
    of_rows = {row: results.verdict(row, metric) for row in rows}
    return {row: verdict for row, verdict in of_rows.items() if verdict is not None}


def _parts(results: Results, verdicts: dict[str, Verdict]) -> list[str]:
    texts = {
        Verdict.BETTER: ("is better than the baseline", "are better than the baseline"),
        Verdict.WORSE: ("is worse than the baseline", "are worse than the baseline"),
        Verdict.NO_DIFFERENCE: (
            f"differs from the baseline by less than {results.negligible.bleu:g} BLEU",
            f"differ from the baseline by less than {results.negligible.bleu:g} BLEU",
        ),
    }
    parts = []
    for verdict, (one, many) in texts.items():
        rows = _of(verdicts, verdict)
        if rows:
            parts.append(f"{and_list(rows, _MOST_NAMES)} {one if len(rows) == 1 else many}")
    unknown = _of(verdicts, Verdict.CANNOT_TELL)
    if unknown:
        baseline = "it" if parts else "the baseline"
        names = and_list(unknown, _MOST_NAMES)
        parts.append(f"{_runs(results, unknown)} cannot tell {names} from {baseline}")
    return parts


def _runs(results: Results, rows: Sequence[str]) -> str:
    """Return what rows and the baseline have been compared by: all seeds, or fewer runs."""
    compared = [row for row in results.summaries if row.name in (results.baseline.name, *rows)]
    is_whole = all(row.is_complete for row in compared)
    return counted(len(results.seeds), "seed") if is_whole else "the runs that are done"


def _diverged(results: Results) -> list[str]:
    """Return which rows diverged, those with as many seeds together."""
    rows: dict[int, list[str]] = {}
    for row, seeds in results.diverged.items():
        rows.setdefault(len(seeds), []).append(row)
    n_seeds = len(results.seeds)
    return [
        f"{and_list(names, _MOST_NAMES)} diverged with {of_seeds(n, n_seeds)}"
        for n, names in rows.items()
    ]


def _by_loss(results: Results, rows: Sequence[str], by_bleu: dict[str, Verdict]) -> str:
    """Return sentences on rows for which the loss gives another verdict than BLEU."""
    by_loss = _verdicts(results, rows, results.loss)
    parts = [
        f"{and_list(named, _MOST_NAMES)} {'is' if len(named) == 1 else 'are'} {verdict}"
        for verdict in (Verdict.BETTER, Verdict.WORSE)
        if (named := [row for row in _of(by_loss, verdict) if by_bleu.get(row) is not verdict])
    ]
    return f"; by NLL, {' and '.join(parts)}" if parts else ""


def _of(verdicts: dict[str, Verdict], kind: Verdict) -> list[str]:
    return [row for row, verdict in verdicts.items() if verdict is kind]
