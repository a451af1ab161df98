"""Faults of parallel text that show in no single line: found before anything is trained on it.

The thresholds lie far above what corpora have that are known to be sound. Multi30k has 1 pair of
its dev set in its training text (0.1%) and 0.02% repeated training pairs, and no pair is the same
on both sides.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import numpy as np

from ablate.data.corpus import Bitext, CorpusText, bleu_tokenizer

MUCH, SOME = 0.05, 0.005
"""Shares of a split from which a fault is an error, and from which it is told."""
FEW = 10
"""Pairs with a fault, below which nothing is said."""
_N_EXAMPLES = 3
_SAMPLE = 10_000  # lines whose script is looked at
_MOSES = re.compile(r"@-@|&(?:apos|quot|amp|#91|#93|#124);|(?<=\w) [.?!]$")
_UNSPACED = {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"}
"""First words of the names of letters that are written without spaces between words."""


@dataclass(frozen=True)
class Fault:
    """One fault of a text.

    Attributes:
        name: by which an experiment accepts it.
        split: ``train``, ``dev`` or the name of a test.
        share: of the split's pairs that have it.
        is_error: whether numbers of a run on this text would mean little.
        text: what is wrong, with line numbers from 1.
    """

    name: str
    split: str
    share: float
    is_error: bool
    text: str


def faults(text: CorpusText) -> list[Fault]:
    """Return the faults of a text, which is read twice; one number per training pair is kept."""
    tests = {"dev": text.dev, **text.tests}
    result = [*_repeated("train", text.train), *_same_sides("train", text.train)]
    for name, split in tests.items():
        result += _in_train(name, split, text.train)
        if name != "dev":
            result += _in_dev(name, split, text.dev)
            if not text.is_tokenised:
                result += _in_tokens(name, split.tgt)
            if bleu_tokenizer(text.tgt) == "13a":
                result += _unspaced(name, split.tgt)
        result += _same_sides(name, split)
    return result


def overlap(text: CorpusText) -> set[int]:
    """Return the rows of training pairs that are in another split, but for case and punctuation."""
    others = set[int]()
    for split in (text.dev, *text.tests.values()):
        others.update(map(_plain_key, split.src, split.tgt))
    pairs = zip(text.train.src, text.train.tgt, strict=True)
    return {row for row, pair in enumerate(pairs) if _plain_key(*pair) in others}


def _in_train(name: str, split: Bitext, train: Bitext) -> Iterator[Fault]:
    rows: dict[int, list[int]] = {}
    for row, pair in enumerate(zip(split.src, split.tgt, strict=True), start=1):
        rows.setdefault(_plain_key(*pair), []).append(row)
    lines: dict[int, int] = {}  # of the split, and of the training text
    for line, pair in enumerate(zip(train.src, train.tgt, strict=True), start=1):
        for row in rows.get(_plain_key(*pair), ()):
            lines.setdefault(row, line)
    where = (f"{row} is {lines[row]}" for row in sorted(lines))
    yield from _fault(
        "test_in_train", name, len(lines), len(split), "are in the training text", where
    )


def _in_dev(name: str, split: Bitext, dev: Bitext) -> Iterator[Fault]:
    keys = {_plain_key(*pair) for pair in zip(dev.src, dev.tgt, strict=True)}
    rows = _rows(_plain_key(*pair) in keys for pair in zip(split.src, split.tgt, strict=True))
    yield from _fault("test_in_dev", name, len(rows), len(split), "are in the dev set", rows)


def _repeated(name: str, split: Bitext) -> Iterator[Fault]:
    pairs = zip(split.src, split.tgt, strict=True)
    keys = np.fromiter((_key(*pair) for pair in pairs), np.uint64, len(split))
    n_more = len(split) - len(np.unique(keys))
    text = "repeat an earlier pair"
    yield from _fault("repeated_pairs", name, n_more, len(split), text, (), much=0.5)


def _same_sides(name: str, split: Bitext) -> Iterator[Fault]:
    rows = _rows(src == tgt for src, tgt in zip(split.src, split.tgt, strict=True))
    yield from _fault(
        "same_sides", name, len(rows), len(split), "have the same text on both sides", rows
    )


def _in_tokens(name: str, tgt: Sequence[str]) -> Iterator[Fault]:
    rows = _rows(_MOSES.search(line) is not None for line in tgt)
    if len(rows) >= len(tgt) / 2:  # a few such lines are in any text
        text = (
            "are in tokens, as Moses writes them, which BLEU's 13a tokenises once more; give "
            "references as people write them"
        )
        yield from _fault("tokenised_references", name, len(rows), len(tgt), text, rows, much=2.0)


def _unspaced(name: str, tgt: Sequence[str]) -> Iterator[Fault]:
    scripts: Counter[bool] = Counter()
    for line in islice(tgt, _SAMPLE):
        for letter in filter(str.isalpha, line):
            scripts[unicodedata.name(letter, "").partition(" ")[0] in _UNSPACED] += 1
    if scripts[True] > scripts[False]:
        text = (
            "are written without spaces, where BLEU by 13a takes a sentence for a word or two; "
            "give the code of the language as tgt, or metrics: {name: bleu, tokenize: char}"
        )
        n = len(tgt)
        yield from _fault("unspaced_references", name, n, n, text, (), much=2.0)


def _fault(  # noqa: PLR0913 - what a sentence about a fault is made of
    name: str,
    split: str,
    n: int,
    n_pairs: int,
    text: str,
    where: Sequence[object] | Iterator[object],
    much: float = MUCH,
) -> Iterator[Fault]:
    """Yield the fault, unless few of the pairs have it."""
    share = n / max(1, n_pairs)
    if n < FEW or share < SOME:
        return
    examples = list(islice(map(str, where), _N_EXAMPLES + 1))
    more = ", ..." if len(examples) > _N_EXAMPLES else ""
    lines = f" (lines {', '.join(examples[:_N_EXAMPLES])}{more})" if examples else ""
    sentence = f"{n:,} of {n_pairs:,} pairs ({share:.1%}) {text}{lines}"
    yield Fault(name, split, share, share >= much, sentence)


def _rows(flags: Iterator[bool] | map[bool]) -> list[int]:
    return [row for row, flag in enumerate(flags, start=1) if flag]


def _key(src: str, tgt: str) -> int:
    return int.from_bytes(blake2b(f"{src}\n{tgt}".encode(), digest_size=8).digest(), "little")


def _plain_key(src: str, tgt: str) -> int:
    """Return a key that case, punctuation and spaces do not change."""
    return _key(_plain(src), _plain(tgt))


def _plain(line: str) -> str:
    letters = "".join(c if c.isalnum() or unicodedata.combining(c) else " " for c in line.lower())
    return " ".join(letters.split())
