"""What error messages share."""

from __future__ import annotations

import pytest

from ablate.registry import lookup, slots
from ablate.wording import (
    SYNONYMS,
    and_list,
    counted,
    format_duration,
    no_such,
    rounded,
    seeds_named,
    suggest,
)


@pytest.mark.parametrize(
    ("slot", "word", "meant"),
    [
        ("optimizer", "adamW", "adamw"),
        ("optimizer", "ADAM", "adam"),
        ("position", "rope", "rotary"),
        ("position", "RoPE", "rotary"),
        ("position", "rotray", "rotary"),
        ("residual", "Pre-LN", "pre"),
        ("norm", "RMSNorm", "rms"),
        ("feed_forward", "ReLU", "relu"),
        ("tokenizer", "SentencePiece", "unigram"),
    ],
)
def test_a_common_name_leads_to_the_part(slot: str, word: str, meant: str) -> None:
    with pytest.raises(ValueError, match=rf"called '{word}'; did you mean '{meant}'\? known: "):
        lookup(slot, word)


def test_a_synonym_counts_only_where_its_part_could_stand() -> None:
    assert suggest("rope", ["scope", "shape"]) == " did you mean 'scope'?"
    assert suggest("rope", ["alibi"]) == ""


def test_every_synonym_is_of_a_part_and_is_no_part() -> None:
    for synonym, name in SYNONYMS.items():
        holding = [table for table in slots().values() if name in table]
        assert holding, name
        assert not any(synonym in table for table in holding), synonym


def test_without_anything_known_the_message_says_so() -> None:
    assert no_such("row", "a", []) == "no row is called 'a'; known: none"


def test_one_is_singular() -> None:
    assert [counted(n, "line") for n in (0, 1, 2, 1000)] == [
        "0 lines",
        "1 line",
        "2 lines",
        "1,000 lines",
    ]


def test_a_long_list_names_the_first_and_counts_the_rest() -> None:
    assert [and_list("abcd"[:n]) for n in (1, 2, 3)] == ["a", "a and b", "a, b and c"]
    assert and_list("abcd", most=4) == "a, b, c and d"
    assert and_list("abcde", most=4) == "a, b, c and 2 more"


def test_seeds_are_named_in_the_plural_where_there_are_several() -> None:
    assert [seeds_named([1]), seeds_named([1, 2])] == ["seed 1", "seeds 1, 2"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0:00"), (59.6, "1:00"), (754, "12:34"), (3_723, "1:02:03")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_rounded_number_has_no_exponent() -> None:
    """As the MFLOPs per token of a big Transformer."""
    assert [rounded(value, 3) for value in (1268.4, 381.4, 0.04567)] == ["1,270", "381", "0.0457"]
