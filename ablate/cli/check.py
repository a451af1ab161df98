"""``ablate check``; cheap to import, like every command."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ablate.cli.guard import guarded
from ablate.cli.output import echo
from ablate.errors import RunError, SpecError
from ablate.wording import counted

if TYPE_CHECKING:
    from ablate.contracts import Finding


@guarded
def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Python files that register parts; else installed ones."
        ),
    ] = None,
) -> int:
    """Test whether parts of your own keep their contracts; exit 1 if one is broken.

    Causality, padding, token by token against all at once, gradients, shapes, saved weights,
    options: the tests that this package's own parts pass.

    Example: ablate check my_parts.py
    """
    from ablate import api

    findings = api.check(files or ())
    if files and not findings:
        raise SpecError(
            f"{', '.join(map(str, files))}: registers no part, so no contract is tested"
        )
    if not findings:
        raise SpecError("no plugin is installed; name a file, as in `ablate check my_parts.py`")
    for (slot, part), of_part in groupby(
        findings, key=lambda finding: (finding.slot, finding.part)
    ):
        _show(f"{slot} {part}", list(of_part))
    return 0 if all(finding.is_kept for finding in findings) else RunError.exit_status


def _show(part: str, findings: Sequence[Finding]) -> None:
    passed = [finding.contract for finding in findings if finding.is_kept]
    echo(f"{part}: {len(passed)} of {counted(len(findings), 'contract')} kept")
    if passed:
        echo(f"  kept: {', '.join(passed)}")
    for finding in findings:
        if not finding.is_kept:
            echo(f"  BROKEN, {finding.contract}: {finding.reason}")
            echo(f"    the contract: {finding.meaning}")
