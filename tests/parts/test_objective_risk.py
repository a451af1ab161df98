"""The weights of candidates are the derivatives of the expected cost."""

from __future__ import annotations

import pytest
import torch

from ablate.parts.objective.risk import MinimumRisk

LOG_P = torch.tensor([[-3.0, -4.0, -2.5, -3.5], [-9.0, -2.0, -2.2, -6.0]], dtype=torch.float64)
COSTS = torch.tensor([[0.0, 0.9, 0.4, 0.9], [0.0, 0.3, 1.0, 0.7]], dtype=torch.float64)
IS_DISTINCT = torch.tensor([[True, True, True, False], [True] * 4])


@pytest.mark.parametrize("alpha", [5e-3, 0.7])
@pytest.mark.parametrize("likelihood", [0.0, 0.4])
def test_the_loss_is_the_papers_and_the_weights_its_derivatives(
    alpha: float, likelihood: float
) -> None:
    log_p = LOG_P.clone().requires_grad_()
    expected = torch.zeros((), dtype=torch.float64)
    for row, costs, is_distinct in zip(log_p, COSTS, IS_DISTINCT, strict=True):
        powers = row.exp()[is_distinct] ** alpha
        risk = (powers / powers.sum() * costs[is_distinct]).sum()
        expected = expected + (1 - likelihood) * risk - likelihood * row[0]
    expected.backward()
    objective = MinimumRisk(0, alpha=alpha, likelihood=likelihood)
    loss, weights = objective.weigh(LOG_P, COSTS, IS_DISTINCT)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    assert log_p.grad is not None
    torch.testing.assert_close(weights, -log_p.grad, rtol=1e-9, atol=1e-15)


def test_likelihood_alone_is_the_references_cross_entropy() -> None:
    loss, weights = MinimumRisk(0, likelihood=1.0).weigh(LOG_P, COSTS, IS_DISTINCT)
    assert loss == 12
    assert weights.tolist() == [[1, 0, 0, 0]] * 2


@pytest.mark.parametrize(("n_samples", "n_passes"), [(3, 4), (6, 8)])
def test_a_sample_is_drawn_and_goes_forward_and_backward(n_samples: int, n_passes: float) -> None:
    """To draw it is a pass forward, a third of both."""
    assert MinimumRisk(0, n_samples=n_samples).extra_passes == pytest.approx(n_passes)


def test_a_weight_scales_the_cross_entropy_of_its_token() -> None:
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    targets, weights = torch.tensor([4, 0, 2]), torch.tensor([[0.5], [3.0], [-2.0]])
    loss = MinimumRisk(0).loss_in_context(logits, targets, weights)
    log_p = logits.log_softmax(dim=-1)
    expected = -0.5 * log_p[0, 4] + 2.0 * log_p[2, 2]
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(
        *(torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (loss, expected))
    )
