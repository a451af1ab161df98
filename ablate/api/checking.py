"""``ablate check``: whether parts from outside keep the contracts of their slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ablate.contracts import Finding, check_part
from ablate.registry import Entry, lookup, plugins, slots
from ablate.registry.plugins import load_plugin

Listener = Callable[[Finding], None]


def check(files: Sequence[Path | str] = (), listener: Listener = lambda _: None) -> list[Finding]:
    """Test every contract of the parts that plugins register.

    Args:
        files: plugins; without any, all that are loaded or installed.
        listener: is given each finding when it is there.

    Raises:
        PluginError: if a plugin cannot be loaded, or registers a part that is refused.
    """
    digests = {load_plugin(file).sha256 for file in files} or {p.sha256 for p in plugins()}
    findings = []
    for entry in _parts_of(digests):
        for finding in check_part(entry):
            listener(finding)
            findings.append(finding)
    return findings


def _parts_of(digests: set[str]) -> Iterator[Entry]:
    for slot, table in slots().items():
        for name in table:
            entry = lookup(slot, name)
            if entry.origin is not None and entry.origin.sha256 in digests:
                yield entry


__all__ = ["Finding", "check"]
