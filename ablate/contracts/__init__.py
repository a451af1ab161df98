"""The contracts of parts, and their tests, for parts of this package and of plugins."""

from ablate.contracts.case import Case
from ablate.contracts.check import Finding, check_contract, check_part, contracts_of
from ablate.contracts.faults import ContractError, watched

__all__ = [
    "Case",
    "ContractError",
    "Finding",
    "check_contract",
    "check_part",
    "contracts_of",
    "watched",
]
