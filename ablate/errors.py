"""The errors that this package raises."""

from __future__ import annotations

import re
from typing import Any, ClassVar


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; the name of its type if there is none."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def first_line_with_type(error: BaseException) -> str:
    """Return the name of an error's type, and the first line of its message if there is one."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


class AblateError(Exception):
    """Base class of every error that this package raises.

    Attributes:
        exit_status: of the command line; 2 means that the input is wrong.
    """

    exit_status: ClassVar[int] = 2

    def details(self) -> list[dict[str, Any]]:
        """Return each mistake as plain data: file, line, column, path, message, suggestion.

        What is not known of one is None.
        """
        known = dict.fromkeys(("file", "line", "column", "path"))
        return [{**known, "message": str(self), "suggestion": suggestion_in(str(self))}]


def suggestion_in(message: str) -> str | None:
    """Return what a message asks whether it was meant."""
    meant = re.search(r"did you mean '([^']+)'", message)
    return meant[1] if meant else None


class SpecError(AblateError):
    """The experiment file, or the model it describes, is not valid."""


class DataError(AblateError):
    """A corpus or a tokenizer is missing or malformed."""


class RunError(AblateError):
    """One run failed; the others continue."""

    exit_status = 1


class DivergedError(RunError):
    """The training loss became NaN or exceeded its limit."""


class EngineError(RunError):
    """The process cannot continue with its engine.

    The task must be repeated in a fresh process with the eager engine: after a failed capture
    PyTorch's generator and allocator are in no state to be used.
    """


class KilledError(RunError, MemoryError):
    """A process of the run was killed by signal 9, as Linux does when memory is short."""


class StoreError(AblateError):
    """A stored result is missing or cannot be read."""


class DamagedFileWarning(UserWarning):
    """A stored file is damaged, and is treated as missing."""


class ChangedPluginWarning(UserWarning):
    """A plugin has other content than when a run was trained with its parts."""


class DeprecatedWarning(FutureWarning):
    """Something that the user wrote goes with the next major version."""


class StoppedError(AblateError):
    """The user stopped a run; its progress is kept, and the next call continues."""

    exit_status = 130


class DetachedError(AblateError):
    """The jobs on a cluster go on without this process, as the user requested."""

    exit_status = 0
