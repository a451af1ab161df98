"""The verdicts of a gate, for a person and for a CI server."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from ablate.console import Console
from ablate.gate.check import CheckVerdict
from ablate.wording import counted

_WIDE = 1000
"""For a pipe, where nothing need be folded."""

_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML document may hold; the message of a failed run might."""


def gate_text(
    verdicts: Sequence[CheckVerdict],
    remarks: Sequence[str],
    width: int | None,
    *,
    is_coloured: bool,
) -> str:
    """Return a table with a line for each check, and below it what failed, each in a sentence.

    Args:
        verdicts: in the order of the reference.
        remarks: about all checks.
        width: of the terminal; None has room for everything.
        is_coloured: whether to use its faces.
    """
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("check", "kind", "of", "reference", "tolerance", "measured", ""):
        grid.add_column(header, overflow="fold")
    for verdict in verdicts:
        cells = (
            verdict.check,
            verdict.kind,
            verdict.subject,
            verdict.reference,
            verdict.tolerance,
            verdict.measured,
        )
        mark = Text("passed") if verdict.passed else Text("FAILED", style="bold red")
        grid.add_row(*map(Text, cells), mark)
    out = io.StringIO()
    console = Console(
        file=out,
        width=width or _WIDE,
        force_terminal=is_coloured,
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(grid)
    for text in (*_shared_remarks(verdicts), *remarks):
        console.print(Text(text))
    for verdict in verdicts:
        if verdict.failure:
            console.print(Text(f"FAILED {verdict.check}: {verdict.failure}", style="bold"))
    console.print(Text(conclusion(verdicts)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _shared_remarks(verdicts: Sequence[CheckVerdict]) -> list[str]:
    """Return what is to be known of checks, each remark once, after the checks it is about."""
    checks: dict[str, list[str]] = {}
    for verdict in verdicts:
        for text in verdict.remarks:
            checks.setdefault(text, []).append(verdict.check)
    return [f"{', '.join(names)}: {text}" for text, names in checks.items()]


def conclusion(verdicts: Sequence[CheckVerdict]) -> str:
    """Return how the gate went as a whole."""
    failed = [verdict.check for verdict in verdicts if not verdict.passed]
    if not failed:
        return f"the gate passed: {counted(len(verdicts), 'check')}"
    of_all = f"{len(failed)} of {counted(len(verdicts), 'check')}"
    return f"the gate failed: {of_all} ({', '.join(failed)})"


def junit(experiment: str, verdicts: Sequence[CheckVerdict], remarks: Sequence[str] = ()) -> str:
    """Return the verdicts as JUnit XML, which CI servers read: one test case for each check."""
    n_failed = sum(not verdict.passed for verdict in verdicts)
    counts = {"tests": str(len(verdicts)), "failures": str(n_failed), "errors": "0"}
    root = ElementTree.Element("testsuites", {"name": "ablate gate", **counts})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(experiment), **counts})
    for verdict in verdicts:
        name = {"classname": _clean(f"{experiment}.{verdict.kind}"), "name": _clean(verdict.check)}
        case = ElementTree.SubElement(suite, "testcase", name)
        if verdict.failure:
            about = {"message": _clean(verdict.failure), "type": verdict.kind}
            ElementTree.SubElement(case, "failure", about).text = _clean(verdict.failure)
        lines = [
            verdict.subject,
            f"reference: {verdict.reference}",
            f"tolerance: {verdict.tolerance}",
            f"measured: {verdict.measured}",
            *verdict.remarks,
        ]
        ElementTree.SubElement(case, "system-out").text = _clean("\n".join(lines))
    if remarks:
        ElementTree.SubElement(suite, "system-out").text = _clean("\n".join(remarks))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _clean(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
