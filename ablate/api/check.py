"""``ablate check``: whether parts of plugins keep the contracts of their slots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ablate.contracts import Finding, check_part
from ablate.errors import SpecError
from ablate.registry import plugins, slots
from ablate.registry.plugins import load_plugin


def check(files: Path | str | Sequence[Path | str] = ()) -> list[Finding]:
    """Test every contract of the parts that plugins register, by default all that are loaded.

    Raises:
        PluginError: if a plugin cannot be loaded, or registers a part that is refused.
        SpecError: if a file is an experiment.
    """
    files = [files] if isinstance(files, Path | str) else files
    for file in files:
        if Path(file).suffix in (".yaml", ".yml"):
            raise SpecError(f"{file}: is an experiment, not a plugin; `ablate plan` checks it")
    digests = {load_plugin(file).sha256 for file in files} or {p.sha256 for p in plugins()}
    return [
        finding
        for table in slots().values()
        for entry in table.values()
        if entry.origin is not None and entry.origin.sha256 in digests
        for finding in check_part(entry)
    ]
