"""The shipped experiments, and the models of presets at sizes that a test can afford."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate import config
from ablate.config import Experiment, ModelSpec, RunSpec
from ablate.model import Transformer, assemble
from ablate.parts.embedding import Vocabulary

ROOT = Path(__file__).parents[1] / "experiments"
JOINT = Vocabulary(n_src=2_000, n_tgt=2_000, is_joint=True)
PAD = 0


@functools.cache
def load(name: str) -> Experiment:
    """Return an experiment by its path in the folder, without its ending."""
    return config.load(ROOT / f"{name}.yaml")


def preset(name: str) -> RunSpec:
    return load(f"presets/{name}").rows[0].spec


def built(name: str, vocabulary: Vocabulary = JOINT, **changes: Any) -> Transformer:
    """Assemble a preset, in evaluation mode; the same weights at every call."""
    torch.manual_seed(0)
    model = ModelSpec.model_validate(preset(name).model.model_dump() | changes)
    return assemble(model, vocabulary, PAD).eval()


@functools.cache
def shallow(name: str) -> Transformer:
    """Assemble a preset with one layer in each stack, for what does not depend on depth."""
    return built(name, n_layers=1)


def table_of(name: str) -> Tensor:
    """Return what a preset adds to its embeddings at each position, (max_len, D)."""
    model = shallow(name)
    width, length = model.embedding.tgt_table.weight.size(1), model.max_len
    return model.encoder.position.embed(torch.zeros(1, length, width), torch.arange(length))[0]
