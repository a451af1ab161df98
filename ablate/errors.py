"""Everything that can go wrong on purpose.

AblateError
├── SpecError    the experiment file, or the model it describes, is not valid
├── DataError    a corpus or a tokenizer is missing or malformed
├── RunError     one run failed; the others go on
│   ├── DivergedError  the loss became NaN or rose past its bound
│   └── EngineError    the process cannot go on with this engine
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
    """The process cannot go on with this engine, such as after a capture that failed.

    Nothing that the process does afterwards can be trusted: it must end, and the run must be
    repeated in a fresh process with the eager engine. The message is the reason in one line, as a
    footnote shows it. Where another exception is the cause, raise ``from`` it: a capture that ran
    out of memory is repeated with more memory, not with another engine.
    """


class StoreError(AblateError):
    """A stored result is missing or cannot be read."""


class StoppedError(AblateError):
    """The user stopped a run; what it has reached is kept, and the next call continues."""

    exit_status = 130
