"""The picture of the README: the first lines of a table as a terminal shows them.

python -m tests.picture        # rewrites docs/table.svg
"""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

from ablate import api, report

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "table.svg"
WIDTH = 104


def picture() -> str:
    """Return the table of ``experiments/pe.yaml``, made of the records that are kept, as SVG."""
    with tempfile.TemporaryDirectory() as results:
        api.restore(ROOT / "results" / "pe" / "runs.tar.xz", results=results)
        table = api.report("pe", results=results).table
        lines = report.render(table, "terminal", width=WIDTH, is_coloured=True).splitlines()
    rules = [number for number, line in enumerate(lines) if "━" in line]
    first_lines = lines[: rules[1] + 1]
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print("[bold green]$[/] ablate run experiments/pe.yaml", highlight=False)
    console.print(Text.from_ansi("\n".join(first_lines)))
    without_fonts = re.sub(r"@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(title="", theme=MONOKAI, code_format=without_fonts, unique_id="table")


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
