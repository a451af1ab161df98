"""What there is to train on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from ablate.config.messages import unknown
from ablate.config.source import Mistake, UnreadableError, parse, source_of
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


def fetch_corpus(name: str, options: Sequence[str], report: Callable[[str], None]) -> None:
    """Download what is missing of a corpus, and check it.

    Args:
        name: of the corpus.
        options: ``option=value``, the values as an experiment would give them.
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


def show_corpus(name: str, options: Sequence[str] = ()) -> CorpusStatistics:
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


def _choice(name: str, options: Sequence[str]) -> Choice:
    table = slots()["corpus"]
    if name not in table:
        known = ", ".join(sorted(table))
        raise SpecError(f"no corpus is called {name!r};{suggest(name, table)} known: {known}")
    try:
        return table[name].choose(dict(_option(text) for text in options))
    except ValidationError as error:
        fields = list(table[name].options.model_fields)
        reasons = (_reason(detail, name, fields) for detail in error.errors())
        raise SpecError("\n".join(reasons)) from error


def _reason(detail: Mapping[str, Any], name: str, known: Sequence[str]) -> str:
    """Say what is wrong with one option of the corpus ``name``."""
    path = ".".join(str(step) for step in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return f"corpus.{path}: {unknown(path, known, owner=f'corpus {name!r}')}"
    return f"corpus.{path}: {detail['msg']}"


def _option(text: str) -> tuple[str, Any]:
    """Return the option and the value that ``option=value`` says."""
    name, equals, value = text.partition("=")
    mistakes: list[Mistake] = []
    try:
        node = parse(source_of(f"--set {text}", value.encode()), mistakes)
    except UnreadableError as error:
        raise SpecError(str(error)) from error
    if mistakes or not (name and equals):
        reason = mistakes[0].reason if mistakes else "say OPTION=VALUE, as in src=en"
        raise SpecError(f"--set {text}: {reason}")
    return name, None if node is None else node.plain()


def _is_available(name: str) -> bool | None:
    try:
        choice = _choice(name, ())
    except SpecError:
        return None
    return build(Corpus, choice, at="corpus").is_available()


def _statistics(name: str, bitext: Bitext) -> SplitStatistics:
    src, tgt = ([len(line.split()) for line in side] for side in (bitext.src, bitext.tgt))
    return SplitStatistics(name, len(bitext), sum(src), sum(tgt), max(tgt, default=0))
