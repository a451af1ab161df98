"""The provenance of a benchmark's numbers, in every record: date, machine, versions, command."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ablate.runner import provenance
from ablate.store import write_whole

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "benchmarks"


def origin(device: str) -> dict[str, Any]:
    """Return the provenance of numbers that this process or its children measure now."""
    arguments = [_portable(argument) for argument in sys.argv[1:]]
    return {
        "date": provenance.now(),
        "hardware": provenance.hardware(device),
        "versions": provenance.versions(),
        "git": provenance.git(),
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments]),
    }


def _portable(argument: str) -> str:
    """Return an argument without the folders of this machine: from the repository on, or a name."""
    path = Path(argument)
    if not path.is_absolute():
        return argument
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name


def write(file: Path, content: Mapping[str, Any]) -> None:
    """Write a record as JSON, and print its path."""
    write_whole(file, json.dumps(content, indent=1) + "\n")
    say(f"\n{file}")


def say(text: str, end: str = "\n") -> None:
    """Print at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()
