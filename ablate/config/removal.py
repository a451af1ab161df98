"""What null in a file removes of its parents: rows with their published numbers, and more."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from ablate.config.tree import Mistake, Node
from ablate.wording import no_such

IS_EMPTY = "changes nothing; give a change, as in {model.norm: rms}"
_IS_NOT_INHERITED = "is empty, and nothing is inherited that null would remove; leave it out"


def without_null_sections(
    layers: Sequence[Node], sections: Sequence[str], mistakes: list[Mistake]
) -> list[Node]:
    """Return layers in which null for ``variants`` is null for each inherited row.

    Null for another section stays, and replaces what is below; for one that no layer below has it
    is a mistake, and left out.
    """
    kept: list[Node] = []
    inherited: dict[str, dict[str, Node]] = {}
    for layer in layers:
        value = layer.entries()
        for key in sections:
            node = value.get(key)
            if node is None:
                continue
            if node.value is not None:
                below = inherited.get(key, {})
                value[key] = _with_own(node, below) if key == "contexts" else node
                inherited[key] = {**below, **node.entries()}
            elif (removed := inherited.pop(key, None)) is None:
                mistakes.append(Mistake(node.mark, node.path, _IS_NOT_INHERITED))
                del value[key]
            elif key == "variants":
                value[key] = replace(node, value=dict.fromkeys(removed, node))
        kept.append(replace(layer, value=value))
    return kept


def _with_own(contexts: Node, inherited: Container[str]) -> Node:
    """Return contexts in which one that is null and not inherited is one without a change."""
    own = {
        name: replace(node, value={}) if node.value is None and name not in inherited else node
        for name, node in contexts.items()
    }
    return replace(contexts, value=own)


def mistakes_of_null_rows(layers: Sequence[Node]) -> Iterator[Mistake]:
    """Yield the rows that are null and that no layer below has."""
    inherited: set[str] = set()
    for layer in layers:
        for name, row in layer.entries("variants").items():
            if row.value is None and name not in inherited:
                known = no_such("row", name, sorted(inherited))
                reason = f"leaves out a row that is not inherited: {known}"
                yield Mistake(row.mark, row.path, reason if inherited else IS_EMPTY)
        inherited |= set(layer.entries("variants"))


def without_removed(layers: Sequence[Node]) -> list[Node]:
    """Return layers without the published numbers of rows that are null in one above."""
    kept: list[Node] = []
    removed: set[str] = set()
    for layer in reversed(layers):
        published, rows = layer.get("published"), layer.entries("published", "rows")
        others = {name: row for name, row in rows.items() if name not in removed}
        if published and len(others) < len(rows):
            sections = published.entries()
            sections["rows"] = replace(sections["rows"], value=others)
            if not others:
                del sections["rows"]
            value = {**layer.entries(), "published": replace(published, value=sections)}
            layer = replace(layer, value=value)
        kept.append(layer)
        removed |= {n for n, row in layer.entries("variants").items() if row.value is None}
    return kept[::-1]
