"""Remarks for the user, on standard error, so that a table on standard output stays clean."""

from ablate.console import Console


def print_remark(text: str) -> None:
    """Print one line of plain text, which wraps where the terminal ends."""
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)
