"""The expected cost of translations that are sampled from the model.

B sentences, C candidates of each: the reference first, then samples. N target tokens, V vocabulary
size.
"""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from ablate.parts.dims import at_least_float32
from ablate.parts.objective.contract import Objective
from ablate.registry import register

Share = Annotated[float, Field(ge=0.0, le=1.0)]

_FORWARD_SHARE = 1 / 3  # of the work of a forward and backward pass


@register(
    "minimum_risk",
    formula="likelihood L + (1 - likelihood) sum_y Q(y) (1 - BLEU(y)), Q(y) = P(y)^alpha / sum_y' "
    "P(y')^alpha, y: the reference and n_samples drawn translations",
    source="Shen et al. 2016, arXiv:1512.02433, sec. 3",
)
class MinimumRisk(Objective):
    """Lower the expected cost of a sentence's candidates, which every step draws again.

    The cost is 1 - BLEU of the sentence (`ablate.training.candidates.sentence_bleu`), computed from
    ids: those of words, as in the paper, or of subwords if the tokenizer has these. Candidates that
    are equal count once. There is one risk per sentence: the reported loss is not in nats, and
    ``training.loss_per: sentence`` makes it a mean of risks. The paper starts from a model that was
    trained on likelihood; a run that starts from random weights needs a ``likelihood`` above 0.

    A step draws with the model in evaluation mode. Then all candidates go through the model,
    1 + n_samples times as many rows as a batch has. It waits for the device, and computes costs on
    the host. Its work is counted as if samples were as long as the references.

    Args:
        n_samples: translations that are drawn for each source; 100 in the paper.
        alpha: sharpness of Q.
        likelihood: weight of the reference's cross-entropy L, in nats per sentence; the risk has 1
            minus that (Edunov et al. 2018, arXiv:1711.04956, "weighted"); 0 in the paper.
        max_extra: by how many tokens a sample may be longer than its source.
    """

    batch_dependence = "draws translations for a whole batch at once"
    capture_blocker = "draws translations, and scores them on the host"

    def __init__(
        self,
        pad: int,
        *,
        n_samples: PositiveInt = 8,
        alpha: PositiveFloat = 5e-3,
        likelihood: Share = 0.0,
        max_extra: NonNegativeInt = 10,
    ) -> None:
        super().__init__(pad)
        self.n_samples = n_samples
        self.alpha = alpha
        self.likelihood = likelihood
        self.max_extra = max_extra
        self.extra_passes = n_samples * (1 + _FORWARD_SHARE)

    def context(self, targets: Tensor) -> Tensor:
        """Return a weight of 1 for each target, (B, T, 1), with which the loss is cross-entropy."""
        return torch.ones_like(targets, dtype=torch.get_default_dtype())[..., None]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy, (); a step weights it by candidate."""
        return self.loss_in_context(logits, targets, self.context(targets))

    def loss_in_context(self, logits: Tensor, targets: Tensor, context: Tensor) -> Tensor:
        nll = F.cross_entropy(
            at_least_float32(logits), targets, reduction="none", ignore_index=self.pad
        )
        return (nll * context[:, 0]).sum()

    def weigh(self, log_p: Tensor, costs: Tensor, is_distinct: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of all sentences, and the weights of the candidates' cross-entropies.

        Args:
            log_p: log-probabilities of the candidates, (B, C).
            costs: of the candidates, (B, C).
            is_distinct: whether a candidate differs from all before it, (B, C).

        Returns:
            The loss, (), and its derivatives by ``-log_p``, (B, C).
        """
        q = (self.alpha * log_p).masked_fill(~is_distinct, -torch.inf).softmax(dim=-1)
        risk = (q * costs).sum(dim=-1, keepdim=True)  # (B, 1)
        weights = (1 - self.likelihood) * self.alpha * q * (risk - costs)
        weights[:, 0] += self.likelihood
        loss = (1 - self.likelihood) * risk.sum() - self.likelihood * log_p[:, 0].sum()
        return loss, weights
