"""The user's own parallel text."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt

from ablate.data.corpus import Corpus, CorpusText, Report, digest
from ablate.data.parallel import Limits, cleaned, complete, lines_of, pieces_of
from ablate.errors import DataError
from ablate.registry import Fingerprinted, register

Code = Annotated[str, Field(min_length=1)]
Paths = tuple[str, str]
TestName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]+$")]
Ratio = Annotated[float, Field(ge=1.0)]


@register("files", source="the user's own")
class Files(Corpus):
    """Two files a split, plain or ``.gz``; line n of one is the translation of line n of the other.

    ``{name: files, src: en, tgt: de, train: [a.en, a.de], dev: [b.en, b.de], tests: {news: [c.en,
    c.de]}}``. Training pairs that are empty, no UTF-8, or too long are left out, and the notes say
    how many and where; an empty or broken line elsewhere is an error. Relative paths begin at the
    working directory. What is in the files determines the results, not what they are called.

    Args:
        src: code of the source language.
        tgt: code of the target language.
        train: the source and the target file to train on.
        dev: those that decide about stopping and averaging.
        tests: those to report on, by name.
        tokenised: the text is lower-cased and its tokens stand apart, so BLEU must not tokenise.
        max_words: a training pair has no more on either side.
        max_ratio: a training pair's longer side has no more words for each of the shorter's.

    Raises:
        ValueError: if the same file stands on both sides, or there is no test.
    """

    def __init__(  # noqa: PLR0913  # what a user has to say, each by its name
        self,
        *,
        src: Code,
        tgt: Code,
        train: Annotated[Paths, Fingerprinted()],
        dev: Annotated[Paths, Fingerprinted()],
        tests: Annotated[dict[TestName, Paths], Fingerprinted()],
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
        if not tests:
            raise ValueError("files: tests names no test; there must be one to report on")
        for split, (one, other) in self._splits.items():
            if one == other:
                raise ValueError(f"files: {split} has {one} on both sides")

    def is_available(self) -> bool:
        return all(Path(path).is_file() for paths in self._splits.values() for path in paths)

    def fetch(self, report: Report) -> None:
        for paths in self._splits.values():
            for path in paths:
                if not Path(path).is_file():
                    raise DataError(f"{path}: there is no such file; it cannot be downloaded")

    def fingerprint(self) -> str:
        return digest(
            part
            for split, paths in self._splits.items()
            for part in (split, *(_sha256(Path(path)) for path in paths))
        )

    def load(self) -> CorpusText:
        sides = {
            split: (lines_of(pieces_of(Path(src))), lines_of(pieces_of(Path(tgt))))
            for split, (src, tgt) in self._splits.items()
        }
        named = {split: f"{split} ({' and '.join(paths)})" for split, paths in self._splits.items()}
        train, notes = cleaned(named["train"], *sides.pop("train"), self._limits)
        others = {}
        for split, (src, tgt) in sides.items():
            others[split], more = complete(named[split], src, tgt, self._limits)
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


def _sha256(path: Path) -> str:
    sha = hashlib.sha256()
    for piece in pieces_of(path):
        sha.update(piece)
    return sha.hexdigest()
