"""``ablate check``."""

from __future__ import annotations

from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer

from ablate.cli import options
from ablate.cli.guard import guarded
from ablate.cli.output import echo, echo_json, waiting
from ablate.errors import RunError, SpecError
from ablate.wording import counted


@guarded
def check(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE", help="Python files that register parts. Default: installed plugins."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> int:
    """Test whether your own parts keep the contracts of their slots. Exit 1 if one is broken.

    These are the tests that this package's own parts pass: causality, padding, decoding token by
    token, gradients, shapes, saved weights, options.

    Example: ablate check my_parts.py
    """
    from ablate import api

    with waiting("testing the parts"):
        findings = api.check(files or ())
    if files and not findings:
        names = ", ".join(map(str, files))
        raise SpecError(f"{names}: registers no part, so no contract is tested")
    if not findings:
        raise SpecError("no plugin is installed; name a file, as in `ablate check my_parts.py`")
    status = 0 if all(finding.is_kept for finding in findings) else RunError.exit_status
    if as_json:
        echo_json({"findings": [{**asdict(each), "is_kept": each.is_kept} for each in findings]})
        return status
    for part, of_part in groupby(findings, key=lambda each: f"{each.slot} {each.part}"):
        tested = list(of_part)
        kept = [finding.contract for finding in tested if finding.is_kept]
        echo(f"{part}: {len(kept)} of {counted(len(tested), 'contract')} kept")
        if kept:
            echo(f"  kept: {', '.join(kept)}")
        for finding in (each for each in tested if not each.is_kept):
            echo(f"  BROKEN, {finding.contract}: {finding.reason}")
            echo(f"    the contract: {finding.meaning}")
    return status
