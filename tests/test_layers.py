"""A room imports only from the rooms above it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import ablate

HOUSE = (
    ("version", "errors", "processes", "cuda_graphs", "writing"),
    ("registry",),
    ("parts",),
    ("config",),
    ("model",),
    ("data",),
    ("decoding",),
    ("training",),
    ("measuring",),
    ("store",),
    ("runner",),
    ("analysis",),
    ("report",),
    ("api",),
    ("cli",),
)
"""Top to bottom; rooms on one line may not import each other either."""

ROOT = Path(ablate.__file__).parent
FLOOR = {room: number for number, rooms in enumerate(HOUSE) for room in rooms}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def _room(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").parts[0]


def _imported(source: str) -> Iterator[str]:
    """Yield the rooms of this package that a file imports, wherever in it the import stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "ablate":
            names = [f"ablate.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        yield from (name.split(".")[1] for name in names if name.startswith("ablate."))


def _trespasses(room: str, source: str) -> list[str]:
    return [
        other
        for other in _imported(source)
        if other != room and FLOOR.get(other, len(HOUSE)) >= FLOOR[room]
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_imports_only_from_rooms_above_its_own(file: Path) -> None:
    assert _room(file) in FLOOR, "a new room needs its place in the house"
    assert _trespasses(_room(file), file.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "from ablate.store import Store",
        "import ablate.store",
        "from ablate import store",
        "def late():\n    from ablate.store import Store",
        "from ablate.cellar import wine",
    ],
)
def test_an_import_from_below_is_seen(source: str) -> None:
    assert _trespasses("data", source) != []


def test_an_import_from_above_or_from_the_same_room_is_allowed() -> None:
    assert _trespasses("data", "from ablate.data import corpus\nimport ablate.errors") == []
