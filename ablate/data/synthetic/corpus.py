"""Splits of random sentences, and the two diagnostic tests."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, product
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import Field, NonNegativeInt, PositiveInt

from ablate.data.cache import cache_folder, cached
from ablate.data.corpus import Bitext, Corpus, CorpusText, digest_of_lines
from ablate.data.synthetic import lexicon
from ablate.data.synthetic.grammar import (
    Clause,
    Group,
    Phrase,
    Prepositional,
    Relative,
    Sentence,
    combinations,
    english,
    sorelin,
)
from ablate.data.synthetic.lexicon import Noun, Tense
from ablate.hashing import digest
from ablate.registry import AddedOption, digest_of_code, register

T = TypeVar("T")

_TENSES: tuple[Tense, ...] = ("past", *lexicon.TENSES)  # the past is twice as frequent
_INANIMATES = lexicon.THINGS + lexicon.HOMOGRAPHS  # homographs are twice as frequent

_GRAMMAR_CODE = digest_of_code(Path(__file__).parent)  # as it is imported
"""The code that determines the text."""

LONGEST = 16
"""Tokens on either side, final mark included, of every split but ``test_long``."""

LONGEST_OF_ALL = 24
"""Tokens on either side of ``test_long``."""


@register(
    "synthetic",
    source="this project; novel combinations after Lake & Baroni 2018, arXiv:1711.00350, "
    "and Kim & Linzen 2020, arXiv:2010.05465",
)
class Synthetic(Corpus):
    """English into Sorelin, an invented language, by a synchronous grammar.

    A source has exactly one translation, and no source occurs twice. The sentences of
    ``test_long`` are longer, on both sides, than any of training. Each sentence of ``test_novel``
    has an adjective with a noun, or a verb with an object, that no other split combines. Every
    word of every split occurs in training.

    Args:
        size: pairs to train on. Dev and test have a 24th of it, at most 500; the diagnostic
            tests three fifths of that.
        seed: of the sentences and of the novel combinations; the words are always the same.
        test_size: pairs of ``test`` if it is to have more than that; the first of them and all
            other splits stay the same.
    """

    def __init__(
        self,
        *,
        size: Annotated[int, Field(ge=200)] = 12_000,
        seed: NonNegativeInt = 0,
        test_size: Annotated[PositiveInt | None, AddedOption(None)] = None,
    ) -> None:
        super().__init__()
        self.size = size
        self.seed = seed
        self.test_size = test_size
        self._n_more = max(0, (test_size or 0) - _n_test(size))

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.test_size is not None and not self._n_more:
            least = _n_test(self.size)
            reason = f"must be more than {least}, which test has without it; it is {self.test_size}"
            yield "test_size", reason

    def fingerprint(self) -> str:
        """Return the SHA-256 of the text; from the cache while the grammar is unchanged."""
        more = (str(self._n_more),) if self._n_more else ()
        determinants = _GRAMMAR_CODE, str(self.size), str(self.seed), *more

        def compute() -> str:
            text = self.load()
            splits = (text.train, text.dev, *text.tests.values())
            return digest_of_lines(side for split in splits for side in (split.src, split.tgt))

        return cached(cache_folder("synthetic") / digest(determinants), compute)

    def load(self) -> CorpusText:
        return generate(self.size, self.seed, self._n_more)


@functools.lru_cache(maxsize=4)
def generate(size: int, seed: int, n_more: int = 0) -> CorpusText:
    """Return the corpus, with ``n_more`` pairs more in ``test`` than it has anyway.

    The same arguments give the same text on every machine.
    """
    n_test = _n_test(size)
    n_diagnostic = n_test * 3 // 5
    sentences = _Sentences(seed)
    train = Bitext.on_disk(sentences.take(size, _PLAIN))
    sentences.is_vocabulary_open = False
    dev, test = (list(sentences.take(n_test, _PLAIN)) for _ in range(2))
    long = Bitext.of(sentences.take(n_diagnostic, _LONG))
    novel = Bitext.of(sentences.take(n_diagnostic, _NOVEL))
    test += sentences.take(n_more, _PLAIN)  # last, so that no other split depends on it
    return CorpusText(
        name="synthetic",
        src="en",
        tgt="qso",  # ISO 639 leaves qaa to qtz for private use
        train=train,
        dev=Bitext.of(dev),
        tests={"test": Bitext.of(test), "test_long": long, "test_novel": novel},
    )


def _n_test(size: int) -> int:
    return min(500, size // 24)


def novel_combinations(seed: int) -> frozenset[tuple[str, str]]:
    """Return the (adjective, noun) and (verb, object) pairs of ``test_novel``: an eighth of all."""
    draw = random.Random(f"{seed} combinations").random
    nouns = lexicon.ANIMATES + lexicon.THINGS
    adjective_pairs = (
        (adjective.en, noun.en) for adjective, noun in product(lexicon.ADJECTIVES, nouns)
    )
    verb_pairs = (
        (verb.en, noun.en)
        for verb, noun in product(lexicon.TRANSITIVES + lexicon.DITRANSITIVES, nouns)
        if verb.takes in ("any", "animate" if noun.is_animate else "thing")
    )
    return frozenset(pair for pair in chain(adjective_pairs, verb_pairs) if draw() < 1 / 8)


@dataclass(frozen=True)
class Style:
    """How rich sentences are: probabilities, and the most modifiers and phrases."""

    modifier: float  # probability that a phrase has a modifier
    coordination: float  # probability that a group goes on with one more phrase
    subordination: float  # probability that a sentence has a subordinate clause
    depth: int  # modifiers within modifiers, at most
    max_phrases: int


@dataclass(frozen=True)
class _Kind:
    """Requirements on the sentences of a split; lengths are tokens, on both sides."""

    style: Style
    shortest: int = 1
    longest: int = LONGEST
    is_novel: bool = False


_MODEST = Style(modifier=0.2, coordination=0.1, subordination=0.12, depth=1, max_phrases=2)
_RICH = Style(modifier=0.5, coordination=0.3, subordination=0.4, depth=2, max_phrases=3)

_PLAIN = _Kind(_MODEST)
_NOVEL = _Kind(_MODEST, is_novel=True)
_LONG = _Kind(_RICH, shortest=LONGEST + 1, longest=LONGEST_OF_ALL)


class Sampler:
    """Draws sentences of one style.

    It calls `random.Random.random` alone, which gives the same numbers under every release of
    Python on every machine.
    """

    def __init__(self, rng: random.Random, style: Style) -> None:
        self._random = rng.random
        self._style = style

    def sentence(self) -> Sentence:
        if self._chance(self._style.subordination):
            subordinator = self._pick(lexicon.SUBORDINATORS)
            is_fronted = self._chance(0.5)
            return Sentence(self._event(), False, subordinator, self._event(), is_fronted)
        if self._chance(0.12):
            return Sentence(self._event(can_be_negated=False), is_question=True)
        if not self._chance(0.12):
            return Sentence(self._event())
        subject = (self._phrase(self._person(), self._style.depth - 1),)
        verb, tense = self._pick(lexicon.OPINIONS), self._pick(_TENSES)
        return Sentence(Clause(subject, verb, tense, content=self._event()))

    def _event(self, can_be_negated: bool = True) -> Clause:
        is_negated = can_be_negated and self._chance(0.15)
        adverb = self._pick(lexicon.ADVERBS) if self._chance(0.15) else None
        tense = self._pick(_TENSES)
        kind = self._random()
        if kind < 0.25:
            verb = self._pick(lexicon.INTRANSITIVES)
            is_animate = verb.takes == "animate" or self._chance(0.3)
            return Clause(self._group(is_animate), verb, tense, is_negated, adverb)
        subject = self._group(is_animate=True)
        if kind < 0.8:
            verb = self._pick(lexicon.TRANSITIVES)
            is_animate = verb.takes == "animate" or (verb.takes == "any" and self._chance(0.5))
            return Clause(subject, verb, tense, is_negated, adverb, self._group(is_animate))
        verb = self._pick(lexicon.DITRANSITIVES)
        thing = (self._phrase(self._pick(_INANIMATES), depth=0),)
        recipient = self._phrase(self._person(), depth=0)
        has_to = self._chance(0.5)
        return Clause(subject, verb, tense, is_negated, adverb, thing, recipient, has_to)

    def _group(self, is_animate: bool) -> Group:
        n_phrases = 1
        while n_phrases < self._style.max_phrases and self._chance(self._style.coordination):
            n_phrases += 1
        first = [self._phrase(self._noun(is_animate), depth=0) for _ in range(n_phrases - 1)]
        return (*first, self._phrase(self._noun(is_animate), self._style.depth))

    def _phrase(self, noun: Noun, depth: int) -> Phrase:
        if not noun.plural:
            return Phrase(noun, None)
        determiner = self._pick(lexicon.SINGULARS if self._chance(0.6) else lexicon.PLURALS)
        adjective = self._pick(lexicon.ADJECTIVES) if self._chance(0.35) else None
        if depth < 1 or not self._chance(self._style.modifier):
            return Phrase(noun, determiner, adjective)
        return Phrase(noun, determiner, adjective, self._modifier(noun, depth - 1))

    def _modifier(self, noun: Noun, depth: int) -> Prepositional | Relative:
        kind = self._random()
        if kind < 0.4:
            other_noun = self._noun(is_animate=self._chance(0.3))
            return Prepositional(self._pick(lexicon.PREPOSITIONS), self._phrase(other_noun, depth))
        tense = self._pick(_TENSES)
        verb = self._pick(lexicon.TRANSITIVES)
        if kind < 0.7 and verb.takes in ("any", "animate" if noun.is_animate else "thing"):
            return Relative(verb, tense, self._phrase(self._person(), depth), head_is_object=True)
        if kind < 0.8 or not noun.is_animate:
            verbs = lexicon.INTRANSITIVES if noun.is_animate else lexicon.INTRANSITIVES[-2:]
            return Relative(self._pick(verbs), tense, None, head_is_object=False)
        is_animate = verb.takes == "animate" or (verb.takes == "any" and self._chance(0.5))
        other = self._phrase(self._noun(is_animate), depth)
        return Relative(verb, tense, other, head_is_object=False)

    def _noun(self, is_animate: bool) -> Noun:
        return self._person() if is_animate else self._pick(_INANIMATES)

    def _person(self) -> Noun:
        return self._pick(lexicon.NAMES if self._chance(0.15) else lexicon.ANIMATES)

    def _chance(self, probability: float) -> bool:
        return self._random() < probability

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]


class _Sentences:
    """Random sentences, none of them twice.

    While its vocabulary is not open it has only sentences whose words have occurred on both sides.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(f"{seed} sentences")
        self._novel = novel_combinations(seed)
        self._hashes: set[bytes] = set()  # the sentences themselves would take a GiB in millions
        self._words: tuple[set[str], set[str]] = (set(), set())
        self.is_vocabulary_open = True

    def take(self, n: int, kind: _Kind) -> Iterator[tuple[str, str]]:
        sampler = Sampler(self._random, kind.style)
        while n:
            sentence = sampler.sentence()
            if self._novel.isdisjoint(combinations(sentence)) == kind.is_novel:
                continue
            src = english(sentence)
            tgt = sorelin(sentence, frozenset(src))
            if not self._fits(src, tgt, kind):
                continue
            key = blake2b(" ".join(src).encode(), digest_size=8).digest()
            if key not in self._hashes:
                self._hashes.add(key)
                n -= 1
                yield " ".join(src), " ".join(tgt)

    def _fits(self, src: list[str], tgt: list[str], kind: _Kind) -> bool:
        shorter, longer = sorted((len(src), len(tgt)))
        if shorter < kind.shortest or longer > kind.longest:
            return False
        src_words, tgt_words = self._words
        if self.is_vocabulary_open:
            src_words.update(src)
            tgt_words.update(tgt)
        return src_words.issuperset(src) and tgt_words.issuperset(tgt)
