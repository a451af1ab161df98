"""Corpora: list, download, describe, and read as stored runs have read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ablate.config import load, load_corpus
from ablate.data.corpus import Corpus, CorpusText
from ablate.data.faults import Fault, faults
from ablate.data.own_text import OwnText
from ablate.errors import DataError, SpecError
from ablate.registry import Choice, build, slots
from ablate.wording import no_such

_N_EXAMPLES = 5


@dataclass(frozen=True)
class CorpusListing:
    """One registered corpus."""

    name: str
    summary: str
    source: str
    is_available: bool | None  # without a download; None if that depends on its options


@dataclass(frozen=True)
class SplitStatistics:
    """Sizes of one split; words are separated by white space."""

    name: str
    n_pairs: int
    n_src_words: int
    n_tgt_words: int
    longest_tgt_words: int


@dataclass(frozen=True)
class CorpusStatistics:
    """Sizes and examples of a corpus."""

    name: str
    src: str
    tgt: str
    splits: tuple[SplitStatistics, ...]
    examples: tuple[tuple[str, str], ...]  # the first pairs of the training split
    notes: tuple[str, ...]  # what was skipped or repaired


def corpora() -> tuple[CorpusListing, ...]:
    """Return every registered corpus."""
    listed = []
    for name, entry in sorted(slots()["corpus"].items()):
        is_available = None
        with suppress(SpecError):  # it needs options
            is_available = build(Corpus, _choice(name, ()), at="corpus").is_available()
        summary = (entry.cls.__doc__ or "").strip().partition("\n")[0]
        listed.append(CorpusListing(name, summary, entry.source, is_available))
    return tuple(listed)


def fetch_corpus(
    name: str, options: Sequence[str] = (), report: Callable[[str], None] = lambda _: None
) -> None:
    """Download what is missing of a corpus, and check all of it; ``report`` every step.

    Options are ``option=value``, the values as in an experiment.

    Raises:
        SpecError: if there is no such corpus, or its options are wrong.
        DataError: if it is unavailable.
    """
    corpus = build(Corpus, _choice(name, options), at="corpus")
    is_available = corpus.is_available()
    corpus.fetch(report)
    if is_available:
        report(f"{name} is on this machine already")


def show_corpus(name: str, options: Sequence[str] = ()) -> CorpusStatistics:
    """Return sizes and examples of a corpus; options and errors are those of `fetch_corpus`."""
    text = build(Corpus, _choice(name, options), at="corpus").load()
    splits = []
    for split, bitext in {"train": text.train, "dev": text.dev, **text.tests}.items():
        src, tgt = ([len(line.split()) for line in side] for side in (bitext.src, bitext.tgt))
        sizes = len(bitext), sum(src), sum(tgt), max(tgt, default=0)
        splits.append(SplitStatistics(split, *sizes))
    pairs = zip(text.train.src, text.train.tgt, strict=True)
    examples = tuple(islice(pairs, _N_EXAMPLES))
    return CorpusStatistics(text.name, text.src, text.tgt, tuple(splits), examples, text.notes)


def check_corpus(spec: Path | str) -> list[Fault]:
    """Return the faults of an experiment's text that show in no single line."""
    corpus = build(Corpus, load(spec).rows[0].spec.corpus, at="corpus")
    if isinstance(corpus, OwnText):
        return corpus.faults()
    published = faults(corpus.load())  # whose references are as all score them
    return [fault for fault in published if fault.name != "tokenised_references"]


def text_of_runs(choice: Choice, records: Iterable[Mapping[str, Any]]) -> CorpusText:
    """Return the text of a corpus, if it still is what stored runs have read.

    A record without a fingerprint, as of a run that failed at once, fits any text.

    Raises:
        DataError: if it is unavailable or malformed, or has another content than a run has read.
    """
    read = {each for record in records if (each := record.get("corpus", {}).get("fingerprint"))}
    corpus = build(Corpus, choice, at="corpus")
    text = corpus.load()
    if read and read != {present := corpus.fingerprint()}:
        other = min(read - {present})
        raise DataError(
            f"the corpus {choice.name} has the content {present[:12]}, and runs have read "
            f"{other[:12]}: its files have changed since, or differ on this machine"
        )
    return text


def _choice(name: str, options: Sequence[str]) -> Choice:
    table = slots()["corpus"]
    if name not in table:
        raise SpecError(no_such("corpus", name, sorted(table)))
    return load_corpus(name, options)
