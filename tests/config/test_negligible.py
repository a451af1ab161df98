"""The band within which a difference counts as none."""

from __future__ import annotations

from pathlib import Path

import pytest

from ablate import config
from ablate.config import identity
from tests.config.loading import load

ROWS = "variants: {rms: {model.norm: rms}}\n"


def test_the_default_is_1_bleu_and_a_fiftieth_of_a_nat(tmp_path: Path) -> None:
    plain = load(tmp_path, ROWS).negligible
    assert (plain.bleu, plain.nll) == (1.0, 0.02)
    some = load(tmp_path, ROWS + "negligible: {bleu: 0.5}").negligible
    assert (some.bleu, some.nll) == (0.5, 0.02)
    assert load(tmp_path, ROWS, "negligible.nll=0").negligible.nll == 0


def test_children_change_the_values_that_they_give(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text("negligible: {bleu: 0.5, nll: 0.01}")
    actual = load(tmp_path, "extends: parent.yaml\nnegligible: {bleu: 2}").negligible
    assert (actual.bleu, actual.nll) == (2, 0.01)


def test_it_is_no_part_of_any_run(tmp_path: Path) -> None:
    both = [load(tmp_path, ROWS + more).rows for more in ("", "negligible: {bleu: 3}")]
    names = [[identity(row.spec, "content", "fp32") for row in rows] for rows in both]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{bleu: -1}", r"negligible\.bleu: must be at least 0"),
        ("{blue: 1}", r"negligible\.blue: unknown option; did you mean 'bleu'\?"),
        ("{bleu: much}", r"negligible\.bleu: needs a number"),
        ("1", "negligible: needs a mapping"),
    ],
)
def test_mistakes_are_reported_at_their_position(tmp_path: Path, value: str, reason: str) -> None:
    with pytest.raises(config.MistakesError, match=rf"x\.yaml:2:\d+: {reason}"):
        load(tmp_path, f"{ROWS}negligible: {value}")
