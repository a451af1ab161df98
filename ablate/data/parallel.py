"""Raw parallel text: from bytes to lines, from lines to pairs, and the treatment of bad pairs.

A line that is not valid UTF-8 is None until it is reported. Line numbers count from 1.
"""

from __future__ import annotations

import glob
import html
import lzma
import os
import re
import shutil
import stat
import tarfile
import zlib
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, cast

from pydantic import Field

from ablate.compression import Unpacked, gunzip, member
from ablate.data.cache import anonymous_file
from ablate.data.corpus import Bitext, bleu_tokenizer
from ablate.errors import DataError
from ablate.wording import counted

Ratio = Annotated[float, Field(ge=1.0)]
Side = Iterable[str | None]
Numbered = tuple[int, str | None, str | None]
"""The number of a line and both sides of its pair."""

_MAX_LISTED = 5
_PIECE = 2**20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MARKS_OF_UTF_16 = b"\xff\xfe", b"\xfe\xff"

_MOST_INVALID = 0.01
"""The share of invalid pairs above which a text is in another encoding, and not just damaged."""
_FEW = 10  # invalid pairs, which say nothing of a text of any size
_INVALID = "invalid UTF-8"
_NUL = "a NUL character, as UTF-16 has them"
_EMPTY = "an empty side"
_BREAK = "a line break within a sentence"


@dataclass(frozen=True)
class Limits:
    """Limits on the words of either side of a training pair, and on their ratio.

    In a language that is written without spaces, characters count.
    """

    max_words: int
    max_ratio: float | None = None
    languages: tuple[str, str] = ("en", "de")

    def n_words(self, side: int, line: str) -> int:
        """Return the number of words of a line, of the source (0) or the target (1)."""
        words = line.split()
        has_spaces = bleu_tokenizer(self.languages[side]) == "13a"
        return len(words) if has_spaces else sum(map(len, words))


def pieces_of(path: Path) -> Iterator[bytes]:
    """Yield the content of a file piece by piece, unpacked if its name ends in ``.gz``.

    ``x.zip/name`` is a file of an archive.
    """
    try:
        zipped = _zipped(path)
        with member(*zipped) if zipped else path.open("rb") as file:
            yield from unpacked(file, str(path))
    except FileNotFoundError as error:
        raise DataError(f"{path}: {_no_file(path)}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error}") from error


def _no_file(path: Path) -> str:
    start = "" if path.is_absolute() else f" in {Path.cwd()}"
    return f"there is no such file{start}"


def files_of(pattern: str) -> list[Path]:
    """Return the files of a path or of a pattern with ``*``, ``?`` or ``[...]``, by their names.

    The end that all of them share does not count but for its first character: ``*.en`` and ``*.zh``
    name the same texts in the same order.
    """
    if not glob.has_magic(pattern) or os.path.lexists(pattern):
        return [Path(pattern)]
    end = re.split(r"[*?\]]", pattern)[-1][1:]
    paths = glob.glob(pattern)  # noqa: PTH207 - may be absolute
    return [Path(path) for path in sorted(paths, key=lambda path: path.removesuffix(end))]


def _zipped(path: Path) -> tuple[Path, str] | None:
    """Return the archive and the name in it, of a path that goes on within a zip archive."""
    archives = (x for x in path.parents if x.suffix == ".zip")
    archive = next((x for x in archives if x.is_file()), None)
    return None if archive is None else (archive, path.relative_to(archive).as_posix())


def why_unreadable(path: Path) -> str | None:
    """Return why a path is no readable file; None if it is one."""
    try:
        if zipped := _zipped(path):
            with member(*zipped):
                return None
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            path.open("rb").close()
            return None
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: has a NUL
        return _no_file(path)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    if stat.S_ISDIR(mode):
        return "is a folder, where a file is needed"
    return "is no regular file, and is read more than once; write its content to one"


