"""Durations are measured by clocks that never go back; the time of day only dates what was made."""

from __future__ import annotations

import ast
from pathlib import Path

import ablate

DATES = {  # modules that may ask for the time of day, and what they do with it
    "runner/provenance.py": "dates records, probes and sessions",
    "runner/backends/slurm.py": "names a folder",
}


def test_no_duration_is_measured_by_the_time_of_day() -> None:
    root = Path(ablate.__file__).parent
    asking = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and ast.unparse(node) in ("time.time", "datetime.now", "datetime.utcnow", "date.today")
    }
    assert asking == set(DATES)


def test_no_file_is_judged_by_its_age() -> None:
    root = Path(ablate.__file__).parent
    asking = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr.startswith(("st_mtime", "st_ctime"))
    }
    assert asking == {"data/download.py"}, "where the time only tells whether a file is the same"
