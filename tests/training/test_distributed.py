"""Several ranks make the steps of one device, each on a share of every batch."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from ablate.model import Transformer
from ablate.parts.feed_forward import Relu
from ablate.parts.feed_forward.contract import AuxLosses
from ablate.training import ranks as ranks_module
from ablate.training.engines import Engine, data_parallel, make_engine
from ablate.training.engines.distributed import Distributed
from ablate.training.engines.self_check import compare
from ablate.training.ranks import ALONE, Ranks
from tests.tiny import some_batch, thin, tiny
from tests.training.in_ranks import in_ranks
from tests.training.reversal import make_step_config, nll, run, run_spec
from tests.training.test_engines import losses

several_ranks = [
    pytest.mark.ddp,
    pytest.mark.skipif(sys.platform != "linux", reason="ranks are forks"),
]


def engine_of(name: str, model: Transformer, loss_per: str = "token") -> Engine:
    step_config = make_step_config(loss_per=loss_per)
    group = {"params": list(model.parameters()), "rate": 1.0}
    return make_engine(name, model, step_config, torch.optim.SGD([group], lr=0.1))


def _gradient(engine: Engine, n_batches: int = 1) -> list[Tensor | None]:
    """Return the gradient of batches, of which each is narrower than the one before."""
    batch = some_batch()
    engine.accumulate([replace(batch, src=batch.src[:, i:]) for i in range(n_batches)])
    return [None if p.grad is None else p.grad.clone() for p in engine.model.parameters()]


def _assert_close(left: list[Tensor | None], right: list[Tensor | None]) -> None:
    assert [x is None for x in left] == [x is None for x in right]
    for x, y in zip(left, right, strict=True):
        if x is not None and y is not None:
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6)


class OfOneLength(Relu):
    """Uses its weights only in batches of one length."""

    length = 0

    def forward(self, x: Tensor, aux_losses: AuxLosses | None = None) -> Tensor:
        return super().forward(x) if x.size(1) == self.length else x


def model_of_one_length() -> Transformer:
    """Return a model that uses some weights only in batches as long as the first one."""
    OfOneLength.length = some_batch().src.size(1)
    model = thin("feed_forward", "relu")
    for layer in (*model.encoder.layers, *model.decoder.layers):
        layer.feed_forward.__class__ = OfOneLength
    return model


@pytest.mark.parametrize("embedding", ["tied", "separate"])
def test_a_single_rank_makes_the_gradient_of_the_eager_engine(
    embedding: str, one_rank: None
) -> None:
    eager, ours = (
        _gradient(engine_of(name, thin("embedding", embedding)), n_batches=2)
        for name in ("eager", "distributed")
    )
    _assert_close(ours, eager)


@pytest.mark.parametrize("name", ["distributed", "fully_sharded"])
def test_a_weight_may_be_used_in_one_batch_alone(name: str, one_rank: None) -> None:
    def gradient(name: str) -> list[Tensor | None]:
        engine = engine_of(name, model_of_one_length())
        for _ in range(2):  # of an exchange that did not end, only the next one knows
            engine.optimizer.zero_grad()
            _gradient(engine, n_batches=2)
        weights = [weight for _, weight in engine.weights.named_parameters()]
        if name == "fully_sharded":
            assert all(weight.grad is not None for weight in weights), "it has zeros instead"
        gradients = [weight.grad for weight in weights]
        return [None if x is None or not x.any() else x for x in gradients]

    expected, actual = gradient("eager"), gradient(name)
    _assert_close(actual, expected)


def test_a_rank_has_draws_of_its_own_and_leaves_those_that_all_share(one_rank: None) -> None:
    engine = engine_of("distributed", tiny())
    assert isinstance(engine, Distributed)
    draws: dict[int, list[Tensor]] = {}
    for rank in range(3):
        engine._rank, engine._n_ranks = rank, 3
        torch.manual_seed(1)
        draws[rank] = []
        for _ in range(2):
            with engine._own_draws():
                draws[rank].append(torch.rand(4))
        draws[rank].append(torch.rand(4))
    seeds = []
    for _ in range(40):
        with engine._own_draws():
            seeds.append(torch.initial_seed())
    assert len(set(seeds)) == len(seeds), "of so many seeds that none comes twice"
    own = [x.tolist() for rank in range(3) for x in draws[rank][:2]]
    assert all(x != y for i, x in enumerate(own) for y in own[:i]), "every rank and every batch"
    assert torch.equal(draws[0][2], draws[1][2]), "what all ranks draw must stay the same"
    assert torch.equal(draws[0][2], draws[2][2])


@pytest.mark.parametrize("n_ranks", [2, 3, 5])
def test_ranks_share_a_step_and_one_without_pairs_adds_nothing(
    n_ranks: int, one_rank: None
) -> None:
    """The sum of what each of them computes, one after the other, is the gradient of all."""
    expected = engine_of("eager", tiny())
    losses, n_tokens = expected.accumulate([some_batch()])
    total, of_ranks = torch.zeros(2), engine_of("distributed", tiny())
    assert isinstance(of_ranks, Distributed)
    for rank in range(n_ranks):
        of_ranks._rank, of_ranks._n_ranks = rank, n_ranks
        of_rank, n = of_ranks.accumulate([some_batch()])
        assert n == n_tokens, "a loss is per token of all ranks"
        assert bool(of_rank.any()) == (rank < len(some_batch().src))
        total += of_rank
    torch.testing.assert_close(total, losses)
    _assert_close(
        [weight.grad for weight in of_ranks.model.parameters()],
        [weight.grad for weight in expected.model.parameters()],
    )


def test_gradients_are_exchanged_once_in_a_step(
    one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of("distributed", tiny())
    sizes: list[int] = []
    of_all = distributed.all_reduce

    def counted(x: Tensor, **options: object) -> object:
        sizes.append(x.numel())
        return of_all(x, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(distributed, "all_reduce", counted)
    _gradient(engine, n_batches=3)
    n_weights = sum(weight.numel() for weight in engine.model.parameters())
    assert sum(sizes) == n_weights + 2  # and the two losses


def test_steps_exchange_no_buffers(one_rank: None) -> None:
    engine = engine_of("distributed", thin("position", "rotary"))
    assert isinstance(engine, Distributed)
    assert isinstance(engine._parallel, DistributedDataParallel)
    assert engine._parallel.modules_buffers
    assert not engine._parallel.will_sync_module_buffers()


def test_the_self_check_leaves_no_trace(one_rank: None) -> None:
    engine = engine_of("distributed", tiny().train())
    engine.step([some_batch()])
    before = [weight.clone() for weight in engine.model.parameters()]
    assert engine.last_engine_batch is not None
    compare(engine, engine.last_engine_batch)
    for weight, old in zip(engine.model.parameters(), before, strict=True):
        torch.testing.assert_close(weight, old, rtol=0, atol=0)


class TestSeveralRanks:
    """With processes."""

    pytestmark = several_ranks

    @pytest.mark.parametrize("name", ["distributed", "fully_sharded"])
    @pytest.mark.parametrize(
        ("n", "accumulate", "loss_per", "batch_tokens"),
        [(2, 1, "token", 64), (2, 3, "sentence", 64), (3, 2, "token", 20)],
    )
    def test_fifty_steps_have_the_losses_of_one_process(
        self, name: str, n: int, accumulate: int, loss_per: str, batch_tokens: int
    ) -> None:
        options: dict[str, Any] = {
            "accumulate": accumulate,
            "loss_per": loss_per,
            "batch_tokens": batch_tokens,
        }
        expected, _ = losses("eager", **options)
        of_ranks = in_ranks(n, lambda _: losses(name, **options)[0])
        assert expected[-1] < expected[0] - 0.3
        for actual in of_ranks:
            assert actual == pytest.approx(expected, abs=1e-5)

    def test_dropout_is_that_of_as_many_shards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(data_parallel, "_FEWEST_TOKENS", 10)
        monkeypatch.setattr(data_parallel, "MAX_SHARDS", 2)
        expected, _ = losses("data_parallel", dropout=0.3)
        without, _ = losses("eager", dropout=0.3)
        actual, other = in_ranks(2, lambda _: losses("distributed", dropout=0.3)[0])
        assert actual == other == pytest.approx(expected, abs=1e-4)
        assert actual != pytest.approx(without, abs=1e-2)

    def test_only_the_first_rank_evaluates_and_writes(self, tmp_path: Path) -> None:
        spec = run_spec(dropout=0.1, steps=20)

        def train_in(ranks: Ranks) -> tuple[float, int]:
            evaluated: list[float] = []

            def evaluate(model: Transformer) -> float:
                evaluated.append(nll(model))
                return evaluated[-1]

            folder = tmp_path / str(ranks.rank)
            result, _ = run(spec, folder, engine="distributed", ranks=ranks, evaluate=evaluate)
            return result.best_dev_nll, len(evaluated)

        (best, n), (other, none) = in_ranks(2, train_in)
        assert best == other
        assert (n, none) == (2, 0)
        assert [path.name for path in (tmp_path / "1").iterdir()] == []
        assert (tmp_path / "0" / "curve.csv").exists()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the first of several ranks has sent, whose place the broadcast takes."""
    values: list[float] = []

    class Group:
        @staticmethod
        def broadcast(value: Tensor, src: int) -> None:
            assert src == 0, "only the first rank computes"
            if values:
                value.fill_(values.pop(0))
            else:
                values.append(value.item())

    monkeypatch.setattr(ranks_module, "distributed", Group)
    return values


def test_the_first_rank_computes_and_the_others_get_its_number(sent: list[float]) -> None:
    """In double precision."""
    assert Ranks(0, 2).from_first(lambda: 0.1) == 0.1
    assert sent == [0.1]

    def not_here() -> float:
        raise AssertionError("only the first rank computes")

    assert Ranks(1, 2).from_first(not_here) == 0.1
    assert ALONE.from_first(lambda: 0.2) == 0.2
    assert not sent, "a rank alone sends nothing"


def test_the_first_rank_goes_first(sent: list[float]) -> None:
    """It sends something after its turn, for which the others wait before theirs."""
    with Ranks(0, 2).first_rank_first():
        assert not sent
    assert len(sent) == 1
    with Ranks(1, 2).first_rank_first():
        assert not sent
    with ALONE.first_rank_first():
        pass
    assert not sent
