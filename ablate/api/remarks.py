"""Remarks for the user, on standard error, so that standard output holds the table alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ablate.console import Console
from ablate.runner import devices
from ablate.runner.devices import Device
from ablate.runner.provenance import stale_remarks
from ablate.store import is_finished


def print_remark(text: str) -> None:
    """Print one line of plain text, which wraps where the terminal ends."""
    Console(stderr=True).print(text, markup=False, highlight=False, soft_wrap=True)


def remarks_on(records: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each way in which finished runs are not of this code and machine.

    Runs that were made on CPUs are compared with this machine's CPU, even if it has a GPU.
    """
    finished = {key: record for key, record in records.items() if is_finished(record)}
    kinds = {record.get("hardware", {}).get("device") for record in finished.values()}
    device = Device("cpu") if kinds <= {"cpu"} else devices.find("auto")[0]
    return stale_remarks(finished, device)
