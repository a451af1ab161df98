"""A metric to start from. Try it: ablate check my_metric.py."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PositiveInt

from ablate.parts.metric import Metric
from ablate.registry import register


# In the experiment: `metrics: [{name: my_metric, n: 3}]`. Translations are stored, so that a new
# metric needs no training. Higher is better.
@register("my_metric", formula="% of words among the first n that are right", source="you, 2026")
class MyMetric(Metric):
    """How many of the first words stand where the reference has them.

    Args:
        n: words of a sentence that count.
    """

    def __init__(self, *, n: PositiveInt = 2) -> None:
        super().__init__()
        self.n = n

    def score(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> float:
        n_right = n_words = 0
        for hypothesis, reference in zip(hypotheses, references, strict=True):
            words = reference.split()[: self.n]
            n_words += len(words)
            pairs = zip(hypothesis.split(), words, strict=False)
            n_right += sum(one == other for one, other in pairs)
        return 100 * n_right / max(n_words, 1)
