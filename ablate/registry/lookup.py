"""Find parts by name, and make them.

The first look-up imports every package and every installed distribution that registers parts.
"""

from __future__ import annotations

from typing import Any, TypeVar

from ablate.registry.plugins import filled_table
from ablate.registry.table import Choice, Entry, Part, refusals
from ablate.wording import no_such

P = TypeVar("P", bound=Part)


def lookup(slot: str, name: str) -> Entry:
    """Find a part by name; a ValueError has the nearest name, and all that are registered."""
    table = filled_table()[slot]
    if name in table:
        return table[name]
    raise ValueError(no_such(slot, name, sorted(table)))


def slots() -> dict[str, dict[str, Entry]]:
    """Return every slot with its parts, for listings and for tests that visit all of them."""
    return {slot: dict(table) for slot, table in filled_table().items()}


def choosable(key: str) -> dict[str, Entry]:
    """Return the parts that a key of an experiment chooses from; none if it chooses no part."""
    return slots().get("attention" if key == "cross_attention" else key, {})


def label(cls: type[Part]) -> str:
    """Return ``slot: name`` of a registered class, and the class's own name of any other."""
    for name, entry in slots()[cls.slot].items():
        if entry.cls is cls:
            return f"{cls.slot}: {name}"
    return cls.__name__


def choose(slot: type[Part], name: str, **options: Any) -> Choice:
    """Return a checked choice, for use from Python: ``choose(Position, "learned")``."""
    return lookup(slot.slot, name).choose(options)


def build(slot: type[P], choice: Choice, *arguments: object, at: str = "") -> P:
    """Make the chosen part with the positional arguments of its slot's contract.

    ``at`` is the dotted path of the choice in the experiment, for the message of a refusal.

    Raises:
        RefusedError: if the part refuses its arguments.
    """
    with refusals(at or slot.slot):
        part = lookup(slot.slot, choice.name).cls(*arguments, **choice.options)
    assert isinstance(part, slot)
    return part
