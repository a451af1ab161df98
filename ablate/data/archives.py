"""Members of tar archives, and the segments of SGML test sets."""

from __future__ import annotations

import html
import lzma
import re
import shutil
import tarfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, cast

from ablate.compression import Unpacked
from ablate.data.cache import anonymous_file
from ablate.errors import DataError

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


def segments(name: str, content: bytes) -> list[str | None]:
    """Return the text of every ``<seg>``, in order, entities resolved, each on one line."""
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: {error}") from error
    return [" ".join(html.unescape(segment).split()) for segment in _SEGMENT.findall(text)]
