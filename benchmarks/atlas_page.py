"""Write docs/atlas.md: what each part is worth on the invented language and on real text.

    ablate run atlas && ablate run multi30k/atlas && ablate run multi30k/atlas_fr
    python benchmarks/atlas_page.py

Reads the tables under results/ that `CORPORA` names. A row that an experiment has not finished has
no value there, and counts nowhere.
"""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from scipy import stats

from ablate.analysis.statistics import Interval
from ablate.registry import slots
from ablate.report.values import BLEU_DECIMALS, interval_text, signed
from ablate.store import write_whole
from ablate.writing import csv_rows

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "atlas.md"
CORPORA = {
    "invented": ("atlas", "table.csv", "an invented language, 500 steps, 5 seeds"),
    "en-de": (
        "multi30k/atlas",
        "table.csv",
        "Multi30k from English to German, 4,000 steps in bf16, two seeds, a third of open rows",
    ),
    "en-fr": (
        "multi30k/atlas_fr",
        "table.csv",
        "the same to French, seeds alike, of the rows that German decides and ten others (chosen "
        "so, rows agree more than all would)",
    ),
}
"""The experiment of each column, its table, and what its runs are."""
COSTS = ("params.total.mean", "flops.train.mean")
DECIDED = ("better", "worse", "no difference", "same as the baseline")

HEAD = """\
---
hide: [toc]
---

# The atlas

What each part is worth: the difference in BLEU between a row that has it and a baseline that all
rows share. Brackets hold intervals of 95% for all rows of a column together
([statistics.md](statistics.md)). The difference of a row that diverged counts the runs that did as
0.

A part's name leads to its documentation; optimizers and schedules, each at its best learning rate,
have their differences there. A part has the options that it has by default: most objectives are
without the baseline's smoothing, as cross_entropy is. Parameters and operations (of a training) are
what the part adds to the first experiment's baseline.

In the site a click on a heading sorts, and the field above the table filters: `position better`.
Written by `python benchmarks/atlas_page.py` from the tables of the experiments.
"""


@dataclass(frozen=True)
class Difference:
    """What a row gains over the baseline of its table, in BLEU of the first test set."""

    estimate: float
    interval: Interval | None  # none of a row that diverged or computes the same as the baseline
    verdict: str

    def __str__(self) -> str:
        interval = f"<br>{interval_text(self.interval, BLEU_DECIMALS)}" if self.interval else ""
        return f"{signed(self.estimate, BLEU_DECIMALS)}{interval}"


@dataclass(frozen=True)
class Agreement:
    """How well the differences of one column go with those of another.

    Attributes:
        n: rows with both.
        rho: Spearman's rank correlation.
        interval: of 95% for it, with the variance of Bonett and Wright 2000, Psychometrika 65(1).
        both: how many rows are better or worse in both.
        share: an interval of 95% for the share of these that are so alike (Clopper and Pearson).
        contrary: those that are better in one and worse in the other.
    """

    n: int
    rho: float
    interval: tuple[float, float]
    both: int
    share: tuple[float, float]
    contrary: tuple[str, ...]


Column = Mapping[str, Difference]


def main() -> int:
    """Write the page."""
    parser = ArgumentParser(description="Write docs/atlas.md.")
    parser.add_argument("--output", type=Path, default=PAGE, metavar="FILE")
    output = parser.parse_args().output
    tables = {name: lines_of(path, file) for name, (path, file, _) in CORPORA.items()}
    columns = {name: column(lines) for name, lines in tables.items() if lines}
    write_whole(output, page(columns, added(tables["invented"])))
    sys.stdout.write(f"{output}: {len(columns)} columns\n")
    return 0


def lines_of(experiment: str, table: str = "table.csv") -> list[dict[str, str]]:
    """Return the lines of an experiment's table, none if it has none."""
    file = ROOT / "results" / experiment / table
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv_rows(lines))


def column(lines: Sequence[Mapping[str, str]]) -> Column:
    """Return the differences of the rows whose runs are done, by row."""
    key = next(key for key in lines[0] if key.endswith(".bleu.difference.estimate"))
    start = key.removesuffix("estimate")
    return {
        line["row"]: Difference(
            estimate=float(line[key]),
            interval=_interval(line[f"{start}low"], line[f"{start}high"]),
            verdict="diverged" if int(line["runs.diverged"]) else line[f"{start}verdict"],
        )
        for line in lines
        if line[key] and int(line["runs.missing"]) == 0
    }


def _interval(low: str, high: str) -> Interval | None:
    return Interval(float(low), float(high)) if low else None


