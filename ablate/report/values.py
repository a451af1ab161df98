"""How values are written for readers: numbers, differences, intervals, and choices of parts.

Numbers have few digits, the same in a whole column, and a true minus.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ablate.analysis.statistics import Interval
from ablate.config.rows import compact
from ablate.registry import choosable
from ablate.wording import and_list, counted

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
NOTHING = "\N{EN DASH}"  # where there should be a value and is none

BLEU_DECIMALS, LOSS_DECIMALS = 1, 3
_DECIMALS = {"nll": LOSS_DECIMALS, "bits_per_character": LOSS_DECIMALS, "perplexity": 2}
_NAMES = {
    "bleu": "BLEU",
    "bleu_lc_tok": "BLEU lc tok",
    "nll": "NLL",
    "chrf": "chrF",
    "bits_per_character": "bits/char",
}
MOST_NAMES = 4  # of rows in a sentence, where more are counted
_LONGEST = 12  # characters of a number without an exponent
Key = TypeVar("Key")
Value = TypeVar("Value")
_UNCLEAR = re.compile("all|any|both|each|few|half|more|most|neither|none|some|.*(, | and ).*")


def number(value: float, decimals: int) -> str:
    """Write ``value`` with ``decimals`` digits after the point."""
    if math.isnan(value):
        return "NaN"
    text = "∞" if math.isinf(value) else f"{abs(value):.{decimals}f}"
    if len(text) > _LONGEST:
        text = f"{abs(value):.1e}"
    return text if value >= 0 or not text.strip("0.") else MINUS + text


def signed(value: float, decimals: int) -> str:
    """Write a difference: ``+0.31``, ``-1.20`` with a true minus, and ``0.00`` without a sign."""
    text = number(value, decimals)
    return f"+{text}" if value > 0 and text.strip("0.") else text


def percent_change(share: float) -> str:
    """Write a share of change: 0.0262 is ``+2.6%``, 0.0002 ``+0.02%``, and 0 an empty text."""
    if share == 0:
        return ""
    text = signed(100 * share, 1 if abs(share) >= 0.001 else 2)
    return f"{text}%" if text.strip("0.") else "<0.01%"


def of_seeds(n: int, n_seeds: int) -> str:
    """Write ``all seeds``, or how many there are of all: ``1 of 3 seeds``."""
    return "all seeds" if n == n_seeds else f"{n} of {counted(n_seeds, 'seed')}"


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key, in the order of the pairs."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def row_names(names: Sequence[str], most: int | None = None) -> str:
    """Return names of rows for a sentence, in quotes those that would count or list rows in it."""
    quoted = [f"“{name}”" if _UNCLEAR.fullmatch(name) else name for name in names]
    return and_list(quoted, most)


def measure_name(metric: str) -> str:
    """Return what the header of a column calls a score or a loss."""
    kind = metric.rpartition(".")[2]
    return _NAMES.get(kind, kind)


def measure_decimals(metric: str) -> int:
    """Return with how many decimals a score or a loss is written."""
    return _DECIMALS.get(metric.rpartition(".")[2], BLEU_DECIMALS)


def interval_text(interval: Interval | None, decimals: int) -> str:
    """Write an interval of a difference; a dash where there is none.

    An end near 0 has as many more decimals as show on which side it lies, three at most.
    """
    if interval is None:
        return NOTHING
    ends = []
    for end in (interval.low, interval.high):
        precise = (n for n in range(decimals, decimals + 4) if not end or round(end, n))
        ends.append(signed(end, next(precise, decimals)))
    return f"[{', '.join(ends)}]"


def interval_ends(interval: Interval | None, prefix: str = "") -> dict[str, float | None]:
    """Return both ends of an interval as fields of a CSV, named after the prefix."""
    low, high = (interval.low, interval.high) if interval else (None, None)
    return {f"{prefix}low": low, f"{prefix}high": high}


def format_value(value: Any, path: str = "") -> str:
    """Write a value compactly: ``relu(d_ff=256)``; with its path without options at defaults."""
    if path and isinstance(value, Mapping) and "name" in value:
        entry = choosable(path.split(".")[-1]).get(value["name"])
        fields = entry.options.model_fields if entry else {}
        defaults = {k: compact(of.default) for k, of in fields.items() if not of.is_required()}
        value = {k: v for k, v in value.items() if k == "name" or defaults.get(k) != compact(v)}
    return compact(value, NOTHING)
