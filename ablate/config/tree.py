"""YAML text read as a tree of nodes with their positions, and plain data written as YAML.

Scalars are read by the core schema of YAML 1.2: ``no`` is a word, ``1e-4`` a number.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from ablate.printable import CONTROL, escaped, printable

_WIDTH = 160


@dataclass(frozen=True)
class Source:
    """A text with a name in messages, and the file if it is one."""

    label: str
    lines: tuple[str, ...]
    path: Path | None = None


@dataclass(frozen=True)
class Mark:
    """A position in a text; line and column count from 1."""

    source: Source
    line: int
    column: int

    @property
    def excerpt(self) -> str:
        lines = self.source.lines
        return lines[self.line - 1] if self.line <= len(lines) else ""

    def shifted(self, columns: int) -> Mark:
        return replace(self, column=self.column + columns)

    def seen_from(self, other: Mark) -> str:
        """Return the line in words, with its text unless that is the text of ``other``."""
        of_text = "" if self.source == other.source else f" of {self.source.label}"
        return f"line {self.line}{of_text}"

    def __str__(self) -> str:
        return f"{self.source.label}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Node:
    """A value of the YAML: a scalar, a mapping of nodes, or a list of nodes.

    Attributes:
        key: where its key begins, or where it begins itself if it has no key.
        path: its dotted path, as in the text.
        is_flow: a mapping or list in brackets.
    """

    value: dict[str, Node] | list[Node] | str | int | float | bool | None
    start: Mark
    key: Mark
    path: str = ""
    is_flow: bool = False

    @property
    def mark(self) -> Mark:
        """Return the position to point at: the value, or the key of a block below it."""
        is_block = isinstance(self.value, dict | list) and not self.is_flow
        return self.key if is_block else self.start

    def items(self) -> Iterator[tuple[str, Node]]:
        """Yield keys and nodes of a mapping; nothing for other values."""
        yield from self.value.items() if isinstance(self.value, dict) else ()

    def entries(self, *path: str) -> dict[str, Node]:
        """Return the nodes of the mapping at a path by key; empty if there is none."""
        node = self.find(path)
        return dict(node.items()) if node else {}

    @property
    def elements(self) -> list[Node]:
        """Return the nodes of a list; nothing for other values."""
        return self.value if isinstance(self.value, list) else []

    def get(self, key: str) -> Node | None:
        return self.value.get(key) if isinstance(self.value, dict) else None

    def plain(self) -> Any:
        """Return the value without marks, lists as tuples."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return tuple(node.plain() for node in self.value)
        return self.value

    def as_written(self) -> Any:
        """Return the value as the YAML has it: a part without options is its name."""
        if isinstance(self.value, dict):
            if list(self.value) == ["name"]:
                return self.value["name"].value
            return {key: item.as_written() for key, item in self.items()}
        if isinstance(self.value, list):
            return [item.as_written() for item in self.value]
        return self.value

    def descend(self, path: Sequence[str | int]) -> tuple[Node, int]:
        """Follow ``path`` as far as it exists; return the last node and its depth."""
        node = self
        for depth, step in enumerate(path):
            below = node.get(str(step))
            if below is None and str(step).isdecimal() and int(step) < len(node.elements):
                below = node.elements[int(step)]
            if below is None:
                return node, depth
            node = below
        return node, len(path)

    def find(self, path: Sequence[str | int]) -> Node | None:
        node, depth = self.descend(path)
        return node if depth == len(path) else None


