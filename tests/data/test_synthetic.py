"""The splits of the synthetic corpus, looked at as text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from pydantic import ValidationError

from ablate.data.corpus import Bitext, Corpus, CorpusText, refusals_of
from ablate.data.synthetic.corpus import (
    LONGEST,
    LONGEST_OF_ALL,
    Synthetic,
    generate,
    novel_combinations,
)
from ablate.data.synthetic.lexicon import (
    ADJECTIVES,
    ANIMATES,
    DITRANSITIVES,
    NAMES,
    PLURALS,
    SINGULARS,
    THINGS,
    TRANSITIVES,
)
from ablate.registry import choose

SIZE, SEED = 3_000, 5


@pytest.fixture(scope="module")
def text() -> CorpusText:
    return generate(SIZE, SEED)


@pytest.fixture(scope="module")
def splits(text: CorpusText) -> dict[str, Bitext]:
    return {"train": text.train, "dev": text.dev, **text.tests}


def test_splits_have_their_sizes(splits: dict[str, Bitext]) -> None:
    sizes = {name: len(split) for name, split in splits.items()}
    assert sizes == {"train": SIZE, "dev": 125, "test": 125, "test_long": 75, "test_novel": 75}
    assert all(len(split.src) == len(split.tgt) for split in splits.values())


def test_no_source_occurs_twice(splits: dict[str, Bitext]) -> None:
    sources = [line for split in splits.values() for line in split.src]
    assert len(sources) == len(set(sources))


def test_every_word_occurs_in_training(splits: dict[str, Bitext]) -> None:
    for side in ("src", "tgt"):
        known = {word for line in getattr(splits["train"], side) for word in line.split()}
        for split in splits.values():
            assert known.issuperset(w for line in getattr(split, side) for w in line.split())


def test_test_long_is_longer_than_training_on_both_sides(splits: dict[str, Bitext]) -> None:
    def lengths(split: Bitext) -> list[int]:
        return [len(line.split()) for line in (*split.src, *split.tgt)]

    for split_name, split in splits.items():
        if split_name == "test_long":
            assert LONGEST + 1 == min(lengths(split)) <= max(lengths(split)) <= LONGEST_OF_ALL
        else:
            assert max(lengths(split)) <= LONGEST


def test_test_novel_alone_joins_the_pairs_kept_for_it(splits: dict[str, Bitext]) -> None:
    novel = novel_combinations(SEED)
    pattern = re.compile(
        "|".join(spelling for pair in sorted(novel) for spelling in _spellings(*pair))
    )
    n_actual = {
        name: sum(pattern.search(line) is not None for line in split.src)
        for name, split in splits.items()
    }
    n_novel = len(splits["test_novel"])
    assert n_actual == {"train": 0, "dev": 0, "test": 0, "test_long": 0, "test_novel": n_novel}


def _spellings(first: str, noun: str) -> list[str]:
    """Return how a combination looks in English, as regular expressions that know no trees."""
    nouns = f"(?:{noun}|{_PLURAL[noun]})"
    if first in _ADJECTIVES:
        return [rf"\b{first} {nouns}\b"]
    verb = _VERBS[first]
    verbs = f"(?:{verb.en}|{verb.third}|{verb.past})"
    behind = rf"\b{verbs} {_DETERMINER} {_ADJECTIVE}{nouns}\b"
    behind_another = rf"\b{verbs} {_PHRASE} (?:and )?{_DETERMINER} {_ADJECTIVE}{nouns}\b"
    relative = rf"\b{nouns} that {_PHRASE} {verbs}\b"
    return [behind, behind_another, relative]


def _any_of(words: Iterable[str]) -> str:
    return f"(?:{'|'.join(sorted(words))})"


_ADJECTIVES = {adjective.en for adjective in ADJECTIVES}
_VERBS = {verb.en: verb for verb in TRANSITIVES + DITRANSITIVES}
_PLURAL = {noun.en: noun.plural for noun in ANIMATES + THINGS}
_DETERMINER = _any_of({d.en for d in (*SINGULARS, *PLURALS)})
_ADJECTIVE = f"(?:{_any_of(_ADJECTIVES)} )?"
_NOUN = _any_of([*_PLURAL, *_PLURAL.values()])
_PHRASE = f"(?:{_any_of(n.en for n in NAMES)}|{_DETERMINER} {_ADJECTIVE}{_NOUN})"


def test_novel_combinations_are_about_an_eighth_and_leave_every_word_others() -> None:
    for seed in range(5):
        novel = novel_combinations(seed)
        described = {pair for pair in novel if pair[0] in _ADJECTIVES}
        n_nouns = len(ANIMATES + THINGS)
        assert 0.08 < len(described) / (len(ADJECTIVES) * n_nouns) < 0.17
        for adjective in ADJECTIVES:
            assert sum(first == adjective.en for first, _ in described) < n_nouns / 2
        assert len(novel) > len(described)


def test_the_text_is_lower_case_with_its_tokens_apart(text: CorpusText) -> None:
    """So 13a, which BLEU tokenises with, finds nothing to do."""
    for line in (*text.train.src, *text.train.tgt):
        assert line == line.lower()
        assert all(token.isalpha() or token in ".,?" for token in line.split(" "))


@pytest.mark.parametrize("options", [{"size": 199}, {"seed": -1}, {"length": 3}])
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        choose(Corpus, "synthetic", **options)


def test_the_fingerprint_is_recalled_but_never_believed_blindly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path))
    corpora = [Synthetic(size=200, test_size=more) for more in (None, 11, 12)]
    corpora += [Synthetic(size=200, seed=1), Synthetic(size=240)]
    computed = [corpus.fingerprint() for corpus in corpora]
    assert len(set(computed)) == len(corpora) == len(list((tmp_path / "synthetic").iterdir()))
    assert [corpus.fingerprint() for corpus in corpora] == computed
    for entry in (tmp_path / "synthetic").iterdir():
        entry.write_text("damaged", encoding="utf-8")
    assert [corpus.fingerprint() for corpus in corpora] == computed


def test_more_test_sentences_leave_everything_else_as_it_is() -> None:
    plain, more = Synthetic(size=240).load(), Synthetic(size=240, test_size=60).load()
    assert (more.train.src[:], more.dev) == (plain.train.src[:], plain.dev)
    assert {**more.tests, "test": None} == {**plain.tests, "test": None}
    assert len(more.tests["test"]) == 60
    assert more.tests["test"].src[: len(plain.tests["test"])] == plain.tests["test"].src
    sources = [src for split in (more.train, more.dev, *more.tests.values()) for src in split.src]
    assert len(set(sources)) == len(sources)
    assert Synthetic(size=240, test_size=60).fingerprint() != Synthetic(size=240).fingerprint()


def test_a_test_set_is_not_made_smaller() -> None:
    (refusal,) = refusals_of(choose(Corpus, "synthetic", size=240, test_size=10))
    assert refusal.path == "corpus.test_size"
    assert "must be more than 10" in refusal.reason


def test_the_text_of_a_size_and_a_seed_never_changes() -> None:
    """Results that are stored, and blessed references, are of this text."""
    corpus = Synthetic(size=240, seed=3, test_size=40)
    assert (
        corpus.fingerprint() == "b2a38e85fbe08280974ca62d0352abfd56cd623678c309e17f0af87aa1c2f06f"
    )


def test_dev_and_test_have_a_twenty_fourth_and_at_most_five_hundred() -> None:
    for size, most in ((200, 8), (239, 9), (240, 10), (12_000, 500), (90_000, 500)):
        ((option, _),) = Synthetic(size=size, test_size=most).problems()
        assert option == "test_size"
        assert not list(Synthetic(size=size, test_size=most + 1).problems())
    assert not list(Synthetic(size=240).problems())
