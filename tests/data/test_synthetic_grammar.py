"""The two languages of the synthetic corpus, by sentences written by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ablate.data.synthetic import corpus, lexicon
from ablate.data.synthetic.corpus import Sampler, Style
from ablate.data.synthetic.grammar import (
    Clause,
    Group,
    Phrase,
    Prepositional,
    Relative,
    Sentence,
    agreement,
    combinations,
    english,
    sorelin,
)
from ablate.data.synthetic.lexicon import (
    ADJECTIVES,
    ADVERBS,
    ANIMATES,
    CASES,
    DITRANSITIVES,
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
    Case,
    Gender,
    Noun,
    Verb,
    Word,
)

GENDERS: tuple[Gender, ...] = ("a", "o")
RELATIVE_CASES: tuple[Case, ...] = ("nominative", "accusative")

NOUNS: dict[str, Noun] = {noun.en: noun for noun in NAMES + ANIMATES + THINGS}
VERBS: dict[str, Verb] = {
    verb.en: verb for verb in INTRANSITIVES + TRANSITIVES + DITRANSITIVES + OPINIONS
}
WORDS: dict[str, Word] = {word.en: word for word in ADJECTIVES + ADVERBS + SUBORDINATORS}


def name(word: str) -> Phrase:
    return Phrase(NOUNS[word], None)


def one(determiner: str, *words: str) -> Phrase:
    """Return a singular phrase: ``one("the", "big", "boat")``."""
    return _phrase(determiner, words, is_plural=False)


def many(determiner: str, *words: str) -> Phrase:
    """Return a plural phrase of the noun's base form: ``many("two", "cup")``."""
    return _phrase(determiner, words, is_plural=True)


def _phrase(determiner: str, words: tuple[str, ...], is_plural: bool) -> Phrase:
    actual = next(d for d in (PLURALS if is_plural else SINGULARS) if d.en == determiner)
    adjective = WORDS[words[0]] if len(words) == 2 else None
    return Phrase(NOUNS[words[-1]], actual, adjective)


def past(subject: Phrase | Group, verb: str, *objects: Phrase) -> Clause:
    group = (subject,) if isinstance(subject, Phrase) else subject
    return Clause(group, VERBS[verb], "past", object=objects)


def near(phrase: Phrase, other: Phrase, preposition: str = "near") -> Phrase:
    actual = next(p for p in PREPOSITIONS if p.en == preposition)
    return replace(phrase, modifier=Prepositional(actual, other))


def that(phrase: Phrase, verb: str, other: Phrase | None) -> Phrase:
    """Return a phrase with a relative clause of which it is the subject."""
    return replace(phrase, modifier=Relative(VERBS[verb], "past", other, head_is_object=False))


def whom(phrase: Phrase, other: Phrase, verb: str) -> Phrase:
    """Return a phrase with a relative clause of which it is the object."""
    return replace(phrase, modifier=Relative(VERBS[verb], "past", other, head_is_object=True))


def read(sentence: Sentence | Clause) -> tuple[str, str]:
    """Return a sentence in both languages."""
    whole = sentence if isinstance(sentence, Sentence) else Sentence(sentence)
    src = english(whole)
    return " ".join(src), " ".join(sorelin(whole, frozenset(src)))


GIVE = Clause(
    subject=(name("mira"),),
    verb=VERBS["give"],
    tense="past",
    is_negated=True,
    object=(many("two", "cup"),),
    recipient=one("the", "boy"),
)
RUN = Clause((one("the", "girl"),), VERBS["run"], "present")
CHASE = Clause((one("the", "wolf"),), VERBS["chase"], "present", object=(name("tibor"),))
SLEEP = past((one("the", "girl"), many("the", "boy")), "sleep")

