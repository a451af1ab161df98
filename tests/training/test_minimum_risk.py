"""Minimum risk: what is drawn, what it costs, and the gradient of the expected cost."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ablate.data.tokenizer import EOS, PAD
from ablate.decoding.sampling import Sampler
from ablate.model import Transformer
from ablate.parts.objective import Objective
from ablate.parts.objective.likelihood import CrossEntropy
from ablate.parts.objective.risk import MinimumRisk
from ablate.registry import build, choose, lookup
from ablate.training import candidates as candidates_module
from ablate.training import gradient
from ablate.training.candidates import Candidates, draw_candidates, sentence_bleu
from ablate.training.engines import make_engine
from ablate.training.gradient import StepInputs, forward_backward
from ablate.training.step import StepConfig, count_passes
from tests.tiny import scrambled, some_batch, tiny
from tests.training.reversal import run_spec

CPU = torch.device("cpu")
SENTENCES = [
    [[4, 5], *(list(ids) for n in range(3) for ids in itertools.product((4, 5), repeat=n))],
    [[5], *([i] for i in range(4, 8)), [5, 5, 6], [5], [6, 5]],
]
"""All sentences of up to two of two words, and a few others; not all are distinct."""


def model_of(dropout: float = 0.0) -> Transformer:
    rates = dict.fromkeys(("embedding", "residual"), dropout)
    return scrambled(tiny(n_layers=1, dropout=rates).double()).train()


def risk_of(model: Transformer, objective: MinimumRisk, src: Tensor) -> Tensor:
    """Return the loss of `SENTENCES` as the paper writes it, sentence by sentence."""
    total = torch.zeros((), dtype=torch.float64)
    for row, candidates in zip(src, SENTENCES, strict=True):
        scores: dict[tuple[int, ...], Tensor] = {}
        for ids in candidates:
            out = torch.tensor([*ids, EOS])
            log_p = model(row[None], torch.tensor([[1, *ids]])).log_softmax(-1)[0]
            scores[tuple(ids)] = log_p[torch.arange(len(out)), out].sum()
        powers = {ids: (objective.alpha * log_p).exp() for ids, log_p in scores.items()}
        total_power = torch.stack(list(powers.values())).sum()
        reference = tuple(candidates[0])
        risk = sum(
            power / total_power * (1 - sentence_bleu(ids, reference))
            for ids, power in powers.items()
        )
        total = total + (1 - objective.likelihood) * risk
        total = total - objective.likelihood * scores[reference]
    return total


@pytest.mark.parametrize("options", [{"alpha": 0.7}, {"alpha": 5e-3, "likelihood": 0.4}], ids=str)
def test_the_gradient_is_that_of_the_papers_formula_and_of_differences(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    objective = MinimumRisk(PAD, **options)
    batch = some_batch()
    src = batch.src[:2]
    candidates = Candidates.of(objective, SENTENCES, CPU)
    monkeypatch.setattr(gradient, "draw_candidates", lambda *_: candidates)
    inputs = StepInputs(src, batch.tgt_in[:2], batch.tgt_out[:2], 3, 7)
    ours, plain = model_of(), model_of()
    loss, _ = forward_backward(ours, StepConfig(objective), inputs)
    expected = risk_of(plain, objective, src)
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    (expected / 7).backward()
    generator = torch.Generator().manual_seed(0)
    slope = 0.0
    for own, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-9, atol=1e-14)
        direction = torch.randn(own.shape, generator=generator, dtype=own.dtype)
        if own.grad is not None:
            slope += float((own.grad * direction).sum())
        other.data.add_(direction, alpha=1e-5)
        own.data.add_(direction, alpha=-1e-5)
    with torch.no_grad():
        ends = [float(risk_of(model, objective, src)) for model in (ours, plain)]
    assert slope == pytest.approx((ends[1] - ends[0]) / 2e-5 / 7, rel=1e-6)


def test_in_bf16_probabilities_are_in_single_precision() -> None:
    candidates, losses = Candidates.of(MinimumRisk(PAD), SENTENCES, CPU), []
    hidden = torch.randn(candidates.tgt_out.numel(), 32)
    for precision in ("fp32", "bf16"):
        losses.append(candidates.loss_and_weights(model_of().float(), hidden, precision)[0])
    assert losses[1].dtype == torch.float32
    torch.testing.assert_close(losses[1], losses[0], rtol=0.05, atol=0)


def test_every_draw_has_a_seed_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: list[int] = []

    def note(*, seed: int, **options: Any) -> Sampler:
        seeds.append(seed)
        return Sampler(seed=seed, **options)

    monkeypatch.setattr(candidates_module, "Sampler", note)
    objective, model, batch = MinimumRisk(PAD, n_samples=1, max_extra=0), model_of(), some_batch()
    for _ in range(40):
        draw_candidates(model, objective, batch.src[:1], batch.tgt_out[:1], "fp32")
    assert len(set(seeds)) == len(seeds), "of so many seeds that none comes twice"


def test_costs_are_those_of_sacrebleu() -> None:
    theirs = BLEU(smooth_method="add-k", smooth_value=1, tokenize="none", effective_order=False)
    draw = random.Random(0)

    def sentence(n: int) -> list[int]:
        return [draw.randrange(4, 9) for _ in range(n)]

    for _ in range(40):
        tokens, reference = sentence(draw.randrange(0, 9)), sentence(draw.randrange(1, 9))
        score = theirs.sentence_score(" ".join(map(str, tokens)), [" ".join(map(str, reference))])
        assert sentence_bleu(tokens, reference) == pytest.approx(score.score / 100, abs=1e-9)
    assert sentence_bleu(reference, reference) == 1


def test_the_reference_comes_first_and_equal_candidates_count_once() -> None:
    objective, batch, model = (
        MinimumRisk(PAD, n_samples=6, max_extra=2),
        some_batch(),
        model_of(0.4),
    )
    torch.manual_seed(1)
    drawn = draw_candidates(model, objective, batch.src, batch.tgt_out, "fp32")
    assert model.training
    assert drawn.costs.shape == drawn.is_distinct.shape == (len(batch.src), 7)
    by_sentence = drawn.tgt_out.unflatten(0, drawn.costs.shape).tolist()
    for row, reference, costs, is_distinct in zip(
        by_sentence, batch.tgt_out.tolist(), drawn.costs, drawn.is_distinct, strict=True
    ):
        texts = [[i for i in ids if i not in (PAD, EOS)] for ids in row]
        assert texts[0] == [i for i in reference if i not in (PAD, EOS)]
        assert costs[0] == 0
        assert is_distinct.tolist() == [x not in texts[:i] for i, x in enumerate(texts)]
        assert all(ids.count(EOS) == 1 for ids in row)
    assert torch.equal(drawn.tgt_in[:, 1:] == PAD, drawn.tgt_out[:, 1:] == PAD)
    again, others = (
        draw_candidates(model, objective, batch.src, batch.tgt_out, "fp32") for _ in range(2)
    )
    torch.manual_seed(1)
    same = draw_candidates(model, objective, batch.src, batch.tgt_out, "fp32")
    assert torch.equal(same.tgt_out, drawn.tgt_out), "without dropout, from the generator's state"
    assert again.tgt_out.tolist() != others.tgt_out.tolist()


def test_samples_are_drawn_from_the_models_probabilities() -> None:
    """Of translations with no or one token, whose probabilities are worked out one by one."""
    objective, model = MinimumRisk(PAD, n_samples=1500, max_extra=0), model_of()
    src = torch.tensor([[4, EOS]])
    drawn = draw_candidates(model, objective, src, torch.tensor([[4, EOS]]), "fp32")
    model.eval()
    first = model(src, torch.tensor([[1]])).softmax(-1)[0, 0].detach()
    written = drawn.tgt_out[1:, 0].bincount(minlength=len(first)) / 1500
    allowed = torch.ones_like(first)
    allowed[[PAD, 1]] = 0
    p = first * allowed / (first * allowed).sum()
    assert ((written - p).abs() < 4.5 * (p * (1 - p) / 1500).sqrt() + 1e-9).all()


def test_engines_leave_it_to_the_eager_one() -> None:
    model = model_of()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    for name in ("data_parallel", "compile"):
        with pytest.warns(UserWarning, match="minimum_risk"):
            engine = make_engine(name, model, StepConfig(MinimumRisk(PAD)), optimizer)
        assert engine.name == "eager"
        assert "draws translations" in engine.note


@pytest.mark.parametrize("option", sorted(lookup("objective", "minimum_risk").options.model_fields))
def test_every_option_changes_the_loss_of_a_step(option: str) -> None:
    def loss(**options: Any) -> float:
        chosen = choose(Objective, "minimum_risk", **{"n_samples": 2, "max_extra": 1} | options)
        step_config = StepConfig(build(Objective, chosen, PAD))
        torch.manual_seed(1)
        return float(forward_backward(model_of(), step_config, StepInputs.of(some_batch(), 7))[0])

    assert loss() == loss()
    values = {"n_samples": 3, "alpha": 0.5, "likelihood": 0.5, "max_extra": 6}
    assert loss(**{option: values[option]}) != loss()


def test_work_is_counted_for_all_candidates_and_for_drawing_them() -> None:
    """A step multiplies that much more, where the samples are as long as the references."""
    batch, model = some_batch(), model_of()
    objective = MinimumRisk(PAD, n_samples=6, max_extra=0)
    src = torch.full_like(batch.src, 4)
    src[:, -1] = EOS
    exact = replace(batch, src=src)
    with FlopCounterMode(display=False) as plain:
        forward_backward(model, StepConfig(CrossEntropy(PAD)), StepInputs.of(exact, 1))
    with FlopCounterMode(display=False) as risk:
        forward_backward(model, StepConfig(objective), StepInputs.of(exact, 1))
    ratio = risk.get_total_flops() / plain.get_total_flops()
    assert ratio == pytest.approx(1 + objective.extra_passes, rel=0.1)
    spec = run_spec(objective={"name": "minimum_risk", "n_samples": 6})
    assert count_passes(spec.training) == 1 + objective.extra_passes == 9
