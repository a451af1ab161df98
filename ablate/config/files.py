"""Files and overrides as layers: what is read, in which order, and what a file may say."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

from ablate.config.merge import MergeSchema, change, merge, merge_schema, nested, normalize
from ablate.config.messages import unknown
from ablate.config.source import Mark, Mistake, Node, Source, UnreadableError, parse, source_of

SECTIONS = ("variants", "grid", "leave_one_out")
"""The three ways to make rows."""

VARYING = ("tokenizer", "model", "training", "decoding")
"""What rows may differ in."""

HEADER = ("question", "seeds", "negligible", "published")


def whole(path: Path, overrides: Sequence[str], mistakes: list[Mistake]) -> Node:
    """Return all that an experiment says; what is wrong is added to ``mistakes``.

    Parents come first, in the order they are named and each whole, so that the right one wins
    over the left; then the file; then the overrides.

    Raises:
        UnreadableError: if a file cannot be read.
    """
    layers = _layers(path, _start_of(path), (), mistakes)
    layers += [layer for text in overrides for layer in _override(text, mistakes)]
    return reduce(lambda below, above: merge(below, above, _file_schema()), layers)


def _file_schema() -> MergeSchema:
    by_name = MergeSchema(others=merge_schema())
    rows = {"variants": by_name, "grid": MergeSchema(), "leave_one_out": by_name}
    return MergeSchema(below={**merge_schema().below, **rows})


def _start_of(path: Path) -> Mark:
    return Mark(Source(_label(path), (), path), 1, 1)


def _label(path: Path) -> str:
    """Return a path as it was given, or from the working directory if that is shorter."""
    given, here = os.path.normpath(path), os.path.relpath(path)
    return min(given, here, key=len)


def _layers(
    path: Path, asked_at: Mark, above: tuple[Path, ...], mistakes: list[Mistake]
) -> list[Node]:
    """Return a file's parents' layers and its own, the lowest first."""
    real = path.resolve()
    if real in above:
        way = " -> ".join(p.name for p in (*above[above.index(real) :], real))
        raise UnreadableError(Mistake(asked_at, "extends", f"goes in a circle: {way}"))
    root = _read(path, asked_at, "extends" if above else "", mistakes)
    layers: list[Node] = []
    unreadable: list[UnreadableError] = []
    for parent in _parents(root, mistakes):
        there = path.parent / str(parent.value)
        try:
            layers += _layers(there, parent.start, (*above, real), mistakes)
        except UnreadableError as error:
            unreadable.append(error)
            mistakes.append(error.mistake)
    layers.append(prepared(root, mistakes))
    if unreadable:
        raise unreadable[0]
    return layers


def _read(path: Path, asked_at: Mark, asked_by: str, mistakes: list[Mistake]) -> Node:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UnreadableError(Mistake(asked_at, asked_by, _why(path, error))) from error
    source = source_of(_label(path), content, path)
    root = parse(source, mistakes)
    if root is None:
        reason = "is empty; say at least one thing, as in 'corpus: synthetic'"
        raise UnreadableError(Mistake(Mark(source, 1, 1), "", reason))
    if not isinstance(root.value, dict):
        reason = "an experiment is a mapping: lines of 'key: value'"
        raise UnreadableError(Mistake(root.start, "", reason))
    return root


def _why(path: Path, error: OSError) -> str:
    label = _label(path)
    if isinstance(error, FileNotFoundError):
        siblings = path.parent.glob("*.y*ml") if path.parent.is_dir() else ()
        names = {sibling.stem: sibling.name for sibling in siblings}
        near = difflib.get_close_matches(path.stem, names, n=1)
        hint = f"; did you mean {names[near[0]]!r}?" if near else ""
        return f"there is no file {label!r}{hint}"
    if isinstance(error, IsADirectoryError):
        return f"{label!r} is a folder; name a file in it"
    return f"{label!r} cannot be read: {error.strerror}"


def _parents(root: Node, mistakes: list[Mistake]) -> list[Node]:
    said = root.get("extends")
    if said is None:
        return []
    items = said.value if isinstance(said.value, list) else [said]
    wrong = [item for item in items if not (isinstance(item.value, str) and item.value)]
    if not items:
        wrong = [said]
    reason = "needs the path of a file, or a list of them"
    mistakes += [Mistake(item.mark, "extends", reason) for item in wrong]
    return [] if wrong else items


def _override(text: str, mistakes: list[Mistake]) -> list[Node]:
    """Return the layer that one ``PATH=VALUE`` says, if it says one."""
    source = Source("--set", tuple(text.split("\n")))
    start = Mark(source, 1, 1)
    path, equals, value = text.partition("=")
    if not (equals and path):
        mistakes.append(Mistake(start, "", "needs PATH=VALUE, as in training.steps=100"))
        return []
    try:
        blank = " " * (len(path) + 1)
        below = parse(replace(source, lines=tuple(f"{blank}{value}".split("\n"))), mistakes)
    except UnreadableError as error:
        mark = replace(error.mistake.mark, source=source)
        mistakes.append(replace(error.mistake, mark=mark, path=path))
        return []
    after = Mark(source, 1, len(path) + 2)
    node = _moved(below, source, path) if below else Node(None, after, start, path)
    head, _, rest = path.partition(".")
    steps = [head, rest] if head == "grid" and rest else path.split(".")
    root = nested(steps, replace(node, key=start), offset=0)
    if head == "extends":
        mistakes.append(Mistake(start, path, "stands in a file; here, name what it would change"))
        return []
    return [prepared(root, mistakes)]


def _moved(node: Node, source: Source, path: str) -> Node:
    """Return a tree with its marks in ``source`` and its paths below ``path``."""
    value = node.value
    if isinstance(value, dict):
        value = {key: _moved(item, source, path) for key, item in value.items()}
    elif isinstance(value, list):
        value = [_moved(item, source, path) for item in value]
    start, key = (replace(mark, source=source) for mark in (node.start, node.key))
    below = f"{path}.{node.path}" if node.path else path
    return Node(value, start, key, below, node.is_flow)


def prepared(root: Node, mistakes: list[Mistake]) -> Node:
    """Return one layer as it merges: checked at the top, its parts and changes spelled out."""
    known = (*HEADER, *merge_schema().below, *SECTIONS, "extends")
    kept: dict[str, Node] = {}
    for key, node in root.items():
        if key in SECTIONS:
            kept |= _section(node, key, mistakes)
        elif key in merge_schema().below:
            kept[key] = normalize(node, merge_schema().at(key))
        elif key in HEADER:
            kept[key] = node
        elif key != "extends":
            mistakes.append(Mistake(node.key, key, _unknown_at_the_top(key, known)))
    return replace(root, value=kept)


def _unknown_at_the_top(key: str, known: Sequence[str]) -> str:
    head, dot, _ = key.partition(".")
    if dot and head in known:
        return f"a path with dots is for a variant; here it is '{head}:' with the rest below it"
    if key == "<<":
        return "YAML 1.2 has no merge key; use 'extends'"
    return unknown(key, known)


def _section(node: Node, kind: str, mistakes: list[Mistake]) -> dict[str, Node]:
    """Return a section that makes rows under its name, or nothing if it makes none."""
    needs = {
        "variants": "a mapping from the name of a row to what it changes",
        "grid": "a mapping from paths to lists of values",
        "leave_one_out": "two changes or more, by name or in a list",
    }[kind]
    is_list = kind == "leave_one_out" and isinstance(node.value, list)
    n_changes = len(node.elements) if is_list else len(dict(node.items()))
    if n_changes < (2 if kind == "leave_one_out" else 1):
        mistakes.append(Mistake(node.mark, node.path, f"needs {needs}"))
        return {}
    if kind == "grid":
        axes = {key: item for key, item in node.items() if _is_axis(key, item, mistakes)}
        return {kind: replace(node, value=axes)} if axes else {}
    if isinstance(node.value, list):
        changes = [_change(item, mistakes) for item in node.value]
        return {kind: replace(node, value=[item for item in changes if item])}
    found = {key: _change(item, mistakes) for key, item in node.items()}
    return {kind: replace(node, value={key: item for key, item in found.items() if item})}


def _is_axis(path: str, node: Node, mistakes: list[Mistake]) -> bool:
    if not isinstance(node.value, list) or not node.value:
        mistakes.append(Mistake(node.mark, node.path, "needs a list of the values to try"))
        return False
    head = path.split(".")[0]
    return _may_vary(head, node.key, node.path, mistakes)


def _change(node: Node, mistakes: list[Mistake]) -> Node | None:
    if not isinstance(node.value, dict) or not node.value:
        reason = "changes nothing; say what, as in {model.norm: rms}"
        if node.value:
            reason = "needs a mapping from paths to values, as in {model.norm: rms}"
        mistakes.append(Mistake(node.mark, node.path, reason))
        return None
    layer = change(node, mistakes)
    kept = {
        key: item for key, item in layer.items() if _may_vary(key, item.key, item.path, mistakes)
    }
    return replace(layer, value=kept) if kept else None


def _may_vary(head: str, at: Mark, path: str, mistakes: list[Mistake]) -> bool:
    if head in VARYING:
        return True
    if head in ("corpus", "seed", "seeds"):
        what = "corpus" if head == "corpus" else "list of seeds"
        reason = f"all rows share one {what}; say it outside of the rows"
    elif head in (*HEADER, *SECTIONS, "extends"):
        reason = f"{head!r} is not for one row; say it at the top of the file"
    else:
        reason = unknown(head, VARYING)
    mistakes.append(Mistake(at, path, reason))
    return False
