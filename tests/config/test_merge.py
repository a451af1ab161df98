"""Values over values: what a stack adds to both, and a later layer to an earlier one."""

from __future__ import annotations

from typing import Any

import pytest

from ablate.registry import Choice, lookup
from tests.config.loading import Folder

# encoder and decoder


def test_a_stack_adds_to_what_both_share(folder: Folder) -> None:
    model = folder.baseline(
        "model:\n"
        "  position: {name: sinusoidal, base: 50, exponent: t2t}\n"
        "  decoder: {position: {layout: halves, exponent: paper}, dropout: {residual: 0.3}}\n"
        "  dropout: {embedding: 0.2}\n"
    ).model
    encoder, decoder = model.stack("encoder"), model.stack("decoder")
    shared = {"base": 50.0, "first": 0}
    assert encoder.position.options == {"exponent": "t2t", "layout": "interleaved", **shared}
    assert decoder.position.options == {"exponent": "paper", "layout": "halves", **shared}
    assert (encoder.dropout.residual, decoder.dropout.residual) == (0.1, 0.3)
    assert decoder.dropout.embedding == 0.2
    assert encoder.cross_attention is None


def test_cross_attention_follows_the_decoder(folder: Folder) -> None:
    text = "model: {decoder: {attention: {bias: false}%s}}"
    shared = folder.baseline(text % "").model.stack("decoder")
    assert shared.cross_attention == shared.attention
    own = folder.baseline(text % ", cross_attention: per_head_shared").model.stack("decoder")
    assert own.cross_attention == Choice(name="per_head_shared", options={"bias": True})


@pytest.mark.parametrize(
    "spelling",
    [
        "{norm: rms}",
        "{norm: layer, encoder: {norm: rms}, decoder: {norm: rms}}",
        "{norm: rms, decoder: {norm: {name: rms}, position: sinusoidal, dropout: {}}}",
        "{norm: rms, n_layers: {encoder: 6, decoder: 6}, encoder: {}}",
        "{norm: {name: rms, eps: 0.000001}, dims: {d_k: 64}, decoder: {cross_attention: full}}",
    ],
)
def test_every_spelling_is_one_run(folder: Folder, spelling: str) -> None:
    assert folder.baseline(f"model: {spelling}") == folder.baseline("model: {norm: rms}")


# layers


def test_a_later_length_of_training_replaces_an_earlier_one(folder: Folder) -> None:
    folder.write("parent.yaml", "training: {steps: 5, average: {last: 3}, clip: 1}")
    run = folder.baseline("extends: parent.yaml\ntraining: {epochs: 2, average: {best: 1}}")
    assert (run.training.steps, run.training.epochs, run.training.clip) == (None, 2, 1.0)
    assert (run.training.average.last, run.training.average.best) == (None, 1)


def test_one_stack_may_get_a_depth_of_its_own(folder: Folder) -> None:
    text = (
        "model: {n_layers: 4}\nvariants: {a: {model.n_layers.encoder: 3}, b: {model.n_layers: 2}}"
    )
    _, a, b = folder.load(text).rows
    assert [a.spec.model.stack(side).n_layers for side in ("encoder", "decoder")] == [3, 4]
    assert b.spec.model.n_layers == 2
    assert (a.changes, b.changes) == ({"model.n_layers.encoder": 3}, {"model.n_layers": 2})


def test_lists_replace(folder: Folder) -> None:
    folder.write("parent.yaml", "seeds: [1, 2, 3]\ntraining: {optimizer: {betas: [0.9, 0.95]}}")
    text = "extends: parent.yaml\nseeds: [7]\ntraining: {optimizer: {betas: [0.5, 0.6]}}"
    experiment = folder.load(text)
    assert experiment.seeds == (7,)
    assert experiment.rows[0].spec.training.optimizer.options["betas"] == (0.5, 0.6)
    assert experiment.rows[0].spec.seed == 7


@pytest.mark.parametrize(
    ("parent", "key", "options"),
    [
        ("position: learned, decoder: {position: {init_std: 0.5}}", "position", {"init_std": 0.5}),
        (
            "decoder: {attention: per_head_shared, cross_attention: {bias: false}}",
            "cross_attention",
            {"bias": False},
        ),
    ],
)
def test_a_nameless_option_of_a_stack_merges_with_the_part_that_it_inherits(
    folder: Folder, parent: str, key: str, options: dict[str, Any]
) -> None:
    folder.write("a.yaml", f"model: {{{parent}}}")
    inherited_name = "learned" if key == "position" else "per_head_shared"
    for name in (inherited_name, "none" if key == "position" else "full"):
        text = f"extends: a.yaml\nmodel: {{decoder: {{{key}: {{name: {name}}}}}}}"
        choice = getattr(folder.baseline(text).model.stack("decoder"), key)
        default = lookup(key.removeprefix("cross_"), name).choose({})
        merged = Choice(name=name, options=default.options | options)
        assert choice == (merged if name == inherited_name else default)
