"""WMT 2014: the news translation task, English with German or French."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Literal

from pydantic import PositiveInt

from ablate.data.corpus import Bitext, CorpusText
from ablate.data.download import Remote, RemoteCorpus
from ablate.data.parallel import (
    Limits,
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
from ablate.data.sentences import Lines
from ablate.registry import register

Language = Literal["en", "de", "fr"]


@dataclass(frozen=True)
class Source:
    """One training archive; ``{x}`` stands for German or French, ``{side}`` for any language."""

    url: str
    sha256: str
    member: str
    languages: tuple[str, ...] = ("de", "fr")

    @property
    def remote(self) -> Remote:
        return Remote(self.url.rpartition("/")[2], self.url, self.sha256)


SOURCES = (
    Source(
        "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
        "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
        "training/europarl-v7.{x}-en.{side}",
    ),
    Source(
        "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
        "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
        "commoncrawl.{x}-en.{side}",
    ),
    Source(
        "https://www.statmt.org/wmt13/training-parallel-un.tgz",
        "29141b5c1eba149a94f7a59d3b1a834b2e47fe0f8758d68dcd77a3d3f497ee47",
        "un/undoc.2000.{x}-en.{side}",
        languages=("fr",),
    ),
    Source(
        "https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
        "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
        "training/news-commentary-v9.{x}-en.{side}",
    ),
    Source(
        "https://www.statmt.org/wmt10/training-giga-fren.tar",
        "3ff8319f6919393520559bfbc7ad6a747ec81b3abc7be9993b338d4b017b4d9a",
        "giga-fren.release2.fixed.{side}.gz",
        languages=("fr",),
    ),
)

DEV = Remote(
    "dev.tgz",
    "https://data.statmt.org/wmt19/translation-task/dev.tgz",
    "7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7",
)


@register("wmt14", source="Bojar et al. 2014, aclanthology.org/W14-3302; statmt.org/wmt14")
class Wmt14(RemoteCorpus):
    """4.5 million pairs with German, 40 million with French; for research, see statmt.org/wmt14.

    Train is Europarl 7, Common Crawl and News Commentary 9, for French also the UN documents and
    the 10^9 corpus; dev is newstest2013, test newstest2014, all 3,003 sentences of it. Text is
    as published, not tokenised; while it is prepared it is unpacked on disk.

    Args:
        src: the source language; it or the target is English.
        tgt: the target language.
        max_words: a training pair has no more on either side.
        max_ratio: a training pair's longer side has no more words for each of the shorter's.

    Raises:
        ValueError: if not exactly one of the languages is English.
    """

    def __init__(
        self,
        *,
        src: Language = "en",
        tgt: Language = "de",
        max_words: PositiveInt = 250,
        max_ratio: Ratio = 1.5,
    ) -> None:
        if (src == "en") == (tgt == "en"):
            raise ValueError(f"wmt14: of {src} and {tgt} exactly one must be en")
        self.src = src
        self.tgt = tgt
        self._other = tgt if src == "en" else src
        self._limits = Limits(max_words, max_ratio)
        self._sources = [source for source in SOURCES if self._other in source.languages]
        super().__init__("wmt14", [*(source.remote for source in self._sources), DEV])

    def load(self) -> CorpusText:
        parts = [self._part(source) for source in self._sources]
        dev, test, notes = self._dev_and_test()
        return CorpusText(
            name="wmt14",
            src=self.src,
            tgt=self.tgt,
            train=Bitext(
                Lines(chain.from_iterable(part.src for part, _ in parts)),
                Lines(chain.from_iterable(part.tgt for part, _ in parts)),
            ),
            dev=dev,
            tests={"newstest2014": test},
            notes=(*(note for _, more in parts for note in more), *notes),
        )

    def _part(self, source: Source) -> tuple[Bitext, tuple[str, ...]]:
        names = [source.member.format(x=self._other, side=x) for x in (self.src, self.tgt)]
        with members(self.path(source.remote), names) as files:
            src, tgt = (lines_of(unpacked(files[name], name)) for name in names)
            return cleaned(source.remote.path, paired(source.remote.path, src, tgt), self._limits)

    def _dev_and_test(self) -> tuple[Bitext, Bitext, tuple[str, ...]]:
        x = self._other
        dev = {side: f"dev/newstest2013.{side}" for side in (self.src, self.tgt)}
        test = {
            x: f"dev/newstest2014-{x}en-src.{x}.sgm",
            "en": f"dev/newstest2014-{x}en-ref.en.sgm",
        }
        with members(self.path(DEV), [*dev.values(), *test.values()]) as files:
            contents = {name: file.read() for name, file in files.items()}
        src, tgt = (lines_of([contents[dev[side]]]) for side in (self.src, self.tgt))
        dev_text, dev_notes = self._complete("newstest2013", src, tgt)
        in_src, in_tgt = (segments(test[x], contents[test[x]]) for x in (self.src, self.tgt))
        test_text, test_notes = self._complete("newstest2014", in_src, in_tgt)
        return dev_text, test_text, (*dev_notes, *test_notes)

    def _complete(self, name: str, src: Side, tgt: Side) -> tuple[Bitext, tuple[str, ...]]:
        return complete(name, paired(name, src, tgt), self._limits)
