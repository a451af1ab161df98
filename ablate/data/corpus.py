"""The contract of a corpus: parallel text in splits, identified by the hash of its content."""

from __future__ import annotations

import functools
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from ablate.data.sentences import Lines
from ablate.errors import DataError
from ablate.hashing import sha256
from ablate.registry import Choice, Part, RefusedError, build

_BLOCK = 10_000  # sentences
_CHINESE = ("zh", "zho", "cmn", "yue")
_UNSPACED = ("ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bo", "bod")
_BLEU_TOKENIZERS = dict.fromkeys(_CHINESE, "zh") | dict.fromkeys(_UNSPACED, "char")

Report = Callable[[str], None]
"""Receives one line about the progress, for a person to read."""


@dataclass(frozen=True)
class Bitext:
    """One split: ``tgt[i]`` is the translation of ``src[i]``.

    A test may have more translations of each sentence, by which BLEU and chrF score; its likelihood
    is that of ``tgt``.
    """

    src: Sequence[str]
    tgt: Sequence[str]
    more: tuple[Sequence[str], ...] = ()  # each as long as ``tgt``

    def __len__(self) -> int:
        return len(self.src)

    @property
    def references(self) -> list[Sequence[str]]:
        """Return all translations, those by one translator at a time."""
        return [self.tgt, *self.more]

    def parts(self, n_pairs: int) -> Iterator[Bitext]:
        """Yield blocks of ``n_pairs`` in memory, the last one shorter."""
        for start in range(0, len(self), n_pairs):
            rows = slice(start, start + n_pairs)
            yield Bitext(self.src[rows], self.tgt[rows])

    @classmethod
    def of(cls, pairs: Iterable[tuple[str, str]]) -> Bitext:
        """Return a split held in memory."""
        src, tgt = tuple(zip(*pairs, strict=True)) or ((), ())
        return cls(src, tgt)

    @classmethod
    def on_disk(cls, pairs: Iterable[tuple[str, str]]) -> Bitext:
        """Return a split of any size; a few thousand of ``pairs`` are in memory at a time."""
        src, tgt, rest = Lines(), Lines(), iter(pairs)
        while block := list(islice(rest, _BLOCK)):
            src.extend(pair[0] for pair in block)
            tgt.extend(pair[1] for pair in block)
        return cls(src, tgt)


@dataclass(frozen=True)
class CorpusText:
    """A corpus; the training text may be on disk (`Lines`)."""

    name: str  # its name in tables
    src: str  # code of the source language
    tgt: str  # code of the target language
    train: Bitext
    dev: Bitext  # decides about stopping and averaging
    tests: dict[str, Bitext]
    # the text is lower-cased and its tokens stand apart, so that BLEU must not tokenise it
    # again
    is_tokenised: bool = False
    notes: tuple[str, ...] = ()  # what was skipped or repaired, a sentence each

    def __post_init__(self) -> None:
        for name in self.tests:
            if {*"./"} & {*name}:  # columns are split at the one, and files are named after it
                reason = "the name of a test has neither . nor /"
                raise DataError(f"{self.name}: {reason}; rename {name!r}")


class Corpus(Part, slot="corpus"):
    """The contract: describe the content without the network, download it, load it."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield an option and a reason for every mistake that shows before a download.

        The option may go on to an item, as in ``train.0``.
        """
        yield from ()

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
            DataError: if the content is neither pinned nor on this machine.
        """

    @abstractmethod
    def load(self) -> CorpusText:
        """Return the text, downloading what is missing.

        Raises:
            DataError: if it is unavailable or malformed.
        """


@functools.cache
def bleu_tokenizer(language: str) -> str:
    """Return sacreBLEU's tokenizer for a target language: 13a where spaces separate words.

    Chinese has sacreBLEU's ``zh``. Japanese and the languages of South East Asia without spaces are
    scored by characters: segmenters of words are packages of their own, and a score must not depend
    on what is installed.

    Args:
        language: its code of two or three letters, as in ``zh``, ``zho`` or ``zh_Hant``.
    """
    return _BLEU_TOKENIZERS.get(re.split("[-_]", language.lower())[0], "13a")


def refusals_of(choice: Choice) -> Iterator[RefusedError]:
    """Yield the reasons why a corpus cannot be used, each with the path of its option."""
    try:
        corpus = build(Corpus, choice, at="corpus")
    except RefusedError as refusal:
        yield refusal
    else:
        for option, reason in corpus.problems():
            yield RefusedError(f"corpus.{option}", reason)


def digest_of_lines(sides: Iterable[Sequence[str]]) -> str:
    """Return the `digest` of texts, each of them lines joined by line feeds."""

    def length_and_pieces() -> Iterator[bytes]:
        for lines in sides:
            yield sum(len(piece) for piece in _pieces(lines)).to_bytes(8, "big")
            yield from _pieces(lines)

    return sha256(length_and_pieces())


def _pieces(lines: Sequence[str]) -> Iterator[bytes]:
    for start in range(0, len(lines), _BLOCK):
        piece = "\n".join(lines[start : start + _BLOCK])
        yield (f"\n{piece}" if start else piece).encode()
