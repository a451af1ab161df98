"""Scores against sacreBLEU's own command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ablate.measuring import score

REFERENCES = ["A man in a Red shirt , sitting .", "two dogs run", "ein Hund läuft schnell", "x"]
HYPOTHESES = ["a man in a red shirt , sitting .", "two dogs ran fast", "ein Hund läuft", "x"]


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
        score(HYPOTHESES, REFERENCES, tokenizer="13a", is_tokenised=True),
        command_line(tmp_path, *options),
    )
    assert ours[name] == pytest.approx(theirs["score"], abs=1e-10)
    assert ours[f"{name}_signature"] == theirs["signature"]


def test_case_counts_in_the_first_metric_alone() -> None:
    scores = score([REFERENCES[0].lower()], [REFERENCES[0]], tokenizer="13a", is_tokenised=True)
    assert scores["bleu"] < 100
    assert scores["bleu_lc_tok"] == pytest.approx(100)


def test_the_second_metric_is_for_tokenised_text_alone() -> None:
    assert not any(
        "lc" in name for name in score(HYPOTHESES, REFERENCES, tokenizer="13a", is_tokenised=False)
    )


def test_exact_match_is_a_percentage() -> None:
    assert score(HYPOTHESES, REFERENCES, tokenizer="13a", is_tokenised=False)["exact_match"] == 25
    assert (
        score(["a", "b", "c", "d"], ["a", "b", "c", "e"], tokenizer="13a", is_tokenised=False)[
            "exact_match"
        ]
        == 75
    )
