"""What positions make of distance, and the figures of attention."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from ablate import api
from ablate.api.translate import LoadedRun
from ablate.config import RunSpec
from ablate.errors import DataError
from ablate.measuring import attention
from ablate.measuring.attention import AttentionMap, Similarity, similarities
from ablate.model import assemble
from ablate.parts.position.relative import MASKED_SCORE
from ablate.registry import slots
from tests.tiny import PAD, VOCABULARY, scrambled, spec, tiny

N = 16  # positions of the tiny model
D_K = 8


def actual(name: str, **options: object) -> dict[tuple[str, str], list[Similarity]]:
    """Return the similarities of the tiny model with an encoding, by side and kind."""
    changes = {"position": {"name": name, **options}, "n_layers": 3}
    by_kind: dict[tuple[str, str], list[Similarity]] = {}
    for each in similarities(tiny(**changes), spec(**changes).dims):
        by_kind.setdefault((each.side, each.kind), []).append(each)
    return by_kind


def test_a_rotation_is_a_mean_of_cosines() -> None:
    both = actual("rotary")
    assert list(both) == [("encoder", "rotation"), ("decoder", "rotation")]
    (line,) = both["encoder", "rotation"]  # the same in all layers and heads
    speeds = [10_000 ** (-2 * k / D_K) for k in range(D_K // 2)]
    for distance in (-5, 0, 1, 15):
        expected = np.mean([math.cos(distance * speed) for speed in speeds])
        assert line.values[distance] == pytest.approx(expected, abs=1e-6)
    assert sorted(line.values) == list(range(1 - N, N))


def test_sinusoids_have_the_cosine_of_their_vectors() -> None:
    (line,) = actual("sinusoidal")["decoder", "embedding"]
    speeds = [10_000 ** (-2 * k / 32) for k in range(16)]
    expected = np.mean([math.cos(3 * speed) for speed in speeds])
    assert line.values[3] == pytest.approx(expected, abs=1e-6)
    assert line.values[0] == pytest.approx(1.0)
    (longer,) = actual("yarn", factor=4.0)["encoder", "rotation"]  # its vectors are longer than 1
    assert longer.values[0] == pytest.approx(1.0)


def test_a_bias_is_that_of_each_head() -> None:
    lines = actual("alibi")["encoder", "bias"]
    assert [line.head for line in lines] == [0, 1, 2, 3]
    for line in lines:
        slope = 2 ** (-8 * ((line.head or 0) + 1) / 4)
        assert line.values[4] == pytest.approx(-4 * slope)


def test_keys_that_a_head_does_not_see_are_left_out() -> None:
    lines = actual("alibi", encoder="asymmetric")["encoder", "bias"]
    distances = [sorted(line.values) for line in lines]
    after, before = list(range(1 - N, 1)), list(range(N))
    assert sorted(distances) == [after, after, before, before]
    assert min(min(line.values.values()) for line in lines) >= 1 - N


def test_a_model_of_one_layer_has_its_similarities() -> None:
    both = similarities(tiny(position="alibi", n_layers=1), spec(position="alibi").dims)
    assert len(both) == len(
        [*actual("alibi")["encoder", "bias"], *actual("alibi")["decoder", "bias"]]
    )


def test_layers_that_differ_stand_apart() -> None:
    lines = actual("rotary_nope")["encoder", "rotation"]
    assert [line.layer for line in lines] == [0, 2]


def test_a_bias_that_differs_by_layer_is_that_of_each_layer() -> None:
    model = tiny(position="kerple", n_layers=2)
    lines = similarities(model, spec().dims)
    assert len({(line.side, line.layer, line.head) for line in lines}) == len(lines) == 16
    for line in lines:
        position = getattr(model, line.side).position
        a, b = (of[line.layer, line.head].item() for of in (position.factors, position.slopes))
        expected = -max(a, 0.01) * math.log1p(max(b, 0.01) * 5)
        assert line.values[-5] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", sorted(slots()["position"]))
def test_every_encoding_but_those_that_depend_on_content_has_a_similarity(name: str) -> None:
    changes = {"position": name}
    lines = similarities(scrambled(tiny(**changes)), spec(**changes).dims)
    assert bool(lines) == (name not in {"none", "shaw"})
    assert all(math.isfinite(value) for line in lines for value in line.values.values())


@pytest.mark.figures
def test_every_similarity_is_a_number_of_the_figure() -> None:
    from ablate.report.figures import draw_similarities

    lines = similarities(tiny(position="alibi"), spec(position="alibi").dims)
    drawing = draw_similarities(lines)
    assert len(drawing.numbers) == sum(len(line.values) for line in lines)


@pytest.mark.figures
def test_every_head_is_a_panel_and_every_weight_a_number(tmp_path: Path) -> None:
    from ablate.report.figures import draw_attention

    weights = np.random.default_rng(0).dirichlet(np.ones(4), size=(5, 3)).astype(np.float32)
    drawing = draw_attention(AttentionMap("cross.1", weights, ["a", "b", "c"], list("wxyz")))
    titles = [axes.get_title(loc="left") for axes in drawing.figure.axes]
    assert [title for title in titles if title] == [f"head {n}" for n in range(5)]
    figure = drawing.figure
    assert (figure.get_supylabel(), figure.get_supxlabel()) == ("query", "key")
    has_keys = [bool(axes.get_xticklabels()) for axes in figure.axes[:5]]
    assert has_keys == [False, True, True, True, True], "the lowest panel of each column has them"
    files = drawing.save(tmp_path)
    names = [f"attention.cross.1.{kind}" for kind in ("svg", "png", "csv")]
    assert [file.name for file in files] == names
    with files[2].open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == weights.size
    assert float(rows[-1]["weight"]) == weights[-1, -1, -1]
    assert (rows[-1]["query_token"], rows[-1]["key_token"]) == ("c", "z")


@pytest.mark.figures
def test_negative_weights_are_red_and_positive_ones_blue() -> None:
    from ablate.report.figures import draw_attention

    weights = np.array([[[1.0, -0.5], [0.5, 0.5]]], dtype=np.float32)
    drawing = draw_attention(AttentionMap("encoder.0", weights, ["a", "b"], ["a", "b"]))
    image = drawing.figure.axes[0].images[0]
    assert image.get_clim() == (-1.0, 1.0)
    positive, negative = image.to_rgba(np.array([1.0, -0.5], dtype=np.float32))
    assert positive[2] > positive[0]
    assert negative[0] > negative[2]


def test_a_distance_is_from_the_query_back_to_the_key() -> None:
    """Row q and column k of scores that tell q - k; what is hidden is left out of the means."""
    n = 5
    scores = torch.arange(n)[:, None] - torch.arange(n)[None, :] + 0.0
    assert attention._by_distance(scores) == {d: float(d) for d in range(1 - n, n)}
    scores[0, 2], scores[1, 3], scores[0, 4] = 7.0, -math.inf, MASKED_SCORE
    assert attention._by_distance(scores)[-2] == pytest.approx((7.0 - 2.0) / 2)
    assert -4 not in attention._by_distance(scores)


def test_away_from_its_text_a_run_is_inspected_for_a_sentence_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a record has the paths of its experiment, relative to its file
    run = object.__new__(LoadedRun)
    pair = ["a.en", "a.de"]
    corpus = {"name": "files", "src": "en", "tgt": "de", "train": pair, "dev": pair}
    run.spec = RunSpec.model_validate({"corpus": {**corpus, "tests": {"news": pair}}})
    with pytest.raises(DataError, match=r"a\.en: there is no such file in .*; give --sentence"):
        api.inspect(run)


def test_an_encoding_without_a_similarity_is_named_beside_one_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = object.__new__(LoadedRun)
    model = {"dims": {"d_model": 32, "n_heads": 4, "max_len": N}, "n_layers": 1}
    model |= {"position": "rotary", "decoder": {"position": "shaw"}}
    run.spec = RunSpec.model_validate({"corpus": "synthetic", "model": model})
    run.model = assemble(run.spec.model, VOCABULARY, PAD).eval()
    monkeypatch.setattr(run, "attention", lambda *_: [])
    monkeypatch.setattr(run, "attention_parts", dict)
    inspection = api.inspect(run, "ab", "ab")
    assert {each.side for each in inspection.positions} == {"encoder"}
    (remark,) = inspection.remarks
    assert remark == "the position encoding 'shaw' has no similarity by distance of its own"
