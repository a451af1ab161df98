"""Hardware and software of a cluster's node, determined by a process there."""

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
    """Hardware and software of the machine that a process runs on.

    Attributes:
        versions: of all libraries that numbers may depend on.
        code: the digest of this package.
        device: on which it would execute runs.
        shares_results: whether the folder of results of the calling process is visible there.
    """

    versions: Mapping[str, str]
    code: str
    device: DeviceFacts
    shares_results: bool


def describe_node(kind: Literal["cpu", "cuda"], marker: Path) -> NodeFacts:
    """Describe this machine.

    Args:
        kind: of device that runs are executed on.
        marker: a file in the folder of results of the calling process.
    """
    device = Device(kind, 0 if kind == "cuda" else None)
    return NodeFacts(versions(), code_digest(), facts_of(device), marker.exists())


def facts_of(device: Device) -> DeviceFacts:
    """Return the facts about a device of this machine."""
    return DeviceFacts(hardware_of(device), has_bf16(device), memory_mib(device))


def software_difference(node: NodeFacts) -> str | None:
    """Return how a node's software differs from this machine's, in words; None if it does not."""
    ours = versions()
    for name in {**ours, **node.versions}:
        if node.versions.get(name) != ours.get(name):
            return f"it has {name} {node.versions.get(name)}, this machine {ours.get(name)}"
    if node.code != code_digest():
        return f"its code of ablate {ours['ablate']} differs from this machine's"
    return None
