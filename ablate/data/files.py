"""The user's own parallel text: two files a split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated

from pydantic import Field, PositiveInt

from ablate.data.own_text import (
    Code,
    FaultName,
    Handling,
    Holdout,
    Overlap,
    OwnText,
    TestName,
    all_splits_have_one_origin,
)
from ablate.data.parallel import Limits, Numbered, Ratio, lines_of, paired, pieces_of
from ablate.errors import DataError
from ablate.registry import AddedOption, FilePaths, Fingerprinted, register

Paths = tuple[str, str]
Tests = Annotated[
    dict[TestName, Annotated[tuple[str, ...], Field(min_length=2)]], Field(min_length=1)
]


@register("files", source="the user's own")
class Files(OwnText):
    """Two files a split, plain or gzipped; line n of one is the translation of line n of the other.

    ``{name: files, src: en, tgt: de, train: [a.en, a.de], dev: [b.en, b.de], tests: {news: [c.en,
    c.de]}}``; or ``holdout: {dev: 500, test: 500}`` in place of the last two, or of one of them. A
    pattern names several files, in the order of their names: ``[train/*.en, train/*.de]``;
    ``books.zip/books.en`` is a file in an archive. Training pairs that are empty, no UTF-8, or too
    long are left out, and the notes have their numbers and lines; an empty or broken line elsewhere
    is an error. Relative paths begin at the folder of the YAML file, those of ``--set`` at the
    working directory. The content of the files determines the results, not their names. A text with
    a fault of which the numbers would mean little is refused, such as tests that stand in the
    training text; lesser ones are told under the table (`ablate corpora check`).

    Args:
        train: the source and the target file to train on.
        dev: the pair of files that decides about stopping and averaging.
        tests: the pairs of files to report on, by name; with further files of the target, if there
            are several references, by all of which BLEU and chrF score.
        holdout: in place of dev, of tests or of both, how many training pairs become dev, and how
            many a test called ``test``. They are chosen by hashes, wherever they stand; where text
            is added, some become others. Pairs like them, but for case and punctuation, are left
            out.
    """

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        *,
        src: Code,
        tgt: Code,
        train: Annotated[Paths, Fingerprinted(), FilePaths()],
        dev: Annotated[Paths | None, Fingerprinted(), FilePaths()] = None,
        tests: Annotated[Tests | None, Fingerprinted(), FilePaths()] = None,
        holdout: Annotated[
            Holdout | None, AddedOption(None), Field(examples=[{"dev": 500, "test": 500}])
        ] = None,
        tokenised: bool = False,
        max_words: PositiveInt = 250,
        max_ratio: Ratio | None = None,
        overlap: Annotated[Overlap, AddedOption("keep")] = "keep",
        accept: Annotated[tuple[FaultName, ...], AddedOption([])] = (),
    ) -> None:
        if not all_splits_have_one_origin(dev, tests, holdout):
            raise ValueError(
                "files: give dev and tests, of files of their own, or take them out of the "
                "training text: both (holdout: {dev: 500, test: 500}), or the one that is not given"
            )
        paths: dict[str, tuple[str, ...]] = {"train": train}
        paths |= {"dev": dev} if dev else {}
        paths |= {f"tests.{name}": of_test for name, of_test in (tests or {}).items()}
        limits = Limits(max_words, max_ratio, (src, tgt))
        super().__init__(paths, Handling(src, tgt, tokenised, limits, overlap, accept, holdout))

    def _n_references(self, split: str) -> int:
        return len(self._paths[split]) - 1

    def _pieces(self, split: str, reference: int) -> Iterator[tuple[str, Iterable[Numbered]]]:
        source, *targets = self._paths[split]
        paths = source, targets[reference]
        src, tgt = map(self._files, paths)
        if src == tgt:
            raise DataError(f"has {paths[0]!r} on both sides; name the file of the other language")
        if len(src) != len(tgt):
            raise DataError(
                f"{paths[0]!r} has {len(src)} files and {paths[1]!r} {len(tgt)}; file n of one "
                "must be the translation of file n of the other"
            )
        for pair in zip(src, tgt, strict=True):
            name = " and ".join(map(str, pair))
            yield name, paired(name, *(lines_of(pieces_of(path)) for path in pair))
