"""Every registered part keeps every contract of its slot, by the code of ``ablate check``."""

from __future__ import annotations

import pytest

from ablate.contracts import Case, check_contract, contracts_of
from ablate.registry import lookup, slots

PARTS = [(slot, name) for slot, table in slots().items() for name in table]


@pytest.mark.parametrize(("slot", "name"), PARTS)
def test_a_part_keeps_its_contracts(slot: str, name: str) -> None:
    case = Case(lookup(slot, name))  # its model is assembled once for all of them
    for contract in contracts_of(slot).values():
        check_contract(case, contract)
