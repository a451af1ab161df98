"""The synchronous grammar: one tree, written in English and in Sorelin.

English marks subject and object by order alone. Sorelin marks them by case, and its order is

    sentence     [subordinate clause ,] main clause
    clause       subject  recipient  object  adverb  'ne'  verb
    phrase       determiner  noun  adjective  number  modifier

The trees keep English unambiguous: a phrase has at most one modifier, which belongs to the
nearest noun; only the last of coordinated phrases has one; modifiers have no coordination;
relative clauses have no adverb. So an English sentence has one translation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ablate.data.synthetic.lexicon import (
    CASES,
    TENSES,
    Case,
    Determiner,
    Gender,
    Noun,
    Preposition,
    Tense,
    Verb,
    Word,
)


@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun with its determiner, adjective and modifier; a name has no determiner."""

    noun: Noun
    determiner: Determiner | None
    adjective: Word | None = None
    modifier: Prepositional | Relative | None = None

    @property
    def is_plural(self) -> bool:
        return self.determiner is not None and self.determiner.is_plural


Group = tuple[Phrase, ...]
"""Phrases joined by 'and'."""


@dataclass(frozen=True, slots=True)
class Prepositional:
    """'near the tree'."""

    preposition: Preposition
    phrase: Phrase


@dataclass(frozen=True, slots=True)
class Relative:
    """'that saw the tree', 'that slept', or, if the head is the object, 'that the girl saw'."""

    verb: Verb
    tense: Tense
    other: Phrase | None
    head_is_object: bool


@dataclass(frozen=True, slots=True)
class Clause:
    """A verb and its arguments.

    The recipient of something given stands in English before the object, or after it with 'to'; the
    content is the clause behind 'said that'.
    """

    subject: Group
    verb: Verb
    tense: Tense
    is_negated: bool = False
    adverb: Word | None = None
    object: Group = ()
    recipient: Phrase | None = None
    has_to: bool = False
    content: Clause | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """A statement, a question, or a statement with a subordinate clause before or behind it."""

    main: Clause
    is_question: bool = False
    subordinator: Word | None = None
    subordinate: Clause | None = None
    is_fronted: bool = False


def english(sentence: Sentence) -> list[str]:
    """Return the English words of a sentence, punctuation apart."""
    if sentence.is_question:
        clause = sentence.main
        auxiliary = _auxiliary(clause.tense, _is_plural(clause.subject))
        subject, complements = _group(clause.subject), _complements(clause)
        return [auxiliary, *subject, clause.verb.en, *complements, "?"]
    main = _clause(sentence.main)
    if sentence.subordinator is None or sentence.subordinate is None:
        return [*main, "."]
    subordinate = [sentence.subordinator.en, *_clause(sentence.subordinate)]
    if sentence.is_fronted:
        return [*subordinate, ",", *main, "."]
    return [*main, *subordinate, "."]


def sorelin(sentence: Sentence, context: frozenset[str]) -> list[str]:
    """Return the Sorelin words of a sentence whose English words are ``context``."""
    translation = _Sorelin(context)
    main = translation.clause(sentence.main)
    if sentence.is_question:
        return ["vi", *main, "?"]
    if sentence.subordinator is None or sentence.subordinate is None:
        return [*main, "."]
    subordinate = translation.clause(sentence.subordinate)
    return [sentence.subordinator.stem, *subordinate, ",", *main, "."]


def combinations(sentence: Sentence) -> Iterator[tuple[str, str]]:
    """Return every (adjective, noun) and (verb, object) of a sentence, in English base forms."""
    yield from _clause_combinations(sentence.main)
    if sentence.subordinate is not None:
        yield from _clause_combinations(sentence.subordinate)


def agreement(gender: Gender, is_plural: bool) -> str:
    """Return the ending of everything that agrees with a noun."""
    return gender + "i" if is_plural else gender


def _clause(clause: Clause) -> list[str]:
    is_plural = _is_plural(clause.subject)
    if clause.is_negated:
        verb = [_auxiliary(clause.tense, is_plural), "not", clause.verb.en]
    else:
        verb = [_finite(clause.verb, clause.tense, is_plural)]
    return [*_group(clause.subject), *verb, *_complements(clause)]


def _complements(clause: Clause) -> list[str]:
    words = _group(clause.object)
    if clause.recipient is not None:
        recipient = _phrase(clause.recipient)
        words = [*words, "to", *recipient] if clause.has_to else [*recipient, *words]
    if clause.adverb is not None:
        words.append(clause.adverb.en)
    if clause.content is not None:
        words += ["that", *_clause(clause.content)]
    return words


def _group(group: Group) -> list[str]:
    words: list[str] = []
    for phrase in group:
        words += ["and", *_phrase(phrase)] if words else _phrase(phrase)
    return words


