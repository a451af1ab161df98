"""Which values of a measure are better."""

from __future__ import annotations

from typing import Any

import pytest

from ablate.analysis.direction import direction, higher_is_better
from ablate.gate.evidence import LOSSES


@pytest.mark.parametrize(
    ("measure", "better"),
    [
        ("test.test2016.bleu", "higher"),
        ("test.test2016.bleu_lc_tok", "higher"),
        ("test.test_long.exact_match", "higher"),
        ("dev.nll", "lower"),
        ("test.test.bits_per_character", "lower"),
        (LOSSES, "lower"),
        ("test.test.perplexity", "lower"),
        ("train.seconds", "lower"),
        ("params.total", "lower"),
        ("train.steps", None),
    ],
)
def test_which_way_is_better_is_known_of_most_measures(measure: str, better: Any) -> None:
    assert direction(measure) == better


def test_more_of_an_unknown_measure_is_better_in_a_comparison() -> None:
    """As the contract of a metric says."""
    assert direction("test.test.comet") is None
    assert higher_is_better("test.test.comet")
    assert not higher_is_better("test.test.nll")
