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
from ablate.report.values import grouped
from ablate.wording import counted

_WIDE = 1000  # for a pipe, where nothing need be folded
# what no XML document may hold; the message of a failed run might
_NO_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def gate_text(
    verdicts: Sequence[CheckVerdict],
    remarks: Sequence[str],
    width: int | None,
    *,
    is_coloured: bool,
) -> str:
    """Return a table with a line for each check, and below it remarks, and what failed and why."""
    grid = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("check", "kind", "of", "reference", "tolerance", "measured", ""):
        grid.add_column(header, overflow="fold")
    for verdict in verdicts:
        what = verdict.check, verdict.kind, verdict.subject
        numbers = verdict.reference, verdict.tolerance, verdict.measured
        mark = Text("passed") if verdict.passed else Text("FAILED", style="bold red")
        grid.add_row(*map(Text, (*what, *numbers)), mark)
    out = io.StringIO()
    console = Console(file=out, width=width or _WIDE, force_terminal=is_coloured, highlight=False)
    console.print(grid)
    checks = grouped((text, each.check) for each in verdicts for text in each.remarks)
    shared = (f"{', '.join(names)}: {text}" for text, names in checks.items())
    for text in (*shared, *remarks):
        console.print(Text(text))
    for verdict in verdicts:
        if verdict.failure:
            console.print(Text(f"FAILED {verdict.check}: {verdict.failure}", style="bold"))
    failed = [verdict.check for verdict in verdicts if not verdict.passed]
    n_checks = counted(len(verdicts), "check")
    of_all = f"failed: {len(failed)} of {n_checks} ({', '.join(failed)})"
    console.print(Text(f"the gate {of_all if failed else f'passed: {n_checks}'}"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


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
