"""The packages of ablate in layers, read from their imports; writes table and picture of the docs.

python -m tests.layers        # rewrites the table in docs/architecture.md, and docs/layers.svg
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import ablate

LAYERS = (
    ("version", "errors", "processes", "lazy_dynamo", "record", "printable", "compression"),
    ("hashing", "wording", "writing", "console", "deprecation"),
    ("cuda_graphs", "index"),
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

PLACES = (
    "cli",
    "api",
    "report",
    "doctor gate exports",
    "analysis runner",
    "contracts measuring store",
    "training",
    ". decoding templates",
    "model data",
    "config",
    "parts",
    "cuda_graphs registry index",
    "errors wording hashing writing console deprecation",
    "record printable compression processes version lazy_dynamo",
)
"""Rows of the picture; a dot is a gap."""
WIDTH, STEP_X, STEP_Y = 760, 122, 54

ROOT = Path(ablate.__file__).parent
LAYER_OF = {package: number for number, layer in enumerate(LAYERS) for package in layer}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")
PAGE = ROOT.parent / "docs" / "architecture.md"
PICTURE = PAGE.with_name("layers.svg")
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


@functools.cache
def imports_of(package: str) -> frozenset[str]:
    """Return the other packages that the files of a package import."""
    files = [file for file in FILES if package_of(file) == package]
    return frozenset(name for file in files for name in imported(file.read_text("utf-8"))) - {
        package
    }


def table() -> str:
    """Return the layers with what each imports, as a table in Markdown."""
    lines = ["| package | imports from |", "|---|---|"]
    for package in LAYER_OF:
        names = sorted(imports_of(package), key=lambda name: (LAYER_OF[name], name))
        lines.append(f"| `{package}` | {', '.join(names)} |")
    return "\n".join(lines) + "\n"


def picture() -> str:
    """Return the layers as an SVG: a line for every import that no chain of others implies.

    Modules that import nothing stand at the bottom, without lines.
    """
    rows = [row.split() for row in PLACES]
    at = {
        package: (WIDTH // 2 + (2 * n - len(row) + 1) * STEP_X // 2, STEP_Y * (number + 1))
        for number, row in enumerate(rows)
        for n, package in enumerate(row)
    }
    lines = [(at[user], at[other]) for user in LAYER_OF for other in _direct(user)]
    begin = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {STEP_Y * (len(rows) + 1)}" '
        'font-family="sans-serif" font-size="13" text-anchor="middle">'
    )
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    imports = [_line(upper, lower) for upper, lower in lines]
    boxes = [_box(package, *at[package]) for package in LAYER_OF]
    return "\n".join([begin, background, *imports, *boxes, "</svg>\n"])


def _direct(package: str) -> list[str]:
    """Return the imports that no chain of others implies, but for those of the lowest modules."""
    others = {other for other in imports_of(package) if imports_of(other)}
    return sorted(other for other in others if not any(other in _below(via) for via in others))


@functools.cache
def _below(package: str) -> frozenset[str]:
    """Return all packages that a package imports, or what it imports does."""
    return imports_of(package).union(*map(_below, imports_of(package)))


def _line(upper: tuple[int, int], lower: tuple[int, int]) -> str:
    ends = f'x1="{upper[0]}" y1="{upper[1] + 15}" x2="{lower[0]}" y2="{lower[1] - 15}"'
    return f'<line {ends} stroke="#8a94a6"/>'


def _box(package: str, x: int, y: int) -> str:
    box = f'<rect x="{x - 54}" y="{y - 15}" width="108" height="30" rx="5"'
    return (
        f'{box} fill="#eef2f8" stroke="#44546a"/><text x="{x}" y="{y + 5}" fill="#1b2433">'
        f"{package}</text>"
    )


def written() -> str:
    """Return the table as the page has it."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + table() + END + rest.partition(END)[2], encoding="utf-8")
    PICTURE.write_text(picture(), encoding="utf-8")
