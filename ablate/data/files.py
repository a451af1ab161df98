"""The user's own parallel text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, PositiveInt, WithJsonSchema

from ablate.data.corpus import Corpus, CorpusText, Report
from ablate.data.parallel import (
    Limits,
    Ratio,
    Side,
    check_cleaned,
    check_complete,
    cleaned,
    complete,
    lines_of,
    pieces_of,
    why_unreadable,
)
from ablate.errors import DataError
from ablate.hashing import digest, sha256
from ablate.registry import FilePaths, Fingerprinted, register

Code = Annotated[str, Field(min_length=1)]
Paths = tuple[str, str]


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
    files determines the results, not their names.

    Args:
        src: code of the source language.
        tgt: code of the target language.
        train: the source and the target file to train on.
        dev: the pair of files that decides about stopping and averaging.
        tests: the pairs of files to report on, by name.
        tokenised: the text is lower-cased and its tokens stand apart, so BLEU must not tokenise.
        max_words: a training pair has no more on either side.
        max_ratio: a training pair's longer side has no more words for each of the shorter's.
    """

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
    ) -> None:
        super().__init__()
        self.src = src
        self.tgt = tgt
        self.tokenised = tokenised
        self._limits = Limits(max_words, max_ratio)
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
                check = check_cleaned if split == "train" else check_complete
                check(" and ".join(paths), *self._sides(split), self._limits)
            except DataError as error:
                yield split, str(error)

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
        train, notes = cleaned(self._label("train"), *self._sides("train"), self._limits)
        others = {}
        for split in [split for split in self._splits if split != "train"]:
            others[split], more = complete(self._label(split), *self._sides(split), self._limits)
            notes += more
        return CorpusText(
            name="files",
            src=self.src,
            tgt=self.tgt,
            train=train,
            dev=others["dev"],
            tests={name: others[f"tests.{name}"] for name in self._tests},
            is_tokenised=self.tokenised,
            notes=notes,
        )

    def _sides(self, split: str) -> tuple[Side, Side]:
        src, tgt = (lines_of(pieces_of(Path(path))) for path in self._splits[split])
        return src, tgt

    def _label(self, split: str) -> str:
        return f"{split} ({' and '.join(self._splits[split])})"
