"""The statistics of sentences add up to the scores of the run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from ablate.analysis.sentences import bleu, chrf
from ablate.measuring import SentenceStatistics, cut_text, score
from tests.measuring.test_metrics import HYPOTHESES, REFERENCES

TOKENS = np.array([9, 4, 5, 2])
NLL = np.array([3.25, 0.5, 7.0, 1.125])


@pytest.fixture
def statistics() -> SentenceStatistics:
    return SentenceStatistics.of(HYPOTHESES, REFERENCES, TOKENS, NLL)


def test_the_sums_give_the_scores_of_the_run(statistics: SentenceStatistics) -> None:
    scores = score(HYPOTHESES, REFERENCES, is_tokenised=False)
    assert bleu(statistics.bleu.sum(axis=0).astype(float)) == pytest.approx(scores["bleu"])
    assert chrf(statistics.chrf.sum(axis=0).astype(float)) == pytest.approx(scores["chrf"])


def test_bits_are_per_character_of_the_reference(statistics: SentenceStatistics) -> None:
    n_characters = sum(len(line) for line in REFERENCES)
    assert statistics.bits_per_character == pytest.approx(11.875 / math.log(2) / n_characters)


def test_a_reference_that_is_cut_counts_as_far_as_it_is_read() -> None:
    lines = ["one  two three", "one two ", "one", ""]

    def encode(sentences: Sequence[str]) -> list[list[int]]:
        return [[*map(len, sentence.split()), 0] for sentence in sentences]

    n_tokens = np.array([3, 3, 2, 1])
    text = cut_text(lines, n_tokens, encode)
    assert text == ["one  two", *lines[1:]]
    statistics = SentenceStatistics.of(lines, lines, n_tokens, NLL, text)
    assert statistics.characters.tolist() == [8, 8, 3, 1]
    assert cut_text(lines, np.array([4, 3, 2, 1]), encode) == lines


def test_what_is_written_reads_back(statistics: SentenceStatistics) -> None:
    read = SentenceStatistics.from_csv(statistics.to_csv())
    for name in ("bleu", "chrf", "characters", "target_tokens", "nll"):
        assert getattr(read, name).tolist() == getattr(statistics, name).tolist()


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n"])
def test_another_file_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="columns"):
        SentenceStatistics.from_csv(text)


def test_a_cut_file_is_refused(statistics: SentenceStatistics) -> None:
    with pytest.raises(ValueError, match="columns"):
        SentenceStatistics.from_csv(statistics.to_csv()[:-40])
