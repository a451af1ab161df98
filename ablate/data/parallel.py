"""Parallel text as found: bytes to lines, lines to pairs, and what to do about bad ones.

A line that is not valid UTF-8 is None until it is reported. Line numbers count from 1.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ablate.data.corpus import Bitext
from ablate.errors import DataError

Side = Sequence[str | None]

_SHOWN = 5

_INVALID = "invalid UTF-8"
_EMPTY = "an empty side"


@dataclass(frozen=True)
class Limits:
    """What a training pair may be.

    Attributes:
        max_words: on either side; words are what white space separates.
        max_ratio: of the longer side's words to the shorter side's; None if any may be.
    """

    max_words: int
    max_ratio: float | None = None


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, unpacked if its name ends in ``.gz``.

    Raises:
        DataError: if it is not there or cannot be unpacked.
    """
    try:
        content = path.read_bytes()
        return gzip.decompress(content) if path.suffix == ".gz" else content
    except FileNotFoundError as error:
        here = "" if path.is_absolute() else f"; relative paths begin at {Path.cwd()}"
        raise DataError(f"{path}: there is no such file{here}") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def lines_of(content: bytes) -> list[str | None]:
    """Return the lines; one that is not valid UTF-8 is None."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not lines[-1]:
        del lines[-1]
    return [_decoded(line) for line in lines]


def pair_up(name: str, src: Side, tgt: Side) -> None:
    """Check that two sides have a line for each other's lines.

    Raises:
        DataError: naming both counts.
    """
    if len(src) != len(tgt):
        raise DataError(
            f"{name}: the source has {len(src)} lines, the target {len(tgt)}; "
            "line n of one must be the translation of line n of the other"
        )
    if not src:
        raise DataError(f"{name}: there is not a single line")


def cleaned(name: str, src: Side, tgt: Side, limits: Limits) -> tuple[Bitext, tuple[str, ...]]:
    """Return the good pairs of a training split, and a note about the others.

    Raises:
        DataError: if the sides do not match, or no pair is good.
    """
    pair_up(name, src, tgt)
    bad = _problems(src, tgt, limits)
    skipped = set().union(*bad.values())
    pairs = [pair for i, pair in enumerate(_pairs(src, tgt), start=1) if i not in skipped]
    if not skipped:
        return _bitext(pairs), ()
    note = f"{name}: {len(skipped)} of {len(src)} pairs left out: {_told(bad)}"
    if not pairs:
        raise DataError(note)
    return _bitext(pairs), (note,)


def complete(name: str, src: Side, tgt: Side, limits: Limits) -> tuple[Bitext, tuple[str, ...]]:
    """Return all pairs of a split to measure on, and a note about the strange ones.

    Raises:
        DataError: if the sides do not match, or a line is empty or not valid UTF-8: leaving pairs
            out would change what is measured.
    """
    pair_up(name, src, tgt)
    bad = _problems(src, tgt, limits)
    broken = {reason: lines for reason, lines in bad.items() if reason in (_INVALID, _EMPTY)}
    if broken:
        raise DataError(f"{name}: nothing is left out of a test, so mend it first: {_told(broken)}")
    note = (f"{name}: kept, but {_told(bad)}",) if bad else ()
    return _bitext(_pairs(src, tgt)), note


def _decoded(line: bytes) -> str | None:
    try:
        return line.decode().rstrip("\r")
    except UnicodeDecodeError:
        return None


def _problems(src: Side, tgt: Side, limits: Limits) -> dict[str, list[int]]:
    """Return the line numbers of the pairs that suffer from each problem, one problem a pair."""
    found: dict[str, list[int]] = {}
    for number, pair in enumerate(zip(src, tgt, strict=True), start=1):
        problem = _problem(*pair, limits)
        if problem:
            found.setdefault(problem, []).append(number)
    return found


def _problem(src: str | None, tgt: str | None, limits: Limits) -> str | None:
    if src is None or tgt is None:
        return _INVALID
    few, many = sorted((len(src.split()), len(tgt.split())))
    if not few:
        return _EMPTY
    if many > limits.max_words:
        return f"more than {limits.max_words} words on a side"
    if limits.max_ratio is not None and many > limits.max_ratio * few:
        return f"one side more than {limits.max_ratio:g} times as long as the other"
    return None


def _told(bad: dict[str, list[int]]) -> str:
    """Say how many lines have each problem, and where the first ones are."""
    reasons = []
    for reason, lines in bad.items():
        shown = ", ".join(str(line) for line in lines[:_SHOWN])
        more = ", ..." if len(lines) > _SHOWN else ""
        reasons.append(f"{len(lines)} with {reason} (line{'s'[: len(lines) > 1]} {shown}{more})")
    return "; ".join(reasons)


def _pairs(src: Side, tgt: Side) -> list[tuple[str, str]]:
    return [(s or "", t or "") for s, t in zip(src, tgt, strict=True)]


def _bitext(pairs: list[tuple[str, str]]) -> Bitext:
    return Bitext(tuple(src for src, _ in pairs), tuple(tgt for _, tgt in pairs))
