"""The contracts of parts, and their tests, for parts of this package and of plugins."""

from ablate.contracts.check import Finding, check_contract, check_part, contracts_of
from ablate.contracts.faults import ContractError, watched
from ablate.contracts.tiny import Case

__all__ = [
    "Case",
    "ContractError",
    "Finding",
    "check_contract",
    "check_part",
    "contracts_of",
    "watched",
]
