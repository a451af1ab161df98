"""Corpora: list, download, describe, and read as stored runs have read them."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from ablate.api.selection import load
from ablate.config import load_corpus
from ablate.data.batches import Encoded
from ablate.data.corpus import Corpus, CorpusText
from ablate.data.faults import Fault, faults
from ablate.data.own_text import OwnText
from ablate.data.prepare import prepare
from ablate.data.sentences import Ragged
from ablate.data.tokenizer import UNK
from ablate.errors import DataError, SpecError
from ablate.registry import Choice, build, slots
from ablate.runner.check import check
from ablate.wording import no_such

_N_EXAMPLES = 5
_N_SAMPLED = 10_000  # sentences whose letters are looked at


@dataclass(frozen=True)
class CorpusListing:
    """One registered corpus."""

    name: str
    summary: str
    source: str
    is_available: bool | None  # without a download; None if that depends on its options


@dataclass(frozen=True)
class SideStatistics:
    """Sizes of one side of a split; words are separated by white space, and EOS is a token."""

    n_words: int
    longest_words: int  # of a sentence
    letters: Mapping[str, float]  # shares by script, as in ``LATIN``, of the first sentences
    n_tokens: int | None = None  # of an experiment's tokenizer, without what exceeds ``max_len``
    mean_tokens: float | None = None  # of a sentence
    longest_tokens: int | None = None
    unknown_share: float | None = None  # of the tokens


@dataclass(frozen=True)
class SplitStatistics:
    """Sizes of one split."""

    name: str
    n_pairs: int
    src: SideStatistics
    tgt: SideStatistics
    n_references: int = 1


@dataclass(frozen=True)
class CorpusStatistics:
    """Sizes, examples and faults of a corpus."""

    name: str
    src: str
    tgt: str
    splits: tuple[SplitStatistics, ...]
    examples: tuple[tuple[str, str], ...]  # the first pairs of the training split
    notes: tuple[str, ...]  # what was left out, cut or repaired
    faults: tuple[Fault, ...] = ()  # of an experiment's corpus


def corpora() -> tuple[CorpusListing, ...]:
    """Return every registered corpus."""
    listed = []
    for name, entry in sorted(slots()["corpus"].items()):
        is_available = None
        with suppress(SpecError):  # it needs options
            is_available = _built(name, ()).is_available()
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
    corpus = _built(name, options)
    is_available = corpus.is_available()
    corpus.fetch(report)
    if is_available:
        report(f"{name} is on this machine already")


def show_corpus(name: str, options: Sequence[str] = ()) -> CorpusStatistics:
    """Return sizes and examples of a corpus; options and errors are those of `fetch_corpus`."""
    return _statistics(_built(name, options).load(), {})


def check_corpus(spec: Path | str) -> CorpusStatistics:
    """Return sizes and faults of an experiment's text, in tokens of the baseline's tokenizer.

    Faults are those that show in no single line.

    Raises:
        SpecError: with every mistake of the file; if it has contexts, of which this takes one; if
            the text cannot be read.
        DataError: if the text is unavailable, or has too large an alphabet.
    """
    experiment = load(spec)
    run = experiment.rows[0].spec
    try:
        corpus = build(Corpus, run.corpus, at="corpus")
        text, prepared = corpus.load(), prepare(run)
    except (DataError, SpecError):
        check(experiment)  # it says where in the file
        raise
    if isinstance(corpus, OwnText):
        of_text = corpus.faults(text)
    else:  # no run refuses it for a fault, and its references are as all score them
        others = (fault for fault in faults(text) if fault.name != "tokenised_references")
        of_text = [replace(fault, is_error=False) for fault in others]
    encoded = {"train": prepared.train, "dev": prepared.dev, **prepared.tests}
    sentences = {f"{fault.split}: {fault.text}" for fault in of_text}
    notes = tuple(note for note in prepared.text.notes if note not in sentences)
    return replace(_statistics(text, encoded), notes=notes, faults=tuple(of_text))


def _statistics(text: CorpusText, encoded: Mapping[str, Encoded]) -> CorpusStatistics:
    splits = []
    for name, split in {"train": text.train, "dev": text.dev, **text.tests}.items():
        ids = encoded.get(name)
        src = _side(split.src, None if ids is None else ids.src)
        tgt = _side(split.tgt, None if ids is None else ids.tgt)
        splits.append(SplitStatistics(name, len(split), src, tgt, len(split.references)))
    pairs = zip(text.train.src, text.train.tgt, strict=True)
    examples = tuple(islice(pairs, _N_EXAMPLES))
    return CorpusStatistics(text.name, text.src, text.tgt, tuple(splits), examples, text.notes)


def _side(lines: Sequence[str], ids: Ragged | None) -> SideStatistics:
    n_words = [len(line.split()) for line in lines]
    letters = Counter(
        unicodedata.name(letter, "UNKNOWN").partition(" ")[0]
        for line in islice(lines, _N_SAMPLED)
        for letter in filter(str.isalpha, line)
    )
    shares = {script: n / letters.total() for script, n in letters.most_common()}
    words = SideStatistics(sum(n_words), max(n_words, default=0), shares)
    if ids is None:
        return words
    return replace(
        words,
        n_tokens=len(ids.flat),
        mean_tokens=len(ids.flat) / max(1, len(ids)),
        longest_tokens=int(ids.lengths.max(initial=0)),
        unknown_share=float((ids.flat == UNK).mean()) if len(ids.flat) else 0.0,
    )


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


def _built(name: str, options: Sequence[str]) -> Corpus:
    table = slots()["corpus"]
    if name not in table:
        raise SpecError(no_such("corpus", name, sorted(table)))
    return build(Corpus, load_corpus(name, options), at="corpus")
