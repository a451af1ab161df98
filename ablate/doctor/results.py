"""The result of a check, and of all checks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

Outcome = Literal["ok", "warning", "broken", "not applicable"]
Figure = float | int | str


@dataclass(frozen=True)
class Target:
    """What is examined."""

    devices: str  # as ``--device`` names them
    results: Path
    device: str = ""  # that a check is about; empty for a check of the whole machine


@dataclass(frozen=True)
class CheckResult:
    """The result of one check.

    It is ``broken`` if runs would fail or be wrong, and a ``warning`` if they would be slower or
    less than the machine allows.
    """

    outcome: Outcome
    sentence: str  # what was observed, with its figures, and what to do about it
    figures: Mapping[str, Figure] = field(default_factory=dict)  # units are in the names
    name: str = ""  # of the check
    device: str = ""  # empty for the whole machine
    seconds: float = 0.0  # that the check took

    def to_line(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> CheckResult:
        """Return the result that a line of JSON holds; ValueError or TypeError if none."""
        return cls(**json.loads(line))


def ok(sentence: str, **figures: Figure) -> CheckResult:
    """Return that all is as it should be."""
    return CheckResult("ok", sentence, figures)


def warning(sentence: str, **figures: Figure) -> CheckResult:
    """Return that runs go on, slower or with less than the machine allows."""
    return CheckResult("warning", sentence, figures)


def broken(sentence: str, **figures: Figure) -> CheckResult:
    """Return that runs would fail, or be wrong."""
    return CheckResult("broken", sentence, figures)


def not_applicable(sentence: str, **figures: Figure) -> CheckResult:
    """Return that there is nothing to check on this machine."""
    return CheckResult("not applicable", sentence, figures)


@dataclass(frozen=True)
class Diagnosis:
    """The results of all checks, in their order."""

    results: tuple[CheckResult, ...]

    @property
    def exit_status(self) -> int:
        """Return 1 if something is broken, else 0."""
        return int(any(result.outcome == "broken" for result in self.results))

    def to_json(self) -> dict[str, Any]:
        """Return plain data for scripts."""
        return {
            "is_fit": self.exit_status == 0,
            "checks": [asdict(result) for result in self.results],
        }
