"""Rows: their values, their changes, and their names."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ablate import config
from ablate.config.rows import compact, labels
from ablate.parts.feed_forward import FeedForward
from ablate.parts.norm import Norm
from ablate.registry import Choice, choose
from tests.config.loading import Folder, load, names

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


def test_changes_have_the_values_of_the_file(folder: Folder) -> None:
    experiment = folder.load(
        "variants:\n"
        "  a: {model.position: {name: learned}}\n"
        "  b: {model: {position: {base: 5}, dims: {d_model: 64}}, training.clip: 1}\n"
        "  c: {model.norm: rms, model.residual: post}\n"
        "  d: {training.optimizer: {betas: [0.5, 0.6]}}\n"
    )
    assert [row.changes for row in experiment.rows] == [
        {},
        {"model.position": "learned"},
        {"model.position.base": 5, "model.dims.d_model": 64, "training.clip": 1},
        {"model.norm": "rms"},
        {"training.optimizer.betas": [0.5, 0.6]},
    ]


def test_a_grid_is_a_product_around_the_baseline(folder: Folder) -> None:
    text = "grid: {model.scaling: [sqrt_dk, none], model.dims.n_heads: [8, 2]}"
    experiment = folder.load(text)
    assert names(experiment) == [
        "baseline",
        "scaling=sqrt_dk n_heads=2",
        "scaling=none n_heads=8",
        "scaling=none n_heads=2",
    ]
    assert experiment.rows[2].changes == {"model.scaling": "none"}


def test_a_grid_gives_no_value_twice(folder: Folder) -> None:
    text = "grid: {model.feed_forward: [{name: gelu, d_ff: 64}], model.feed_forward.d_ff: [32]}"
    assert folder.reasons(text) == ["is given twice; first in line 1"]


def test_a_value_and_a_path_below_it_are_given_twice(folder: Folder) -> None:
    text = "variants: {a: {model.dims: 3, model.dims.d_model: 8}}"
    assert "is given twice; first in line 1" in folder.reasons(text)


def test_leave_one_out_has_options_before_the_part(folder: Folder) -> None:
    text = "leave_one_out: {d: {model.feed_forward.d_ff: 64}, p: {model.feed_forward: gelu}}"
    whole = folder.load(text).rows[1].spec.model.feed_forward
    assert (whole.name, whole.options["d_ff"]) == ("gelu", 64)


def test_leave_one_out_gives_no_two_values_to_one_path(folder: Folder) -> None:
    text = (
        "leave_one_out: {a: {model.norm: rms, model.scaling: none}, b: {%s, model.residual: pre}}"
    )
    assert folder.reasons(text % "model.norm: scale") == ["is given twice; first in line 1"]
    with pytest.raises(config.MistakesError, match=r":1:70: leave_one_out.b.model.norm: is given"):
        folder.load(text % "model.norm: scale")
    assert [row.spec.model.norm.name for row in folder.load(text % "model.norm: rms").rows] == [
        "layer",
        *["rms"] * 3,
    ]


def test_of_values_that_say_the_same_one_is_shown(folder: Folder) -> None:
    change = "{model.norm: rms, model.encoder.norm: rms, model.decoder.norm: rms}"
    assert folder.load(f"variants: {{a: {change}}}").rows[1].changes == {"model.norm": "rms"}


def test_no_option_of_a_stack_is_that_of_the_part_which_both_share(folder: Folder) -> None:
    text = "model: {feed_forward: {name: relu, d_ff: 64}, norm: rms, decoder: {%s}}"
    stack = "feed_forward: gelu, norm: scale"
    spec = folder.baseline(text % stack).model_dump(mode="json")
    assert config.value_at(spec, "model.decoder.feed_forward.d_ff") is None
    assert config.value_at(spec, "model.decoder.norm.eps") is None
    assert config.value_at(spec, "model.encoder.feed_forward.d_ff") == 64
    assert config.value_at(spec, "model.decoder.scaling.name") == "sqrt_dk"


def test_grid_names_tell_their_axes_apart(folder: Folder) -> None:
    text = "grid: {model.encoder.norm: [rms, {name: rms, eps: 1e-3}], model.decoder.norm: [none]}"
    assert names(folder.load(text))[1:] == [
        "encoder.norm=rms decoder.norm=none",
        "encoder.norm=rms(eps=0.001) decoder.norm=none",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "leave_one_out: {n: {model.norm: rms}, r: {model.residual: pre}, s: {model.scaling: none}}",
        "leave_one_out: [{model.norm: rms}, {model.residual: pre}, {model.scaling: none}]",
    ],
)
def test_leave_one_out_reverts_each_change(folder: Folder, text: str) -> None:
    rows = folder.load(text).rows
    actual = [(r.spec.model.norm.name, r.spec.model.residual.name) for r in rows]
    assert [row.name.split(" -")[0] for row in rows] == ["baseline", *["all"] * 4]
    assert actual == [
        ("layer", "post"),
        ("rms", "pre"),
        ("layer", "pre"),
        ("rms", "post"),
        ("rms", "pre"),
    ]
    assert rows[2].changes == {"model.residual": "pre", "model.scaling": "none"}


def test_changes_that_are_left_out_have_the_paths_that_tell_them_apart(folder: Folder) -> None:
    both = "{model.encoder.position: none}, {model.decoder.position: none}"
    rows = folder.load(f"leave_one_out: [{both}, {{model.norm: rms}}]").rows
    assert [row.name for row in rows[2:]] == [
        "all - model.encoder.position=none",
        "all - model.decoder.position=none",
        "all - model.norm=rms",
    ]
    encoder, decoder = rows[1].spec.model.stack("encoder"), rows[1].spec.model.stack("decoder")
    assert (encoder.position.name, decoder.position.name) == ("none", "none")
    rows = folder.load("leave_one_out: [{model.norm: rms}, {model.scaling: none}]").rows
    assert [row.name for row in rows[2:]] == ["all - norm=rms", "all - scaling=none"]
    rows = folder.load(
        "leave_one_out: [{model.n_layers: {encoder: 1, decoder: 3}}, {model.norm: rms}]"
    ).rows
    assert rows[2].name == "all - encoder=1 decoder=3"
    twice = "leave_one_out: [{model.norm: rms}, {model.norm: rms}, {model.residual: pre}]"
    assert "equals the row 'all' of line 1; remove one" in folder.reasons(twice)[0]


def test_a_row_that_equals_any_row_above_is_refused(folder: Folder) -> None:
    many = "".join(f"  v{n}: {{training.optimizer.betas: [0.5, 0.{n}]}}\n" for n in range(10, 60))
    text = f"variants:\n{many}  w: {{training.optimizer: {{betas: [5e-1, 0.120]}}}}\n"
    assert folder.reasons(text) == ["the row 'w' equals the row 'v12' of line 4; remove one"]


def test_equal_choices_have_equal_hashes() -> None:
    def choice(**options: object) -> Choice:
        return Choice(name="a", options=options)

    a, b = choice(x=1, y={"a": (2,), "b": [3]}), choice(y={"b": [3.0], "a": (2,)}, x=1.0)
    assert (a, hash(a)) == (b, hash(b))
    assert len({hash(choice(x={"a": [n]})) for n in range(100)}) == 100
