"""Every registered part keeps every contract of its slot, by the code of ``ablate check``."""

from __future__ import annotations

import pytest

from ablate.contracts import Case, check_contract, contracts_of
from ablate.registry import lookup, slots

ALL = [(slot, name) for slot, table in slots().items() for name in table]
KEPT = [(slot, name, contract) for slot, name in ALL for contract in contracts_of(slot)]


@pytest.fixture(scope="module")
def cases() -> dict[tuple[str, str], Case]:
    """The part at hand, so that its model is assembled once for all its contracts."""
    return {}


@pytest.mark.parametrize(("slot", "name", "contract"), KEPT)
def test_a_part_keeps_its_contract(
    slot: str, name: str, contract: str, cases: dict[tuple[str, str], Case]
) -> None:
    if (slot, name) not in cases:
        cases.clear()
        cases[slot, name] = Case(lookup(slot, name))
    check_contract(cases[slot, name], contracts_of(slot)[contract])
