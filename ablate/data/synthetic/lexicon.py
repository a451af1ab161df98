"""The words of the two languages: English, and the invented Sorelin.

A Sorelin stem ends in a consonant and takes its endings in this order:

    agreement   -a -o (singular) -ai -oi (plural) by the two genders; on nouns and all that
                agrees with them: determiners, adjectives, relative pronouns, verbs
    case        nominative none, accusative -n, dative -s, oblique -l; on nouns and
                relative pronouns

and a verb has its tense, past -ar- or present -es-, before the agreement. So ``nel-ai-n`` is
'girls' as an object and ``vid-ar-ai`` is 'saw' after feminine plurals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Gender = Literal["a", "o"]
Case = Literal["nominative", "accusative", "dative", "oblique"]
Tense = Literal["past", "present"]

CASES: dict[Case, str] = {"nominative": "", "accusative": "n", "dative": "s", "oblique": "l"}
TENSES: dict[Tense, str] = {"past": "ar", "present": "es"}


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun or a name, whose ``plural`` is empty.

    Words in ``near``, anywhere in the sentence, turn a homograph into its ``other`` meaning.
    """

    en: str
    plural: str
    stem: str
    gender: Gender
    is_animate: bool = True
    near: frozenset[str] = frozenset()
    other: Noun | None = None

    def sense(self, context: frozenset[str]) -> Noun:
        """Return what the noun means in a sentence of these English words."""
        return self if self.other is None or self.near.isdisjoint(context) else self.other


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb with its English forms."""

    en: str
    third: str
    past: str
    stem: str  # the translation; of a transitive verb, with a living object
    stem_of_things: str = ""  # the translation with a lifeless object, where it differs
    # which nouns may be the object of a transitive verb, or else the subject
    takes: Literal["animate", "thing", "any"] = "any"

    def stem_for(self, is_animate: bool) -> str:
        return self.stem if is_animate or not self.stem_of_things else self.stem_of_things


@dataclass(frozen=True, slots=True)
class Word:
    """An adjective, adverb or conjunction: one form in English, one stem in Sorelin."""

    en: str
    stem: str


@dataclass(frozen=True, slots=True)
class Determiner:
    """Stands before the noun and agrees with it, or is a number: behind it, unchanging."""

    en: str
    stem: str
    is_plural: bool
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Preposition:
    """Stands before its phrase in both languages and governs a case."""

    en: str
    stem: str
    case: Case


def _rows(table: str) -> Iterator[list[str]]:
    """Yield the words of each entry of a table; entries are separated by commas."""
    return (entry.split() for entry in table.split(","))


def _words(table: str) -> tuple[Word, ...]:
    return tuple(Word(en, stem) for en, stem in _rows(table))


def _gender(text: str) -> Gender:
    return "a" if text == "a" else "o"


def _thing(en: str, stem: str, gender: str, near: str = "", other: Noun | None = None) -> Noun:
    return Noun(en, f"{en}s", stem, _gender(gender), False, frozenset(near.split()), other)


NAMES = tuple(
    Noun(en, "", stem, _gender(gender))
    for en, stem, gender in _rows(
        "mira mir a, lena len a, dora dor a, oskar oskar o, tibor tibor o, bruno brun o"
    )
)

ANIMATES = tuple(
    Noun(en, plural, stem, _gender(gender))
    for en, plural, stem, gender in _rows(
        "girl girls nel a, boy boys tov o, dog dogs gurd o, cat cats mis a, horse horses keval o, "
        "bird birds pil a, wolf wolves zular a, teacher teachers madel a, farmer farmers agrin o, "
        "king kings rovan o, queen queens selin a, doctor doctors sonar o, sailor sailors naver o, "
        "musician musicians kantel a"
    )
)

_OUTDOORS = "river rivers boat boats sailor sailors bird birds tree trees wolf wolves"
_COURT_MUSIC = "song songs drum drums musician musicians bird birds king kings queen queens"

HOMOGRAPHS = (
    _thing("bank", "gelden", "a", near=_OUTDOORS, other=_thing("bank", "ripar", "o")),
    _thing("note", "bilar", "o", near=_COURT_MUSIC, other=_thing("note", "tonir", "a")),
)

THINGS = HOMOGRAPHS + tuple(
    _thing(en, stem, gender)
    for en, stem, gender in _rows(
        "river fluv a, boat batel o, song melor a, drum tambur o, tree dren o, house kasel a, "
        "book libin o, cup tazel a, door portam a, table mensul o, ring nolar o, stone petren o, "
        "basket korbal a, lamp lumen a"
    )
)

INTRANSITIVES = (
    Verb("sleep", "sleeps", "slept", "dorm", takes="animate"),
    Verb("laugh", "laughs", "laughed", "rid", takes="animate"),
    Verb("run", "runs", "ran", "kur", takes="animate"),
    Verb("fall", "falls", "fell", "kad"),
    Verb("vanish", "vanishes", "vanished", "sumel"),
)

TRANSITIVES = (
    Verb("see", "sees", "saw", "vid"),
    Verb("find", "finds", "found", "trov"),
    Verb("paint", "paints", "painted", "kolor"),
    Verb("chase", "chases", "chased", "prek", takes="animate"),
    Verb("help", "helps", "helped", "zut", takes="animate"),
    Verb("break", "breaks", "broke", "romp", takes="thing"),
    Verb("carry", "carries", "carried", "nos", "lev"),
    Verb("leave", "leaves", "left", "deler", "posel"),
)

DITRANSITIVES = (
    Verb("give", "gives", "gave", "don", takes="thing"),
    Verb("show", "shows", "showed", "mostel", takes="thing"),
)

OPINIONS = (
    Verb("say", "says", "said", "dik"),
    Verb("know", "knows", "knew", "kon"),
)

ADJECTIVES = _words(
    "big brel, small pik, red rus, green vird, white alb, black nok, young zov, strange mird, "
    "quiet tis, heavy pond, proud gav, wise sav"
)

ADVERBS = _words("quickly rapi, today ozi, often multe")

SINGULARS = (
    Determiner("the", "l", is_plural=False),
    Determiner("the", "l", is_plural=False),
    Determiner("a", "en", is_plural=False),
    Determiner("this", "ti", is_plural=False),
)

PLURALS = (
    Determiner("the", "l", is_plural=True),
    Determiner("these", "ti", is_plural=True),
    Determiner("two", "dur", is_plural=True, is_number=True),
    Determiner("five", "pem", is_plural=True, is_number=True),
)

PREPOSITIONS = (
    Preposition("near", "pri", "oblique"),
    Preposition("behind", "rul", "oblique"),
    Preposition("with", "sam", "accusative"),
)

SUBORDINATORS = _words("because sor, when kum")
