"""What a machine of a cluster is, as a process there tells, and whether it runs the same code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ablate.runner.devices import Device, DeviceFacts, has_bf16, memory_mib
from ablate.runner.provenance import hardware_of, versions
from ablate.runner.staleness import code_digest


@dataclass(frozen=True)
class NodeFacts:
    """What a process tells of the machine that it runs on.

    Attributes:
        versions: of everything that may move a number.
        code: the digest of this package.
        device: that its runs would be made on.
        sees_results: whether it sees the folder of results of the process that asks.
    """

    versions: Mapping[str, str]
    code: str
    device: DeviceFacts
    sees_results: bool

    @property
    def hardware(self) -> tuple[str, str]:
        """Return what machines must share for the speeds of their runs to be comparable."""
        return self.device.hardware["device_name"], self.device.hardware["cpu_kind"]


def describe(kind: Literal["cpu", "cuda"], marker: Path) -> NodeFacts:
    """Describe this machine.

    Args:
        kind: of device that runs are made on.
        marker: a file in the folder of results of the process that asks.
    """
    device = Device(kind, 0 if kind == "cuda" else None)
    facts = DeviceFacts(hardware_of(device), has_bf16(device), memory_mib(device))
    return NodeFacts(versions(), code_digest(), facts, marker.exists())


def difference(node: NodeFacts) -> str | None:
    """Return how the software of a machine differs from ours, in words; None if it does not."""
    ours = versions()
    for name in {**ours, **node.versions}:
        if node.versions.get(name) != ours.get(name):
            return f"it has {name} {node.versions.get(name)}, and here is {ours.get(name)}"
    if node.code != code_digest():
        return f"its code of ablate {ours['ablate']} is not the code here"
    return None
