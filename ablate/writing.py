"""Files that are written atomically: a reader sees the old content or the new, never a part."""

from __future__ import annotations

import csv
import errno
import io
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

from ablate.printable import printable


@contextmanager
def atomic_write(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Yield a stream whose content replaces ``path`` at the end, even across a power cut.

    Nothing is written if the block raises, or the system: the old content is then still there. The
    folder is created where it is missing. To a device or a pipe is written as it is: a file in its
    place would break what else uses it. ``mode`` is ``wb``, or ``w`` for text in UTF-8.
    """
    encoding = None if "b" in mode else "utf-8"
    if _is_stream(path):
        with _system_errors(path), path.open(mode.replace("w", "a"), encoding=encoding) as stream:
            yield stream
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with _system_errors(path), temporary.open(mode, encoding=encoding) as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextmanager
def _system_errors(path: Path) -> Iterator[None]:
    """Name the file in an error of the system, even if PyTorch's writer covers it by its own."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__ or error.__context__
        if not isinstance(cause, OSError) or cause.errno is None:
            raise
        raise OSError(cause.errno, cause.strerror, cause.filename or str(path)) from error


def write_whole(path: Path, content: str) -> None:
    """Write a text file atomically; an error leaves the old content."""
    with atomic_write(path, "w") as stream:
        stream.write(content)


def remove_tree(path: Path, *, first: str = "", ignore_errors: bool = False) -> None:
    """Remove a folder with its files; of a link, the link alone.

    Links in the folder are removed and not followed, even if one replaces a folder meanwhile. A
    folder in which a file system is mounted stays whole. The file ``first`` goes first, so that no
    interruption leaves it.
    """
    with suppress(OSError) if ignore_errors else nullcontext():
        if path.is_symlink():
            path.unlink()
            return
        if mounted := _mounted_in(path):
            reason = f"a file system is mounted at {mounted}; unmount it first"
            raise OSError(errno.EBUSY, reason, str(path))
        if first:
            _unlink_in(path, first)
        shutil.rmtree(path, ignore_errors=ignore_errors)


def _unlink_in(folder: Path, name: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=handle)
    finally:
        os.close(handle)


def _mounted_in(folder: Path) -> Path | None:
    """Return where Linux has mounted a file system in a folder, also by a bind mount; else None."""
    root = folder.resolve()
    with suppress(FileNotFoundError):  # not Linux
        for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
            name = _OCTAL.sub(lambda match: bytes([int(match[1], 8)]), line.split()[4])
            mounted = Path(os.fsdecode(name))
            if mounted.is_relative_to(root):
                return mounted
    return None


def write_csv(path: Path, rows: Sequence[Mapping[str, str | float | None]]) -> None:
    """Write rows of the same columns atomically, None and NaN as empty cells, as pandas does."""
    cells = [
        {key: None if isinstance(x, float) and math.isnan(x) else x for key, x in row.items()}
        for row in rows
    ]
    write_whole(path, csv_text(cells))


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows of the same columns as CSV under a line of headers; nothing without rows.

    A text that a spreadsheet would compute as a formula begins with an apostrophe, which `csv_rows`
    removes, and control characters are shown as escape sequences.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([map(_quoted, row.keys()) for row in rows[:1]])
    writer.writerows(map(_quoted, row.values()) for row in rows)
    return text.getvalue()


def csv_rows(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV by the names of their columns, without what `csv_text` adds."""
    for row in csv.DictReader(lines, restkey="", restval=""):
        yield {unquoted(key): unquoted(value) for key, value in row.items() if key}


def unquoted(cell: str) -> str:
    """Return a cell of a CSV without the apostrophe that keeps it from being a formula."""
    return cell[1:] if _QUOTED.match(cell) else cell


_OCTAL = re.compile(rb"\\([0-7]{3})")  # as proc(5) writes blanks
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_QUOTED = re.compile(r"'+[=+\-@\t\r]")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


def _quoted(value: Any) -> Any:
    """Return a cell that no spreadsheet computes; a number is no text, nor is one in digits."""
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def _is_stream(path: Path) -> bool:
    """Return whether a path is that of a device or a pipe, such as ``/dev/stdout``."""
    if path.parent == Path("/dev"):  # even if the shell has put a file behind it
        return True
    return path.exists() and not (path.is_file() or path.is_dir())


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # the file system synchronises no folders
            raise
    finally:
        os.close(handle)
