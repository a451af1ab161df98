"""A page opened in a browser, if this machine has one."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no browser on this machine")


def in_browser(folder: Path, content: str) -> dict[str, Any]:
    """Open a page in ``folder``, and return the JSON that its scripts leave in a ``pre``."""
    (folder / "x.html").write_text(content, encoding="utf-8")
    assert BROWSER is not None
    options = "--headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=5000"
    done = subprocess.run(
        [BROWSER, *options.split(), "--window-size=1600,3000", "--dump-dom", "x.html"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    actual = re.search(r"<pre>(.*)</pre>", done.stdout, flags=re.DOTALL)
    assert actual, done.stderr
    return json.loads(html.unescape(actual[1]))
