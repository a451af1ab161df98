"""A batch in parts, one after the other: the same step, in less memory."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from ablate.data.batches import Batch, Batches, Encoded, Resampled
from ablate.data.sentences import Ragged
from ablate.data.tokenizer import PAD
from ablate.training import train
from ablate.training.engines import Engine, contract, data_parallel, make_engine
from ablate.training.engines.contract import divide
from ablate.training.step import StepConfig, StepResult
from tests.tiny import OBJECTIVES, thin
from tests.training.reversal import fresh, job, make_step_config, pairs, run_spec

ENGINES = ("eager", "data_parallel", "cuda_graph")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine `data_parallel` cut batches of a few tokens too."""
    monkeypatch.setattr(data_parallel, "_FEWEST_TOKENS", 24)


def _batches() -> list[Batch]:
    batches = Batches(pairs(), 64, PAD)
    return [batches.make(rows) for rows in batches.epoch(1, 0)]


def _step(
    name: str, factor: int, batches: list[Batch], step_config: StepConfig
) -> tuple[StepResult, list[Tensor]]:
    """Return a step's result and the gradient: by how far plain SGD at rate 1 moves the weights."""
    model = fresh(run_spec(dropout=0.0)).train()
    before = [weight.detach().clone() for weight in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with closing(make_engine(name, model, step_config, optimizer)) as engine:
        assert (engine.name, engine.note) == (name, "")
        result = engine.step(engine.micro_batches(batches, factor))
    after = [weight.detach() for weight in model.parameters()]
    return result, [old - new for old, new in zip(before, after, strict=True)]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 100])
def test_the_parts_are_the_batch(n: int) -> None:
    for batch in _batches():
        parts = divide(batch, n)
        n_rows = [part.src.size(0) for part in parts]
        assert len(parts) == min(n, batch.src.size(0))
        assert max(n_rows) - min(n_rows) <= 1
        assert [part.n_tokens for part in parts] == [int((p.tgt_out != PAD).sum()) for p in parts]
        assert sum(part.n_tokens for part in parts) == batch.n_tokens
        for name in ("src", "tgt_in", "tgt_out", "index"):
            assert torch.equal(torch.cat([getattr(p, name) for p in parts]), getattr(batch, name))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("factor", [1, 2, 4, 64])
@pytest.mark.parametrize(("accumulate", "loss_per"), [(1, "token"), (3, "sentence")])
def test_a_divided_step_is_the_whole_one_of_the_eager_engine(
    engine: str, factor: int, accumulate: int, loss_per: Literal["token", "sentence"]
) -> None:
    step_config = make_step_config(loss_per=loss_per)
    batches = _batches()[:accumulate]
    whole, expected = _step("eager", 1, batches, step_config)
    divided, actual = _step(engine, factor, batches, step_config)
    assert divided.n_tokens == whole.n_tokens
    torch.testing.assert_close(divided.loss, whole.loss)
    torch.testing.assert_close(divided.gradient_norm, whole.gradient_norm)
    assert max(float(gradient.abs().max()) for gradient in expected) > 1e-2
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0.0)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_that_of_the_whole_batch(name: str) -> None:
    step_config = make_step_config(name)
    (whole, expected), (divided, actual) = (
        _step("eager", n, _batches()[:2], step_config) for n in (1, 3)
    )
    torch.testing.assert_close(divided.loss, whole.loss)
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=0.0)


def test_parts_are_smaller_than_those_that_the_engine_makes_anyway() -> None:
    model = thin("position", "none").train()
    step_config = make_step_config()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    batch = max(_batches(), key=lambda batch: batch.tgt_out.numel())
    for name, n_usual in (("eager", 1), ("data_parallel", 2)):
        engine: Engine = make_engine(name, model, step_config, optimizer)
        assert engine.micro_batches([batch], 1) == [batch]
        for factor in (2, 4):
            assert len(engine.micro_batches([batch], factor)) == factor * n_usual
        assert len(engine.micro_batches([batch, batch], 10**3)) == 2 * batch.src.size(0)


@dataclass(frozen=True)
class Changing(Resampled):
    """A text whose sentences have other lengths in other epochs and with other seeds."""

    def of_epoch(self, seed: int, epoch: int) -> Encoded:
        length = 4 if (seed, epoch) == (0, 0) else 2 + 4 * seed + epoch
        text = Ragged.of([[5] * length] * 12 + [[5] * 9] * 4)
        return Encoded(text, text)


@pytest.mark.parametrize("n_sampled", [1, 50])
def test_micro_batches_are_counted_of_the_first_batches(
    n_sampled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first epoch of seed 0, from which a result has the number of batches, too."""
    monkeypatch.setattr(contract, "_N_SAMPLED", n_sampled)
    model = thin("position", "none")
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = make_engine("eager", model, make_step_config(), optimizer)
    text = pairs(1)
    batches = Batches(Changing(text.src, text.tgt, text, samplers=(), max_len=16), 24, PAD)
    first = batches.of_epoch(0, 0)
    n_rows = [len(rows) for rows in first.epoch(0, 0)]
    assert len(set(n_rows)) > 1, "batches must differ, or this test says less"
    assert engine.max_micro_batches(batches, 1) == 1, "a batch that is not divided is one"
    assert engine.max_micro_batches(batches, 100) == max(n_rows[:n_sampled])
    assert engine.max_micro_batches(batches, 2) == 2


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_divided_run_says_so_and_learns_the_same_but_for_dropout(
    dropout: float, tmp_path: Path
) -> None:
    spec = run_spec(dropout=dropout, steps=10)
    jobs = [replace(job(spec, tmp_path / str(n)), micro_batch_factor=n) for n in (1, 2)]
    whole, divided = (train(fresh(spec), each, lambda _: None, lambda: False) for each in jobs)
    assert (whole.micro_batches, divided.micro_batches) == (1, 2)
    assert whole.target_tokens == divided.target_tokens
    is_same = divided.best_dev_nll == pytest.approx(whole.best_dev_nll, abs=1e-5)
    assert is_same == (dropout == 0.0)
