"""Random trees of the grammar."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from ablate.data.synthetic.grammar import Clause, Group, Phrase, Prepositional, Relative, Sentence
from ablate.data.synthetic.lexicon import (
    ADJECTIVES,
    ADVERBS,
    ANIMATES,
    DITRANSITIVES,
    HOMOGRAPHS,
    INTRANSITIVES,
    NAMES,
    OPINIONS,
    PLURALS,
    PREPOSITIONS,
    SINGULARS,
    SUBORDINATORS,
    TENSES,
    THINGS,
    TRANSITIVES,
    Noun,
    Tense,
)

T = TypeVar("T")

_TENSES: tuple[Tense, ...] = ("past", *TENSES)  # the past is twice as frequent
_INANIMATES = THINGS + HOMOGRAPHS  # homographs are twice as frequent


@dataclass(frozen=True)
class Style:
    """How rich sentences are: probabilities, and the most modifiers and phrases.

    Attributes:
        modifier: probability that a phrase has a modifier.
        coordination: probability that a group goes on with one more phrase.
        subordination: probability that a sentence has a subordinate clause.
        depth: modifiers within modifiers, at most.
    """

    modifier: float
    coordination: float
    subordination: float
    depth: int
    max_phrases: int


class Sampler:
    """Draws sentences of one style.

    It calls `random.Random.random` alone, which gives the same numbers under every release of
    Python on every machine.
    """

    def __init__(self, rng: random.Random, style: Style) -> None:
        self._random = rng.random
        self._style = style

    def sentence(self) -> Sentence:
        """Return a random sentence."""
        if self._chance(self._style.subordination):
            subordinator = self._pick(SUBORDINATORS)
            is_fronted = self._chance(0.5)
            return Sentence(self._event(), False, subordinator, self._event(), is_fronted)
        if self._chance(0.12):
            return Sentence(self._event(can_be_negated=False), is_question=True)
        if not self._chance(0.12):
            return Sentence(self._event())
        subject = (self._phrase(self._person(), self._style.depth - 1),)
        verb, tense = self._pick(OPINIONS), self._pick(_TENSES)
        return Sentence(Clause(subject, verb, tense, content=self._event()))

    def _event(self, can_be_negated: bool = True) -> Clause:
        is_negated = can_be_negated and self._chance(0.15)
        adverb = self._pick(ADVERBS) if self._chance(0.15) else None
        tense = self._pick(_TENSES)
        kind = self._random()
        if kind < 0.25:
            verb = self._pick(INTRANSITIVES)
            is_animate = verb.takes == "animate" or self._chance(0.3)
            return Clause(self._group(is_animate), verb, tense, is_negated, adverb)
        subject = self._group(is_animate=True)
        if kind < 0.8:
            verb = self._pick(TRANSITIVES)
            is_animate = verb.takes == "animate" or (verb.takes == "any" and self._chance(0.5))
            return Clause(subject, verb, tense, is_negated, adverb, self._group(is_animate))
        verb = self._pick(DITRANSITIVES)
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
        determiner = self._pick(SINGULARS if self._chance(0.6) else PLURALS)
        adjective = self._pick(ADJECTIVES) if self._chance(0.35) else None
        if depth < 1 or not self._chance(self._style.modifier):
            return Phrase(noun, determiner, adjective)
        return Phrase(noun, determiner, adjective, self._modifier(noun, depth - 1))

    def _modifier(self, noun: Noun, depth: int) -> Prepositional | Relative:
        kind = self._random()
        if kind < 0.4:
            other_noun = self._noun(is_animate=self._chance(0.3))
            return Prepositional(self._pick(PREPOSITIONS), self._phrase(other_noun, depth))
        tense = self._pick(_TENSES)
        verb = self._pick(TRANSITIVES)
        if kind < 0.7 and verb.takes in ("any", "animate" if noun.is_animate else "thing"):
            return Relative(verb, tense, self._phrase(self._person(), depth), head_is_object=True)
        if not noun.is_animate:
            return Relative(self._pick(INTRANSITIVES[-2:]), tense, None, head_is_object=False)
        if kind < 0.8:
            return Relative(self._pick(INTRANSITIVES), tense, None, head_is_object=False)
        is_animate = verb.takes == "animate" or (verb.takes == "any" and self._chance(0.5))
        other = self._phrase(self._noun(is_animate), depth)
        return Relative(verb, tense, other, head_is_object=False)

    def _noun(self, is_animate: bool) -> Noun:
        return self._person() if is_animate else self._pick(_INANIMATES)

    def _person(self) -> Noun:
        return self._pick(NAMES if self._chance(0.15) else ANIMATES)

    def _chance(self, probability: float) -> bool:
        return self._random() < probability

    def _pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]