GOLDEN: dict[str, tuple[Sentence | Clause, str, str]] = {
    "the verb stands last and the object has -n": (
        past(one("the", "girl"), "see", one("the", "boy")),
        "the girl saw the boy .",
        "la nela lo tovon vidara .",
    ),
    "an adjective follows its noun and takes gender and number, no case": (
        past(many("the", "wise", "queen"), "paint", one("a", "big", "boat")),
        "the wise queens painted a big boat .",
        "lai selinai savai eno batelon brelo kolorarai .",
    ),
    "a number follows the noun and never changes": (
        past(many("five", "red", "bird"), "find", many("two", "ring")),
        "five red birds found two rings .",
        "pilai rusai pem nolaroin dur trovarai .",
    ),
    "the verb agrees with a subject that a relative clause separates from it": (
        past(that(many("the", "dog"), "see", one("the", "girl")), "sleep"),
        "the dogs that saw the girl slept .",
        "loi gurdoi koi la nelan vidaroi dormaroi .",
    ),
    "a relative pronoun in the place of the object has -n": (
        past(whom(one("the", "girl"), many("the", "dog"), "see"), "sleep"),
        "the girl that the dogs saw slept .",
        "la nela kan loi gurdoi vidaroi dormara .",
    ),
    "near and behind govern the oblique, -l": (
        past(near(many("the", "queen"), one("this", "king")), "laugh"),
        "the queens near this king laughed .",
        "lai selinai pri tio rovanol ridarai .",
    ),
    "with governs the accusative, though the phrase is no object": (
        past(near(one("a", "farmer"), many("these", "cat"), "with"), "vanish"),
        "a farmer with these cats vanished .",
        "eno agrino sam tiai misain sumelaro .",
    ),
    "the recipient has -s and stands before the object; a negation before the verb": (
        GIVE,
        "mira did not give the boy two cups .",
        "mira lo tovos tazelain dur ne donara .",
    ),
    "English has two ways of giving, Sorelin one": (
        replace(GIVE, has_to=True),
        "mira did not give two cups to the boy .",
        "mira lo tovos tazelain dur ne donara .",
    ),
    "a question begins with vi; the tense of the auxiliary goes to the verb": (
        Sentence(replace(CHASE, adverb=WORDS["often"]), is_question=True),
        "does the wolf chase tibor often ?",
        "vi la zulara tiboron multe prekesa ?",
    ),
    "a subordinate clause comes first": (
        Sentence(RUN, subordinator=WORDS["because"], subordinate=CHASE),
        "the girl runs because the wolf chases tibor .",
        "sor la zulara tiboron prekesa , la nela kuresa .",
    ),
    "also where English has it first": (
        Sentence(RUN, subordinator=WORDS["when"], subordinate=CHASE, is_fronted=True),
        "when the wolf chases tibor , the girl runs .",
        "kum la zulara tiboron prekesa , la nela kuresa .",
    ),
    "one masculine makes a group masculine; what is said stands before the verb of saying": (
        Clause((one("the", "queen"),), VERBS["say"], "past", content=SLEEP),
        "the queen said that the girl and the boys slept .",
        "la selina da la nela e loi tovoi dormaroi dikara .",
    ),
    "two feminines stay feminine and make a plural": (
        past((name("lena"), one("the", "cat")), "fall"),
        "lena and the cat fell .",
        "lena e la misa kadarai .",
    ),
}


@pytest.mark.parametrize("rule", GOLDEN)
def test_golden(rule: str) -> None:
    tree, src, tgt = GOLDEN[rule]
    assert read(tree) == (src, tgt)


@pytest.mark.parametrize(
    ("subject", "thing", "expected"),
    [
        ("girl", "bank", "geldenan"),
        ("sailor", "bank", "riparon"),
        ("girl", "note", "bilaron"),
        ("musician", "note", "toniran"),
        ("sailor", "note", "bilaron"),
    ],
)
def test_a_homograph_is_told_by_a_word_far_away(subject: str, thing: str, expected: str) -> None:
    _, tgt = read(past(one("the", subject), "see", one("the", thing)))
    assert expected in tgt.split()


def test_the_meaning_of_a_homograph_decides_about_gender() -> None:
    bank = one("the", "big", "bank")
    assert read(past(bank, "fall"))[1] == "la geldena brela kadara ."
    by_the_river = near(bank, one("the", "river"))
    assert read(past(by_the_river, "fall"))[1] == "lo riparo brelo pri la fluval kadaro ."


