"""Write docs/findings.md: the findings of the literature, and what our runs show of them.

Run it, after `ablate run` of each experiment:

    for spec in experiments/science/*.yaml; do ablate run "$spec"; done
    python benchmarks/findings.py

What the literature says is the comment at the head of an experiment. What we claim is its
reference in results/reference/science/: a check is the literature's claim, except that one whose
name begins with `seen` is what we see in its place. Every number is taken from the stored runs and
held against the reference once more; ends with 1 if a claim does not hold.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from ablate import api, config
from ablate.analysis.summary import Summary
from ablate.api.gate import Gated
from ablate.gate.check import Check, CheckVerdict
from ablate.gate.checks.finding import FindingCheck
from ablate.gate.reference_file import read
from ablate.report import Table, render
from ablate.report.table import Cell, Column
from ablate.report.values import MINUS, NOTHING, number
from ablate.store import write_whole

ROOT = Path(__file__).parents[1]
SPECS = ROOT / "experiments" / "science"
REFERENCES = ROOT / "results" / "reference" / "science"
PAGE = ROOT / "docs" / "findings.md"
FIGURES = ROOT / "docs" / "findings"
FORMATS = {  # name and number of decimals of each metric
    "params.total": ("params", 0),
    "test.test.bleu": ("BLEU test", 2),
    "test.test_long.bleu": ("BLEU test_long", 2),
    "dev.perplexity": ("ppl dev", 2),
}
OUTCOMES = ("agrees", "agrees in part", "disagrees", "not measured")
HEAD = """\
# Exploratory findings

What papers have found about the parts of the translation Transformer, and what our runs show of it.
This page is exploratory: its claims and margins were written after the runs that they describe, so
that none of them could fail, and several share their baseline runs. Claims that were written before
their runs are in [claims.md](claims.md): 18 of 53 held and 4 failed. Each finding here is an
experiment in [experiments/science](../experiments/science), and a reference in
[results/reference/science](../results/reference/science) that `ablate gate` holds it against.

All but one run on a CPU, in the laptop preset on the synthetic corpus: a Transformer of 2 + 2
layers (6 + 6 in F08 and F10, 12 + 12 in F09) and width 64 that is trained for half a minute. It
stands early in training, where much that evens out later is still to be seen, and its differences
in BLEU are larger than those of large models; so what is held here is the direction of an effect
and its smallest size, not its size elsewhere. ± is the standard deviation over seeds. A difference
is the mean over pairs of runs with the same seed; brackets hold its 90% interval by Student's t, at
both ends of which the claim must hold: so the gate judges a claim, with a confidence of 95%. It is
of that one claim by itself; the intervals in the tables of `ablate run` are wider, for they hold
together ([statistics.md](statistics.md)).

Written by `python benchmarks/findings.py` from the runs; edit the experiments, not this page.
"""


@dataclass(frozen=True)
class Finding:
    """One experiment, the claim of the literature, and our result.

    Attributes:
        literature: the comment at the head of its file.
        gated: the verdicts on its runs; None if it has not been measured.
        claims: the checks, by name.
    """

    path: Path
    question: str
    literature: str
    table: Table | None
    gated: Gated | None
    claims: dict[str, Check]

    @property
    def outcome(self) -> str:
        """Return the outcome in a word or two."""
        if self.gated is None:
            return "not measured"
        verdicts = self.gated.verdicts
        n_agreeing = sum(v.passed and not v.check.startswith("seen") for v in verdicts)
        if n_agreeing == len(verdicts):
            return "agrees"
        return "agrees in part" if n_agreeing else "disagrees"

    @property
    def title(self) -> str:
        """Return its number and its question."""
        return f"{self.path.stem.partition('_')[0].upper()}. {self.question}"


def main() -> int:
    """Write the page and its figures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--results", type=Path, default=ROOT / "results")
    options = parser.parse_args()
    findings = [finding_of(path, options.results) for path in sorted(SPECS.glob("*.yaml"))]
    summary = ["| finding | outcome |", "| --- | --- |"]
    summary += [f"| [{f.title}](#{anchor(f.title)}) | {f.outcome} |" for f in findings]
    counts = Counter(f.outcome for f in findings)
    notes = ", ".join(f"{outcome}: {counts[outcome]}" for outcome in OUTCOMES if counts[outcome])
    parts = [HEAD, f"{len(findings)} findings; {notes}.", "", "\n".join(summary), ""]
    parts += [section(f, options.results) for f in findings]
    write_whole(PAGE, "\n".join(parts))
    refuted = [f.title for f in findings if f.gated is not None and not f.gated.passed]
    sys.stdout.write(f"{notes}; {PAGE.relative_to(ROOT)}\n")
    for title in refuted:
        sys.stdout.write(f"does not hold: {title}\n")
    return 1 if refuted else 0


