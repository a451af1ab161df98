"""Weights split over ranks make the steps of whole ones, and every rank keeps a part of them."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from ablate.data.batches import Batches
from ablate.registry import lookup
from ablate.training.engines import Engine
from ablate.training.engines.fully_sharded import FullySharded
from ablate.training.ranks import Ranks
from ablate.training.weights import ShardedWeights
from tests.tiny import PAD, PARTS, mixed, mixtures, some_batch, thin, tiny
from tests.training.in_ranks import in_ranks
from tests.training.reversal import fresh, pairs, run, run_spec
from tests.training.test_distributed import engine_of, several_ranks
from tests.training.test_engines import losses

SPLIT = [(slot, name) for slot, name in PARTS if not lookup(slot, name).cls.batch_dependence]


def gradient(engine: Engine, n_batches: int = 1) -> dict[str, Tensor]:
    """Return the gradient of batches, whole, of which each is narrower than the one before."""
    batch = some_batch()
    engine.accumulate([replace(batch, src=batch.src[:, i:]) for i in range(n_batches)])
    own = {
        name: torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()
        for name, weight in engine.weights.named_parameters()
    }
    return engine.weights.gather(own)


def assert_close(left: dict[str, Tensor], right: dict[str, Tensor]) -> None:
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        torch.testing.assert_close(tensor, right[name], rtol=1e-4, atol=1e-6)


@pytest.mark.train
@pytest.mark.parametrize("parts", mixtures(SPLIT), ids=str)
def test_no_part_comes_out_differently(parts: list[tuple[str, str]], one_rank: None) -> None:
    for one, other in zip(mixed(parts), mixed(parts), strict=True):
        expected = gradient(engine_of("eager", one.eval()))
        assert_close(gradient(engine_of("fully_sharded", other.eval())), expected)


@pytest.mark.parametrize("embedding", ["tied", "separate"])
def test_gradients_are_accumulated_and_updates_are_those_of_whole_weights(
    embedding: str, one_rank: None
) -> None:
    engines = [engine_of(name, thin("embedding", embedding)) for name in ("eager", "fully_sharded")]
    eager, sharded = (gradient(engine, n_batches=2) for engine in engines)
    assert_close(sharded, eager)
    norms = [engine.update() for engine in engines]
    torch.testing.assert_close(norms[1], norms[0])
    after, expected = (engine.weights.state_dict() for engine in reversed(engines))
    assert_close(after, expected)


def test_the_model_has_its_weights_where_it_is_asked_for_them(one_rank: None) -> None:
    model = tiny().eval()
    expected = {name: weight.clone() for name, weight in model.named_parameters()}
    engine = engine_of("fully_sharded", model)
    assert sum(weight.numel() for weight in model.parameters()) == 0
    with engine.weights.in_model():
        assert_close(dict(model.named_parameters()), expected)
    assert sum(weight.numel() for weight in model.parameters()) == 0
    assert engine.weights.shapes() == {name: x.shape for name, x in tiny().state_dict().items()}
    engine.close()
    for name, weight in model.named_parameters():
        assert weight.shape == expected[name].shape


def test_layers_may_share_what_they_compute(one_rank: None) -> None:
    eager, sharded = (
        engine_of(name, thin("residual", "realformer").eval())
        for name in ("eager", "fully_sharded")
    )
    assert_close(gradient(sharded), gradient(eager))


def test_every_layer_is_gathered_by_itself(one_rank: None) -> None:
    """So that one layer at a time is whole; its inputs may be lists that layers share."""
    engine = engine_of("fully_sharded", tiny(n_layers=2))
    assert isinstance(engine, FullySharded)
    model = engine._pass.model
    for layer in (*model.encoder.blocks, *model.decoder.blocks):
        assert isinstance(layer, FSDPModule), "a layer must be gathered and freed by itself"
    assert isinstance(engine._pass, FSDPModule), "so must what is outside of layers"


def test_there_is_no_self_check(one_rank: None) -> None:
    engine = engine_of("fully_sharded", tiny())
    engine.step([some_batch()])
    assert engine.last_engine_batch is None


@pytest.mark.parametrize(
    ("n_rows", "sizes"), [(6, [2, 2, 2]), (7, [3, 3, 1]), (4, [2, 2, 0]), (1, [1, 0, 0])]
)
def test_a_weight_is_split_by_rows_in_order(n_rows: int, sizes: list[int], one_rank: None) -> None:
    """As `fully_shard` splits it: the last ranks have fewer, or none."""
    engine = engine_of("fully_sharded", tiny())
    assert isinstance(engine, FullySharded)
    weights, whole, parts = engine.weights, torch.rand(n_rows, 2), []
    for rank in range(3):
        weights._rank, weights._n_ranks = rank, 3
        parts.append(weights._part(whole))
    assert [len(part) for part in parts] == sizes
    assert torch.equal(torch.cat(parts), whole)


def test_a_weight_of_two_modules_is_in_the_state_dict_under_both_names(one_rank: None) -> None:
    """And shapes are those of whole weights, however small this rank's parts are."""
    one, other = nn.Linear(3, 3), nn.Linear(3, 3)
    other.weight = one.weight
    model = nn.Sequential(one, other)
    model.register_buffer("count", torch.ones(4))
    expected = {name: x.clone() for name, x in model.state_dict().items()}
    sharded = copy.deepcopy(model)
    fully_shard(sharded, mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weights = ShardedWeights(model, optimizer, sharded)
    assert_close(weights.state_dict(), expected)
    weights.load_state_dict({name: x + 1 for name, x in expected.items()})
    assert_close(weights.state_dict(), {name: x + 1 for name, x in expected.items()})
    for name, part in weights._parts.items():
        weights._parts[name] = nn.Parameter(part[:0])
    assert weights.shapes() == {name: x.shape for name, x in expected.items()}


def test_what_is_loaded_is_what_was_saved(one_rank: None) -> None:
    """Weights and moments, into another model."""
    engines = [engine_of("fully_sharded", tiny(embedding="tied")) for _ in range(2)]
    for engine in engines:
        engine.optimizer.param_groups[0]["momentum"] = 0.9
    one, other = engines
    for _ in range(2):
        one.step([some_batch()])
    whole = {name: x.clone() for name, x in one.weights.state_dict().items()}
    moments = copy.deepcopy(one.optimizer.state_dict())
    other.weights.load_state_dict(whole)
    other.optimizer.load_state_dict(moments)
    assert_close(other.weights.state_dict(), whole)
    again = other.optimizer.state_dict()["state"]
    assert again.keys() == moments["state"].keys()
    for number, of_weight in moments["state"].items():
        torch.testing.assert_close(again[number], of_weight, rtol=0, atol=0)
    results = [engine.step([some_batch()]) for engine in engines]
    torch.testing.assert_close(results[0].loss, results[1].loss, rtol=0, atol=0)
    assert_close(other.weights.state_dict(), one.weights.state_dict())
    assert one.weights.map_location == torch.device("cpu")


def test_only_the_first_rank_has_whole_weights_and_moments(one_rank: None) -> None:
    engine = engine_of("fully_sharded", tiny())
    weights = engine.weights
    assert isinstance(weights, ShardedWeights)
    parts = weights.local_state_dict()
    weights._rank = 1
    assert all(x is parts[name] for name, x in weights.gather(parts).items())
    with weights.in_model():
        assert sum(weight.numel() for weight in engine.model.parameters()) == 0
    state = {number: {"momentum_buffer": parts[weights._names[number]]} for number in (2, 0, 1)}
    gathered = weights._gather_moments(engine.optimizer, {"state": state, "param_groups": []})
    assert list(gathered["state"]) == [0, 1, 2], "all ranks gather in one order"
    assert gathered["param_groups"] == []


def test_the_norm_is_that_of_the_parts_of_all_ranks(
    one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here of four ranks with the same parts."""
    engine = engine_of("fully_sharded", tiny())
    monkeypatch.setattr(distributed, "all_reduce", lambda x: x.mul_(4))
    x = torch.tensor([3.0, 4.0])
    assert float(engine.weights.norm([x, x])) == pytest.approx(2 * 50**0.5)


def test_the_gradient_of_all_parts_is_clipped_together(one_rank: None) -> None:
    engines = [engine_of(name, tiny()) for name in ("eager", "fully_sharded")]
    norms, clipped = [], []
    for engine in engines:
        engine.accumulate([some_batch()])
        norms.append(engine.weights.clip(0.1))
        clipped.append(
            {n: w.grad for n, w in engine.weights.named_parameters() if w.grad is not None}
        )
    torch.testing.assert_close(norms[1], norms[0])
    assert norms[0] > 0.1
    assert_close(engines[1].weights.gather(clipped[1]), clipped[0])


class TestSeveralRanks:
    """With processes."""

    pytestmark = several_ranks

    def test_dropout_is_that_of_ranks_with_whole_weights(self) -> None:
        def of(name: str, _: Ranks) -> list[float]:
            return losses(name, dropout=0.3)[0]

        (expected, _), (actual, other) = (
            in_ranks(2, partial(of, name)) for name in ("distributed", "fully_sharded")
        )
        assert actual == other == pytest.approx(expected, abs=1e-5)

    @pytest.mark.parametrize("n", [2, 3])
    def test_a_rank_keeps_its_part_of_weights_gradients_and_moments(self, n: int) -> None:
        def sizes(_: Ranks) -> list[int]:
            engine = losses("fully_sharded")[1]
            engine.accumulate([Batches(pairs(), 64, PAD).make(np.arange(5))])
            weights = [weight for _, weight in engine.weights.named_parameters()]
            gradients = [weight.grad for weight in weights if weight.grad is not None]
            states = engine.optimizer.state.values()
            moments = [x for state in states for x in state.values() if x.dim()]
            groups: list[list[Any]] = [weights, gradients, moments, [*engine.model.parameters()]]
            return [sum(tensor.numel() for tensor in tensors) for tensors in groups]

        weights = [*fresh(run_spec()).parameters()]
        n_weights = sum(weight.numel() for weight in weights)
        of_ranks = in_ranks(n, sizes)
        assert [sum(size) for size in zip(*of_ranks, strict=True)] == [
            n_weights,
            n_weights,
            2 * n_weights,
            0,
        ]
        # Whole rows, of which the first rank has a few more where they cannot be divided
        most = sum(math.ceil(len(weight) / n) * weight[0].numel() for weight in weights)
        assert max(size[0] for size in of_ranks) == most < 1.12 * n_weights / n

    @pytest.mark.parametrize(
        "training",
        [
            {"average": {"last": 2}},
            {"average": {"ema": 0.9}},
            {"optimizer": "schedule_free_adamw", "clip": 1.0},
        ],
        ids=str,
    )
    def test_training_ends_with_the_weights_and_files_of_whole_ones(
        self, training: dict[str, Any], tmp_path: Path
    ) -> None:
        spec = run_spec(dropout=0.1, steps=20, **training)

        def trained(name: str, ranks: Ranks) -> tuple[str, dict[str, Tensor], Any, list[float]]:
            folder = tmp_path / name / str(ranks.rank)
            result, model = run(spec, folder, engine=name, ranks=ranks)
            if not ranks.is_first:
                assert [*folder.iterdir()] == []
                return result.engine, {}, None, []
            content = torch.load(folder / "checkpoint.pt", weights_only=True)
            layers = pd.read_csv(folder / "layers.csv")["gradient_norm"].tolist()
            # The loss does not depend on a key's bias: Adam makes steps of its rounding errors
            weights = {n: w for n, w in model.state_dict().items() if not n.endswith(".k.bias")}
            return result.engine, weights, _shapes(content), layers

        whole, split = (
            in_ranks(2, partial(trained, name))[0] for name in ("distributed", "fully_sharded")
        )
        assert (whole[0], split[0]) == ("distributed", "fully_sharded")
        assert split[1].keys() == whole[1].keys()
        # Steps of Adam amplify rounding where gradients are small: so not element by element
        for name, weight in whole[1].items():
            assert (split[1][name] - weight).norm() < 2e-3 * weight.norm(), name
        assert split[2] == whole[2]
        assert split[3] == pytest.approx(whole[3], rel=1e-3)


def _shapes(content: Any) -> Any:
    """Return a checkpoint with the shapes of its tensors in place of these, and without numbers."""
    if isinstance(content, dict):
        return {key: _shapes(value) for key, value in content.items()}
    return content.shape if isinstance(content, Tensor) else None
