"""Durations are measured by clocks that never go back; the time of day only dates what was made."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path

import ablate

SOURCES = [*Path(ablate.__file__).parent.rglob("*.py")]
TIMES_OF_DAY = ("time.time", "datetime.now", "datetime.utcnow", "date.today")
DATES = {  # modules that may ask for the time of day, and what they do with it
    "console.py": "dates events",
    "runner/provenance.py": "dates records, probes and sessions",
    "runner/backends/slurm.py": "names a folder",
}


def test_no_duration_is_measured_by_the_time_of_day() -> None:
    def asks(node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):  # and then called by its name alone
            return node.module == "time" and "time" in {each.name for each in node.names}
        return isinstance(node, ast.Attribute) and ast.unparse(node).endswith(TIMES_OF_DAY)

    assert asking(asks, (*TIMES_OF_DAY, "from time import")) == set(DATES)


def test_no_file_is_judged_by_its_age() -> None:
    ages = ("st_mtime", "st_ctime")

    def asks(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr.startswith(ages)

    expected = {"data/download.py", "index.py"}
    assert asking(asks, ages) == expected, "where the time only tells whether a file is the same"


def asking(asks: Callable[[ast.AST], bool], words: Sequence[str]) -> set[str]:
    """Return the modules with such an expression; only those with one of the words are parsed."""
    texts = {file: file.read_text(encoding="utf-8") for file in SOURCES}
    return {
        file.relative_to(Path(ablate.__file__).parent).as_posix()
        for file, text in texts.items()
        if any(word in text for word in words) and any(map(asks, ast.walk(ast.parse(text))))
    }
