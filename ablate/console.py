"""What is printed for people and for programs, with foreign text made printable."""

from __future__ import annotations

import io
import json
import math
import re
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, TextIO

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from ablate.printable import SCHEMA, printable

_STYLE = re.compile(r"\x1b\[[0-9;]*m")


class Console(rich.console.Console):
    """A console that sends no control character but its own colours and movements."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text is segment.text else Segment(text, segment.style)


class EventStream(io.TextIOBase):
    """Standard error for programs: JSON, an object a line.

    What is printed to it, as remarks, warnings and error messages are, becomes the ``text`` of an
    event ``remark``.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._rest, self._lock = stream, "", threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            self._rest += text
            if text.endswith("\n"):
                whole, self._rest = _STYLE.sub("", self._rest).strip("\n"), ""
                if whole:
                    self.emit("remark", text=whole)
        return len(text)

    def emit(self, event: str, **fields: Any) -> None:
        """Write an event with its time, in UTC; a number that JSON lacks, as a NaN, is null."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        content = {"schema": SCHEMA, "event": event, "time": time, **fields}
        for key, value in fields.items():
            if isinstance(value, float) and not math.isfinite(value):
                content[key] = None
        with self._lock:
            self._stream.write(json.dumps(content) + "\n")
            self._stream.flush()

    def flush(self) -> None:
        self._stream.flush()
