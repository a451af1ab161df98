"""Files and overrides as layers: their order, and which keys they may have."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

from ablate.config import shipped
from ablate.config.experiment import RunSpec
from ablate.config.header import Header, TuneKeys
from ablate.config.merge import (
    MergeSchema,
    change,
    merge,
    merge_schema,
    nested,
    normalize,
    with_names,
)
from ablate.config.messages import unknown
from ablate.config.paths import METRICS, file_path
from ablate.config.removal import (
    IS_EMPTY,
    mistakes_of_null_rows,
    without_null_sections,
    without_removed,
)
from ablate.config.tree import (
    Mark,
    Mistake,
    Node,
    Source,
    UnreadableError,
    control_reason,
    parse,
    source_of,
)
from ablate.errors import SpecError
from ablate.printable import CONTROL
from ablate.registry import PluginError, load_plugin
from ablate.wording import nearest

SECTIONS = ("variants", "grid", "leave_one_out")
"""The three ways to make rows."""

VARYING = ("tokenizer", "model", "training", "decoding")
"""The keys that rows may change."""

UNUSABLE_NAME = r"^$|^\s|\s$|[\x00-\x1f\x7f-\x9f\u2028\u2029]|^<<$"
"""A pattern of what no row may be called."""

UNUSABLE_CONTEXT = r"[^A-Za-z0-9_.-]|^[.-]|^$|^trials$"
"""A pattern of what no context may be called, which has a folder of its own."""

HEADER = tuple(Header.model_fields)
_FILES = ("extends", "plugins")
CONTEXTS = "contexts"  # which may change all of:
_ALL_SECTIONS = (*SECTIONS, CONTEXTS)
_OF_CONTEXTS = tuple(key for key in RunSpec.model_fields if key != "seed")


def read(path: Path, overrides: Sequence[str], mistakes: list[Mistake]) -> tuple[Node, bool]:
    """Return a file, its parents and the overrides, merged, and whether all could be read.

    Adds mistakes. Of the parents, each with its own, the right one wins over the left; then come
    the file and the overrides. A row that is null is removed, with its published numbers below, and
    so is an inherited context or a section. Plugins are loaded. A file that cannot be read is an
    `UnreadableError`.

    Raises:
        SpecError: if the overrides are one text, of which each character would be an override.
    """
    if isinstance(overrides, str):
        raise SpecError(f"overrides are a list, as in [{overrides!r}]; this is a text")
    start = Mark(Source(_label(path), (), path), 1, 1)
    layers, is_whole = _layers(path, start, (), mistakes)
    layers += [layer for text in overrides for layer in override(text, mistakes)]
    layers = _with_nulls(layers, mistakes, is_whole)
    mistakes += mistakes_of_null_rows(layers) if is_whole else []
    tree = _merged(without_removed(layers))
    value = {k: v for k, v in tree.items() if k not in _ALL_SECTIONS or v.value is not None}
    published = tree.get("published")
    if published and not published.get("rows") and _merged(layers).find(["published", "rows"]):
        del value["published"]
    if (metrics := value.get("metrics")) and isinstance(metrics.value, dict):
        value["metrics"] = replace(metrics, value=[metrics])
    for key in {"variants", CONTEXTS} & value.keys():
        kept = {name: node for name, node in value[key].items() if node.value is not None}
        value[key] = replace(value[key], value=kept)
    return replace(tree, value=value), is_whole


def _merged(layers: Sequence[Node]) -> Node:
    """Return layers as one; a change of a row merges onto a part as the baseline has it."""

    def whole(of_changes: MergeSchema) -> Node:
        by_name = MergeSchema(others=of_changes)
        rows = {"variants": by_name, "grid": MergeSchema(), "leave_one_out": by_name}
        rows[CONTEXTS] = by_name
        schema = MergeSchema(children={**merge_schema().children, "metrics": METRICS, **rows})
        return reduce(lambda below, above: merge(below, above, schema), layers)

    return whole(with_names(merge_schema(), whole(merge_schema())))


def _label(path: Path) -> str:
    """Return a path as it was given, or from the working directory if that is shorter."""
    return min(os.path.normpath(path), os.path.relpath(path), key=len)


def _layers(
    path: Path, at: Mark, above: tuple[Path, ...], mistakes: list[Mistake]
) -> tuple[list[Node], bool]:
    """Return the layers of a file and its parents, lowest first, and whether none is missing."""
    key = "extends" if above else ""
    try:
        real, content = path.resolve(), path.read_bytes()
    except OSError as error:
        reason = _read_error(path, error, prefix=shipped.PREFIX if above else "")
        raise UnreadableError(Mistake(at, key, reason)) from error
    if real in above:
        circle = " -> ".join(p.name for p in (*above[above.index(real) :], real))
        raise UnreadableError(Mistake(at, "extends", f"forms a circle: {circle}"))
    root = _root(source_of(_label(path), content, path), mistakes)
    parents: list[tuple[Mark, list[Node]]] = []
    is_whole = True
    for parent in _file_names(root.get("extends"), mistakes):
        try:
            name = str(parent.value)
            parent_path = path.parent / name
            if name.startswith(shipped.PREFIX):
                parent_path = shipped.find(name) or Path(name)
            layers, has_all = _layers(parent_path, parent.start, (*above, real), mistakes)
            parents.append((parent.start, layers))
            is_whole = is_whole and has_all
        except UnreadableError as error:
            mistakes.append(error.mistake)
            is_whole = False
    own = prepared(root, mistakes)
    mistakes += _different_rows(parents, removed=own.get("variants"))
    inherited = [layer for _, layers in parents for layer in layers]
    return _with_nulls([*inherited, own], mistakes, is_whole), is_whole


def _with_nulls(layers: list[Node], mistakes: list[Mistake], is_whole: bool) -> list[Node]:
    """Return layers in which null for all rows is null for each that its file inherits."""
    return without_null_sections(layers, _ALL_SECTIONS, mistakes if is_whole else [])


def _different_rows(
    parents: Sequence[tuple[Mark, list[Node]]], removed: Node | None
) -> Iterator[Mistake]:
    """Yield the mistakes of parents of one file that make different rows of one name."""
    if removed and removed.value is None:
        return
    rows = removed.entries() if removed else {}
    first: dict[str, Node] = {}
    for at, layers in parents:
        for name, row in _merged(layers).entries("variants").items():
            other = first.setdefault(name, row)
            is_removed = name in rows and rows[name].value is None
            if other.plain() != row.plain() and not is_removed:
                files = f"{other.key.source.label} and in {row.key.source.label}"
                reason = f"the row {name!r} is not the same in {files}"
                way_out = f"rename one, or remove both here by variants: {{{name}: null}}"
                yield Mistake(at, "extends", f"{reason}; {way_out}")


def _root(source: Source, mistakes: list[Mistake]) -> Node:
    root = parse(source, mistakes)
    if root is None:
        reason = "is empty; it needs at least one key, as in 'corpus: synthetic'"
        raise UnreadableError(Mistake(Mark(source, 1, 1), "", reason))
    if not isinstance(root.value, dict):
        reason = "an experiment is a mapping: lines of 'key: value'"
        raise UnreadableError(Mistake(root.start, "", reason))
    return root


def _read_error(path: Path, error: OSError, *, prefix: str) -> str:
    """Return why a file cannot be read; ``prefix`` begins the names of shipped ones there."""
    label = _label(path)
    if isinstance(error, FileNotFoundError):
        siblings = path.parent.glob("*.y*ml") if path.parent.is_dir() else ()
        names = {sibling.stem: sibling.name for sibling in siblings}
        hint = ""
        if near := nearest(path.stem, names):
            hint = f"; did you mean {names[near]!r}?"
        elif end := shipped.name_in(Path(path.as_posix().removeprefix(shipped.PREFIX))):
            hint = f"; the shipped one is called {prefix + end!r}"
        elif not path.suffix:
            meant = nearest(path.as_posix().removeprefix(shipped.PREFIX), shipped.names())
            hint = f", nor a shipped one;{f' did you mean {prefix + meant!r}?' if meant else ''}"
            hint += f" shipped: {', '.join(name for name in shipped.names() if '/' not in name)}"
        return f"there is no file {label!r}{hint}"
    return f"{label!r} cannot be read: {error.strerror}"


def _file_names(node: Node | None, mistakes: list[Mistake]) -> list[Node]:
    """Return the items of ``extends`` or ``plugins``; none if one of them is no path."""
    if node is None:
        return []
    items = node.elements if isinstance(node.value, list) else [node]
    malformed = [item for item in items if not (isinstance(item.value, str) and item.value)]
    malformed = malformed if items else [node]
    reason = "needs the path of a file, or a list of them"
    mistakes += [Mistake(item.mark, node.path, reason) for item in malformed]
    return [] if malformed else items


def override(text: str, mistakes: list[Mistake]) -> list[Node]:
    """Return the layer of one ``PATH=VALUE``, in a list; none if it is malformed."""
    source = Source("--set", tuple(text.split("\n")))
    start = Mark(source, 1, 1)
    if control := CONTROL.search(text):
        mistakes.append(Mistake(start.shifted(control.start()), "", control_reason(control[0])))
        return []
    path, equals, _ = text.partition("=")
    if not (equals and path):
        mistakes.append(Mistake(start, "", "needs PATH=VALUE, as in training.steps=100"))
        return []
    try:
        node = parse(source, mistakes, path=path)
    except UnreadableError as error:
        mistakes.append(replace(error.mistake, path=path))
        return []
    if path.partition(".")[0] == "extends":
        mistakes.append(Mistake(start, path, "belongs in a file; set what it would change"))
        return []
    value_start = Mark(source, 1, len(path) + 2)
    node = node or Node(None, value_start, start, path)
    steps = path.split(".", maxsplit=1 if path.startswith(("grid.", "tune.")) else -1)
    return [prepared(nested(steps, replace(node, key=start), offset=0), mistakes)]


def prepared(root: Node, mistakes: list[Mistake]) -> Node:
    """Return one layer ready to merge: its keys checked, its parts and changes normalized."""
    known = (*HEADER, *merge_schema().children, *_ALL_SECTIONS, *_FILES)
    layer: dict[str, Node] = {}
    for key, node in root.items():
        if key in _ALL_SECTIONS:
            section = _contexts if key == CONTEXTS else partial(_section, kind=key)
            layer |= section(node, mistakes=mistakes)
        elif key in merge_schema().children:
            layer[key] = normalize(node, merge_schema().at(key))
        elif key == "tune" and node.value is not None:
            layer |= _tune(node, mistakes)
        elif key in HEADER:
            layer[key] = normalize(node, METRICS) if key == "metrics" else node
        elif key == "plugins":
            _load_plugins(node, mistakes)
        elif key != "extends":
            mistakes.append(Mistake(node.key, key, unknown(key, known)))
    return replace(root, value=layer)


def _load_plugins(node: Node, mistakes: list[Mistake]) -> None:
    for item in _file_names(node, mistakes):
        try:
            load_plugin(file_path(item))
        except PluginError as error:
            mistakes.append(Mistake(item.mark, node.path, str(error)))


def _tune(node: Node, mistakes: list[Mistake]) -> dict[str, Node]:
    """Return the section ``tune`` under its name; empty if it is malformed."""
    if not isinstance(node.value, dict) or not node.value:
        mistakes.append(Mistake(node.mark, node.path, "needs a mapping from paths to lists"))
        return {}
    keys = tuple(TuneKeys.model_fields)
    axes: dict[str, Node] = {}
    for key, item in node.items():
        if key not in keys and nearest(key, keys):
            mistakes.append(Mistake(item.key, item.path, unknown(key, keys)))
        elif key in keys or _is_axis(key, item, mistakes):
            axes[key] = item
    return {"tune": replace(node, value=axes)}


def _section(node: Node, kind: str, mistakes: list[Mistake]) -> dict[str, Node]:
    """Return a section of rows under its name; empty if it makes no row, and is not null."""
    if node.value is None:
        return {kind: node}
    needs = {
        "variants": "a mapping from names of rows to changes",
        "grid": "a mapping from paths to lists of values",
        "leave_one_out": "two changes or more, by name or in a list",
    }[kind]
    is_list = kind == "leave_one_out" and isinstance(node.value, list)
    n_changes = len(node.elements if is_list else node.entries())
    if n_changes < (2 if kind == "leave_one_out" else 1):
        is_empty = kind != "leave_one_out" and node.value == {}
        first = "row" if kind == "variants" else "path"
        reason = f"is empty; name a {first} or leave it out" if is_empty else f"needs {needs}"
        mistakes.append(Mistake(node.mark, node.path, reason))
        return {}
    if kind == "grid":
        axes = {key: item for key, item in node.items() if _is_axis(key, item, mistakes)}
        return {kind: replace(node, value=axes)} if axes else {}
    if isinstance(node.value, list):
        changes = [_change(item, mistakes) for item in node.value]
        return {kind: replace(node, value=[item for item in changes if item])}
    by_name = {
        key: item if kind == "variants" and item.value is None else _change(item, mistakes)
        for key, item in _named(node, mistakes)
    }
    return {kind: replace(node, value={key: item for key, item in by_name.items() if item})}


def _contexts(node: Node, mistakes: list[Mistake]) -> dict[str, Node]:
    """Return the section ``contexts`` under its name; a context may change nothing."""
    if node.value is None:
        return {CONTEXTS: node}
    if not isinstance(node.value, dict) or not node.value:
        reason = "needs a mapping from names of contexts to changes"
        mistakes.append(Mistake(node.mark, node.path, reason))
        return {}
    by_name = {
        name: item if item.value in (None, {}) else _change(item, mistakes, _OF_CONTEXTS)
        for name, item in _named(node, mistakes, "context", UNUSABLE_CONTEXT)
    }
    return {CONTEXTS: replace(node, value={key: item for key, item in by_name.items() if item})}


def _named(
    section: Node, mistakes: list[Mistake], what: str = "row", unusable: str = UNUSABLE_NAME
) -> Iterator[tuple[str, Node]]:
    """Yield the rows or contexts of a section whose names do in tables and folders."""
    for name, node in section.items():
        if not re.search(unusable, name):
            yield name, node
            continue
        rules = {
            "row": "in one line, without outer blanks",
            "context": "of A-Z, a-z, 0-9, _, - and .",
        }
        reason = f"no {what} can be called {name!r}; give it a name {rules[what]}"
        mistakes.append(Mistake(node.key, section.path, reason))


def _is_axis(path: str, node: Node, mistakes: list[Mistake]) -> bool:
    if not _may_vary(path.split(".")[0], node.key, node.path, mistakes):
        return False
    if isinstance(node.value, list) and node.value:
        return True
    mistakes.append(Mistake(node.mark, node.path, "needs a list of the values to try"))
    return False


def _change(node: Node, mistakes: list[Mistake], heads: Sequence[str] = VARYING) -> Node | None:
    if not isinstance(node.value, dict) or not node.value:
        reason = "needs a mapping from paths to values, as in {model.norm: rms}"
        if node.value in (None, {}, []):
            reason = IS_EMPTY
        mistakes.append(Mistake(node.mark, node.path, reason))
        return None
    layer = change(node, mistakes)
    changes = {
        key: item
        for key, item in layer.items()
        if _may_vary(key, item.key, item.path, mistakes, heads)
    }
    return replace(layer, value=changes) if changes else None


def _may_vary(
    head: str, at: Mark, path: str, mistakes: list[Mistake], heads: Sequence[str] = VARYING
) -> bool:
    if head in heads:
        return True
    if heads is _OF_CONTEXTS:
        reason = unknown(head, heads)
        if head in (*HEADER, *SECTIONS, *_FILES):
            reason = f"all contexts share {head!r}; put it at the top level of the file"
    elif head in ("corpus", "seed", "seeds"):
        what = "corpus" if head == "corpus" else "list of seeds"
        reason = f"all rows share one {what}; give it outside of the rows"
    elif head in (*HEADER, *SECTIONS, *_FILES, "devices_per_run"):
        reason = f"{head!r} is not for one row; put it at the top level of the file"
    else:
        reason = unknown(head, VARYING)
    mistakes.append(Mistake(at, path, reason))
    return False
