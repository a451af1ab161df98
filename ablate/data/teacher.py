"""A teacher's translations of the training text, which a student is trained on."""

from __future__ import annotations

from pathlib import Path

from ablate.data.corpus import Bitext
from ablate.data.lines import Lines
from ablate.data.parallel import lines_of, pieces_of, why_unreadable
from ablate.errors import DataError


def with_translations(text: Bitext, path: str) -> Bitext:
    """Return training text whose targets are the lines of a file, plain or ``.gz``.

    Source: Kim & Rush 2016, arXiv:1606.07947, sec. 3.2 (sequence-level distillation).

    Raises:
        DataError: if it is no readable file, a line is not UTF-8, or there are more or fewer lines
            than training pairs.
    """
    reason = why_unreadable(Path(path))
    if reason is not None:
        raise DataError(f"training.teacher: {reason}: {path!r}")
    lines = Lines()
    for number, line in enumerate(lines_of(pieces_of(Path(path))), start=1):
        if line is None:
            raise DataError(f"training.teacher: {path}, line {number} is not valid UTF-8")
        lines.extend([line])
    if len(lines) != len(text):
        raise DataError(
            f"training.teacher: {path} has {len(lines):,} lines for {len(text):,} training pairs; "
            "write it with `ablate translate RUN --training-text`, with a run of the same corpus"
        )
    return Bitext(text.src, lines)
