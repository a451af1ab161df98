"""A page opened in a browser, if this machine has one."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")


def in_browser(folder: Path, content: str) -> dict[str, Any]:
    """Open a page in ``folder``, and return the JSON that its scripts leave in a ``pre``."""
    done = _open(folder, content, "--hide-scrollbars --window-size=1600,3000 --dump-dom")
    actual = re.search(r"<pre>(.*)</pre>", done.stdout, flags=re.DOTALL)
    assert actual, done.stderr
    return json.loads(html.unescape(actual[1]))


def n_texts_on_paper(folder: Path, content: str) -> int:
    """Return how many pieces of text a page has as PDF."""
    done = _open(folder, content, "--no-pdf-header-footer --print-to-pdf=x.pdf")
    pdf = (folder / "x.pdf").read_bytes()
    streams = re.findall(rb"/FlateDecode.*?stream\r?\n(.*?)\r?\nendstream", pdf, flags=re.DOTALL)
    assert streams, done.stderr
    return sum(len(re.findall(rb"T[jJ]\b", zlib.decompress(each))) for each in streams)


def _open(folder: Path, content: str, options: str) -> subprocess.CompletedProcess[str]:
    (folder / "x.html").write_text(content, encoding="utf-8")
    assert BROWSER is not None
    always = "--headless --no-sandbox --disable-gpu --virtual-time-budget=5000"
    return subprocess.run(
        [BROWSER, *always.split(), *options.split(), "x.html"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
