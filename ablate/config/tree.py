"""A tree of YAML in which every value has its position in the text, and mistakes with theirs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablate.printable import printable

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
        """Return the line."""
        lines = self.source.lines
        return lines[self.line - 1] if self.line <= len(lines) else ""

    def shifted(self, columns: int) -> Mark:
        """Return the position so many columns to the right."""
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

    @property
    def elements(self) -> list[Node]:
        """Return the nodes of a list; nothing for other values."""
        return self.value if isinstance(self.value, list) else []

    def get(self, key: str) -> Node | None:
        """Return the node under a key, if there is one."""
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
        """Return the node at ``path``, if there is one."""
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
