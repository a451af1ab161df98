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

from dataclasses import dataclass
from typing import Literal

Gender = Literal["a", "o"]
Case = Literal["nominative", "accusative", "dative", "oblique"]
Tense = Literal["past", "present"]

CASES: dict[Case, str] = {"nominative": "", "accusative": "n", "dative": "s", "oblique": "l"}
TENSES: dict[Tense, str] = {"past": "ar", "present": "es"}


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun or a name; ``plural`` of a name is empty.

    Attributes:
        near: English words that turn a homograph into its ``other`` meaning when they stand
            anywhere in the sentence.
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
    """A verb with its English forms.

    Attributes:
        stem: the translation; of a transitive verb, with a living object.
        stem_of_things: the translation with a lifeless object, where it differs.
        takes: which nouns may be the object of a transitive verb, or else the subject.
    """

    en: str
    third: str
    past: str
    stem: str
    stem_of_things: str = ""
    takes: Literal["animate", "thing", "any"] = "any"

    def stem_for(self, is_animate: bool) -> str:
        """Return the stem that goes with a living or a lifeless object."""
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


def _things(*rows: tuple[str, str, Gender]) -> tuple[Noun, ...]:
    return tuple(Noun(en, en + "s", stem, gender, is_animate=False) for en, stem, gender in rows)


NAMES = (
    Noun("mira", "", "mir", "a"),
    Noun("lena", "", "len", "a"),
    Noun("dora", "", "dor", "a"),
    Noun("oskar", "", "oskar", "o"),
    Noun("tibor", "", "tibor", "o"),
    Noun("bruno", "", "brun", "o"),
)

ANIMATES = (
    Noun("girl", "girls", "nel", "a"),
    Noun("boy", "boys", "tov", "o"),
    Noun("dog", "dogs", "gurd", "o"),
    Noun("cat", "cats", "mis", "a"),
    Noun("horse", "horses", "keval", "o"),
    Noun("bird", "birds", "pil", "a"),
    Noun("wolf", "wolves", "zular", "a"),
    Noun("teacher", "teachers", "madel", "a"),
    Noun("farmer", "farmers", "agrin", "o"),
    Noun("king", "kings", "rovan", "o"),
    Noun("queen", "queens", "selin", "a"),
    Noun("doctor", "doctors", "sonar", "o"),
    Noun("sailor", "sailors", "naver", "o"),
    Noun("musician", "musicians", "kantel", "a"),
)

_OUTDOORS = "river rivers boat boats sailor sailors bird birds tree trees wolf wolves"
_COURT_MUSIC = "song songs drum drums musician musicians bird birds king kings queen queens"

HOMOGRAPHS = (
    Noun(
        en="bank",
        plural="banks",
        stem="gelden",
        gender="a",
        is_animate=False,
        near=frozenset(_OUTDOORS.split()),
        other=Noun("bank", "banks", "ripar", "o", is_animate=False),
    ),
    Noun(
        en="note",
        plural="notes",
        stem="bilar",
        gender="o",
        is_animate=False,
        near=frozenset(_COURT_MUSIC.split()),
        other=Noun("note", "notes", "tonir", "a", is_animate=False),
    ),
)

THINGS = HOMOGRAPHS + _things(
    ("river", "fluv", "a"),
    ("boat", "batel", "o"),
    ("song", "melor", "a"),
    ("drum", "tambur", "o"),
    ("tree", "dren", "o"),
    ("house", "kasel", "a"),
    ("book", "libin", "o"),
    ("cup", "tazel", "a"),
    ("door", "portam", "a"),
    ("table", "mensul", "o"),
    ("ring", "nolar", "o"),
    ("stone", "petren", "o"),
    ("basket", "korbal", "a"),
    ("lamp", "lumen", "a"),
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

ADJECTIVES = (
    Word("big", "brel"),
    Word("small", "pik"),
    Word("red", "rus"),
    Word("green", "vird"),
    Word("white", "alb"),
    Word("black", "nok"),
    Word("young", "zov"),
    Word("strange", "mird"),
    Word("quiet", "tis"),
    Word("heavy", "pond"),
    Word("proud", "gav"),
    Word("wise", "sav"),
)

ADVERBS = (Word("quickly", "rapi"), Word("today", "ozi"), Word("often", "multe"))

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

SUBORDINATORS = (Word("because", "sor"), Word("when", "kum"))
