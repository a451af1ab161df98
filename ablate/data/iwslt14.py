"""IWSLT 2014: subtitles of TED talks, German and English."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import IO, Literal

from pydantic import PositiveInt

from ablate.data.corpus import Bitext, CorpusText
from ablate.data.download import Remote, RemoteCorpus
from ablate.data.parallel import (
    Limits,
    Numbered,
    Ratio,
    Side,
    cleaned,
    complete,
    lines_of,
    members,
    paired,
    segments,
    unpacked,
)
from ablate.registry import register

Language = Literal["de", "en"]

ARCHIVE = Remote(
    "de-en.tgz", "https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz", sha256=None
)

_TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
_DEV_EVERY = 23
_HEADER = re.compile(r"<(url|talkid|keywords)>")
_TAG = re.compile(r"</?(title|description)>")
_FOLDER = "de-en"
_CURLY_QUOTE = "\N{RIGHT SINGLE QUOTATION MARK}"
_TRUST_NOTE = (
    "no hash of the archive is published: this machine's first download was trusted, and its hash "
    "is the corpus's fingerprint"
)


@register(
    "iwslt14",
    source="Cettolo et al. 2014, aclanthology.org/2014.iwslt-evaluation.1; split as in fairseq's "
    "examples/translation/prepare-iwslt14.sh",
)
class Iwslt14(RemoteCorpus):
    """About 160,000 pairs from TED talks, German and English; CC BY-NC-ND 4.0.

    Split as fairseq does: of the cleaned training pairs every 23rd is dev; test is dev2010,
    dev2012 and tst2010 to tst2012 in a row. Text is not tokenised by Moses, and words are counted
    at white space, so cleaning keeps a slightly different set of pairs than fairseq's. No hash
    of the archive is published: the first download is trusted, and every later one compared.

    Args:
        src: the source language.
        tgt: the target language.
        lowercase: lower-case all text, references included, as published results do.
        max_words: a training pair has no more on either side.
        max_ratio: a training pair's longer side has no more words for each of the shorter's.

    Raises:
        ValueError: if both languages are one.
    """

    def __init__(
        self,
        *,
        src: Language = "de",
        tgt: Language = "en",
        lowercase: bool = False,
        max_words: PositiveInt = 175,
        max_ratio: Ratio = 1.5,
    ) -> None:
        super().__init__("iwslt14", [ARCHIVE])
        if src == tgt:
            raise ValueError(f"iwslt14: src and tgt are both {src!r}; choose two languages")
        self.src = src
        self.tgt = tgt
        self.lowercase = lowercase
        self._limits = Limits(max_words, max_ratio)

    def load(self) -> CorpusText:
        talks = {x: f"{_FOLDER}/train.tags.de-en.{x}" for x in (self.src, self.tgt)}
        tests = {
            x: [f"{_FOLDER}/IWSLT14.{name}.de-en.{x}.xml" for name in _TESTS]
            for x in (self.src, self.tgt)
        }
        names = [*talks.values(), *tests[self.src], *tests[self.tgt]]
        with members(self.path(ARCHIVE), names) as files:
            src, tgt = (self._cased(_talk_lines(files[talks[x]])) for x in (self.src, self.tgt))
            bitext, notes = cleaned("train", paired("train", src, tgt), self._limits)
            test, more = self._test(files, tests)
        return CorpusText(
            name="iwslt14",
            src=self.src,
            tgt=self.tgt,
            train=_rows(bitext, is_dev=False),
            dev=_rows(bitext, is_dev=True),
            tests={"test": test},
            notes=(_TRUST_NOTE, *notes, *more),
        )

    def _test(
        self, files: Mapping[str, IO[bytes]], names: Mapping[Language, list[str]]
    ) -> tuple[Bitext, tuple[str, ...]]:
        """Return all test files in a row, and a note about unusual pairs."""
        pairs: list[Numbered] = []
        for pair in zip(names[self.src], names[self.tgt], strict=True):
            sides = (segments(x, files[x].read()) for x in pair)
            plain = ([x.replace(_CURLY_QUOTE, "'") for x in side] for side in sides)
            pairs += paired(" and ".join(pair), *map(self._cased, plain))
        return complete("test", pairs, self._limits)

    def _cased(self, lines: Side) -> Iterator[str | None]:
        return (line.lower() if line and self.lowercase else line for line in lines)


def _talk_lines(file: IO[bytes]) -> Iterator[str | None]:
    """Yield the spoken lines, title and description; leave out other lines about the talk."""
    for line in lines_of(unpacked(file, _FOLDER)):
        if line is None or not _HEADER.search(line):
            yield line if line is None else _TAG.sub("", line).strip()


def _rows(pairs: Bitext, *, is_dev: bool) -> Bitext:
    both = zip(pairs.src, pairs.tgt, strict=True)
    return Bitext.of(p for i, p in enumerate(both, 1) if (i % _DEV_EVERY == 0) == is_dev)
