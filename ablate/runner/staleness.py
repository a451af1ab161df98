"""Whether a stored record was made by this code, these libraries and this kind of machine."""

from __future__ import annotations

import subprocess
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
    return _other_code(record.get("git") or {}) or other_machine(record, device)


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
        f"this code on this machine: {reason}; --fresh trains them again"
        for reason, rows in rows_by_reason.items()
    ]


@cache
def code_digest() -> str:
    """Return the fingerprint of the code that runs: the text of every module of the package."""
    return digest_of_code(_PACKAGE)


def _other_code(git: Mapping[str, Any]) -> str | None:
    if "code" in git:
        return None if git["code"] == code_digest() else "the code has changed since"
    present = provenance.git()
    commit = git.get("commit")
    if commit is None and present["commit"] is None:
        return None  # both are of an installed package, whose version is compared below
    if commit is None or present["commit"] is None:
        return "it is not from a checkout of this code"
    if not git.get("is_clean"):
        return f"its code was commit {commit[:12]} with changes that were not committed"
    if not present["is_clean"]:
        return "the code here has changes that are not committed"
    return f"its code was commit {commit[:12]}, which differs" if _differs(commit) else None


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


@cache
def _differs(commit: str) -> bool:
    """Return whether the package of a commit differs from this one, or git cannot tell."""
    try:
        process = subprocess.run(
            ["git", "-C", str(_PACKAGE), "diff", "--quiet", commit, "--", "."],
            capture_output=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return True
    return process.returncode != 0