def test_the_object_chooses_the_verb() -> None:
    girl, cat, cup = one("the", "girl"), one("the", "cat"), one("the", "cup")
    assert read(past(girl, "carry", cat))[1].split()[-2] == "nosara"
    assert read(past(girl, "carry", cup))[1].split()[-2] == "levara"
    assert "nosara" in read(past(whom(cat, girl, "carry"), "sleep"))[1].split()
    assert "levara" in read(past(whom(cup, girl, "carry"), "fall"))[1].split()


def test_no_two_words_of_sorelin_share_a_form() -> None:
    nouns = [*NOUNS.values(), *(noun.other for noun in NOUNS.values() if noun.other)]
    stems = {s for verb in VERBS.values() for s in (verb.stem, verb.stem_of_things) if s}
    endings = [agreement(gender, is_plural) for gender in GENDERS for is_plural in (False, True)]
    forms = [
        noun.stem + agreement(noun.gender, is_plural) + case
        for noun in nouns
        for is_plural in ((False, True) if noun.plural else (False,))
        for case in CASES.values()
    ]
    forms += [f"{s}{tense}{end}" for s in stems for tense in TENSES.values() for end in endings]
    forms += [adjective.stem + end for adjective in ADJECTIVES for end in endings]
    forms += [f"k{end}{CASES[case]}" for end in endings for case in RELATIVE_CASES]
    forms += [stem + end for stem in ("l", "en", "ti") for end in endings]
    forms += [d.stem for d in PLURALS if d.is_number] + ["e", "ne", "vi", "da"]
    forms += [word.stem for word in (*ADVERBS, *SUBORDINATORS)]
    forms += [preposition.stem for preposition in PREPOSITIONS]
    assert len(forms) == len(set(forms))


def test_an_english_sentence_has_one_translation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two genders, two numbers, hardly a word: if a sentence can be read twice, it will be."""
    few = {
        "ANIMATES": ANIMATES[:2],  # girl, boy
        "NAMES": ANIMATES[:2],
        "_INANIMATES": THINGS[2:3],  # river
        "TRANSITIVES": TRANSITIVES[-1:],  # leave, which has two translations
        "INTRANSITIVES": INTRANSITIVES[-2:],
        "DITRANSITIVES": DITRANSITIVES[:1],
        "OPINIONS": OPINIONS[:1],
        "SINGULARS": SINGULARS[:1],
        "PLURALS": PLURALS[:1],
        "ADJECTIVES": ADJECTIVES[:1],
        "ADVERBS": ADVERBS[:1],
        "PREPOSITIONS": PREPOSITIONS[:1],
        "SUBORDINATORS": SUBORDINATORS[:1],
        "_TENSES": ("past",),
    }
    for constant, value in few.items():
        monkeypatch.setattr(corpus if constant[0] == "_" else lexicon, constant, value)
    style = Style(modifier=0.4, coordination=0.3, subordination=0.0, depth=2, max_phrases=3)
    sampler = Sampler(random.Random(0), style)
    translations: dict[str, str] = {}
    n_drawn = 20_000
    for _ in range(n_drawn):
        src, tgt = read(sampler.sentence())
        assert translations.setdefault(src, tgt) == tgt, src
    assert len(translations) < 0.8 * n_drawn  # there were repetitions to fail on


def test_combinations_are_found_wherever_they_stand() -> None:
    girl, boy = one("the", "girl"), one("the", "boy")
    inner = whom(one("the", "wise", "cat"), that(boy, "find", one("the", "red", "cup")), "carry")
    tree = Sentence(
        Clause((girl,), VERBS["know"], "past", content=past(girl, "see", boy, inner)),
        subordinator=WORDS["when"],
        subordinate=replace(
            GIVE,
            subject=(near(girl, one("a", "big", "tree")),),
            recipient=one("the", "proud", "boy"),
        ),
    )
    assert sorted(combinations(tree)) == sorted(
        {
            *(("see", "boy"), ("see", "cat"), ("wise", "cat"), ("carry", "cat")),
            *(("find", "cup"), ("red", "cup")),
            *(("give", "cup"), ("big", "tree"), ("proud", "boy")),
        }
    )
