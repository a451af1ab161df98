"""What there is to train on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ablate.data.corpus import Bitext, Corpus
from ablate.errors import SpecError
from ablate.registry import Choice, build, slots, suggest

_N_EXAMPLES = 5


@dataclass(frozen=True)
class CorpusListing:
    """One registered corpus.

    Attributes:
        is_available: whether it needs no download; None if that depends on its options.
    """

    name: str
    summary: str
    source: str
    is_available: bool | None


@dataclass(frozen=True)
class SplitStatistics:
    """Sizes of one split; words are what blanks separate."""

    name: str
    n_pairs: int
    n_src_words: int
    n_tgt_words: int
    longest_tgt_words: int


@dataclass(frozen=True)
class CorpusStatistics:
    """What a corpus holds.

    Attributes:
        examples: the first pairs of the training split.
        notes: what was skipped or repaired.
    """

    name: str
    src: str
    tgt: str
    splits: tuple[SplitStatistics, ...]
    examples: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def corpora() -> tuple[CorpusListing, ...]:
    """Return every corpus there is."""
    return tuple(
        CorpusListing(
            name=name,
            summary=(entry.cls.__doc__ or "").strip().partition("\n")[0],
            source=entry.source,
            is_available=_is_available(name),
        )
        for name, entry in sorted(slots()["corpus"].items())
    )


def fetch_corpus(name: str, options: Mapping[str, Any], report: Callable[[str], None]) -> None:
    """Download what is missing of a corpus, and check it.

    Args:
        name: of the corpus.
        options: as an experiment would give them.
        report: is told what is going on.

    Raises:
        SpecError: if there is no such corpus, or its options are wrong.
        DataError: if it cannot be had.
    """
    corpus = build(Corpus, _choice(name, options), at="corpus")
    if corpus.is_available():
        report(f"{name} is here already")
    else:
        corpus.fetch(report)


def show_corpus(name: str, options: Mapping[str, Any]) -> CorpusStatistics:
    """Return sizes and examples of a corpus.

    Raises:
        SpecError: if there is no such corpus, or its options are wrong.
        DataError: if it cannot be had.
    """
    text = build(Corpus, _choice(name, options), at="corpus").load()
    splits = {"train": text.train, "dev": text.dev, **text.tests}
    pairs = zip(text.train.src, text.train.tgt, strict=True)
    return CorpusStatistics(
        name=text.name,
        src=text.src,
        tgt=text.tgt,
        splits=tuple(_statistics(split, bitext) for split, bitext in splits.items()),
        examples=tuple(pair for pair, _ in zip(pairs, range(_N_EXAMPLES), strict=False)),
        notes=text.notes,
    )


def _choice(name: str, options: Mapping[str, Any]) -> Choice:
    table = slots()["corpus"]
    if name not in table:
        known = ", ".join(sorted(table))
        raise SpecError(f"no corpus is called {name!r};{suggest(name, table)} known: {known}")
    try:
        return table[name].choose(options)
    except ValidationError as error:
        reasons = (
            f"corpus.{'.'.join(str(step) for step in mistake['loc'])}: {mistake['msg']}"
            for mistake in error.errors()
        )
        raise SpecError("\n".join(reasons)) from error


def _is_available(name: str) -> bool | None:
    try:
        choice = _choice(name, {})
    except SpecError:
        return None
    return build(Corpus, choice, at="corpus").is_available()


def _statistics(name: str, bitext: Bitext) -> SplitStatistics:
    src, tgt = ([len(line.split()) for line in side] for side in (bitext.src, bitext.tgt))
    return SplitStatistics(name, len(bitext), sum(src), sum(tgt), max(tgt, default=0))
