"""One name for one run, another for every other."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from ablate.config import RunSpec, identity
from ablate.registry import lookup, slots
from ablate.registry.table import TABLE
from ablate.training.engines.factory import SCHEMES

RUN = RunSpec.model_validate(
    {
        "model": {"position": {"base": 5}, "decoder": {"norm": "rms"}, "n_layers": {"encoder": 2}},
        "training": {"clip": 1.0, "patience": 3, "precision": "fp32"},
    }
)
PLAIN = RUN.model_dump(mode="json")


def name(plain: Any, precision: str = "fp32") -> str:
    return identity(RunSpec.model_validate(plain), "content", precision)


def leaves(plain: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in plain.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


def changed(plain: Any, path: tuple[str, ...], value: Any) -> Any:
    head, *rest = path
    return {**plain, head: changed(plain[head], tuple(rest), value) if rest else value}


def literals(annotation: Any) -> Iterator[str]:
    for arg in get_args(annotation):
        yield from [arg] if isinstance(arg, str) else literals(arg)


def words() -> Iterator[str]:
    """Yield every word that a spec may say: the names of parts, and of their options' values."""
    yield from ("sentence", "type", "drophead", "matrices", "source")
    for parts in slots().values():
        yield from parts
        for entry in parts.values():
            for field in entry.options.model_fields.values():
                yield from literals(field.annotation)


WORDS = dict.fromkeys(words())


def others(value: Any) -> list[Any]:
    """Return values of which one is bound to be another valid one."""
    return [v for v in (not value, 0.5, 3, 300, 0.25, [0.5, 0.6], *WORDS) if v != value]


@pytest.mark.parametrize("path", [p for p in leaves(PLAIN) if p[-1] != "teacher"], ids=".".join)
def test_every_value_counts(path: tuple[str, ...]) -> None:
    """But the path of a file, whose content counts (tests/data/test_teacher.py)."""
    if path == ("training", "precision"):
        assert name(PLAIN, "bf16") != name(PLAIN, "fp32")
        return
    before = PLAIN
    if "dropout" in path and path[-1].endswith("_form"):  # counts if something is dropped
        before = changed(PLAIN, (*path[:-1], path[-1].removesuffix("_form")), 0.1)
    value: Any = before
    for step in path:
        value = value[step]
    actual = None
    for other in others(value):
        plain = changed(before, path, other)
        if path[-1] == "name":  # of another part, no option survives
            plain = changed(PLAIN, path[:-1], {"name": other})
        try:
            actual = RunSpec.model_validate(plain)
        except ValueError:
            continue
        if type(other) is type(value) or path[-1] != "name":
            break
    assert actual is not None
    assert actual != RunSpec.model_validate(before)
    assert identity(actual, "content", "fp32") != name(before)


def test_one_run_has_one_name_however_it_is_spelled() -> None:
    model = {
        "n_layers": {"decoder": 6, "encoder": 2},
        "position": {"base": 5.0, "name": "sinusoidal"},
        "norm": "rms",
        "encoder": {"norm": {"name": "layer"}},
    }
    training = {"patience": 3, "clip": 1, "steps": 100_000}
    other = RunSpec.model_validate({"training": training, "model": model, "corpus": "synthetic"})
    assert identity(other, "content", "fp32") == name(PLAIN)


def test_auto_is_what_it_comes_to() -> None:
    auto = changed(PLAIN, ("training", "precision"), "auto")
    assert name(auto, "fp32") == name(PLAIN, "fp32")
    assert name(auto, "bf16") != name(auto, "fp32")


def test_the_content_of_the_corpus_counts() -> None:
    assert identity(RUN, "other", "fp32") != identity(RUN, "content", "fp32")
    assert len(identity(RUN, "other", "fp32")) == 16


@pytest.mark.parametrize(
    ("slot", "part", "counts"),
    [("position", "sinusoidal", True), ("norm", "rms", True), ("position", "learned", False)],
)
def test_the_version_of_a_part_counts_where_it_is_used(
    slot: str, part: str, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = name(PLAIN)
    newer = dataclasses.replace(lookup(slot, part), version=99)
    monkeypatch.setitem(TABLE[slot], part, newer)
    assert (name(PLAIN) != before) is counts


def test_a_name_is_of_letters_beyond_ascii_as_they_are() -> None:
    """The name is of commit 5f5db7a."""
    assert identity(RUN, "façade", "fp32") == "c6b1ce751d7dc354"


def test_the_scheme_of_random_draws_counts_where_it_is_not_the_usual_one() -> None:
    assert identity(RUN, "content", "fp32", "whole_batch") == identity(RUN, "content", "fp32")
    names = {identity(RUN, "content", "fp32", scheme) for scheme in SCHEMES}
    assert len(names) == len(SCHEMES)


@pytest.mark.parametrize(
    ("training", "stored"),
    [({}, "e63a13aba7aed1b2"), ({"schedule": "inverse_sqrt"}, "bd112a174dd7459e")],
)
def test_stored_runs_keep_their_names_when_a_part_gets_an_option(
    training: dict[str, Any], stored: str
) -> None:
    """The names are of commit 4715e47, which had no ``first``, ``delay`` or ``penalty_form``."""
    plain = {**PLAIN, "training": {**PLAIN["training"], **training}}
    assert name(plain) == stored


def test_the_neutral_value_of_an_added_option_is_its_default() -> None:
    for parts in slots().values():
        for entry in parts.values():
            for option, neutral in entry.neutral_values.items():
                default = entry.options.model_fields[option].default
                assert json.loads(json.dumps(default)) == neutral, entry.name


@pytest.mark.parametrize(
    ("path", "neutral", "other"),
    [
        ("model.position", {"name": "sinusoidal"}, {"first": 2}),
        ("training.schedule", {"name": "inverse_sqrt"}, {"delay": 1}),
        ("decoding", {"name": "beam"}, {"penalty_form": "power"}),
        ("model.dropout", {"word": 0.1, "word_form": "token"}, {"word_form": "unknown"}),
        ("model.dropout", {"head": 0.1, "head_form": "independent"}, {"head_form": "drophead"}),
        (
            "model.decoder",
            {"dropout": {"head": 0.1}},
            {"dropout": {"head": 0.1, "head_form": "drophead"}},
        ),
    ],
)
def test_an_option_that_came_later_counts_where_it_makes_a_difference(
    path: str, neutral: dict[str, Any], other: dict[str, Any]
) -> None:
    steps = tuple(path.split("."))
    without = name(changed(PLAIN, steps, neutral))
    assert name(changed(PLAIN, steps, neutral | other)) != without
    if path == "model.dropout":
        rate = {key: value for key, value in neutral.items() if not key.endswith("_form")}
        assert without == name(changed(PLAIN, steps, rate))
