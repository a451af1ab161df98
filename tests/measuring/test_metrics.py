"""Scores against sacreBLEU's own command line, and against the sums of their statistics."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sacrebleu

from ablate.analysis.sentences import bleu, chrf
from ablate.measuring import SentenceStatistics, cut_text, score

REFERENCES = ["A man in a Red shirt , sitting .", "two dogs run", "ein Hund läuft schnell", "x"]
HYPOTHESES = ["a man in a red shirt , sitting .", "two dogs ran fast", "ein Hund läuft", "x"]
TOKENS = np.array([9, 4, 5, 2])
NLL = np.array([3.25, 0.5, 7.00001, 1.12499])


def command_line(tmp_path: Path, *options: str) -> dict[str, Any]:
    for name, lines in (("ref", REFERENCES), ("hyp", HYPOTHESES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", str(tmp_path / "ref"), "--input"]
    options = (str(tmp_path / "hyp"), "--width", "14", "--force", *options)
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
    actual: dict[str, Any] = json.loads(done.stdout)
    return actual


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bleu", ()),
        ("bleu_lc_tok", ("--tokenize", "none", "--lowercase")),
        ("chrf", ("--metrics", "chrf")),
    ],
)
def test_scores_and_signatures_are_those_of_the_command_line(
    tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    ours, theirs = (
        score(HYPOTHESES, [REFERENCES], tokenizer="13a", is_tokenised=True),
        command_line(tmp_path, *options),
    )
    assert ours[name] == pytest.approx(theirs["score"], abs=1e-10)
    assert ours[f"{name}_signature"] == theirs["signature"]


def test_case_counts_in_the_first_metric_alone() -> None:
    scores = score([REFERENCES[0].lower()], [[REFERENCES[0]]], tokenizer="13a", is_tokenised=True)
    assert scores["bleu"] < 100
    assert scores["bleu_lc_tok"] == pytest.approx(100)


def test_the_second_metric_is_for_tokenised_text_alone() -> None:
    assert not any(
        "lc" in name
        for name in score(HYPOTHESES, [REFERENCES], tokenizer="13a", is_tokenised=False)
    )


def test_the_spaces_of_a_reference_do_not_count_in_exact_match() -> None:
    scores = score(["a b"], [[" a\u00a0 b "]], tokenizer="13a", is_tokenised=False)
    assert scores["exact_match"] == 100


def test_a_translation_may_match_any_of_its_references() -> None:
    references = [["x", "c", "x"], ["a b", "y", "y"]]
    scores = score(["a b", "c", "y z"], references, tokenizer="13a", is_tokenised=False)
    assert scores["exact_match"] == pytest.approx(200 / 3)


def test_exact_match_is_a_percentage() -> None:
    assert score(HYPOTHESES, [REFERENCES], tokenizer="13a", is_tokenised=False)["exact_match"] == 25
    assert (
        score(["a", "b", "c", "d"], [["a", "b", "c", "e"]], tokenizer="13a", is_tokenised=False)[
            "exact_match"
        ]
        == 75
    )


@pytest.fixture
def statistics() -> SentenceStatistics:
    return SentenceStatistics.of(HYPOTHESES, [REFERENCES], TOKENS, NLL)


def test_the_sums_give_the_scores_of_the_run(statistics: SentenceStatistics) -> None:
    scores = score(HYPOTHESES, [REFERENCES], tokenizer="13a", is_tokenised=False)
    assert bleu(statistics.bleu.sum(axis=0).astype(float)) == pytest.approx(scores["bleu"])
    assert chrf(statistics.chrf.sum(axis=0).astype(float)) == pytest.approx(scores["chrf"])


def test_all_references_of_a_sentence_count() -> None:
    """In the scores, as sacreBLEU computes them, and in the statistics of sentences."""
    more = ["A man sits in a red shirt .", "two dogs ran fast", "ein Hund läuft", "y"]
    references = [REFERENCES, more]
    scores = score(HYPOTHESES, references, tokenizer="13a", is_tokenised=True)
    alone = score(HYPOTHESES, [REFERENCES], tokenizer="13a", is_tokenised=True)
    assert all(scores[name] > alone[name] + 1 for name in ("bleu", "chrf", "bleu_lc_tok"))
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(HYPOTHESES, references).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(HYPOTHESES, references).score)
    of_sentences = SentenceStatistics.of(HYPOTHESES, references, TOKENS, NLL)
    assert bleu(of_sentences.bleu.sum(axis=0).astype(float)) == pytest.approx(scores["bleu"])
    assert chrf(of_sentences.chrf.sum(axis=0).astype(float)) == pytest.approx(scores["chrf"])
    assert of_sentences.characters.tolist() == [len(line) for line in REFERENCES]


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
    statistics = SentenceStatistics.of(lines, [lines], n_tokens, NLL, text)
    assert statistics.characters.tolist() == [8, 8, 3, 1]
    assert cut_text(lines, np.array([4, 3, 2, 1]), encode) == lines


def test_a_long_line_is_cut_by_its_beginning_alone() -> None:
    longest = 0

    def encode(sentences: Sequence[str]) -> list[list[int]]:
        nonlocal longest
        longest = max(longest, *map(len, sentences[1:]), 0)  # but for the whole line
        return [[*map(len, sentence.split()), 0] for sentence in sentences]

    line = f"one two{' ' * 700} three {'word ' * 5_000}"
    assert cut_text([line], np.array([4]), encode) == [line[: line.index(" word")]]
    assert longest < 1_500


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
