"""What all text of the user's own has in common: its options, its faults, what is left out."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, WithJsonSchema

from ablate.data.cache import cache_folder, cached
from ablate.data.corpus import Bitext, Corpus, CorpusText, Report
from ablate.data.faults import Fault, faults, held_out, overlap
from ablate.data.parallel import (
    Limits,
    Numbered,
    cleaned,
    complete,
    files_of,
    pieces_of,
    why_unreadable,
)
from ablate.errors import DataError
from ablate.hashing import digest, sha256
from ablate.registry import digest_of_code
from ablate.wording import and_list

Code = Annotated[str, Field(min_length=1)]
FaultName = Literal["test_in_train", "test_in_dev", "same_sides", "repeated_pairs", "swapped_sides"]
"""A fault that an experiment may accept; other ones are only told."""
Overlap = Literal["keep", "drop"]
Holdout = Annotated[dict[Literal["dev", "test"], PositiveInt], Field(min_length=1)]
"""How many pairs of the training text are dev, or the test."""

_HELD_OUT = {"dev": "dev", "tests.test": "test"}
_OWN_CODE = digest_of_code(Path(__file__).parent)


def all_splits_have_one_origin(dev: object, tests: object, holdout: Holdout | None) -> bool:
    """Return whether dev and the tests are each given, or else held out of the training text.

    If one is both, that is a ValueError.
    """
    held = holdout or {}
    for option, given, name in (("dev", dev, "dev"), ("tests", tests, "test")):
        if given and name in held:
            raise ValueError(
                f"{option} is given, and holdout takes {name} out of the training text too; remove "
                f"one of them ({option}: null, if a file of `extends` gives it)"
            )
    return bool(dev) != ("dev" in held) and bool(tests) != ("test" in held)


def usable_test_name(name: str) -> str:
    """Return the name of a test; a ValueError if it is no name for a file and a column."""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise ValueError(f"the name of a test has letters, digits, _ and - only; it is {name!r}")
    if name in ("train", "dev"):
        raise ValueError(f"a test cannot be called {name!r}, as another split is; rename it")
    return name


TestName = Annotated[
    str,
    AfterValidator(usable_test_name),
    WithJsonSchema({"type": "string", "pattern": r"^(?!(train|dev)$)[A-Za-z0-9_-]+$"}),
]


@dataclass(frozen=True)
class Handling:
    """What an experiment says of text of the user's own beside its place."""

    src: str  # code of the source language
    tgt: str  # code of the target language
    tokenised: bool
    limits: Limits
    overlap: Overlap
    accept: tuple[FaultName, ...]
    holdout: Holdout | None = None
    columns: tuple[str, ...] = ()  # of a table, and the one that says the split


