"""The words for paths and values that names of rows and columns of tables share."""

from __future__ import annotations

from typing import Any

import pytest

from ablate.config.rows import compact, labels


def test_a_label_is_the_shortest_end_that_no_other_path_has() -> None:
    assert labels(["model.norm", "model.dims.n_heads"]) == ["norm", "n_heads"]
    assert labels(["a.x", "a.b.x", "x"]) == ["a.x", "b.x", "x"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (1e-5, "1e-05"),
        (1.0, "1"),
        (0.00123456789, "0.00123456789"),
        ((0.9, None), "[0.9, null]"),
        ({"name": "adam", "betas": (0.9, 0.98)}, "adam(betas=[0.9, 0.98])"),
        ({"name": "none"}, "none"),
        ({"encoder": 3, "decoder": 4}, "encoder=3, decoder=4"),
    ],
)
def test_a_value_is_written_compactly(value: Any, text: str) -> None:
    assert compact(value) == text


def test_null_has_another_word_where_one_is_given() -> None:
    assert compact({"name": "x", "clip": None, "rest": [None]}, "-") == "x(clip=-, rest=[-])"