def added(lines: Sequence[Mapping[str, str]]) -> Mapping[str, tuple[int, float]]:
    """Return how many parameters each row adds, and which share of a training's operations."""
    n, flops = (float(lines[0][key]) for key in COSTS)
    return {
        line["row"]: (round(float(line[COSTS[0]]) - n), float(line[COSTS[1]]) / flops - 1)
        for line in lines[1:]
    }


def agreement(one: Column, other: Column) -> Agreement:
    """Compare two columns on the rows of both; at least four are needed for an interval."""
    rows = [row for row in one if row in other]
    pairs = [(one[row].estimate, other[row].estimate) for row in rows]
    rho = float(stats.spearmanr(pairs).statistic)
    reach = stats.norm.ppf(0.975) * math.sqrt((1 + rho**2 / 2) / (len(rows) - 3))
    verdicts = {row: (one[row].verdict, other[row].verdict) for row in rows}
    both = {row: pair for row, pair in verdicts.items() if {*pair} <= {"better", "worse"}}
    contrary = tuple(row for row, (a, b) in both.items() if a != b)
    same = len(both) - len(contrary)
    share = stats.binomtest(same, len(both)).proportion_ci() if both else None
    return Agreement(
        n=len(rows),
        rho=rho,
        interval=(math.tanh(math.atanh(rho) - reach), math.tanh(math.atanh(rho) + reach)),
        both=len(both),
        share=(share.low, share.high) if share else (0.0, 1.0),
        contrary=contrary,
    )


def page(columns: Mapping[str, Column], costs: Mapping[str, tuple[int, float]]) -> str:
    """Return the page in Markdown.

    Args:
        columns: the differences, by corpus; the first is the invented language.
        costs: of rows, what they add to the baseline.
    """
    listed = "".join(f"- **{name}**: {counts(name, rows)}\n" for name, rows in columns.items())
    agreed = "".join(
        f"- {a} and {b}: {in_words(agreement(columns[a], columns[b]))}\n"
        for a, b in combinations(columns, 2)
    )
    answer = f"\n## Does one predict the other?\n\n{agreed}" if agreed else ""
    return f"{HEAD}\n{listed}{answer}\n## All rows\n\n{table(columns, costs)}"


def counts(name: str, rows: Column) -> str:
    """Return where a column comes from, and how many rows have which verdict."""
    experiment, _, of = CORPORA[name]
    n = Counter(row.verdict for row in rows.values())
    kinds = [*DECIDED, "cannot tell", *(["diverged"] if n["diverged"] else [])]
    text = ", ".join(f"{n[verdict]} {verdict}" for verdict in kinds)
    link = f"[`{experiment}`](../experiments/{experiment}.yaml)"
    return f"{link}, {of}: {len(rows)} rows, {text}"


def in_words(agreed: Agreement) -> str:
    """Return an agreement as a sentence."""
    rank = f"rank correlation {agreed.rho:.2f} [{agreed.interval[0]:.2f}, {agreed.interval[1]:.2f}]"
    text = f"{rank} over {agreed.n} rows; {agreed.both} rows are better or worse in both"
    if not agreed.both:
        return text
    n_alike, (low, high) = agreed.both - len(agreed.contrary), agreed.share
    contrary = f"; contrary: {', '.join(agreed.contrary)}" if agreed.contrary else ""
    return f"{text}, {n_alike} of them alike ({low:.0%} to {high:.0%}){contrary}"


def table(columns: Mapping[str, Column], costs: Mapping[str, tuple[int, float]]) -> str:
    """Return a line for each row, the best on the last corpus that has it first."""
    known = slots()
    latest = {row: each.estimate for rows in columns.values() for row, each in rows.items()}
    of_corpora = [text for name in columns for text in (f"ΔBLEU {name}", "verdict")]
    lines = [["part", "parameters", "operations", *of_corpora, "computes"]]
    lines.append(["---", "---:", "---:", *("---:", "---") * len(columns), "---"])
    for row in sorted(latest, key=lambda row: -latest[row]):
        slot, _, choice = row.partition(" ")
        part = known[slot][choice.partition(",")[0]]
        n, flops = costs.get(row, (None, None))
        differences = [rows.get(row) for rows in columns.values()]
        cells = [
            f"[{row}](parts.md#{slot}-{part.name})",
            "" if n is None else f"{n:+,}",
            "" if flops is None else f"{flops:+.1%}",
            *(
                text
                for each in differences
                for text in ((str(each), each.verdict) if each else ("", ""))
            ),
            f"`{part.formula}`" if part.formula else part.doc.partition("\n")[0],
        ]
        lines.append([cell.replace("|", "\\|") for cell in cells])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
