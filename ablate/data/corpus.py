"""What a corpus is: parallel text in splits, known by the hash of its content."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ablate.registry import Part

Report = Callable[[str], None]
"""Takes one line about what is going on, for a person to read."""


@dataclass(frozen=True)
class Bitext:
    """One split: ``tgt[i]`` is the translation of ``src[i]``."""

    src: tuple[str, ...]
    tgt: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.src)


@dataclass(frozen=True)
class CorpusText:
    """A whole corpus, in memory.

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
