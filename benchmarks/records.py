"""What scripts share: records with the provenance of their numbers, and processes of their own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
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


def in_a_process(
    words: Sequence[str], environment: Mapping[str, str], cwd: Path | None = None
) -> dict[str, Any]:
    """Run Python with some words; return the JSON of its last line.

    Raises:
        SystemExit: if it fails, with its errors.
    """
    done = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{shlex.join(words)}: {done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def restart_with(environment: Mapping[str, str], words: Sequence[str] = sys.argv) -> None:
    """Restart this process with the environment of a run, unless it has that already."""
    if any(os.environ.get(name) != value for name, value in environment.items()):
        os.execve(sys.executable, [sys.executable, *words], {**os.environ, **environment})


def say(text: str, end: str = "\n") -> None:
    """Print at once."""
    sys.stdout.write(text + end)
    sys.stdout.flush()
