"""The statistics of sentences add up to the scores of the run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ablate.analysis.sentences import bleu, chrf
from ablate.measuring import SentenceStatistics, score
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
