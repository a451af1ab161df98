"""YAML as version 1.2 reads it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.config.tree import Mistake, Node, parse, scalar, source_of


def tree(text: str) -> Node:
    wrong: list[Mistake] = []
    root = parse(source_of("x.yaml", text.encode()), wrong)
    assert root is not None
    assert not wrong
    return root


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, word) for word in ("no", "off", "yes", "on", "y", "n", "No", "1_000", "12:30")),
        *((word, word) for word in ("2026-11-21", "0b1", "1e", "e5", ".", "+", "tRue", "0o8")),
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False", "FALSE")),
        *((word, None) for word in ("null", "Null", "NULL", "~", "")),
        ("12", 12),
        ("-3", -3),
        ("+7", 7),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("1e-4", 1e-4),
        ("5e-3", 5e-3),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1.5E+2", -150.0),
        ("1" + 300 * "0", 10**300),
        ("1" + 400 * "0", math.inf),
        ("-" + 5000 * "1", -math.inf),
        ("0x" + 5000 * "F", math.inf),
        (".inf", math.inf),
        ("-.INF", -math.inf),
    ],
)
def test_plain_scalars(text: str, value: Any) -> None:
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)
    assert tree(f"x: {text}").plain() == {"x": value}


def test_nan_is_a_number() -> None:
    actual = scalar(".NaN")
    assert isinstance(actual, float)
    assert math.isnan(actual)


def test_minus_zero_is_zero() -> None:
    assert str(scalar("-0.0")) == "0.0"


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_what_python_prints_is_read_back(number: float) -> None:
    assert scalar(repr(number)) == number


@pytest.mark.parametrize("text", ["3", "true", "null", "1e-4"])
def test_quotes_make_a_text(text: str) -> None:
    assert tree(f"a: '{text}'\nb: \"{text}\"\nc: |-\n  {text}").plain() == dict.fromkeys(
        "abc", text
    )


def test_keys_are_words_whatever_they_look_like() -> None:
    assert list(tree("1: a\ntrue: b\nno: c\nnull: d").plain()) == ["1", "true", "no", "null"]


def test_lists_are_tuples_and_anchors_are_followed() -> None:
    assert tree("a: &x [1, [2]]\nb: *x").plain() == {"a": (1, (2,)), "b": (1, (2,))}


def test_every_value_knows_its_place() -> None:
    node = tree("a: 1\nb:\n  c: [x, {d: 2}]\n")
    d, depth = node.descend(["b", "c", 1, "d"])
    assert depth == 4
    assert (d.path, d.start.line, d.start.column, d.key.column) == ("b.c.d", 3, 14, 11)
    assert str(d.mark) == "x.yaml:3:14"
    assert str(node.descend(["b"])[0].mark) == "x.yaml:2:1"


def test_a_byte_order_mark_and_other_line_ends_are_fine() -> None:
    wrong: list[Mistake] = []
    root = parse(source_of("x.yaml", b"\xef\xbb\xbfa: 1\r\nb: 2\r\n"), wrong)
    assert root is not None
    assert root.plain() == {"a": 1, "b": 2}
