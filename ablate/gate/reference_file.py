"""Reading and writing a reference as a YAML file; every mistake is reported with its position."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablate.analysis.summary import Records, summarise
from ablate.config import Mistake, MistakesError
from ablate.config.merge import schema_of
from ablate.config.messages import validated
from ablate.config.source import dump, parse, source_of
from ablate.config.tree import Mark, Node, UnreadableError
from ablate.errors import SpecError
from ablate.gate.check import KINDS, Check, Flaw
from ablate.gate.reference import Head, Reference
from ablate.store import write_whole
from ablate.wording import listed, suggest

_HEAD = """\
# A reference for `ablate gate`. The terms of each check are yours to change; what stands under
# `blessed` is written by `ablate gate SPEC --reference THIS --bless`, and so is this file: notes
# belong in `note`, comments do not survive.
"""


SCHEMA = 2
"""The version of the keys; a file without one is of this version."""

_ABOVE_CHECKS = ("schema", "source", "alpha", "pilot_seeds")
_FIRST_OF_CHECK = ("kind", "row", "against", "measure", "claim", "margin")
_LAST_OF_CHECK = ("published", "note", "blessed")
_LAST_OF_BLESSING = ("seeds", "values", "repeats", "other_machine", "derived", "terms")


@dataclass(frozen=True)
class ReferenceFile:
    """A reference, and the tree of its YAML, which has the positions of its entries."""

    reference: Reference
    tree: Node

    def refuse(
        self,
        *,
        flaws: Iterable[Flaw] = (),
        rows: Sequence[str] | None = None,
        records: Records | None = None,
    ) -> None:
        """Refuse a reference that has flaws, or that does not fit an experiment.

        Args:
            flaws: of the reference itself.
            rows: all that the experiment has.
            records: of its runs.

        Raises:
            MistakesError: with the flaws, and with unknown rows and measures that checks name.
        """
        wrong = [*flaws]
        for name, check in self.reference.checks.items():
            for key, row in zip(("row", "against"), check.rows, strict=False):
                if rows is not None and row not in rows:
                    reason = f"no row is called {row!r};{suggest(row, rows)} known: {listed(rows)}"
                    wrong.append((("checks", name, key), reason))
            of_runs = [
                set(summarise([row], [seed], {(row, seed): record})[0].metrics)
                for (row, seed), record in (records or {}).items()
                if check.recorded_measure and row in check.rows and record["status"] == "done"
            ]
            measures = set.intersection(*of_runs) if of_runs else set()
            if measures and check.recorded_measure not in measures:
                near = suggest(check.measure, measures) or f" known: {listed(sorted(measures))}"
                reason = f"no run has a measure {check.measure!r};{near}"
                wrong.append((("checks", name, "measure"), reason))
        if wrong:
            places = [(self.tree.descend(at)[0].mark, ".".join(at)) for at, _ in wrong]
            reasons = [reason for _, reason in wrong]
            raise MistakesError(
                [Mistake(*at, why) for at, why in zip(places, reasons, strict=True)]
            )


def read(path: Path) -> ReferenceFile:
    """Read a reference.

    Raises:
        MistakesError: with every mistake of the file.
    """
    wrong: list[Mistake] = []
    try:
        tree = _tree(path, wrong)
    except UnreadableError as error:
        raise MistakesError([*wrong, error.mistake]) from None
    schema, node = tree.get("schema"), tree.get("checks")
    if schema is not None and schema.value != SCHEMA:
        reason = f"this version of ablate reads schema {SCHEMA}; it is {schema.value!r}"
        wrong.append(Mistake(schema.mark, "schema", reason))
    checks = {}
    if node is None or not dict(node.items()):
        reason = f"needs 'checks', a mapping from names to checks of a kind: {', '.join(KINDS)}"
        wrong.append(Mistake((node or tree).mark, "checks" if node else "", reason))
    else:
        read_checks = ((name, _check(check, wrong)) for name, check in node.items())
        checks = {name: check for name, check in read_checks if check is not None}
    rest = {key: node for key, node in tree.items() if key not in ("checks", "schema")}
    head, mistakes = validated(Head, replace(tree, value=rest), schema_of(Reference))
    wrong += mistakes
    if wrong or head is None:
        raise MistakesError(wrong)
    return ReferenceFile(Reference(**dict(head), checks=checks), tree)


def write(path: Path, reference: Reference) -> None:
    """Write a reference, whole or not at all.

    Raises:
        StoreError: if that fails.
    """
    write_whole(path, text(reference))


def text(reference: Reference) -> str:
    """Return a reference as YAML."""
    content = {"schema": SCHEMA, **reference.model_dump(mode="json", exclude_none=True)}
    if not reference.pilot_seeds:
        del content["pilot_seeds"]
    for name, check in content["checks"].items():  # its terms first, the values of its runs last
        content["checks"][name] = arranged = _sorted(check, _FIRST_OF_CHECK, _LAST_OF_CHECK)
        if "blessed" in arranged:
            arranged["blessed"] = _sorted(arranged["blessed"], (), _LAST_OF_BLESSING)
    content = _sorted(content, _ABOVE_CHECKS, ("checks", "blessed"))  # people read the checks first
    return _HEAD + dump(content, width=88, flow=None)


def _tree(path: Path, wrong: list[Mistake]) -> Node:
    try:
        content = path.read_bytes()
    except OSError as error:
        is_missing = isinstance(error, FileNotFoundError)
        hint = "; `ablate gate SPEC --bless` writes a reference" if is_missing else ""
        raise SpecError(f"{path} cannot be read: {error.strerror}{hint}") from error
    source = source_of(str(path), content, path)
    root = parse(source, wrong)
    if root is None or not isinstance(root.value, dict):
        reason = "a reference is a mapping with 'checks'; `ablate gate --bless` writes one"
        raise UnreadableError(Mistake(root.start if root else Mark(source, 1, 1), "", reason))
    return root


def _check(node: Node, wrong: list[Mistake]) -> Check | None:
    kind = node.get("kind")
    name = None if kind is None else kind.value
    if not isinstance(name, str) or name not in KINDS:
        reason = (
            f"there is no kind {name!r};{suggest(str(name), KINDS)} " if kind else "needs 'kind'; "
        )
        wrong.append(Mistake((kind or node).mark, node.path, f"{reason}known: {', '.join(KINDS)}"))
        return None
    check, mistakes = validated(KINDS[name], node, schema_of(KINDS[name]))
    wrong += mistakes
    return check


def _sorted(mapping: dict[str, Any], first: Sequence[str], last: Sequence[str]) -> dict[str, Any]:
    between = [key for key in mapping if key not in last]
    keys = dict.fromkeys([*first, *between, *last])
    return {key: mapping[key] for key in keys if key in mapping}
