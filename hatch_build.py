"""What a wheel holds beside the code: a README for the package index, and the code's commit."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
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


class CommitHook(BuildHookInterface[Any]):
    """Adds ``ablate/commit.json``, so that runs of an installed package can name their commit."""

    PLUGIN_NAME = "custom"
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the file, unless the checkout itself is installed or the code is in none."""
        if version == "editable" or self._git("ls-files", "--error-unmatch", "ablate") is None:
            return
        is_clean = self._git("status", "--porcelain", "--", "ablate") == ""
        self._folder = tempfile.TemporaryDirectory()
        file = Path(self._folder.name) / "commit.json"
        content = {"commit": self._git("rev-parse", "HEAD"), "is_clean": is_clean}
        file.write_text(json.dumps(content), encoding="utf-8")
        build_data["force_include"][str(file)] = "ablate/commit.json"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was written for the build."""
        if self._folder is not None:
            self._folder.cleanup()

    def _git(self, *words: str) -> str | None:
        try:
            done = subprocess.run(["git", *words], cwd=self.root, capture_output=True, text=True)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None
