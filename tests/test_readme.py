"""The table in the README is one that the command beside it has written."""

from pathlib import Path

ROOT = Path(__file__).parents[1]


def first_table(page: Path) -> list[dict[str, str]]:
    """Return the rows of a page's first table, by what heads their columns."""
    lines = page.read_text(encoding="utf-8").splitlines()
    heads, _, *rows = [line.strip("|").split("|") for line in lines if line.startswith("|")]
    n = next((i for i, row in enumerate(rows) if len(row) != len(heads)), len(rows))
    return [
        {head.strip(): cell.strip() for head, cell in zip(heads, row, strict=True)}
        for row in rows[:n]
    ]


def test_the_readme_shows_the_table_that_is_kept() -> None:
    shown, kept = first_table(ROOT / "README.md"), first_table(ROOT / "results" / "pe" / "table.md")
    assert {"BLEU test", "ΔBLEU test", "train k tok/s"} <= shown[0].keys()
    for row, whole in zip(shown, kept, strict=True):
        assert row.items() <= whole.items()
