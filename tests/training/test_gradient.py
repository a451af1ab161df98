"""The gradient of a batch does not depend on the chunks of its logits."""

from __future__ import annotations

import pytest
import torch

from ablate.parts import embedding as embedding_module
from ablate.parts.objective import Objective
from ablate.training import gradient
from ablate.training.gradient import StepInputs, forward_backward
from tests.tiny import OBJECTIVES, loss_of_sentences, some_batch, tiny
from tests.training.reversal import make_step_config


@pytest.mark.parametrize("feed_forward", ["relu", "mixture_of_experts"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_in_chunks_is_that_of_all_logits_at_once(
    name: str, feed_forward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For every objective, with padding, with a loss of the model's own, for chunks of any size."""
    batch = some_batch()
    step_config = make_step_config(name)
    whole = tiny(feed_forward=feed_forward).double().train()
    own: list[torch.Tensor] = []
    n = step_config.objective.n_passes
    logits = whole(batch.src.repeat(n, 1), batch.tgt_in.repeat(n, 1), own)
    assert bool(own) == (feed_forward == "mixture_of_experts")
    loss = loss_of_sentences(step_config.objective, logits, batch.tgt_out.repeat(n, 1))
    added = sum(own, start=torch.zeros(())) * batch.n_tokens
    ((loss + added) / 7).backward()
    for n_fewest in (1, 5, 1000):
        monkeypatch.setattr(embedding_module, "_MIN_ROWS", n_fewest)
        monkeypatch.setattr(embedding_module, "_LOGITS_BYTES", {"cpu": 0})
        chunked = tiny(feed_forward=feed_forward).double().train()
        actual = forward_backward(chunked, step_config, StepInputs.of(batch, 7))
        torch.testing.assert_close(actual, torch.stack((loss, added.to(loss.dtype))).detach())
        for a, b in zip(chunked.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, atol=1e-13, rtol=1e-10)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("name", "n_passes"), [("cross_entropy", 1), ("r_drop", 2)])
def test_as_many_logits_are_made_at_a_time_as_fit(
    name: str, n_passes: int, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In all passes together; in bf16 on a CPU, which needs them in both precisions, half."""
    model, step_config = tiny(), make_step_config(name, precision=precision)
    monkeypatch.setattr(model.embedding, "rows_at_once", lambda _: 12, raising=False)
    on_cpu, on_gpu = (
        gradient._n_rows(model, step_config, torch.device(device)) for device in ("cpu", "cuda")
    )
    assert on_cpu == (6 if precision == "bf16" else 12) // n_passes
    assert on_gpu == 12 // n_passes
    monkeypatch.setattr(model.embedding, "rows_at_once", lambda _: 1)
    assert gradient._n_rows(model, step_config, torch.device("cpu")) == 1, "one at least"


def test_in_bf16_both_stacks_and_the_logits_are_in_it_and_the_loss_is_not() -> None:
    batch, step_config = some_batch(), make_step_config("cross_entropy", precision="bf16")
    losses: list[torch.Tensor] = []
    for in_stacks, in_output in ((True, True), (True, False), (False, True), (False, False)):
        model = tiny()
        with torch.autocast("cpu", torch.bfloat16, enabled=in_stacks):
            hidden = model.hidden(batch.tgt_in, model.encode(batch.src))
        with torch.autocast("cpu", torch.bfloat16, enabled=in_output):
            logits = model.embedding.logits(hidden)
        losses.append(loss_of_sentences(step_config.objective, logits.float(), batch.tgt_out))
    actual = forward_backward(tiny(), step_config, StepInputs.of(batch, 7))[0]
    differences = [abs(float(actual - loss.detach())) for loss in losses]
    assert differences[0] < min(differences[1:]) / 5


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_loss_of_few_rows_at_a_time_is_that_of_all(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bf16; the gradient of the output layer is rounded once each time."""
    batch = some_batch()
    step_config = make_step_config(name, precision="bf16")
    whole, cut = tiny(), tiny()
    expected = forward_backward(whole, step_config, StepInputs.of(batch, 7))
    counted: list[int] = []
    loss = type(step_config.objective).loss_in_context

    def count(objective: Objective, *rows: torch.Tensor) -> torch.Tensor:
        counted.append(len(rows[1]))
        return loss(objective, *rows)

    monkeypatch.setattr(type(step_config.objective), "loss_in_context", count)
    n = step_config.objective.n_passes
    monkeypatch.setattr(type(cut.embedding), "rows_at_once", lambda *_: 6 * n)
    actual = forward_backward(cut, step_config, StepInputs.of(batch, 7))
    assert set(counted[:-1]) == {3 * n}
    assert sum(counted) == n * batch.n_tokens
    torch.testing.assert_close(actual, expected)
    for a, b in zip(cut.parameters(), whole.parameters(), strict=True):
        assert b.grad is not None
        torch.testing.assert_close(a.grad, b.grad, atol=0.01 * float(b.grad.abs().max()), rtol=0)
