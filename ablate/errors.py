"""Everything that can go wrong on purpose.

AblateError
├── SpecError    the experiment file, or the model it describes, is not valid
├── DataError    a corpus or a tokenizer is missing or malformed
├── RunError     one run failed; the others go on
│   ├── DivergedError  the loss became NaN or rose past its bound
│   └── EngineError    the process cannot go on with its engine; a fresh one can, eagerly
├── StoreError   a stored result is missing or cannot be read
└── StoppedError the user stopped it; the next call continues
"""

from __future__ import annotations

from typing import ClassVar


class AblateError(Exception):
    """Base class of every error this package raises on purpose.

    Attributes:
        exit_status: what the command line ends with; 2 says that the input is wrong.
    """

    exit_status: ClassVar[int] = 2


class SpecError(AblateError):
    """The experiment file, or the model it describes, is not valid."""


class DataError(AblateError):
    """A corpus or a tokenizer is missing or malformed."""


class RunError(AblateError):
    """One run failed; the others go on."""

    exit_status = 1


class DivergedError(RunError):
    """The training loss became NaN or rose past its bound."""


class EngineError(RunError):
    """The process cannot go on with its engine.

    The task must be repeated in a fresh process with the eager engine: after a failed capture
    PyTorch's generator and allocator are in no state to be used.

    Args:
        reason: why, in words for the table.
        is_own: whether it was this run that failed. If not, another run in the same process did,
            and this one may be repeated with its own engine.
    """

    def __init__(self, reason: str, *, is_own: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.is_own = is_own


class StoreError(AblateError):
    """A stored result is missing or cannot be read."""


class StoppedError(AblateError):
    """The user stopped a run; what it has reached is kept, and the next call continues."""

    exit_status = 130