def _phrase(phrase: Phrase) -> list[str]:
    if phrase.determiner is None:
        words = [phrase.noun.en]
    else:
        noun = phrase.noun.plural if phrase.is_plural else phrase.noun.en
        adjective = [] if phrase.adjective is None else [phrase.adjective.en]
        words = [phrase.determiner.en, *adjective, noun]
    if isinstance(phrase.modifier, Prepositional):
        words += [phrase.modifier.preposition.en, *_phrase(phrase.modifier.phrase)]
    elif phrase.modifier is not None:
        words += ["that", *_relative(phrase.modifier, phrase.is_plural)]
    return words


def _relative(relative: Relative, head_is_plural: bool) -> list[str]:
    other = relative.other
    if other is not None and relative.head_is_object:
        return [*_phrase(other), _finite(relative.verb, relative.tense, other.is_plural)]
    verb = _finite(relative.verb, relative.tense, head_is_plural)
    return [verb] if other is None else [verb, *_phrase(other)]


def _finite(verb: Verb, tense: Tense, is_plural: bool) -> str:
    if tense == "past":
        return verb.past
    return verb.en if is_plural else verb.third


def _auxiliary(tense: Tense, is_plural: bool) -> str:
    if tense == "past":
        return "did"
    return "do" if is_plural else "does"


def _is_plural(group: Group) -> bool:
    return len(group) > 1 or group[0].is_plural


class _Sorelin:
    """Writes trees in Sorelin; ``context`` has every English word of the sentence."""

    def __init__(self, context: frozenset[str]) -> None:
        self.context = context

    def clause(self, clause: Clause) -> list[str]:
        words = self.group(clause.subject, "nominative")
        if clause.recipient is not None:
            words += self.phrase(clause.recipient, "dative")
        words += self.group(clause.object, "accusative")
        if clause.content is not None:
            words += ["da", *self.clause(clause.content)]
        if clause.adverb is not None:
            words.append(clause.adverb.stem)
        if clause.is_negated:
            words.append("ne")
        stem = clause.verb.stem_for(not clause.object or clause.object[0].noun.is_animate)
        words.append(stem + TENSES[clause.tense] + self.agreement(clause.subject))
        return words

    def group(self, group: Group, case: Case) -> list[str]:
        words: list[str] = []
        for phrase in group:
            words += ["e", *self.phrase(phrase, case)] if words else self.phrase(phrase, case)
        return words

    def phrase(self, phrase: Phrase, case: Case) -> list[str]:
        noun = phrase.noun.sense(self.context)
        ending = agreement(noun.gender, phrase.is_plural)
        words = [noun.stem + ending + CASES[case]]
        if phrase.adjective is not None:
            words.append(phrase.adjective.stem + ending)
        determiner = phrase.determiner
        if determiner is not None and determiner.is_number:
            words.append(determiner.stem)
        elif determiner is not None:
            words.insert(0, determiner.stem + ending)
        if isinstance(phrase.modifier, Prepositional):
            preposition = phrase.modifier.preposition
            words += [preposition.stem, *self.phrase(phrase.modifier.phrase, preposition.case)]
        elif phrase.modifier is not None:
            words += self.relative(phrase.modifier, phrase)
        return words

    def relative(self, relative: Relative, head: Phrase) -> list[str]:
        """Return the clause from its pronoun, which agrees with the head, to its verb."""
        pronoun = "k" + self.agreement((head,))
        other = relative.other
        if other is not None and relative.head_is_object:
            stem = relative.verb.stem_for(head.noun.is_animate)
            verb = stem + TENSES[relative.tense] + self.agreement((other,))
            return [pronoun + CASES["accusative"], *self.phrase(other, "nominative"), verb]
        stem = relative.verb.stem_for(other is None or other.noun.is_animate)
        verb = stem + TENSES[relative.tense] + self.agreement((head,))
        objects = [] if other is None else self.phrase(other, "accusative")
        return [pronoun, *objects, verb]

    def agreement(self, group: Group) -> str:
        """Return the ending that agrees with a group; one masculine makes it masculine."""
        genders = {phrase.noun.sense(self.context).gender for phrase in group}
        return agreement("o" if "o" in genders else "a", _is_plural(group))


def _clause_combinations(clause: Clause) -> Iterator[tuple[str, str]]:
    for phrase in clause.subject:
        yield from _phrase_combinations(phrase)
    if clause.recipient is not None:
        yield from _phrase_combinations(clause.recipient)
    for phrase in clause.object:
        yield clause.verb.en, phrase.noun.en
        yield from _phrase_combinations(phrase)
    if clause.content is not None:
        yield from _clause_combinations(clause.content)


def _phrase_combinations(phrase: Phrase) -> Iterator[tuple[str, str]]:
    if phrase.adjective is not None:
        yield phrase.adjective.en, phrase.noun.en
    modifier = phrase.modifier
    if isinstance(modifier, Prepositional):
        yield from _phrase_combinations(modifier.phrase)
    elif modifier is not None and modifier.other is not None:
        is_object = phrase if modifier.head_is_object else modifier.other
        yield modifier.verb.en, is_object.noun.en
        yield from _phrase_combinations(modifier.other)
