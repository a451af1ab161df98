"""Every number of results/reference/goldens.yaml, computed anew."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from ablate.decoding.beam import Beam
from ablate.model import assemble
from ablate.parts.dims import Dims, StackInfo
from ablate.parts.embedding import Vocabulary
from ablate.parts.objective import Objective
from ablate.parts.position import Position
from ablate.parts.schedule import Schedule
from ablate.registry import build, choose
from tests.presets import PAD, preset

PATH = Path(__file__).parents[1] / "results" / "reference" / "goldens.yaml"
GOLDENS: dict[str, list[dict[str, Any]]] = yaml.safe_load(PATH.read_text(encoding="utf-8"))
STAGE = StackInfo(side="encoder", n_encoder_layers=1, n_decoder_layers=1)
EXACT: dict[str, Any] = {"rel": 1e-8, "abs": 1e-9}


def golden(section: str) -> pytest.MarkDecorator:
    """Visit every number of a section."""
    return pytest.mark.parametrize("entry", GOLDENS[section])


def dims(**sizes: int) -> Dims:
    return Dims.model_validate({"d_model": 8, "n_heads": 1, "max_len": 16} | sizes)


def chosen(entry: str | Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    options = {"name": entry} if isinstance(entry, str) else dict(entry)
    return str(options.pop("name")), options


@golden("parameters")
def test_parameters(entry: dict[str, Any]) -> None:
    n_src, n_tgt, kind = entry["vocabulary"]
    vocabulary = Vocabulary(n_src, n_tgt, is_joint=kind == "joint")
    with torch.device("meta"):
        model = assemble(preset(entry["preset"]).model, vocabulary, PAD)
    assert sum(p.numel() for p in model.parameters()) == entry["ours"]
    assert entry["published"]
    assert entry["source"]


@golden("schedules")
def test_schedules(entry: dict[str, Any]) -> None:
    name, options = chosen(entry["schedule"])
    sizes = dims(d_model=entry["d_model"])
    schedule = build(Schedule, choose(Schedule, name, **options), sizes, 1_000_000)
    assert schedule.rate(entry["step"]) == pytest.approx(entry["ours"], rel=1e-8)


@golden("sinusoids")
def test_sinusoids(entry: dict[str, Any]) -> None:
    sizes = dims(d_model=entry["d_model"])
    torch.set_default_dtype(torch.float64)
    try:
        part = build(Position, choose(Position, "sinusoidal", **entry["options"]), sizes, STAGE)
    finally:
        torch.set_default_dtype(torch.float32)
    zeros = torch.zeros(1, 1, entry["d_model"], dtype=torch.float64)
    code = part.embed(zeros, torch.tensor([entry["position"]]))[0, 0, : len(entry["ours"])]
    assert code.tolist() == pytest.approx(entry["ours"], **EXACT)


@golden("losses")
def test_losses(entry: dict[str, Any]) -> None:
    name, options = chosen(entry["objective"])
    objective = build(Objective, choose(Objective, name, **options), PAD)
    logits = torch.tensor([[0.05, 0.2, 0.6, 0.1, 0.05]], dtype=torch.float64).log()
    assert objective.loss(logits, torch.tensor([2])).item() == pytest.approx(entry["ours"], **EXACT)


@golden("slopes")
def test_slopes(entry: dict[str, Any]) -> None:
    n_heads = entry["n_heads"]
    sizes = dims(n_heads=n_heads, d_model=8 * n_heads)
    part = build(Position, choose(Position, "alibi"), sizes, STAGE)
    q = torch.zeros(1, n_heads, 1, 8)
    bias = part.bias(q, torch.tensor([1]), torch.tensor([0]), 0)
    assert bias is not None
    assert (-bias).flatten().tolist() == pytest.approx(entry["ours"], **EXACT)


@golden("length_penalties")
def test_length_penalties(entry: dict[str, Any]) -> None:
    beam = Beam(length_penalty=entry["alpha"])
    penalty = beam.penalty(torch.tensor([entry["length"]]))
    assert penalty.item() == pytest.approx(entry["ours"], rel=1e-7)
