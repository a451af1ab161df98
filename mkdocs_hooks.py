"""The README as the site's first page, and links to files that the site does not hold."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add README.md as ``index.md``, its links seen from ``docs/``."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    seen = _LINK.sub(lambda link: f"]({posixpath.relpath(link[1], 'docs')}", text)
    files.append(File.generated(config, "index.md", content=seen))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Make links to files that are not in the site links to the repository."""

    def absolute(link: re.Match[str]) -> str:
        folder = posixpath.dirname(page.file.src_uri)
        target = posixpath.normpath(posixpath.join(folder, link[1]))
        if files.get_file_from_path(target) is not None:
            return link[0]
        path = posixpath.normpath(posixpath.join("docs", target))
        if not (ROOT / path).exists():
            return link[0]  # which the build then reports
        return f"]({config.repo_url}/blob/main/{path}"

    return _LINK.sub(absolute, markdown)
