"""The packages of ablate in layers, read from their imports; writes the picture in the docs.

python -m tests.layers        # rewrites the picture in docs/architecture.md
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import ablate

LAYERS = (
    ("version", "errors", "processes", "lazy_dynamo", "part_packages", "record", "writing"),
    ("hashing", "wording"),
    ("cuda_graphs",),
    ("registry",),
    ("parts",),
    ("config",),
    ("model",),
    ("data",),
    ("decoding",),
    ("training",),
    ("measuring",),
    ("contracts", "templates"),
    ("store",),
    ("runner",),
    ("analysis", "exports"),
    ("gate",),
    ("report",),
    ("doctor",),
    ("api",),
    ("cli",),
)
"""Lowest first: a package imports only from layers above it in this list, never from its own."""

ROOT = Path(ablate.__file__).parent
LAYER_OF = {package: number for number, layer in enumerate(LAYERS) for package in layer}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
PAGE = ROOT.parent / "docs" / "architecture.md"
BEGIN, END = "<!-- layers: written by python -m tests.layers -->\n", "<!-- end of layers -->\n"


def package_of(file: Path) -> str:
    """Return the package (or module) of the lowest level that a file belongs to."""
    return file.relative_to(ROOT).with_suffix("").parts[0]


@functools.cache
def imported(source: str) -> list[str]:
    """Return the packages of ablate that a file imports, wherever in it the import stands."""
    packages: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "ablate":
            names = [f"ablate.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        packages += [name.split(".")[1] for name in names if name.startswith("ablate.")]
    return packages


def forbidden(package: str, source: str) -> list[str]:
    """Return the imports of a file in ``package`` that its layer does not allow."""
    return [
        other
        for other in imported(source)
        if other != package and LAYER_OF.get(other, len(LAYERS)) >= LAYER_OF[package]
    ]


def picture() -> str:
    """Return the layers with what each imports, as a table in Markdown."""
    lines = ["| package | imports from |", "|---|---|"]
    for layer in LAYERS:
        for package in layer:
            files = [file for file in FILES if package_of(file) == package]
            texts = [file.read_text(encoding="utf-8") for file in files]
            others = {other for text in texts for other in imported(text)} - {package}
            names = ", ".join(sorted(others, key=lambda name: (LAYER_OF[name], name)))
            lines.append(f"| `{package}` | {names} |")
    return "\n".join(lines) + "\n"


def written() -> str:
    """Return the picture as the page has it."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + picture() + END + rest.partition(END)[2], encoding="utf-8")