class OwnText(Corpus):
    """Text in files of the user's own: read, cleaned and examined.

    Args:
        paths: the files of each split, or patterns of files: of ``train``, ``dev`` and ``tests.x``,
            or of a few of them that hold the others too.
        handling: how they are used, as these options of every part say:
        src: code of the source language.
        tgt: code of the target language.
        tokenised: the text is lower-cased and its tokens stand apart, so BLEU must not tokenise.
        max_words: a training pair has no more on either side; characters count where words are
            not separated, as in Chinese or Thai.
        max_ratio: a training pair's longer side has no more words for each of the shorter's.
        overlap: what becomes of training pairs that are in dev or in a test, but for case and
            punctuation: ``keep`` or ``drop``.
        accept: names of faults with which the text is used all the same.
    """

    def __init__(self, paths: Mapping[str, tuple[str, ...]], handling: Handling) -> None:
        super().__init__()
        self._paths = paths
        self._handling = handling

    def _splits(self) -> Iterable[str]:
        """Return ``train``, ``dev``, and ``tests.x`` of every test."""
        return self._paths

    @abstractmethod
    def _pieces(self, split: str, reference: int) -> Iterator[tuple[str, Iterable[Numbered]]]:
        """Yield the pairs of a split, a table or pair of files at a time, each with its name.

        Args:
            split: ``train``, ``dev`` or ``tests.x``.
            reference: which of several translations of a test's sentences, from 0.
        """

    @abstractmethod
    def _n_references(self, split: str) -> int:
        """Return how many translations the sentences of a split have."""

    def _files(self, path: str) -> list[Path]:
        return files_of(path)

    def problems(self) -> Iterator[tuple[str, str]]:
        unreadable = list(self._unreadable())
        yield from ((option, f"{reason}: {path!r}") for option, path, reason in unreadable)
        if unreadable:
            return
        try:
            all_faults = self.faults()
        except DataError as error:
            yield self._mistake(error)
            return
        for fault in all_faults:
            if fault.is_error:
                ways = "mend the text"
                if fault.name == "test_in_train":
                    ways += ", drop them from the training text (overlap: drop)"
                option = self._option(fault.split)
                split = "" if option.removeprefix("tests.") == fault.split else f"{fault.split}: "
                yield option, f"{split}{fault.text}; {ways}, or accept it (accept: [{fault.name}])"

    def _mistake(self, error: DataError) -> tuple[str, str]:
        """Return the option and the reason why the text cannot be read."""
        split = "train"
        try:
            for split in self._splits():
                self._read(split, "{}")
            split = "train"  # of which too much is held out
        except DataError as reason:
            error = reason
        return self._option(split), str(error)

    def _option(self, split: str) -> str:
        return next((x for x in (split, f"tests.{split}") if x in self._paths), "train")

    def _unreadable(self) -> Iterator[tuple[str, str, str]]:
        """Yield the option, the path and the reason for every path that cannot be read."""
        for split, paths in self._paths.items():
            for side, path in enumerate(paths):
                option = f"{split}.{side}" if len(paths) > 1 else split
                try:
                    files = self._files(path)
                except DataError as error:
                    yield option, path, str(error)
                    continue
                if not files:
                    yield option, path, "no file matches"
                reasons = ((str(file), why_unreadable(file)) for file in files)
                yield from ((option, file, reason) for file, reason in reasons if reason)

    def faults(self, text: CorpusText | None = None, fingerprint: str | None = None) -> list[Fault]:
        """Return the faults of the text, read unless it is given; of one content found once.

        The fingerprint is that of the content, computed unless it is known.
        """
        handling = replace(self._handling, accept=())
        key = digest([fingerprint or self.fingerprint(), repr(handling), _OWN_CODE])[:32]

        def compute() -> str:
            return json.dumps([asdict(fault) for fault in faults(text or self.read())])

        stored = cached(cache_folder("faults") / f"{key}.json", compute)
        accept = self._handling.accept
        return [
            replace(fault, is_error=fault.is_error and fault.name not in accept)
            for fault in (Fault(**each) for each in json.loads(stored))
        ]

    def n_bytes(self) -> int:
        paths = chain.from_iterable(self._paths.values())
        return sum(len(x) for path in paths for file in self._files(path) for x in pieces_of(file))

    def is_available(self) -> bool:
        return not any(self._unreadable())

    def fetch(self, report: Report) -> None:
        for _, path, reason in self._unreadable():
            raise DataError(f"{path}: {reason}; it cannot be downloaded")

    def fingerprint(self) -> str:
        return digest(
            part
            for split, paths in self._paths.items()
            for files in (chain.from_iterable(map(self._files, paths)),)
            for part in (split, *(sha256(pieces_of(file)) for file in files))
        )

    def load(self) -> CorpusText:
        text = self.read()
        return replace(text, notes=(*text.notes, *self.notes_on(text)))

    def notes_on(self, text: CorpusText, fingerprint: str | None = None) -> tuple[str, ...]:
        """Return what is to be told of the faults of the text."""
        return tuple(f"{each.split}: {each.text}" for each in self.faults(text, fingerprint))

    def read(self) -> CorpusText:
        """Return the text without the notes on its faults."""
        splits: dict[str, Bitext] = {}
        notes: tuple[str, ...] = ()
        for split in self._splits():
            splits[split], more = self._read(split, f"{split} ({{}})")
            notes += more
        handling = self._handling
        if handling.holdout:
            held, note = _with_holdout(splits["train"], handling.holdout)
            splits, notes = splits | held, (*notes, note)
        train, dev = splits.pop("train"), splits.pop("dev")
        text = CorpusText(
            name=type(self).__name__.lower(),
            src=handling.src,
            tgt=handling.tgt,
            train=train,
            dev=dev,
            tests={split.removeprefix("tests."): splits[split] for split in splits},
            is_tokenised=handling.tokenised,
            notes=notes,
        )
        if handling.overlap == "keep" or not (rows := overlap(text)):
            return text
        if not (rest := _without(train, rows)):
            raise DataError("every pair is in dev or in a test, so that overlap: drop leaves none")
        note = f"train: {len(rows):,} pairs left out that are in dev or in a test"
        return replace(text, train=rest, notes=(*notes, note))

    def _read(self, split: str, label: str) -> tuple[Bitext, tuple[str, ...]]:
        text, notes = self._with_reference(split, label, 0)
        more: list[Sequence[str]] = []
        for reference in range(1, self._n_references(split)):
            other, notes_of_other = self._with_reference(split, label, reference)
            more.append(other.tgt)
            notes += tuple(note for note in notes_of_other if note not in notes)
        return replace(text, more=tuple(more)), notes

    def _with_reference(
        self, split: str, label: str, reference: int
    ) -> tuple[Bitext, tuple[str, ...]]:
        is_train = split == "train"
        clean, joined = (cleaned, Bitext.on_disk) if is_train else (complete, Bitext.of)
        texts: list[Bitext] = []
        notes: tuple[str, ...] = ()
        for name, pairs in self._pieces(split, reference):
            text, more = clean(label.format(name), pairs, self._handling.limits)
            texts.append(text)
            notes += more
        if len(texts) == 1:
            return texts[0], notes
        whole = chain.from_iterable(zip(text.src, text.tgt, strict=True) for text in texts)
        return joined(whole), notes


def _with_holdout(train: Bitext, holdout: Holdout) -> tuple[dict[str, Bitext], str]:
    """Return a text without what is taken out of it, the splits that are made of that, a note."""
    sizes = {split: holdout[name] for split, name in _HELD_OUT.items() if name in holdout}
    sets, gone = held_out(train, tuple(sizes.values()))
    parts = {
        split: Bitext.of((train.src[row], train.tgt[row]) for row in rows)
        for split, rows in zip(sizes, sets, strict=True)
    }
    n_alike = len(gone) - sum(sizes.values())
    alike = f", and {n_alike:,} like them left out" if n_alike else ""
    counts = and_list([f"{n:,} pairs for {_HELD_OUT[split]}" for split, n in sizes.items()])
    return {"train": _without(train, gone), **parts}, f"train: {counts} are held out{alike}"


def _without(train: Bitext, rows: Collection[int]) -> Bitext:
    pairs = zip(train.src, train.tgt, strict=True)
    return Bitext.on_disk(pair for row, pair in enumerate(pairs) if row not in rows)
