"""Whether a stored record was made by this code, these libraries and this kind of machine."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ablate.registry import digest_of_code
from ablate.runner import provenance
from ablate.runner.devices import Device

_PACKAGE = Path(__file__).parents[1]


def stale_reason(record: Mapping[str, Any], device: Device) -> str | None:
    """Return why a record is not of this code and machine, in words; None if it is.

    A run's identity covers its spec and not the code that executed it: a record made before a
    change of the code is no evidence about the code after it.

    Args:
        record: of a run that has ended.
        device: that it would be repeated on.
    """
    if (record.get("git") or {}).get("code") != code_digest():
        return "the code has changed since"
    return other_machine(record, device)


def stale_remarks(
    records: Mapping[tuple[str, int], Mapping[str, Any]], device: Device
) -> list[str]:
    """Return a sentence for each way in which records are not of this code and machine.

    Args:
        records: of finished runs, by row and seed.
        device: that they would be repeated on.
    """
    rows_by_reason: dict[str, list[str]] = {}
    for (row, _), record in records.items():
        reason = stale_reason(record, device)
        if reason is not None:
            rows_by_reason.setdefault(reason, []).append(row)
    return [
        f"{len(rows)} of {len(records)} runs ({', '.join(dict.fromkeys(rows))}) were not made by "
        f"this code on this machine: {reason}; `ablate run --fresh` trains them again"
        for reason, rows in rows_by_reason.items()
    ]


@cache
def code_digest() -> str:
    """Return the fingerprint of the code that runs: the text of every module of the package."""
    return digest_of_code(_PACKAGE)


def other_machine(record: Mapping[str, Any], device: Device) -> str | None:
    """Return which library or hardware of a run differs from the present; None if none does."""
    versions, hardware = _present(device)
    its_versions, its_hardware = record.get("versions", {}), record.get("hardware", {})
    for name in {**versions, **its_versions}:
        if versions.get(name) != its_versions.get(name):
            here = f"here is {versions.get(name)}"
            return f"it was made with {name} {its_versions.get(name)}, and {here}"
    for key in ("device_name", "cpu", "cpu_kind"):
        if its_hardware.get(key) != hardware[key]:
            return f"it was made on {its_hardware.get(key)}, and here is {hardware[key]}"
    return None


@cache
def _present(device: Device) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the versions and the hardware of a device."""
    return provenance.versions(), provenance.hardware_of(device)
