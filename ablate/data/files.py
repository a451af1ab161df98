"""The user's own parallel text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, WithJsonSchema

from ablate.data.cache import cache_folder, cached
from ablate.data.corpus import Bitext, Corpus, CorpusText, Report
from ablate.data.faults import Fault, faults, overlap
from ablate.data.parallel import (
    Limits,
    Ratio,
    cleaned,
    complete,
    lines_of,
    pieces_of,
    why_unreadable,
)
from ablate.errors import DataError
from ablate.hashing import digest, sha256
from ablate.registry import AddedOption, FilePaths, Fingerprinted, digest_of_code, register

Code = Annotated[str, Field(min_length=1)]
Paths = tuple[str, str]
FaultName = Literal["test_in_train", "test_in_dev", "same_sides", "repeated_pairs"]
"""A fault that an experiment may accept; other ones are only told."""

_OWN_CODE = digest_of_code(Path(__file__).parent)


def _usable(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"the name of a test has letters, digits, _ and - only; it is {name!r}")
    if name in ("train", "dev"):
        raise ValueError(f"a test cannot be called {name!r}, as another split is; rename it")
    return name


TestName = Annotated[
    str,
    AfterValidator(_usable),
    WithJsonSchema({"type": "string", "pattern": r"^(?!(train|dev)$)[A-Za-z0-9_-]+$"}),
]


@register("files", source="the user's own")
class Files(Corpus):
    """Two files a split, plain or ``.gz``; line n of one is the translation of line n of the other.

    ``{name: files, src: en, tgt: de, train: [a.en, a.de], dev: [b.en, b.de], tests: {news: [c.en,
    c.de]}}``. Training pairs that are empty, no UTF-8, or too long are left out, and the notes have
    their numbers and lines; an empty or broken line elsewhere is an error. Relative paths begin at
    the folder of the YAML file, those of ``--set`` at the working directory. The content of the
    files determines the results, not their names. A text with a fault of which the numbers would
    mean little is refused, such as tests that stand in the training text; lesser ones are told
    under the table (`ablate corpora check`).

    Args:
        src: code of the source language.
        tgt: code of the target language.
        train: the source and the target file to train on.
        dev: the pair of files that decides about stopping and averaging.
        tests: the pairs of files to report on, by name.
        tokenised: the text is lower-cased and its tokens stand apart, so BLEU must not tokenise.
        max_words: a training pair has no more on either side; characters count where words are
            not separated, as in Chinese or Thai.
        max_ratio: a training pair's longer side has no more words for each of the shorter's.
        overlap: what becomes of training pairs that are in dev or in a test, but for case and
            punctuation: ``keep`` or ``drop``.
        accept: names of faults with which the text is used all the same.
    """

    is_own = True

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        *,
        src: Code,
        tgt: Code,
        train: Annotated[Paths, Fingerprinted(), FilePaths()],
        dev: Annotated[Paths, Fingerprinted(), FilePaths()],
        tests: Annotated[dict[TestName, Paths], Field(min_length=1), Fingerprinted(), FilePaths()],
        tokenised: bool = False,
        max_words: PositiveInt = 250,
        max_ratio: Ratio | None = None,
        overlap: Annotated[Literal["keep", "drop"], AddedOption("keep")] = "keep",
        accept: Annotated[tuple[FaultName, ...], AddedOption([])] = (),
    ) -> None:
        super().__init__()
        self.src = src
        self.tgt = tgt
        self.tokenised = tokenised
        self.overlap = overlap
        self.accept = accept
        self._limits = Limits(max_words, max_ratio, (src, tgt))
        self._tests = tuple(tests)
        self._splits = {"train": train, "dev": dev} | {f"tests.{x}": tests[x] for x in tests}

    def problems(self) -> Iterator[tuple[str, str]]:
        for split, paths in self._splits.items():
            reasons = [why_unreadable(Path(path)) for path in paths]
            for side, reason in enumerate(reasons):
                if reason is not None:
                    yield f"{split}.{side}", f"{reason}: {paths[side]!r}"
            if any(reasons):
                continue
            if paths[0] == paths[1]:
                yield split, f"has {paths[0]!r} on both sides; name the file of the other language"
                continue
            try:
                self._read(split, " and ".join(paths))
            except DataError as error:
                yield split, str(error)
                return
        if self.is_available():
            yield from self._refused()

    def _refused(self) -> Iterator[tuple[str, str]]:
        """Yield the split and a sentence of each fault that is not accepted."""
        for fault in self.faults():
            if fault.is_error and fault.name not in self.accept:
                split = fault.split if fault.split in self._splits else f"tests.{fault.split}"
                ways = "mend the text"
                if fault.name == "test_in_train":
                    ways += ", drop them from the training text (overlap: drop)"
                yield split, f"{fault.text}; {ways}, or accept it (accept: [{fault.name}])"

    def faults(self) -> list[Fault]:
        """Return the faults of the text; those of one content are found once."""
        options = repr((self._limits, self.tokenised, self.overlap))
        key = digest([self.fingerprint(), options, _OWN_CODE])[:32]

        def compute() -> str:
            return json.dumps([asdict(fault) for fault in faults(self._text())])

        stored = cached(cache_folder("faults") / f"{key}.json", compute)
        return [Fault(**each) for each in json.loads(stored)]

    def is_available(self) -> bool:
        paths = chain.from_iterable(self._splits.values())
        return all(why_unreadable(Path(path)) is None for path in paths)

    def fetch(self, report: Report) -> None:
        for path in map(Path, chain.from_iterable(self._splits.values())):
            reason = why_unreadable(path)
            if reason is not None:
                raise DataError(f"{path}: {reason}; it cannot be downloaded")

    def fingerprint(self) -> str:
        return digest(
            part
            for split, paths in self._splits.items()
            for part in (split, *(sha256(pieces_of(Path(path))) for path in paths))
        )

    def load(self) -> CorpusText:
        text = self._text()
        sentences = (f"{each.split}: {each.text}" for each in self.faults())
        return replace(text, notes=(*text.notes, *sentences))

    def _text(self) -> CorpusText:
        """Return the text without what is to be told of its faults."""
        splits: dict[str, Bitext] = {}
        notes: tuple[str, ...] = ()
        for split, paths in self._splits.items():
            splits[split], more = self._read(split, f"{split} ({' and '.join(paths)})")
            notes += more
        train = splits["train"]
        text = CorpusText(
            name="files",
            src=self.src,
            tgt=self.tgt,
            train=train,
            dev=splits["dev"],
            tests={name: splits[f"tests.{name}"] for name in self._tests},
            is_tokenised=self.tokenised,
            notes=notes,
        )
        if self.overlap == "keep" or not (rows := overlap(text)):
            return text
        pairs = zip(train.src, train.tgt, strict=True)
        rest = Bitext.on_disk(pair for row, pair in enumerate(pairs) if row not in rows)
        note = f"train: {len(rows):,} pairs left out that are in dev or in a test"
        return replace(text, train=rest, notes=(*notes, note))

    def _read(self, split: str, label: str) -> tuple[Bitext, tuple[str, ...]]:
        src, tgt = (lines_of(pieces_of(Path(path))) for path in self._splits[split])
        return (cleaned if split == "train" else complete)(label, src, tgt, self._limits)
