"""The user's own parallel text: a table with a column for each side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

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
    usable_test_name,
)
from ablate.data.parallel import Limits, Numbered, Ratio, files_of
from ablate.data.rows import Row, data_files, rows_of, value_of
from ablate.errors import DataError
from ablate.registry import AddedOption, FilePaths, Fingerprinted, register

Column = Annotated[str, Field(min_length=1)] | PositiveInt
_DEV = ("dev", "valid", "validation", "val")
_SPLITS = dict.fromkeys(_DEV, "dev") | {"training": "train"}
"""What the training text and the dev set are called elsewhere."""
_WITHIN = "translation"
"""The column in which Hugging Face datasets have both sides."""
_SIDES_ARE_NAMED = (
    "name the columns of the source and the target (columns: [SOURCE, TARGET]); the first line of "
    "TSV and CSV has the names, and if it is a row, numbers are given (columns: [1, 2]); each row "
    "of JSON lines has both names, with null for a missing text"
)
_SPLIT_IS_NAMED = (
    "name the column that says the split of each row (split: COLUMN), or give dev and tests"
)
_SURROGATE = re.compile("[\ud800-\udfff]")  # stands for a byte that is no UTF-8


@register("table", source="the user's own")
class Table(OwnText):
    """Tables with a column for each side: TSV, CSV, JSON lines, Parquet, Hugging Face datasets.

    ``{name: table, src: en, tgt: de, train: a.tsv, dev: b.tsv, tests: {news: c.tsv}}``; or one
    table with a column that says the split of each row: ``{name: table, src: en, tgt: de, train:
    all.csv, split: part}``. The end of a name says the format: ``.tsv`` (a tab ends a cell, nothing
    is quoted), ``.csv`` (RFC 4180), ``.jsonl``, each also ``.gz``. ``.parquet``, and the folder of
    one split that Hugging Face datasets has saved, need the extra ``tables``. A pattern names
    several files, in the order of their names: ``train-*.parquet``; ``x.zip/a.tsv`` is a file in an
    archive. Training rows that are empty, no UTF-8, too long, or have a line break in a sentence
    are left out, and the notes have their numbers; elsewhere they are an error. Paths, faults and
    fingerprints are as with ``files``.

    Args:
        train: the table to train on.
        dev: the table that decides about stopping and averaging.
        tests: the tables to report on, by name.
        columns: of the source and of the target: names, or numbers from 1 if the first line has no
            names; ``a.b`` is b within a. By default the codes of the languages, alone or within
            ``translation``.
        references: columns of further translations of a test's sentences, by all of which BLEU and
            chrF score.
        split: the column that says whether a row is of train, of dev (or valid, validation, val),
            or the name of its test, if train is the only table; null: ``split``.
        holdout: in place of dev, of tests or of both, how many training pairs become dev, and how
            many a test, as with ``files``.
    """

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        *,
        src: Code,
        tgt: Code,
        train: Annotated[str, Fingerprinted(), FilePaths()],
        dev: Annotated[str | None, Fingerprinted(), FilePaths()] = None,
        tests: Annotated[dict[TestName, str] | None, Fingerprinted(), FilePaths()] = None,
        columns: tuple[Column, Column] | None = None,
        references: tuple[Column, ...] = (),
        split: Column | None = None,
        holdout: Annotated[Holdout | None, AddedOption(None)] = None,
        tokenised: bool = False,
        max_words: PositiveInt = 250,
        max_ratio: Ratio | None = None,
        overlap: Overlap = "keep",
        accept: tuple[FaultName, ...] = (),
    ) -> None:
        paths: dict[str, tuple[str, ...]] = {"train": (train,)}
        if not (dev or tests or holdout):
            split = "split" if split is None else split
        elif split is not None or not all_splits_have_one_origin(dev, tests, holdout):
            raise ValueError(
                "table: give dev and tests, each a table of its own, or take them out of train: "
                "both (holdout: {dev: 500, test: 500}), or the one that is not given; or have a "
                "column of train say the split of each row (split: COLUMN)"
            )
        paths |= {"dev": (dev,)} if dev else {}
        paths |= {f"tests.{name}": (table,) for name, table in (tests or {}).items()}
        limits = Limits(max_words, max_ratio, (src, tgt))
        named = columns or (src, tgt)
        read = tuple(map(repr, (*named, references, split, columns is None)))
        super().__init__(
            paths, Handling(src, tgt, tokenised, limits, overlap, accept, holdout, read)
        )
        self._has_names = not any(isinstance(x, int) for x in (*named, *references, split))
        self._source, *self._targets = (
            [str(column)] if columns else [str(column), f"{_WITHIN}.{column}"]
            for column in (*named, *references)
        )
        self._split = None if split is None else str(split)

    def _files(self, path: str) -> list[Path]:
        return [file for table in files_of(path) for file in data_files(table)]

    def _splits(self) -> Iterable[str]:
        if self._split is None:
            return self._paths
        files = self._files(*self._paths["train"])
        names = dict.fromkeys(split for file in files for split, *_ in self._rows_of(file))
        tests = [split for split in names if split not in ("train", "dev")]
        if "train" not in names or "dev" not in names or not tests:
            raise DataError(
                f"column {self._split!r} has {', '.join(map(repr, names))}: it needs train, dev "
                f"(or {', '.join(_DEV[1:])}), and the name of a test"
            )
        for name in tests:
            try:
                usable_test_name(name)
            except ValueError as error:
                raise DataError(f"column {self._split!r}: {error}") from error
        return ["train", "dev", *(f"tests.{name}" for name in tests)]

    def _n_references(self, split: str) -> int:
        return len(self._targets) if split.startswith("tests.") else 1

    def _pieces(self, split: str, reference: int) -> Iterator[tuple[str, Iterable[Numbered]]]:
        name, target = split.removeprefix("tests."), self._targets[reference]
        for file in self._files(*self._paths[split if self._split is None else "train"]):
            rows = ((n, row) for of, n, row in self._rows_of(file) if of in (name, ""))
            pairs = (
                (n, _sentence(row, self._source, at), _sentence(row, target, at))
                for n, row in rows
                for at in (f"{file}:{n}",)
            )
            if (first := next(pairs, None)) is not None:  # not every file has rows of every split
                yield str(file), chain([first], pairs)

    def _rows_of(self, file: Path) -> Iterator[tuple[str, int, Row | None]]:
        """Yield the split of each row, empty without such a column, and its number."""
        needed = [name for names in (self._source, *self._targets) for name in names]
        needed += [] if self._split is None else [self._split]
        number = 0
        for number, row in rows_of(file, needed, has_names=self._has_names):
            at = f"{file}:{number}"
            split = ""
            if self._split is not None:
                if row is None:
                    raise DataError(f"{at}: is no UTF-8, so that its split is unknown")
                has_split, value = value_of(row, self._split)
                if not has_split:
                    raise _no_column(row, self._split, at, _SPLIT_IS_NAMED)
                if value in (None, ""):
                    raise DataError(f"{at}: column {self._split!r} is empty: it says the split")
                split = _SPLITS.get(str(value), str(value))
            yield split, number, row
        if not number:
            raise DataError(f"{file}: has no rows")


def _cell(row: Row, names: list[str], at: str) -> Any:
    for name in names:
        is_there, value = value_of(row, name)
        if is_there:
            return value
    raise _no_column(row, names[0], at, _SIDES_ARE_NAMED)


def _no_column(row: Row, name: str, at: str, way_out: str) -> DataError:
    has = ", ".join(map(repr, row))
    return DataError(f"{at}: has no column {name!r}; it has {has}: {way_out}")


def _sentence(row: Row | None, names: list[str], at: str) -> str | None:
    """Return the text of a cell, empty without one; None if it is no UTF-8."""
    if row is None:
        return None
    if (value := _cell(row, names, at)) is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{at}: has {repr(value)[:40]} in place of a text")
    return None if _SURROGATE.search(value) else value
