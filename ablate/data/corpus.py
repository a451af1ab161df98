"""What a corpus is: parallel text in splits, known by the hash of its content."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ablate.data.lines import Lines
from ablate.registry import Part

_AT_ONCE = 10_000  # sentences

Report = Callable[[str], None]
"""Takes one line about what is going on, for a person to read."""


@dataclass(frozen=True)
class Bitext:
    """One split: ``tgt[i]`` is the translation of ``src[i]``."""

    src: Sequence[str]
    tgt: Sequence[str]

    def __len__(self) -> int:
        return len(self.src)

    def parts(self, n_pairs: int) -> Iterator[Bitext]:
        """Yield ``n_pairs`` at a time, in memory, and the rest."""
        for start in range(0, len(self), n_pairs):
            rows = slice(start, start + n_pairs)
            yield Bitext(self.src[rows], self.tgt[rows])

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Bitext:
        """Return a split that is held in memory."""
        src, tgt = tuple(zip(*pairs, strict=True)) or ((), ())
        return cls(src, tgt)

    @classmethod
    def on_disk(cls, pairs: Iterable[tuple[str, str]]) -> Bitext:
        """Return a split of any size; ``pairs`` are taken a few thousand at a time.

        Raises:
            OSError: if there is no room for it.
        """
        src, tgt, rest = Lines(), Lines(), iter(pairs)
        while some := list(islice(rest, _AT_ONCE)):
            src.extend(one for one, _ in some)
            tgt.extend(other for _, other in some)
        return cls(src, tgt)


@dataclass(frozen=True)
class CorpusText:
    """A whole corpus; the training text may lie on disk (`Lines`).

    Attributes:
        name: how tables call it.
        src: code of the source language.
        tgt: code of the target language.
        train: what models and tokenizers are trained on.
        dev: what decides about stopping and averaging.
        tests: what is reported, in order.
        is_tokenised: the text is lower-cased and its tokens stand apart, so that BLEU
            must not tokenise it again.
        notes: what was skipped or repaired, a sentence each.
    """

    name: str
    src: str
    tgt: str
    train: Bitext
    dev: Bitext
    tests: dict[str, Bitext]
    is_tokenised: bool = False
    notes: tuple[str, ...] = ()


class Corpus(Part, slot="corpus"):
    """The contract: say what you hold without touching the network, fetch it, load it."""

    def __init__(self) -> None:
        return

    def is_available(self) -> bool:
        """Return whether `load` needs no download."""
        return True

    def fetch(self, report: Report) -> None:
        """Download what is missing and check it.

        Raises:
            DataError: naming the URL that failed and the folder to put the file in.
        """

    @abstractmethod
    def fingerprint(self) -> str:
        """Return the SHA-256 of the content, in hex; of pinned files without reading them.

        Raises:
            DataError: if the content is neither pinned nor there.
        """

    @abstractmethod
    def load(self) -> CorpusText:
        """Return the text, fetching what is missing.

        Raises:
            DataError: if it cannot be had or is malformed.
        """


def digest(parts: Iterable[str]) -> str:
    """Return the SHA-256 of a sequence of strings, in hex; no two sequences share one."""
    sha = hashlib.sha256()
    for part in parts:
        encoded = part.encode()
        sha.update(len(encoded).to_bytes(8, "big"))
        sha.update(encoded)
    return sha.hexdigest()


def digest_of_lines(sides: Iterable[Sequence[str]]) -> str:
    """Return the `digest` of texts, each of them lines with a line feed between two."""
    sha = hashlib.sha256()
    for lines in sides:
        n_bytes = sum(len(piece) for piece in _pieces(lines))
        sha.update(n_bytes.to_bytes(8, "big"))
        for piece in _pieces(lines):
            sha.update(piece)
    return sha.hexdigest()


def _pieces(lines: Sequence[str]) -> Iterator[bytes]:
    for start in range(0, len(lines), _AT_ONCE):
        piece = "\n".join(lines[start : start + _AT_ONCE])
        yield (f"\n{piece}" if start else piece).encode()
