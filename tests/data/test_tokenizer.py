"""Tokenizers: decoding restores the text, and training is deterministic."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from tokenizers import pre_tokenizers

from ablate.data import tokenizer as tokenizer_module
from ablate.data.corpus import Bitext, CorpusText
from ablate.data.segmentation import WordNumbers
from ablate.data.tokenizer import (
    BOS,
    EOS,
    PAD,
    SPECIAL,
    UNK,
    LimitedTokenizer,
    Tokenizer,
    TokenizerPair,
)
from ablate.errors import DataError
from ablate.registry import build, choose, slots
from tests.data.texts import corpus_text

NAMES = sorted(slots()["tokenizer"])
SIZED = [n for n in NAMES if "vocab_size" in slots()["tokenizer"][n].options.model_fields]

HARD = (
    'He said: "Don\'t!" (twice), for 3.50 €, on the 1st.',
    "ein  Mann\tmit\u00a0Hut …",
    " Zoë's naïve café — déjà vu ",
    "a<s>b <unk> </s> <pad> < pad> < unk> < eos>",
    "日本語。 x_y 50% www.example.org/a?b=c&d",
    "...",
)


def trained_pair(name: str, text: CorpusText, **options: object) -> TokenizerPair:
    return build(Tokenizer, choose(Tokenizer, name, **options)).train(text)


def unknown_free(name: str) -> dict[str, object]:
    """Return options under which every piece of the training text is known."""
    return {"min_frequency": 1} if name == "word" else {}


MARKED: list[tuple[str, dict[str, object]]] = [(name, {}) for name in NAMES]
MARKED += [(name, {"word_marker": "end"}) for name in ("bpe", "byte_bpe", "unigram")]


@pytest.mark.parametrize("is_tokenised", [False, True])
@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize(("name", "marker"), MARKED)
def test_decoding_gives_the_sentence_back_up_to_white_space(
    name: str, marker: dict[str, object], joint: bool, is_tokenised: bool
) -> None:
    text = corpus_text(is_tokenised=is_tokenised)
    lines = (*text.train.tgt, *HARD)
    text = replace(text, train=Bitext((*text.train.src, *HARD), lines))
    tokenizers = trained_pair(name, text, joint=joint, **marker, **unknown_free(name))
    encoded = tokenizers.encode_tgt(lines)
    assert [tokenizers.decode_tgt(ids) for ids in encoded] == [
        " ".join(line.split()) for line in lines
    ]
    for ids in (*encoded, *tokenizers.encode_src(text.train.src)):
        assert ids[-1] == EOS
        assert not {PAD, BOS, EOS, UNK} & set(ids[:-1])


@pytest.mark.e2e
def test_training_in_another_process_gives_the_same_tokenizers() -> None:
    code = (
        "from tests.data.test_tokenizer import NAMES, trained_pair, corpus_text\n"
        "print(*(trained_pair(name, corpus_text(500)).fingerprint for name in NAMES))"
    )
    root = Path(__file__).parents[2]
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert printed.split() == [trained_pair(name, corpus_text(500)).fingerprint for name in NAMES]


@pytest.mark.parametrize("name", NAMES)
def test_joint_means_one_vocabulary_and_separate_two(name: str) -> None:
    text = corpus_text()
    joint = trained_pair(name, text, joint=True)
    separate = trained_pair(name, text, joint=False)
    assert joint.vocabulary.is_joint
    assert joint.encode_src(text.train.src) == joint.encode_tgt(text.train.src)
    assert not separate.vocabulary.is_joint
    assert separate.encode_src(text.train.src) != separate.encode_tgt(text.train.src)
    assert separate.vocabulary.n_src < joint.vocabulary.n_src


@pytest.mark.parametrize("name", NAMES)
def test_lowercase_folds_case_on_both_sides(name: str) -> None:
    text = corpus_text()
    tokenizers = trained_pair(name, text, lowercase=True)
    assert tokenizers.encode_tgt(["Der HUND sieht."]) == tokenizers.encode_tgt(["der hund sieht."])
    assert tokenizers.decode_tgt(tokenizers.encode_tgt(["Der Hund sieht."])[0]) == "der hund sieht."
    cased = trained_pair(name, text)
    assert cased.encode_tgt(["Der Hund"]) != cased.encode_tgt(["der hund"])


@pytest.mark.parametrize("name", SIZED)
def test_the_vocabulary_is_never_larger_than_asked_for(name: str) -> None:
    text = corpus_text(500)
    size = 300 if name == "byte_bpe" else 60
    tokenizer = build(Tokenizer, choose(Tokenizer, name, vocab_size=size))
    vocabulary = tokenizer.train(text).vocabulary
    assert vocabulary.n_src <= size == tokenizer.nominal_vocabulary().n_src
    assert vocabulary.n_src > size - 20 or name == "word"
    larger = trained_pair(name, text, vocab_size=2000).vocabulary
    assert larger.n_src <= 2000
    assert larger.n_src > vocabulary.n_src or name == "word"


@pytest.mark.parametrize("name", SIZED)
def test_a_vocabulary_without_room_for_the_special_ids_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="vocab_size"):
        choose(Tokenizer, name, vocab_size=4)


@pytest.mark.parametrize("name", ["bpe", "word"])
def test_min_frequency_keeps_rare_pieces_out(name: str) -> None:
    text = corpus_text(100)
    rare = trained_pair(name, text, min_frequency=1).vocabulary.n_src
    assert trained_pair(name, text, min_frequency=60).vocabulary.n_src < rare


@pytest.mark.parametrize("name", [name for name in NAMES if name != "byte_bpe"])
def test_what_is_unknown_shows_and_does_not_swallow_its_neighbours(name: str) -> None:
    tokenizers = trained_pair(name, corpus_text())
    ids = tokenizers.encode_tgt(["Hund \N{SNOWMAN} Hund"])[0]
    assert UNK in ids
    assert tokenizers.decode_tgt(ids) == "Hund ⁇ Hund"


@pytest.mark.parametrize("name", NAMES)
def test_separators_that_are_no_white_space_are_pieces_of_the_text(name: str) -> None:
    text, lines = corpus_text(), ("Hund\x1cKatze\x1f x", "\x1d\x1e", "") * 2
    more = Bitext((*text.train.src, *lines), (*text.train.tgt, *lines))
    tokenizers = trained_pair(name, replace(text, train=more), **unknown_free(name))
    assert not any(UNK in ids for ids in tokenizers.encode_tgt(lines))


def test_other_json_is_refused() -> None:
    for broken in ("", "{}", '{"src": "{}", "tgt": null}', "[1]"):
        with pytest.raises(DataError, match="not a trained tokenizer"):
            TokenizerPair.from_json(broken)


@pytest.mark.parametrize("name", ["bpe", "unigram", "word"])
def test_raw_punctuation_and_words_share_no_piece(name: str) -> None:
    tokenizers = trained_pair(name, corpus_text(500))
    bare, stopped = tokenizers.encode_tgt(["ein Hund", "ein Hund."])
    assert stopped[: len(bare) - 1] == bare[:-1]
    assert len(stopped) == len(bare) + 1


def test_tokenised_text_is_split_at_white_space_alone() -> None:
    text = corpus_text(is_tokenised=True)
    lines = tuple("it &apos;s @-@ x" for _ in range(5))
    tokenizers = trained_pair("word", replace(text, train=Bitext(lines, lines)))
    assert len(tokenizers.encode_src(["it &apos;s @-@ x"])[0]) == 5


def test_an_empty_corpus_trains_nothing() -> None:
    with pytest.raises(DataError, match="no text to train"):
        trained_pair("bpe", replace(corpus_text(), train=Bitext((), ())))


def test_a_word_is_kept_from_the_least_frequency_on() -> None:
    lines = ("three three three two two one",)
    text = replace(corpus_text(), train=Bitext(lines, lines))
    for least, n_known in ((1, 3), (2, 2), (3, 1), (4, 0)):
        tokenizers = trained_pair("word", text, joint=False, min_frequency=least)
        assert tokenizers.vocabulary.n_src == 4 + n_known
        ids = tokenizers.encode_src(["three two one"])[0]
        assert [i == UNK for i in ids[:-1]] == [n_known < n for n in (1, 2, 3)]


@pytest.mark.parametrize("name", ["word", "char"])
def test_frequent_pieces_come_first_and_ties_are_in_alphabetical_order(name: str) -> None:
    lines = ("b c a c", "d")
    text = replace(corpus_text(), train=Bitext(lines, lines))
    tokenizers = trained_pair(name, text, joint=False, **unknown_free(name))
    pieces = tokenizers.src_pieces(range(4, tokenizers.vocabulary.n_src))
    assert [piece.strip("▁") for piece in pieces if piece != "▁"] == ["c", "a", "b", "d"]


@pytest.mark.parametrize("name", NAMES)
def test_each_side_has_its_own_pieces_and_the_training_text_alone_teaches_them(name: str) -> None:
    text = corpus_text()
    strange = Bitext(("ξυζ",) * 9, ("жзи",) * 9)
    other = replace(text, dev=strange, tests={"test": strange})
    for joint in (True, False):
        tokenizers = trained_pair(name, other, joint=joint)
        assert tokenizers.to_json() == trained_pair(name, text, joint=joint).to_json()
        assert (UNK in tokenizers.encode_src(strange.src)[0]) is (name != "byte_bpe")
    ids = tokenizers.encode_src(["the dog"])[0][:-1]
    assert "".join(tokenizers.src_pieces(ids)).replace("▁", " ").strip() == "the dog"
    assert tokenizers.src_pieces([UNK]) != tokenizers.src_pieces(ids[:1])
    back = tokenizers.encode_tgt(["der Hund"])[0][:-1]
    assert "".join(tokenizers.tgt_pieces(back)).replace("▁", " ").strip() == "der Hund"


@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_a_vocabulary_of_just_the_characters_and_special_ids_is_enough(name: str) -> None:
    lines = ("ab ba cab",)
    text = replace(corpus_text(), train=Bitext(lines, lines))
    n_needed = len(SPECIAL) + len("▁abc")
    assert trained_pair(name, text, vocab_size=n_needed).vocabulary.n_src == n_needed
    with pytest.raises(DataError, match=f"is {n_needed - 1}, but the text needs {n_needed}"):
        trained_pair(name, text, vocab_size=n_needed - 1)


def test_a_vocabulary_of_words_has_the_size_that_is_asked_for() -> None:
    for size in (5, 8, 12):
        assert trained_pair("word", corpus_text(), vocab_size=size).vocabulary.n_src == size


def test_an_option_of_the_tokenizers_has_one_default() -> None:
    """Whether a tokenizer states it or takes it from the contract."""
    defaults: dict[str, set[object]] = {}
    bases = (Tokenizer, LimitedTokenizer)
    classes: list[type] = [*bases, *(entry.cls for entry in slots()["tokenizer"].values())]
    for cls in classes:
        for parameter in inspect.signature(cls).parameters.values():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                defaults.setdefault(parameter.name, set()).add(parameter.default)
    assert {name: len(values) for name, values in defaults.items()} == dict.fromkeys(defaults, 1)
    for name in NAMES:
        tokenizer = build(Tokenizer, choose(Tokenizer, name))
        assert tokenizer.joint in defaults["joint"]
        assert tokenizer.lowercase in defaults["lowercase"]


@pytest.mark.parametrize("name", NAMES)
def test_a_joint_vocabulary_does_not_depend_on_which_side_is_the_source(name: str) -> None:
    text = corpus_text()
    swapped = replace(text, train=Bitext(text.train.tgt, text.train.src))
    assert trained_pair(name, text).to_json() == trained_pair(name, swapped).to_json()


def test_the_end_of_a_word_is_marked_as_in_the_algorithm_of_sennrich() -> None:
    """The example of Jurafsky & Martin (Speech and Language Processing, 3rd ed., ch. 2).

    Where they have n e, ne w, these pairs are as frequent as e w, n ew.
    """
    words = ("low",) * 5 + ("lowest",) * 2 + ("newer",) * 6 + ("wider",) * 3 + ("new",) * 2
    text = replace(corpus_text(), train=Bitext(words, words))
    options = {"word_marker": "end", "joint": False, "vocab_size": len(SPECIAL) + 11 + 8}
    pair = trained_pair("bpe", text, **options)
    merges = json.loads(json.loads(pair.to_json())["tgt"])["model"]["merges"]
    assert [*map(" ".join, merges)] == [
        *("e r", "er ▁", "e w", "n ew", "l o", "lo w", "new er▁", "low ▁")
    ]
    ids = pair.encode_tgt(["newer lower"])[0]
    assert pair.tgt_pieces(ids[:-1]) == ["newer▁", "low", "er▁"]


@pytest.mark.parametrize("is_tokenised", [False, True])
def test_a_marker_at_the_end_is_that_of_the_text_read_backwards(is_tokenised: bool) -> None:
    text = corpus_text(500, is_tokenised=is_tokenised)
    src, tgt = (tuple(line[::-1] for line in side) for side in (text.train.src, text.train.tgt))
    ends = trained_pair("unigram", text, vocab_size=100, word_marker="end")
    starts = trained_pair("unigram", replace(text, train=Bitext(src, tgt)), vocab_size=100)
    pieces = [*map(ends.tgt_pieces, ends.encode_tgt(text.train.tgt))]
    mirrored = [*map(starts.tgt_pieces, starts.encode_tgt(tgt))]
    assert [[piece[::-1] for piece in reversed(line[:-1])] for line in mirrored] == [
        line[:-1] for line in pieces
    ]


@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_every_word_has_one_marker_wherever_it_is(name: str) -> None:
    """So that coverage leaves out the same characters, of 1,200 lines, which are two blocks."""
    text = corpus_text(600)
    n_words = sum(len(line.split()) for side in (text.train.src, text.train.tgt) for line in side)
    n_others = sum(c != " " for side in (text.train.src, text.train.tgt) for c in "".join(side))
    share = n_words / (n_words + n_others)
    for coverage, is_kept in ((share - 1e-9, 1), (share + 1e-9, 2)):
        options = {"vocab_size": 100, "character_coverage": coverage}
        sizes = [
            build(Tokenizer, choose(Tokenizer, name, word_marker=marker, **options)).least_size(
                text
            )
            for marker in ("start", "end")
        ]
        assert sizes == [len(SPECIAL) + is_kept] * 2


@pytest.mark.parametrize("name", ["bpe", "byte_bpe", "unigram"])
def test_a_compound_ends_with_the_piece_of_its_last_word_if_ends_are_marked(name: str) -> None:
    text = corpus_text(500)
    pairs = [trained_pair(name, text, vocab_size=400, word_marker=x) for x in ("start", "end")]
    starts, ends = (
        (pair.encode_tgt(["Hundball"])[0][:-1], *pair.encode_tgt(["Hund", "ball"]))
        for pair in pairs
    )
    assert starts[0][0] == starts[1][0]
    assert starts[0][-1] != starts[2][-2]
    assert ends[0][0] != ends[1][0]
    assert ends[0][-1] == ends[2][-2]


STRANGE = ("日本語 ξυζ", "жзи 🙂 a\u0301", "\ufb01 \uff21", "x\u2028y")
IN_BYTES: list[tuple[str, dict[str, object]]] = [
    ("byte_bpe", {"vocab_size": 300}),
    ("bpe", {"vocab_size": 400, "byte_fallback": True}),
    ("unigram", {"vocab_size": 400, "byte_fallback": True}),
]


@pytest.mark.parametrize(("name", "options"), IN_BYTES)
def test_bytes_write_any_text_that_training_has_not_seen(
    name: str, options: dict[str, object]
) -> None:
    tokenizers = trained_pair(name, corpus_text(), **options)
    again = TokenizerPair.from_json(tokenizers.to_json())
    for line in STRANGE:
        ids = tokenizers.encode_tgt([line])[0]
        assert UNK not in ids
        assert tokenizers.decode_tgt(ids) == again.decode_tgt(ids) == " ".join(line.split())
    assert tokenizers.vocabulary.n_src <= int(str(options["vocab_size"]))
    snowman = tokenizers.encode_tgt(["\N{SNOWMAN}"])[0][:-1]
    assert "\ufffd" in tokenizers.decode_tgt(snowman[:-1])
    plain = trained_pair(name, corpus_text(), **(options | {"vocab_size": 2000}))
    ids = plain.encode_tgt(["Männer"])[0][:-1]
    assert "".join(plain.tgt_pieces(ids)).strip("▁ ") == "Männer"
    assert plain.tgt_pieces([EOS]) == [SPECIAL[EOS]]


def test_byte_level_pairs_split_text_where_pairs_of_characters_do() -> None:
    lines = ("x9 isn't here",) * 9
    text = replace(corpus_text(), train=Bitext(lines, lines))
    pieces = [
        pair.src_pieces(pair.encode_src(lines[:1])[0][:-1])
        for name in ("bpe", "byte_bpe")
        for pair in [trained_pair(name, text, vocab_size=300)]
    ]
    assert pieces == [["▁x9", "▁isn", "'", "t", "▁here"]] * 2


def test_byte_level_pairs_are_joined_in_the_order_of_training() -> None:
    pair = trained_pair("byte_bpe", corpus_text(500), vocab_size=400, joint=False)
    model = json.loads(json.loads(pair.to_json())["tgt"])["model"]
    ranks = {tuple(merge): rank for rank, merge in enumerate(model["merges"])}
    letters = {value: letter for letter, value in tokenizer_module._BYTE_OF.items()}
    assert set(letters) == set(range(256))
    assert set(letters.values()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert [model["vocab"][letter] for letter in letters.values()]
    for word in ("Männer", "Hundehaus", "日本"):
        pieces = [letters[value] for value in f"▁{word}".encode()]
        while possible := [each for each in pairwise(pieces) if each in ranks]:
            first = min(possible, key=ranks.__getitem__)
            at = next(i for i, each in enumerate(pairwise(pieces)) if each == first)
            pieces[at : at + 2] = ["".join(first)]
        assert [model["vocab"][piece] for piece in pieces] == pair.encode_tgt([word])[0][:-1]


@pytest.mark.parametrize("name", ["bpe", "unigram"])
@pytest.mark.parametrize("byte_fallback", [False, True])
def test_characters_beyond_the_coverage_are_no_part_of_the_alphabet(
    name: str, byte_fallback: bool
) -> None:
    lines = ("aaaa bbbb", "aaaa bbc]", "aabb d^")  # ▁ 6, a 10, b 8, and c d ] ^ once
    text = replace(corpus_text(), train=Bitext(lines, lines), is_tokenised=True)
    size = len(SPECIAL) + 256 * byte_fallback
    options = {"joint": False, "byte_fallback": byte_fallback}
    kept = {18.5: "▁ab", 24: "▁ab", 25: "▁ab]", 28: "▁ab]^cd"}
    for coverage, known in ((n / 28, known) for n, known in kept.items()):
        least = size + len(known)
        with pytest.raises(DataError, match=f"is {least - 1}, but the text needs {least}: one"):
            trained_pair(name, text, vocab_size=least - 1, character_coverage=coverage, **options)
        pair = trained_pair(name, text, vocab_size=least, character_coverage=coverage, **options)
        (ids,) = pair.encode_src(["abcd]^"])
        is_known = [UNK not in pair.encode_src([x])[0] for x in "abcd]^"]
        assert is_known == [byte_fallback or x in known for x in "abcd]^"]
        assert pair.decode_tgt(ids) == "abcd]^" or not all(is_known)
        tokenizer = choose(Tokenizer, name, vocab_size=9, character_coverage=coverage, **options)
        assert build(Tokenizer, tokenizer).least_size(text) == least
        more = replace(text, train=Bitext(lines, ("a", "b", "a")))
        assert build(Tokenizer, tokenizer).least_size(more) == least


def test_bytes_are_less_likely_than_any_piece() -> None:
    text = corpus_text()
    pair = trained_pair("unigram", text, vocab_size=600, byte_fallback=True)
    vocab = json.loads(json.loads(pair.to_json())["src"])["model"]["vocab"]
    of_bytes = {score for piece, score in vocab if piece.startswith("<0x")}
    assert of_bytes == {min(score for piece, score in vocab if not piece.startswith("<0x"))}


def test_a_vocabulary_of_bytes_has_room_for_all_of_them() -> None:
    text, least = corpus_text(), len(SPECIAL) + 256
    assert build(Tokenizer, choose(Tokenizer, "byte_bpe", vocab_size=260)).least_size(text) == least
    assert trained_pair("byte_bpe", text, vocab_size=least).vocabulary.n_src == least


@pytest.mark.parametrize("name", ["bpe", "byte_bpe", "unigram"])
@pytest.mark.parametrize("joint", [True, False])
def test_a_vocabulary_may_be_learned_from_a_sample(name: str, joint: bool) -> None:
    text, size = corpus_text(), {"joint": joint, "vocab_size": 290}
    pairs = list(zip(text.train.src, text.train.tgt, strict=True))
    for n_pairs, rows in ((50, range(3, 200, 4)), (150, [r for r in range(200) if r % 4])):
        sampled = trained_pair(name, text, train_on=n_pairs, **size)
        alone = replace(text, train=Bitext.of(pairs[row] for row in rows))
        assert sampled.to_json() == trained_pair(name, alone, **size).to_json()
        few = build(Tokenizer, choose(Tokenizer, name, train_on=n_pairs, **size))
        assert few.least_size(text) == few.least_size(alone)
        assert (few.n_learned_from(200), few.n_learned_from(20)) == (n_pairs, 20)
    whole = trained_pair(name, text, **size).to_json()
    assert trained_pair(name, text, train_on=200, **size).to_json() == whole
    assert trained_pair(name, text, train_on=50, **size).to_json() != whole


@pytest.mark.parametrize("name", NAMES)
def test_a_form_of_unicode_makes_spellings_alike(name: str) -> None:
    text = corpus_text()
    composed, apart, wide = "M\u00e4nner", "Ma\u0308nner", "\uff2d\u00e4nner"
    for form, same, others in (
        ("none", (composed,), (apart, wide)),
        ("nfc", (composed, apart), (wide,)),
        ("nfkc", (composed, apart, wide), ()),
    ):
        pair = trained_pair(name, text, normalise=form)
        ids = pair.encode_tgt([composed])
        assert all(pair.encode_tgt([line]) == ids for line in same)
        assert all(pair.encode_tgt([line]) != ids for line in others)


@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_what_is_written_in_bytes_is_not_segmented_anew(name: str) -> None:
    text = corpus_text()
    draw = {"dropout": 0.5} if name == "bpe" else {"alpha": 0.0}
    options = {"vocab_size": 600, "byte_fallback": True, **draw}
    lines = (*text.train.src, "日本語", "Männer")
    choice = choose(Tokenizer, name, **options)
    pair, make = build(Tokenizer, choice).train(text), build(Tokenizer, choice).sampling()
    assert make is not None
    numbers = WordNumbers()
    words = pair.words_tgt(lines, numbers)
    samplers = pair.samplers(make, *(numbers.segmentations(),) * 2)
    drawn = np.random.default_rng(1)
    of_japanese = samplers[1].sample(np.array(words[-2] * 9), drawn)
    assert {tuple(ids.tolist()) for ids in of_japanese} == {
        tuple(pair.encode_tgt(["日本語"])[0][:-1])
    }
    of_men = samplers[1].sample(np.array(words[-1] * 30), drawn)
    assert {pair.decode_tgt(ids.tolist()) for ids in of_men} == {"Männer"}
    assert len({tuple(ids.tolist()) for ids in of_men}) > 1


def test_a_piece_that_looks_like_a_byte_is_refused() -> None:
    lines = ("a<0x41> b<0x41> c<0x41>",) * 9
    text = replace(corpus_text(), train=Bitext(lines, lines), is_tokenised=True)
    with pytest.raises(DataError, match="has the piece <0x41>, which byte_fallback needs"):
        trained_pair("bpe", text, byte_fallback=True, vocab_size=300)