@dataclass(frozen=True)
class Mistake:
    """One mistake and its position; ``path`` is empty if it is about the whole text."""

    mark: Mark
    path: str
    reason: str

    def __str__(self) -> str:
        where = f"{self.mark}: {printable(self.path)}: " if self.path else f"{self.mark}: "
        excerpt = self.mark.excerpt.replace("\t", " ")
        first = max(0, self.mark.column - _WIDTH // 2) if len(excerpt) > _WIDTH else 0
        part = printable(excerpt[first : first + _WIDTH])
        caret = " " * len(printable(excerpt[first : self.mark.column - 1])) + "^"
        return f"{where}{self.reason}" + (f"\n  {part}\n  {caret}" if excerpt.strip() else "")


class UnreadableError(Exception):
    """A text is not YAML, or not of an experiment; ``mistake`` has the reason."""

    def __init__(self, mistake: Mistake) -> None:
        super().__init__(str(mistake))
        self.mistake = mistake


MAX_NODES = 100_000
"""More values than any experiment has; aliases of aliases can ask for billions."""


def source_of(label: str, content: bytes, path: Path | None = None) -> Source:
    """Decode a text; an UnreadableError if it is not UTF-8 text."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line = before.count(b"\n") + 1
        column = len(before.rpartition(b"\n")[2].decode(errors="replace")) + 1
        reason = "is not UTF-8 text; save it as UTF-8" if b"\0" not in content else _BINARY
        raise _unreadable(Source(label, (), path), line, column, reason) from error
    source = Source(label, tuple(_BREAK.split(text)), path)
    odd = yaml.reader.Reader.NON_PRINTABLE.search(text)
    if odd:
        lines = _BREAK.split(text[: odd.start()])
        raise _unreadable(replace(source, lines=()), len(lines), len(lines[-1]) + 1, _BINARY)
    return source


def parse(source: Source, mistakes: list[Mistake], path: str = "") -> Node | None:
    """Return the tree of a text; None if it is empty. Adds to ``mistakes``.

    ``path`` is that of the tree if the text begins with it and one more character, as in ``--set``.
    A text that is not YAML, or holds several documents, is an `UnreadableError`.
    """
    text = "\n".join(source.lines)
    try:
        root = _compose(" " * (len(path) + 1) + text[len(path) + 1 :] if path else text)
        return None if root is None else _Reader(source, mistakes).node(root, path=path)
    except yaml.MarkedYAMLError as error:
        mark, opening, problem = error.problem_mark, error.context_mark, error.problem or ""
        assert mark is not None
        is_open = "expected ','" in problem or "end of stream" in problem
        if is_open and opening and opening.line != mark.line:  # a bracket or quote not closed
            mark = opening
        reason = _sentence(error, mark, source)
        raise _unreadable(source, mark.line + 1, mark.column + 1, reason) from error
    except yaml.reader.ReaderError as error:
        lines = text[: error.position].split("\n")
        reason = control_reason(chr(error.character))
        raise _unreadable(source, len(lines), len(lines[-1]) + 1, reason) from error
    except RecursionError as error:
        raise _unreadable(source, 1, 1, "is nested too deeply") from error


def dump(value: Any, *, width: int = 80, flow: bool | None = False) -> str:
    """Return a value as YAML that parsers of YAML 1.2 read with the same types, keys in order.

    ``flow`` writes it in one line, with braces and brackets; None does so with the innermost.
    """
    return yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=width,
        default_flow_style=flow,
    )


def control_reason(character: str) -> str:
    """Return why a text with this control character is refused."""
    return (
        f"contains the control character {escaped(character)}, which a terminal would obey; "
        "remove it"
    )


@functools.lru_cache(maxsize=64)
def _compose(text: str) -> yaml.Node | None:
    """Return PyYAML's tree of a text; cached, because many files may extend the same one."""
    loader = _Loader(text)
    try:
        return loader.get_single_node()
    finally:
        loader.dispose()


_BREAK = re.compile(r"\r\n|\r|\n|\x85|\u2028|\u2029")
_BINARY = "is not a text file; an experiment is written in YAML"
_PLAIN = "plain"
_STRING = "tag:yaml.org,2002:str"
_CORE: tuple[tuple[re.Pattern[str], Any], ...] = (
    (re.compile(r"null|Null|NULL|~|"), lambda _: None),
    (re.compile(r"true|True|TRUE"), lambda _: True),
    (re.compile(r"false|False|FALSE"), lambda _: False),
    (re.compile(r"[-+]?[0-9]+"), lambda text: _whole(text, 10)),
    (re.compile(r"0o[0-7]+"), lambda text: _whole(text, 8)),
    (re.compile(r"0x[0-9a-fA-F]+"), lambda text: _whole(text, 16)),
    (
        re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"),
        lambda text: float(text) + 0.0,  # -0.0 is 0.0
    ),
    (re.compile(r"[-+]?\.(inf|Inf|INF)"), lambda text: float(text.replace(".", ""))),
    (re.compile(r"\.(nan|NaN|NAN)"), lambda _: float("nan")),
)
_SENTENCES = (
    (r"cannot start any token", "{char} cannot start a value; put the text in quotes"),
    (
        r"mapping values are not allowed",
        "a second ':' in one line; is the indentation right, "
        "or does a text with ':' lack its quotes?",
    ),
    (r"could not find expected ':'", "expected 'key: value'; is a space missing after ':'?"),
    (r"expected ',' or '([]}])'", "a ',' or the closing '{0}' is missing"),
    (r"expected <block end>", "does not fit what stands above; is the indentation right?"),
    (r"found unexpected end of stream", "the quotes are not closed"),
    (r"expected a single document", "a file holds one document; remove this line and what follows"),
)


class _Loader(yaml.SafeLoader):
    """Composes nodes without resolving plain scalars."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else _STRING
        return str(super().resolve(kind, value, implicit))


class _Dumper(yaml.SafeDumper):
    """Quotes texts that YAML 1.2 would read as numbers, such as the hash `12e4`."""

    def text(self, value: str) -> yaml.ScalarNode:
        style = None if scalar(value) == value else "'"
        return self.represent_scalar(_STRING, value, style=style)


_Dumper.add_representer(str, _Dumper.text)


@dataclass
class _Reader:
    """Converts nodes of PyYAML."""

    source: Source
    mistakes: list[Mistake]
    n_nodes: int = 0
    ancestors: list[int] = field(default_factory=list)

    def node(self, raw: yaml.Node, key: Mark | None = None, path: str = "") -> Node:
        start = Mark(self.source, raw.start_mark.line + 1, raw.start_mark.column + 1)
        self.n_nodes += 1
        if self.n_nodes > MAX_NODES:
            raise _unreadable(self.source, start.line, start.column, "is too large")
        if id(raw) in self.ancestors:
            raise UnreadableError(Mistake(key or start, path, "contains itself, through an alias"))
        self.ancestors.append(id(raw))
        value, is_flow = self._value(raw, start, path), bool(getattr(raw, "flow_style", True))
        self.ancestors.pop()
        return Node(value, start, key or start, path, is_flow)

    def _value(self, raw: yaml.Node, at: Mark, path: str) -> Any:
        if raw.tag not in (_PLAIN, _STRING, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            reason = f"the tag {raw.tag!r} has no meaning; remove it"
            raise UnreadableError(Mistake(at, path, reason))
        if isinstance(raw, yaml.MappingNode):
            return self._mapping(raw, path)
        if isinstance(raw, yaml.SequenceNode):
            return [self.node(item, path=path) for item in raw.value]
        text = _checked(raw.value, at, path)
        return scalar(text) if raw.tag == _PLAIN else text

    def _mapping(self, raw: yaml.MappingNode, path: str) -> dict[str, Node]:
        mapping: dict[str, Node] = {}
        for raw_key, raw_value in raw.value:
            mark = Mark(self.source, raw_key.start_mark.line + 1, raw_key.start_mark.column + 1)
            if not isinstance(raw_key, yaml.ScalarNode):
                reason = "a key must be a word, not a list or a mapping"
                self.mistakes.append(Mistake(mark, path, reason))
                continue
            key = _checked(raw_key.value, mark, path)
            below = f"{path}.{key}" if path else key
            if key in mapping:
                reason = f"is given twice; first in line {mapping[key].key.line}"
                self.mistakes.append(Mistake(mark, below, reason))
                continue
            mapping[key] = self.node(raw_value, mark, below)
        return mapping


def _checked(text: str, mark: Mark, path: str) -> str:
    if control := CONTROL.search(text):
        raise UnreadableError(Mistake(mark, path, control_reason(control[0])))
    return text


def scalar(text: str) -> str | int | float | bool | None:
    """Return the value of a plain scalar in the core schema of YAML 1.2."""
    for pattern, meaning in _CORE:
        if pattern.fullmatch(text):
            return meaning(text)
    return text


def _whole(text: str, base: int) -> int | float:
    """Return a whole number; infinity, as of a number with a point, if it exceeds all floats."""
    try:
        number = int(text, base)
        float(number)
    except (OverflowError, ValueError):  # ValueError: more digits than Python reads
        return -math.inf if text.startswith("-") else math.inf
    return number


def _sentence(error: yaml.MarkedYAMLError, mark: yaml.Mark, source: Source) -> str:
    line = source.lines[mark.line] if mark.line < len(source.lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "a tab; YAML is indented with spaces"
    if line[mark.column : mark.column + 1] == "\t":
        return "a tab; write a space in its place"
    problem = error.problem or ""
    before = source.lines[mark.line - 1] if mark.line else ""
    if "mapping values" in problem and re.match(r"\s*[\w.]+:[^\s]", before):
        return f"is a space missing after the ':' of line {mark.line}?"
    for pattern, sentence in _SENTENCES:
        match = re.search(pattern, f"{error.context}: {problem}")
        if match:
            char = repr(line[mark.column : mark.column + 1])
            return sentence.format(*match.groups(), char=char)
    return f"is not YAML: {problem}"


def _unreadable(source: Source, line: int, column: int, reason: str) -> UnreadableError:
    return UnreadableError(Mistake(Mark(source, line, column), "", reason))
