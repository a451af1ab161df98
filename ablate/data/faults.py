"""Faults of parallel text that show in no single line: found before anything is trained on it.

The thresholds lie far above what corpora have that are known to be sound. Multi30k has 1 pair of
its dev set in its training text (0.1%) and 0.02% repeated training pairs, and no pair is the same
on both sides.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from ablate.data.corpus import Bitext, CorpusText, bleu_tokenizer
from ablate.errors import DataError

Keys = NDArray[np.int64]

MUCH, SOME = 0.05, 0.005
"""Shares of a split from which a fault is an error, and from which it is told."""
FEW = 10
"""Pairs with a fault, below which nothing is said."""
_N_EXAMPLES = 3
_SAMPLE = 10_000  # lines whose script is looked at
_SAMPLE_PAIRS = 20_000  # of the training text, whose words tell its languages apart
_MOST_STRANGE = 0.25  # of these pairs, above which its sides have the same words
_KNOWN_OF = 4  # words, of which the training text has at least one
_SAME = "have the same text on both sides"
_OTHER = "have a {} that is in another language than the training text's"
_MOSES = re.compile(r"@-@|&(?:apos|quot|amp|#91|#93|#124);|(?<=\w) [.?!]$")
_UNSPACED = {"CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR"}
"""First words of the names of letters that are written without spaces between words."""


@dataclass(frozen=True)
class Fault:
    """One fault of a text.

    Attributes:
        name: by which an experiment accepts it.
        share: of the split's pairs that have it.
        is_error: whether numbers of a run on this text would mean little, and the experiment does
            not accept that.
        text: what is wrong, with numbers of pairs from 1, of those that are not left out.
    """

    name: str
    split: str
    share: float
    is_error: bool
    text: str


def faults(text: CorpusText) -> list[Fault]:
    """Return the faults of a text, which is read once; two numbers per training pair are kept."""
    train, n_train = text.train, len(text.train)
    exact, plain, same = _scanned(train)
    n_more = n_train - len(np.unique(exact))
    result = _fault("repeated_pairs", "train", n_more, n_train, "repeat an earlier pair", much=0.5)
    result += _fault("same_sides", "train", len(same), n_train, _SAME, same)
    languages = _Languages(text)
    result += languages.faults("train", train)
    in_dev = _plain_keys(text.dev)
    for name, split in {"dev": text.dev, **text.tests}.items():
        keys, (_, _, same) = _plain_keys(split), _scanned(split)
        result += _in_train(name, keys, plain)
        if name != "dev":
            rows = _numbers(np.any(np.isin(keys, in_dev), axis=0))
            result += _fault("test_in_dev", name, len(rows), len(split), "are in the dev set", rows)
            if not text.is_tokenised:
                result += _in_tokens(name, split.tgt)
            if bleu_tokenizer(text.tgt) == "13a":
                result += _unspaced(name, split.tgt)
        result += _fault("same_sides", name, len(same), len(split), _SAME, same)
        result += languages.faults(name, split)
    return result


def overlap(text: CorpusText) -> set[int]:
    """Return the rows of training pairs that are in another split, but for case and punctuation."""
    splits = text.dev, *text.tests.values()
    others = np.concatenate([_plain_keys(split).ravel() for split in splits])
    return set(np.flatnonzero(np.isin(_plain_keys(text.train), others)).tolist())


def held_out(train: Bitext, sizes: Sequence[int]) -> tuple[list[list[int]], set[int]]:
    """Return the rows of sets of different pairs, chosen by their hashes, and all that are gone.

    A pair is chosen wherever it stands. Pairs that are like a chosen one, but for case and
    punctuation, are in none of the sets, and gone as well.

    Raises:
        DataError: if the text has too few different pairs.
    """
    keys = np.array([_lasting_key(*pair) for pair in zip(train.src, train.tgt, strict=True)])
    distinct, first = np.unique(keys, return_index=True)
    n = sum(sizes)
    if len(distinct) <= n:
        raise DataError(f"has {len(distinct):,} different pairs, of which holdout takes {n:,}")
    sets = np.split(first[:n], np.cumsum(sizes)[:-1])
    gone = set(np.flatnonzero(np.isin(keys, distinct[:n])).tolist())
    return [sorted(rows.tolist()) for rows in sets], gone


def _lasting_key(src: str, tgt: str) -> int:
    """Return a hash of a pair, but for case and punctuation, that is the same in every process."""
    pair = f"{_plain(src)}\n{_plain(tgt)}".encode(errors="surrogatepass")
    return int.from_bytes(blake2b(pair, digest_size=8).digest(), "big", signed=True)


def _in_train(name: str, keys: Keys, train: Keys) -> list[Fault]:
    reference = np.isin(keys, train).argmax(axis=0)  # the first by which a pair is in the training
    keys = keys[reference, np.arange(len(reference))]
    numbers = _numbers(np.isin(keys, train))
    rows = _numbers(np.isin(train, keys))
    first = {int(train[row - 1]): row for row in reversed(rows)}
    where = [f"{number} is {first[int(keys[number - 1])]}" for number in numbers]
    return _fault("test_in_train", name, len(numbers), len(keys), "are in the training text", where)


def _numbers(is_one: NDArray[np.bool_]) -> list[int]:
    return (np.flatnonzero(is_one) + 1).tolist()


class _Languages:
    """Tells the sides of a text apart by their words: a word is of the side that has it more often.

    In languages without spaces words are characters. Nothing is said of a text whose sides have the
    same words, as two styles of one language do.
    """

    def __init__(self, text: CorpusText) -> None:
        has_words = all(bleu_tokenizer(code) == "13a" for code in (text.src, text.tgt))
        self._words = str.split if has_words else _characters
        sample = slice(None, None, -(-len(text.train) // _SAMPLE_PAIRS))
        self._sample = Bitext(text.train.src[sample], text.train.tgt[sample])
        sides = self._sample.src, self._sample.tgt
        self._counts = [
            Counter(word for line in side for word in self._words(_plain(line))) for side in sides
        ]
        self._strange_of_sample = self._strange(self._sample)
        self._is_able = self._strange_of_sample.any(axis=1).mean() < _MOST_STRANGE

    def faults(self, name: str, split: Bitext) -> list[Fault]:
        """Return that sides are swapped, or are in a language that is not that of the training."""
        if not self._is_able:
            return []
        strange = self._strange_of_sample if name == "train" else self._strange(split)
        much = 2.0 if name == "train" else MUCH
        src, tgt = strange.T
        result: list[Fault] = []
        for rows, fault, sentence, share in (
            (src & tgt, "swapped_sides", "have source and target swapped", much),
            (src & ~tgt, "other_language", _OTHER.format("source"), 2.0),
            (tgt & ~src, "other_language", _OTHER.format("target"), 2.0),
        ):
            where = [] if name == "train" else _numbers(rows)
            result += _fault(fault, name, int(rows.sum()), len(rows), sentence, where, share)
        return result

    def _strange(self, split: Bitext) -> NDArray[np.bool_]:
        """Return whether the source and the target of each pair are of another language, (N, 2)."""
        pairs = zip(split.src, split.tgt, strict=True)
        rows = [
            [src != tgt and self._is_other(i, x) for i, x in enumerate((src, tgt))]
            for src, tgt in pairs
        ]
        return np.array(rows, dtype=np.bool_).reshape(-1, 2)

    def _is_other(self, side: int, line: str) -> bool:
        """Return whether more words of a line are of the other side, or many and none is known."""
        words = self._words(_plain(line))
        own, other = self._counts[side], self._counts[1 - side]
        votes = [own[word] - other[word] for word in words]
        n_own, n_other = sum(vote > 0 for vote in votes), sum(vote < 0 for vote in votes)
        return n_other > n_own or (len(words) >= _KNOWN_OF and not any(own[w] for w in words))


def _characters(line: str) -> list[str]:
    return list(line.replace(" ", ""))


def _in_tokens(name: str, tgt: Sequence[str]) -> list[Fault]:
    rows = [row for row, line in enumerate(tgt, start=1) if _MOSES.search(line)]
    if len(rows) < len(tgt) / 2:  # a few such lines are in any text
        return []
    text = (
        "are in tokens, as Moses writes them, which BLEU's 13a tokenises once more; give "
        "references as people write them"
    )
    return _fault("tokenised_references", name, len(rows), len(tgt), text, rows, much=2.0)


def _unspaced(name: str, tgt: Sequence[str]) -> list[Fault]:
    scripts: Counter[bool] = Counter()
    for line in islice(tgt, _SAMPLE):
        for letter in filter(str.isalpha, line):
            scripts[unicodedata.name(letter, "").partition(" ")[0] in _UNSPACED] += 1
    if scripts[True] <= scripts[False]:
        return []
    text = (
        "are written without spaces, where BLEU by 13a takes a sentence for a word or two; "
        "give the code of the language as tgt, or metrics: {name: bleu, tokenize: char}"
    )
    return _fault("unspaced_references", name, len(tgt), len(tgt), text, much=2.0)


def _fault(  # noqa: PLR0913 - what a sentence about a fault is made of
    name: str,
    split: str,
    n: int,
    n_pairs: int,
    text: str,
    where: Sequence[object] = (),
    much: float = MUCH,
) -> list[Fault]:
    """Return the fault, unless few of the pairs have it."""
    share = n / max(1, n_pairs)
    if n < FEW or share < SOME:
        return []
    numbers = f" (pairs {', '.join(map(str, where[:_N_EXAMPLES]))}, ...)" if where else ""
    sentence = f"{n:,} of {n_pairs:,} pairs ({share:.1%}) {text}{numbers}"
    return [Fault(name, split, share, share >= much, sentence)]


def _scanned(split: Bitext) -> tuple[Keys, Keys, list[int]]:
    """Return two keys of each pair, (N,) each, and the numbers of pairs with equal sides.

    Case, punctuation and spaces do not change the second key. Keys are hashes, which differ from
    process to process.
    """
    exact, plain, same = array("q"), array("q"), []
    for row, (src, tgt) in enumerate(zip(split.src, split.tgt, strict=True), start=1):
        exact.append(hash((src, tgt)))
        plain.append(hash((_plain(src), _plain(tgt))))
        if src == tgt:
            same.append(row)
    return np.array(exact), np.array(plain), same


def _plain_keys(split: Bitext) -> Keys:
    """Return the second key of each source with each of R references, (R, N)."""
    return np.stack([_scanned(Bitext(split.src, tgt))[1] for tgt in split.references])


class _Letters(dict[int, int]):
    """For `str.translate`: a space for what is no letter, digit or combining mark."""

    def __missing__(self, code: int) -> int:
        character = chr(code)
        is_mark = unicodedata.category(character) in ("Mn", "Mc")  # as vowels are in many scripts
        is_style = "VARIATION SELECTOR" in unicodedata.name(character, "")  # of emoji
        is_kept = character.isalnum() or (is_mark and not is_style)
        self[code] = code if is_kept else ord(" ")
        return self[code]


_LETTERS = _Letters()


def _plain(line: str) -> str:
    composed = unicodedata.normalize("NFC", line.lower())
    return " ".join(composed.translate(_LETTERS).split())
