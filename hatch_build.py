"""The README for the package index, which has no files that relative links could lead to."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE_LINK = re.compile(r"\]\((?![a-z]+:|#)")


class ReadmeHook(MetadataHookInterface):
    """Makes the relative links of README.md absolute: files of the repository's main branch."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to the metadata of the package."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        base = f"{metadata['urls']['Repository']}/blob/main/"
        absolute = _RELATIVE_LINK.sub(f"]({base}", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute}