def unpacked(file: IO[bytes], name: str) -> Iterator[bytes]:
    """Yield the content of ``file`` piece by piece, unpacked if ``name`` ends in ``.gz``."""
    stream = Unpacked(file, name, gunzip) if name.endswith(".gz") else file
    is_first = True
    try:
        while piece := stream.read(_PIECE):
            if is_first and piece.startswith(_MARKS_OF_UTF_16):
                raise DataError(f"{name}: is in UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE")
            is_first = False
            yield piece
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{name}: cannot be read: {error}") from error


def lines_of(pieces: Iterable[bytes]) -> Iterator[str | None]:
    """Yield the lines of a file's pieces; one that is not valid UTF-8 is None."""
    for line in raw_lines(pieces):
        try:
            text = line.decode()
        except UnicodeDecodeError:
            yield None
        else:
            yield text.rstrip("\r")


def raw_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the bytes of each line, without its line feed and without a byte order mark."""
    begun: list[bytes] = []  # a line that later pieces end, not joined to them one by one
    is_first = True
    for piece in pieces:
        text = piece.removeprefix(_BYTE_ORDER_MARK) if is_first else piece
        *lines, rest = text.split(b"\n")
        is_first = False
        if lines:
            yield b"".join((*begun, lines[0]))
            yield from lines[1:]
            begun = []
        begun.append(rest)
    if last := b"".join(begun):
        yield last


def paired(name: str, src: Side, tgt: Side) -> Iterator[Numbered]:
    """Yield each line with its number and translation.

    A DataError at the end if sides differ, or if only carriage returns end the lines of one.
    """
    n_lines = [0, 0]

    def counting(side: Side, i: int) -> Iterator[str | None]:
        line: str | None = None
        for line in side:
            n_lines[i] += 1
            yield line
        if n_lines[i] == 1 and "\r" in (line or ""):
            raise DataError(
                f"{name}: the {('source', 'target')[i]} is one line, in which carriage returns "
                "(CR) stand for line ends; convert it: tr '\\r' '\\n' < FILE > NEW"
            )

    sides = counting(src, 0), counting(tgt, 1)
    for number, pair in enumerate(zip(*sides, strict=False), start=1):
        yield number, *pair
    for rest in sides:
        deque(rest, maxlen=0)
    if n_lines[0] != n_lines[1]:
        raise DataError(
            f"{name}: the source has {counted(n_lines[0], 'line')}, the target {n_lines[1]:,}; "
            "line n of one must be the translation of line n of the other"
        )
    if not n_lines[0]:
        raise DataError(f"{name}: both files are empty")


def cleaned(name: str, pairs: Iterable[Numbered], limits: Limits) -> tuple[Bitext, tuple[str, ...]]:
    """Return the good pairs of a training split, on disk, and a note about the others."""
    problems = _Problems(limits)
    bitext = Bitext.on_disk(problems.filter(pairs))
    if not problems.n_pairs:
        return bitext, ()
    n_pairs = len(bitext) + problems.n_pairs
    problems.refuse_other_encoding(name, n_pairs)
    note = f"{name}: {problems.n_pairs} of {n_pairs} pairs left out: {problems.summary()}"
    if not len(bitext):
        raise DataError(note)
    return bitext, (note,)


def complete(
    name: str, pairs: Iterable[Numbered], limits: Limits
) -> tuple[Bitext, tuple[str, ...]]:
    """Return all pairs of a dev or test split, and a note about the unusual ones.

    A pair that cannot be kept is an error: leaving it out would change what is measured.
    """
    pairs = list(pairs)
    problems = _Problems(limits)
    deque(problems.filter(pairs), maxlen=0)
    problems.refuse_other_encoding(name, len(pairs))
    if broken := problems.summary(_INVALID, _NUL, _EMPTY, _BREAK):
        raise DataError(f"{name}: no pair may be left out of a test, so repair it first: {broken}")
    note = (f"{name}: kept, but {problems.summary()}",) if problems.n_pairs else ()
    return Bitext.of((src or "", tgt or "") for _, src, tgt in pairs), note


class _Problems:
    """The line numbers of the pairs with each problem; a pair counts for its first problem."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.lines: dict[str, array[int]] = {}

    @property
    def n_pairs(self) -> int:
        return sum(map(len, self.lines.values()))

    def filter(self, pairs: Iterable[Numbered]) -> Iterator[tuple[str, str]]:
        """Yield the pairs without a problem, and note the others."""
        for number, src, tgt in pairs:
            problem = self._problem(src, tgt)
            if problem is None:
                yield src or "", tgt or ""
            else:
                self.lines.setdefault(problem, array("q")).append(number)

    def summary(self, *which: str) -> str:
        """Return how many pairs have each problem, or each of ``which``, and the first lines."""
        reasons = []
        for reason, lines in self.lines.items():
            if reason in which or not which:
                numbers = ", ".join(str(line) for line in lines[:_MAX_LISTED])
                more = ", ..." if len(lines) > _MAX_LISTED else ""
                noun = "line" if len(lines) == 1 else "lines"
                reasons.append(f"{len(lines)} with {reason} ({noun} {numbers}{more})")
        return "; ".join(reasons)

    def refuse_other_encoding(self, name: str, n_pairs: int) -> None:
        """Raise a DataError if more than a few of a split's pairs are invalid."""
        n_invalid = sum(len(self.lines.get(problem, ())) for problem in (_INVALID, _NUL))
        if n_invalid > max(_FEW, _MOST_INVALID * n_pairs):
            likely, code = ("UTF-16",) * 2 if _NUL in self.lines else ("Latin-1", "LATIN1")
            raise DataError(
                f"{name}: {self.summary(_INVALID, _NUL)} of {n_pairs:,} pairs: a file has another "
                f"encoding, most likely {likely}; convert it: iconv -f {code} -t UTF-8 FILE"
            )

    def _problem(self, src: str | None, tgt: str | None) -> str | None:
        if src is None or tgt is None:
            return _INVALID
        if "\0" in src or "\0" in tgt:
            return _NUL
        if "\n" in src or "\n" in tgt:
            return _BREAK
        few, many = sorted((self._limits.n_words(0, src), self._limits.n_words(1, tgt)))
        if not few:
            return _EMPTY
        if many > self._limits.max_words:
            return f"more than {self._limits.max_words} words on a side"
        ratio = self._limits.max_ratio
        if ratio is not None and many > ratio * few:
            return f"one side more than {ratio:g} times as long as the other"
        return None


_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg>", re.DOTALL | re.IGNORECASE)


@contextmanager
def members(archive: Path, names: Collection[str]) -> Iterator[dict[str, IO[bytes]]]:
    """Yield members by name as temporary files, reading the archive once, or raise a DataError."""
    with ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        try:
            packed = Unpacked(stack.enter_context(archive.open("rb")), "it")
            with tarfile.open(fileobj=cast("IO[bytes]", packed), mode="r:") as tar:
                for member in tar:
                    name = member.name.removeprefix("./")
                    content = tar.extractfile(member) if name in names else None
                    if content is not None:
                        files[name] = file = stack.enter_context(anonymous_file())
                        shutil.copyfileobj(content, file)
                        file.seek(0)
                    if len(files) == len(set(names)):
                        break
        except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
            raise DataError(f"{archive}: cannot be unpacked: {error}") from error
        missing = sorted(set(names) - set(files))
        if missing:
            raise DataError(f"{archive} does not hold {', '.join(missing)}")
        yield files


def segments(name: str, content: bytes) -> list[str]:
    """Return the text of every ``<seg>``, in order, entities resolved, each on one line."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: {error}") from error
    return [" ".join(html.unescape(segment).split()) for segment in _SEGMENT.findall(text)]
