"""The defaults of all options are those that docs/parts.md states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ablate.registry import slots

PAGE = Path(__file__).parents[2] / "docs" / "parts.md"
SECTION = re.compile(r"^### (\w+): (\w+)\n(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `(\w+)` \| .*? (?<!\\)\| (.*?) (?<!\\)\|", re.MULTILINE)


def stated(slot: str) -> dict[str, dict[str, str]]:
    """Return the defaults of every part of a slot, as the page has them."""
    sections = SECTION.findall(PAGE.read_text(encoding="utf-8"))
    return {name: dict(ROW.findall(text)) for of_slot, name, text in sections if of_slot == slot}


def written(value: object) -> str:
    plain = {None: "null", True: "true", False: "false"}
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return plain[value] if isinstance(value, bool | None) else str(value)


@pytest.mark.parametrize("slot", sorted(slots()))
def test_defaults_are_those_of_the_page(slot: str) -> None:
    for name, entry in slots()[slot].items():
        fields = entry.options.model_fields.items()
        defaults = {key: written(field.default) for key, field in fields if not field.is_required()}
        page = {key: value for key, value in stated(slot)[name].items() if key in defaults}
        assert page == defaults, name
