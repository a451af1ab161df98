"""Random rows have the values that their layers give, and names have the words of their values."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ablate.config.rows import compact, labels
from ablate.parts.feed_forward import FeedForward
from ablate.parts.norm import Norm
from ablate.registry import choose
from tests.config.loading import load

PARTS: dict[str, dict[str, dict[str, list[Any]]]] = {
    "feed_forward": {
        "relu": {"d_ff": [32, 64], "bias": [True, False]},
        "gelu": {"d_ff": [32, 64], "bias": [True, False]},
    },
    "norm": {"layer": {"eps": [0.1, 0.2]}, "rms": {"eps": [0.1, 0.2]}, "none": {}},
}
SLOTS: dict[str, Any] = {"feed_forward": FeedForward, "norm": Norm}
DEFAULTS = {"feed_forward": "relu", "norm": "layer"}


@dataclass
class Given:
    """What one layer gives at one path: the name of a part, options of it, or both."""

    name: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def on(self, below: Given, name_below: str) -> Given:
        """Return this layer on another one, whose part is called ``name_below``."""
        if self.name not in (None, name_below):
            return self
        return Given(self.name or below.name, below.options | self.options)


def random_given(rng: random.Random, slot: str, name_below: str) -> Given:
    name = rng.choice([None, *PARTS[slot]])
    options = PARTS[slot][name or name_below]
    some = rng.sample(sorted(options), rng.randint(0, len(options)))
    return Given(name, {option: rng.choice(options[option]) for option in some})


def spelt(rng: random.Random, path: str, given: Given) -> dict[str, Any]:
    """Return one of the ways to write a change."""
    whole = {"name": given.name, **given.options} if given.name else given.options
    if given.name and rng.random() < 0.5:
        head = rng.choice([path, f"{path}.name"])
        return {head: given.name, **{f"{path}.{key}": v for key, v in given.options.items()}}
    if rng.random() < 0.5 and whole:
        return {path: whole}
    return {f"{path}.{key}": value for key, value in whole.items()}


@pytest.mark.parametrize("section", ["variants", "grid", "inherited"])
def test_a_row_has_the_values_that_its_layers_give(tmp_path: Path, section: str) -> None:
    rng = random.Random(section)
    for _ in range(60):
        slot = rng.choice(sorted(PARTS))
        shared = random_given(rng, slot, DEFAULTS[slot])
        name = shared.name or DEFAULTS[slot]
        own = random_given(rng, slot, name)
        own_name = own.name or name
        model = {
            slot: {"name": name, **shared.options},
            "decoder": {slot: own.options | ({"name": own.name} if own.name else {})},
        }
        change = random_given(rng, slot, name)
        again = Given()
        if section == "inherited":
            again = random_given(rng, slot, change.name or name)
        new_shared = again.on(change, change.name or name).on(shared, name)
        new_name = new_shared.name or name
        own_change = random_given(rng, slot, own_name)
        new_own = own_change.on(own, own_name)
        if new_own.name is None and new_name != name:
            continue  # the decoder would have the options of another part
        pairs = list(spelt(rng, f"model.{slot}", change).items())
        pairs += spelt(rng, f"model.decoder.{slot}", own_change).items()
        pairs.append(("training.batch_tokens", 999))  # so that no row equals the baseline
        rng.shuffle(pairs)
        content: dict[str, Any] = {"corpus": "synthetic", "model": model}
        if section == "grid":
            content["grid"] = {path: [value] for path, value in pairs}
        else:
            content["variants"] = {"x": dict(pairs)}
        if section == "inherited":
            (tmp_path / "parent.yaml").write_text(json.dumps(content))
            changed_again = spelt(rng, f"model.{slot}", again) | {"training.accumulate": 3}
            content = {"extends": "parent.yaml", "variants": {"x": changed_again}}
        row = load(tmp_path, json.dumps(content)).rows[1]
        built = row.spec.model.stack("encoder"), row.spec.model.stack("decoder")
        new_own_name = new_own.name or new_name
        inherited = new_shared.options if new_own_name == new_name else {}
        expected = [
            choose(SLOTS[slot], new_name, **new_shared.options),
            choose(SLOTS[slot], new_own_name, **(inherited | new_own.options)),
        ]
        assert [getattr(stack, slot) for stack in built] == expected, content
        assert row.spec.training.batch_tokens == 999
        left_alone = next(other for other in SLOTS if other != slot)
        assert getattr(built[1], left_alone) == choose(SLOTS[left_alone], DEFAULTS[left_alone])


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
