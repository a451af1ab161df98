"""A new corpus is one class in one file: it is chosen, checked, planned, prepared and listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ablate import api, config
from ablate.data.prepare import prepare
from tests.registrations import temporary_registrations

CORPUS = '''\
"""Numbers written in words, and their digits."""

from pydantic import PositiveInt

from ablate.data.corpus import Bitext, Corpus, CorpusText
from ablate.hashing import digest
from ablate.registry import register

WORDS = "zero one two three four five six seven eight nine".split()


@register("digits", source="this test, 2026")
class Digits(Corpus):
    """Words to digits.

    Args:
        size: pairs to train on.
    """

    def __init__(self, *, size: PositiveInt = 100) -> None:
        super().__init__()
        self.size = size

    def problems(self):
        if self.size < 20:
            yield "size", f"{self.size} pairs are too few; 20 suffice"

    def fingerprint(self) -> str:
        return digest([str(self.size)])

    def load(self) -> CorpusText:
        def pair(number: int) -> tuple[str, str]:
            digits = str(number)
            return " ".join(WORDS[int(digit)] for digit in digits), " ".join(digits)

        train = Bitext.of(pair(number) for number in range(self.size))
        test = Bitext.of(pair(number) for number in range(self.size, self.size + 5))
        return CorpusText("digits", "en", "zxx", train=train, dev=test, tests={"test": test})
'''
EXPERIMENT = """\
plugins: digits.py
corpus: digits
tokenizer: word
model: {dims: {d_model: 16, n_heads: 2}, n_layers: 1}
variants: {rms: {model.norm: rms}}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "digits.py").write_text(CORPUS, encoding="utf-8")
    path = tmp_path / "x.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    with temporary_registrations():
        yield path


def test_it_is_prepared_for_training(experiment: Path) -> None:
    prepared = prepare(config.load(experiment).rows[0].spec)
    assert len(prepared.train) == 100
    assert prepared.text.tests["test"].src[1] == "one zero one"
    assert prepared.tokenizers.decode_tgt(prepared.tests["test"].tgt[4].tolist()) == "1 0 4"


def test_it_is_planned_under_a_hash_of_its_own_content(experiment: Path) -> None:
    hashes = {
        run.hash
        for override in ("corpus.size=100", "corpus.size=50")
        for row in api.plan(experiment, seeds=[1], overrides=[override]).rows
        for run in row.runs
    }
    assert None not in hashes
    assert len(hashes) == 4


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("corpus.size=9", r"--set:1:13: corpus\.size: 9 pairs are too few; 20 suffice"),
        ("corpus.sise=50", r"corpus\.sise: unknown option; did you mean 'size'\?"),
    ],
)
def test_its_options_are_checked_where_they_are_given(
    experiment: Path, override: str, reason: str
) -> None:
    with pytest.raises(config.MistakesError, match=reason):
        api.plan(experiment, overrides=[override])


def test_it_is_listed_shown_and_part_of_the_schema(experiment: Path) -> None:
    config.load(experiment)
    listed = {corpus.name: corpus for corpus in api.corpora()}
    assert listed["digits"].summary == "Words to digits."
    assert listed["digits"].is_available
    assert api.show_corpus("digits", ["size=30"]).splits[0].n_pairs == 30
    assert "digits" in api.schema()["$defs"]["corpus"]["anyOf"][0]["enum"]
    assert api.parts("corpus", "digits")[0].options[0].meaning == "pairs to train on."
