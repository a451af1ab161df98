"""The cost of a part: parameters and FLOPs that it adds, counted on built models of base size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ablate import measuring
from ablate.config import ModelSpec
from ablate.config.experiment import slot_of
from ablate.contracts.tiny import companions
from ablate.data.batches import Batch
from ablate.data.tokenizer import PAD
from ablate.measuring.counts import FlopCounter
from ablate.model import assemble
from ablate.parts.embedding import Vocabulary
from ablate.registry import Entry, RefusedError

FILE = Path(__file__).with_suffix(".json")

BASE: Mapping[str, Any] = {
    "dims": {"d_model": 512, "n_heads": 8, "max_len": 256},
    "n_layers": 6,
    "feed_forward": {"name": "relu", "d_ff": 2048},
}
"""The size of the base model of Vaswani et al. 2017, table 3; parts have their defaults."""

VOCABULARY = Vocabulary(n_src=37_000, n_tgt=37_000, is_joint=True)
N_PAIRS, N_TOKENS = 64, 32
"""The batch that FLOPs are counted on: pairs, and tokens on either side of a pair."""

STATED = (
    "a model of the base size of Vaswani et al. 2017 (d_model 512, 8 heads, d_ff 2048, 6 + 6 "
    f"layers, joint vocabulary of {VOCABULARY.n_tgt:,}) with the default of every other option"
)


@dataclass(frozen=True)
class Cost:
    """The cost of a model of the base size with a part, and what it adds to the default part's.

    ``companion``, path to name, are other choices that the part needs, which the compared model
    with the default part also has if it can. FLOPs are those of a training step.
    """

    params: int
    params_added: int
    flops_per_target_token: float
    flops_per_target_token_added: float
    companion: dict[str, str]


_Counts = tuple[int, float]


def count(flops: FlopCounter, spec: ModelSpec, vocabulary: Vocabulary) -> tuple[int, float]:
    """Return the parameters of a model, built without weights, and its FLOPs per token and pass."""
    with torch.device("meta"):
        model = assemble(spec, vocabulary, PAD)
        ids = torch.ones(N_PAIRS, min(N_TOKENS, model.max_len), dtype=torch.long)
    batch = Batch(ids, ids, ids, n_tokens=ids.numel(), index=ids[:, 0])
    return measuring.count_parameters(model)["total"], flops.count(model, batch)


class Costs:
    """Counts parts, each model once; the counts of this package's own parts come with it."""

    def __init__(self, counts: Mapping[str, _Counts | None] | None = None) -> None:
        self._flops = FlopCounter()
        self.counts = dict(shipped() if counts is None else counts)

    def of(self, entry: Entry, choice: Any) -> Cost | None:
        """Return the cost of a part; None if it is no part of a model, or no model accepts it.

        The choice is as in the YAML, with all required options.
        """
        if entry.slot not in ModelSpec.model_fields:
            return None
        for companion in companions(entry):
            counts = self._count({**companion, entry.slot: choice}, entry)
            if counts is None:
                continue
            params, flops = self._count(companion, entry) or self._count({}, entry) or counts
            paths = {f"model.{other}": name for other, name in companion.items()}
            return Cost(counts[0], counts[0] - params, counts[1], counts[1] - flops, paths)
        return None

    def _count(self, choices: Mapping[str, Any], entry: Entry) -> _Counts | None:
        """Return the counts of the base model with choices by slot; None if they are refused."""
        changes = {slot: choice for slot, choice in choices.items() if choice != _default(slot)}
        key = json.dumps(changes, sort_keys=True)
        if key not in self.counts:
            try:
                spec = ModelSpec.model_validate({**BASE, **changes})
                self.counts[key] = count(self._flops, spec, VOCABULARY)
            except (Exception, SystemExit) as error:
                if entry.origin is None and not isinstance(error, RefusedError):
                    raise
                self.counts[key] = None  # a plugin's part is listed even if it fails
        return self.counts[key]


def shipped() -> dict[str, _Counts | None]:
    """Return the counts that come with this package: ``python -m tests.costs`` writes them."""
    known = json.loads(FILE.read_text(encoding="utf-8"))
    return {key: counts and (counts[0], counts[1]) for key, counts in known.items()}


def _default(slot: str) -> str:
    field = slot_of(ModelSpec.model_fields[slot])
    assert field is not None, "it is the choice of a part"
    return field.default
