"""Contracts of parts, and tests of whether a part keeps them: for this package's and for others."""

from ablate.contracts.case import Case
from ablate.contracts.check import Finding, check_part, contracts_of, keep
from ablate.contracts.faults import ContractError, contract_of, watched

__all__ = [
    "Case",
    "ContractError",
    "Finding",
    "check_part",
    "contract_of",
    "contracts_of",
    "keep",
    "watched",
]
