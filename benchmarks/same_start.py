"""Plugin: the weights that a run starts from do not depend on its seed, only the order of its text.

Runs of such a model differ by what follows the start: the difference of their error from that of
other runs is what the start contributes.
"""

from __future__ import annotations

import torch

from ablate.parts.embedding import TokenEmbedding
from ablate.parts.initialisation import Model
from ablate.parts.initialisation.by_matrix import Xavier
from ablate.registry import register

SEED = 901


@register("same_start", formula="as xavier, drawn with one seed for all runs", source="ablate")
class SameStart(Xavier):
    """Xavier's weights and embeddings N(0, 1 / d_model), the same for every seed."""

    def initialise(self, model: Model) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            for table in model.modules():
                if isinstance(table, TokenEmbedding):
                    table.draw("normal", self.dims.d_model**-0.5)
            super().initialise(model)
