"""Sharing: in which order a stack goes through its blocks, and that they are really one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ablate.config.inheritance import SIDES
from ablate.model import Transformer
from ablate.parts.dims import StackInfo
from ablate.parts.sharing import Sharing
from ablate.registry import RefusedError, build, choose, slots
from tests.tiny import PAD, ids, scrambled, spec, tiny

NAMES = sorted(slots()["sharing"])
SHARING = [name for name in NAMES if name != "none"]


def order(name: str, n_layers: int, **options: Any) -> list[int]:
    """Return the order in an encoder of ``n_layers``; the decoder has others."""
    stack_info = StackInfo(side="encoder", n_encoder_layers=n_layers, n_decoder_layers=n_layers + 1)
    return build(Sharing, choose(Sharing, name, **options), stack_info).order()


@pytest.mark.parametrize(
    ("name", "n_layers", "options", "expected"),
    [
        ("none", 4, {}, [0, 1, 2, 3]),
        ("block", 4, {}, [0, 0, 0, 0]),
        ("block", 1, {}, [0]),
        ("sequence", 6, {"n_blocks": 3}, [0, 0, 1, 1, 2, 2]),
        ("sequence", 6, {}, [0, 0, 0, 1, 1, 1]),
        ("sequence", 5, {"n_blocks": 3}, [0, 0, 1, 1, 2]),
        ("sequence", 4, {"n_blocks": 3}, [0, 0, 1, 2]),
        ("cycle", 6, {"n_blocks": 3}, [0, 1, 2, 0, 1, 2]),
        ("cycle", 5, {}, [0, 1, 0, 1, 0]),
        ("cycle_reversed", 6, {"n_blocks": 3}, [0, 1, 2, 2, 1, 0]),
        ("cycle_reversed", 6, {}, [0, 1, 0, 1, 1, 0]),
        ("cycle_reversed", 7, {"n_blocks": 3}, [0, 1, 2, 0, 1, 2, 2]),
        ("cycle_reversed", 4, {"n_blocks": 3}, [0, 1, 2, 2]),
    ],
)
def test_the_order_of_the_blocks(
    name: str, n_layers: int, options: dict[str, Any], expected: list[int]
) -> None:
    assert order(name, n_layers, **options) == expected


@pytest.mark.parametrize("n_layers", range(3, 13))
@pytest.mark.parametrize("n_blocks", range(2, 7))
def test_cycles_are_those_of_the_algorithm(n_layers: int, n_blocks: int) -> None:
    """Takase & Kiyono's algorithm 1, which counts layers i and blocks from 1."""
    if n_blocks >= n_layers:
        return
    cycle, backwards = [], []
    rounds = -(-n_layers // n_blocks)
    for i in range(1, n_layers + 1):
        block = (i - 1) % n_blocks + 1
        cycle.append(block - 1)
        is_last_round = i > n_blocks * (rounds - 1)
        backwards.append((n_blocks + 1 - block if is_last_round else block) - 1)
    assert order("cycle", n_layers, n_blocks=n_blocks) == cycle
    assert order("cycle_reversed", n_layers, n_blocks=n_blocks) == backwards


def n_parameters(model: Transformer) -> dict[str, int]:
    stacks = {"encoder": model.encoder, "decoder": model.decoder}
    return {side: sum(p.numel() for p in stack.parameters()) for side, stack in stacks.items()}


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_counted_once(name: str) -> None:
    one = n_parameters(tiny(n_layers=1))
    n_blocks = max(order(name, 5)) + 1
    shared = n_parameters(tiny(n_layers=5, sharing=name))
    assert shared == {side: n_blocks * one[side] for side in SIDES}


@pytest.mark.parametrize("side", SIDES)
def test_one_stack_may_share_alone(side: str) -> None:
    none, block = n_parameters(tiny(n_layers=3)), n_parameters(tiny(n_layers=3, sharing="block"))
    mixed = n_parameters(tiny(n_layers=3, **{side: {"sharing": "block"}}))
    assert mixed == {s: (block if s == side else none)[s] for s in SIDES}


def unshared(model: Transformer, n_layers: int) -> Transformer:
    """Return a model that shares nothing, each layer with a copy of the block that it is."""
    other = tiny(n_layers=n_layers).double()
    weights = model.state_dict()
    orders = {"encoder": model.encoder.order, "decoder": model.decoder.order}
    copies = {}
    for path in other.state_dict():
        stack, *inner = path.split(".")
        if inner[0] == "layers":
            inner[1] = str(orders[stack][int(inner[1])])
        copies[path] = weights[".".join((stack, *inner))]
    other.load_state_dict(copies)
    return other


@pytest.mark.parametrize("name", SHARING)
def test_shared_blocks_equal_copies_with_summed_gradients(name: str) -> None:
    """The same output as with copies, and for a gradient the sum of those of the copies."""
    n_layers = 4
    model = scrambled(tiny(n_layers=n_layers, sharing=name).double())
    copied = unshared(model, n_layers)
    src, tgt = ids(2, 7), ids(2, 5)
    src[1, 5:] = PAD
    left, right = model(src, tgt), copied(src, tgt)
    assert torch.equal(left, right)
    left.square().sum().backward()
    right.square().sum().backward()
    for shared, stack in ((model.encoder, copied.encoder), (model.decoder, copied.decoder)):
        assert shared.order == tuple(order(name, n_layers))
        for number, block in enumerate(shared.blocks):
            copies = [stack.blocks[i] for i, b in enumerate(shared.order) if b == number]
            for path, parameter in block.named_parameters():
                gradients = [copy.get_parameter(path).grad for copy in copies]
                assert all(gradient is not None for gradient in gradients)
                total = torch.stack([g for g in gradients if g is not None]).sum(dim=0)
                torch.testing.assert_close(parameter.grad, total)


def test_sharing_depends_on_the_depth_of_its_stack() -> None:
    """What fits the decoder may be too much for a shallower encoder."""
    layers = {"encoder": 2, "decoder": 3}
    with pytest.raises(
        RefusedError,
        match="2 blocks for the 2 layers of the encoder share nothing; choose sharing: block,",
    ):
        tiny(n_layers=layers, sharing="cycle")
    model = tiny(n_layers=layers, decoder={"sharing": "cycle"})
    assert (model.encoder.order, model.decoder.order) == ((0, 1), (0, 1, 0))
    assert spec(n_layers=layers).stack("decoder").n_layers == 3
