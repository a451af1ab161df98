"""Calls of other benchmarks of this repository."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from records import ROOT

from gpu.script import Setting, WrongError


def run_benchmark(script: str, arguments: Sequence[str], setting: Setting) -> dict[str, Any]:
    """Run a benchmark and return the JSON that it writes.

    Args:
        script: in ``benchmarks/``.
        arguments: of its command line, beside the device and the output.
        setting: of the item.

    Raises:
        WrongError: if it writes none.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.json"
        command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
        command += ["--device", setting.device.type, "--output", str(output)]
        command += ["--corpus", "synthetic"] if setting.reduced else []
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if not output.exists():
            raise WrongError(f"{script} ended with status {status} and left nothing")
        content: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return content