def finding_of(path: Path, results: Path) -> Finding:
    """Return the finding of one experiment."""
    lines = takewhile(lambda line: line.startswith("#"), path.read_text("utf-8").splitlines())
    literature = " ".join(line.removeprefix("#").strip() for line in lines)
    question = config.load(path).question or path.stem
    reference = REFERENCES / path.name
    if not reference.exists():
        return Finding(path, question, literature, None, None, {})
    options = api.RunOptions(results=results)
    gated = api.gate(path, reference, options, is_stored=True)
    claims: dict[str, Check] = dict(read(reference).reference.checks)
    table = api.report(path, results=results).table
    return Finding(path, question, literature, table, gated, claims)


def section(finding: Finding, results: Path) -> str:
    """Return the section of one finding."""
    name = finding.path.stem
    text = [f"## {finding.title}", "", finding.literature, ""]
    if finding.gated is None or finding.table is None:
        command = f"ablate run experiments/science/{finding.path.name}"
        return "\n".join([*text, f"**Not measured yet.** `{command}` does it.", ""])
    text += [f"**{finding.outcome.capitalize()}.** {sentences(finding)}", "", narrow(finding.table)]
    figure = results / "science" / name / "curves.svg"
    if figure.exists():
        FIGURES.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(figure, FIGURES / f"{name}.svg")
        text += [f"![Training loss and dev NLL over the steps](findings/{name}.svg)", ""]
    return "\n".join(text)


def sentences(finding: Finding) -> str:
    """Return the results of the checks, a sentence or two finding."""
    assert finding.gated is not None, "its runs are measured"
    notes = []
    for verdict in finding.gated.verdicts:
        claim = finding.claims[verdict.check]
        notes.append(sentence(verdict, claim))
        notes += [claim.note] if claim.note else []
    return " ".join(notes)


def sentence(verdict: CheckVerdict, claim: Check) -> str:
    """Return a claim and its measurement."""
    if not isinstance(claim, FindingCheck):
        raise TypeError(f"{verdict.check} is no finding")
    mean, _, interval = verdict.measured.partition(", ")
    measured_text = f"{mean} ({interval})".replace("-", MINUS) if interval else verdict.measured
    outcome = "holds" if verdict.passed else "**does not hold**"
    return (
        f"{measure(claim.measure)} of `{claim.row}` less `{claim.against}`: {measured_text}; "
        f"{verdict.tolerance}, as claimed, {outcome}."
    )


def measure(name: str) -> str:
    """Return the name of a measure for people."""
    section, *steps = name.split(".")
    if section == "test":
        return f"{'BLEU' if steps[1] == 'bleu' else steps[1]} on {steps[0]}"
    return {"dev.nll": "NLL on dev", "params.total": "Parameters"}.get(name, name)


def narrow(table: Table) -> str:
    """Return a table with changes and means ± deviations only, as Markdown."""
    indices = [at for at, column in enumerate(table.columns) if column.kind in ("row", "change")]
    columns = tuple(Column(key, header) for key, (header, _) in FORMATS.items())
    lines = tuple(
        replace(line, cells=(*(line.cells[at] for at in indices), *_cells(line.summary)))
        for line in table.lines
    )
    whole = tuple(table.columns[at] for at in indices) + columns
    page = replace(table, columns=whole, lines=lines, footnotes=(), more=None, conclusion="")
    page_lines = render(page, "markdown").splitlines()
    return "\n".join(line for line in page_lines if line.startswith("|")) + "\n"


def _cells(summary: Summary) -> Iterator[Cell]:
    for key, (_, decimals) in FORMATS.items():
        estimate = summary.metrics.get(key)
        spread = estimate.sd if estimate else None
        text = number(estimate.mean, decimals) if estimate else NOTHING
        yield Cell(f"{text} ± {number(spread, decimals)}" if spread else text)


def anchor(title: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return "".join(c for c in title.lower() if c.isalnum() or c in " -_").replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
