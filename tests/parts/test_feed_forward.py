"""Feed-forwards: each against its formula, and the sizes of gated ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.parts.dims import Dims
from ablate.parts.dropout import ElementDropout
from ablate.parts.feed_forward import AuxLosses, FeedForward, Gated, MixtureOfExperts, TwoLayer
from ablate.registry import build, choose, lookup, slots
from tests.parts.tensors import close, numbers

B, T, D, H = 2, 5, 32, 48
DIMS = Dims.model_validate({"d_model": D, "n_heads": 4, "max_len": 8})
NAMES = sorted(slots()["feed_forward"])
TWO_LAYER = [n for n in NAMES if issubclass(lookup("feed_forward", n).cls, TwoLayer)]
GATED = [n for n in NAMES if issubclass(lookup("feed_forward", n).cls, Gated)]


def feed_forward(name: str, dims: Dims = DIMS, dropout: float = 0.0, **options: Any) -> Any:
    """Return a part in double precision, as it is drawn by default."""
    torch.manual_seed(0)
    return build(FeedForward, choose(FeedForward, name, **options), dims, dropout).double()


def mixture(dropout: float = 0.0, **options: Any) -> MixtureOfExperts:
    part = feed_forward("mixture_of_experts", dropout=dropout, d_ff=H, **options)
    assert isinstance(part, MixtureOfExperts)
    return part


@pytest.fixture
def x() -> Tensor:
    return numbers(B, T, D, seed=0)


def rectified(y: Tensor) -> Tensor:
    return torch.where(y > 0, y, torch.zeros_like(y))


def logistic(y: Tensor) -> Tensor:
    return 1 / (1 + (-y).exp())


def gaussian(y: Tensor) -> Tensor:
    return y * (1 + torch.erf(y / math.sqrt(2))) / 2


PHI: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": rectified,
    "gelu": gaussian,
    "silu": lambda y: y * logistic(y),
    "elu": lambda y: torch.where(y > 0, y, y.exp() - 1),
    "selu": lambda y: (
        1.0507009873554805 * torch.where(y > 0, y, 1.6732632423543772 * (y.exp() - 1))
    ),
    "softplus": lambda y: (1 + y.exp()).log(),
    "sigmoid": logistic,
    "relu_squared": lambda y: rectified(y) * rectified(y),
    "glu": logistic,
    "bilinear": lambda y: y,
    "reglu": rectified,
    "geglu": gaussian,
    "swiglu": lambda y: y * logistic(y),
}


def affine(linear: Any, x: Tensor) -> Tensor:
    y = torch.einsum("...i,oi->...o", x, linear.weight)
    return y if linear.bias is None else y + linear.bias


def hidden_by_hand(name: str, part: Any, x: Tensor) -> Tensor:
    """Return the hidden layer, before its dropout."""
    if name in GATED:
        return PHI[name](affine(part.gate, x)) * affine(part.up, x)
    return PHI[name](affine(part.up, x))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", TWO_LAYER + GATED)
def test_dense_layers_by_hand(name: str, bias: bool, x: Tensor) -> None:
    part = feed_forward(name, d_ff=H, bias=bias)
    layers = [part.up, part.down, *([part.gate] if name in GATED else [])]
    assert {layer.bias is not None for layer in layers} == {bias}
    close(part(x), affine(part.down, hidden_by_hand(name, part, x)))


def test_relu_equals_two_convolutions_of_width_one(x: Tensor) -> None:
    part = feed_forward("relu", d_ff=H)
    up, down = nn.Conv1d(D, H, 1).double(), nn.Conv1d(H, D, 1).double()
    for conv, linear in ((up, part.up), (down, part.down)):
        conv.load_state_dict({"weight": linear.weight[:, :, None], "bias": linear.bias})
    close(part(x), down(up(x.mT).relu()).mT)


@pytest.mark.parametrize(("d_model", "d_ff", "bias", "width"), [
    (32, 48, True, 32), (32, 48, False, 32), (4, 1, True, 1), (512, None, True, 1365),
    (512, None, False, 1365), (2, 100, True, 62), (2, 100, False, 67),
])  # fmt: skip
def test_matched_width(d_model: int, d_ff: int | None, bias: bool, width: int) -> None:
    """d_ff (2 D + 1) / (3 D + 2) with biases, 2/3 d_ff without, to the nearest."""
    dims = Dims.model_validate({"d_model": d_model, "n_heads": 1, "max_len": 8})
    with torch.device("meta"):
        assert feed_forward("swiglu", dims, d_ff=d_ff, bias=bias).width == width


@pytest.mark.parametrize("name", NAMES)
def test_the_default_width_is_four_times_the_model(name: str) -> None:
    options: dict[str, Any] = {"matched": False} if name in GATED else {}
    part = feed_forward(name, **options)
    assert part.width == 128
    assert {max(weight.shape) for weight in part.weights()} == {128}


class Doubling(nn.Module):
    """Replaces a norm: keeps its width, and is not linear."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return x / (0.5 + x.abs()) + 0.25


@pytest.mark.parametrize("name", TWO_LAYER + GATED)
def test_dropout_and_then_the_norm_act_on_the_hidden_layer(name: str, x: Tensor) -> None:
    part = feed_forward(name, d_ff=H, dropout=0.4)
    part.normalise_hidden(Doubling)
    assert part.hidden_norm.width == part.width
    torch.manual_seed(3)
    actual = part.train()(x)
    torch.manual_seed(3)
    hidden = ElementDropout(0.4)(hidden_by_hand(name, part, x))
    close(actual, affine(part.down, hidden / (0.5 + hidden.abs()) + 0.25))


@pytest.mark.parametrize("name", NAMES)
def test_a_norm_on_the_hidden_layer_changes_the_output(name: str, x: Tensor) -> None:
    part, plain = feed_forward(name), feed_forward(name)
    part.normalise_hidden(Doubling)
    widths = {m.width for m in part.modules() if isinstance(m, Doubling)}
    assert widths == {part.width}
    assert not torch.allclose(part(x), plain(x))


def gates_by_hand(part: MixtureOfExperts, token: Tensor, k: int) -> tuple[list[float], set[int]]:
    """Return the gates of one token (D,) and the selected experts, by sorting plain numbers."""
    scores = [math.exp(float(row @ token)) for row in part.router.weight.detach()]
    p = [score / sum(scores) for score in scores]
    selected = set(sorted(range(len(p)), key=lambda e: p[e])[-k:])
    total = sum(p[e] for e in selected) if k > 1 else 1.0
    return [p[e] / total if e in selected else 0.0 for e in range(len(p))], selected


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("balance", [0.01, 0.3])
def test_the_balance_loss_by_hand(top_k: int, balance: float, x: Tensor) -> None:
    part = mixture(top_k=top_k, balance=balance).train()
    is_token = torch.tensor([[True] * T, [True] * 2 + [False] * (T - 2)])
    aux_losses = AuxLosses(is_token)
    part(x, aux_losses)
    tokens = x[is_token]
    load, share = [0.0] * 4, [0.0] * 4
    for token in tokens:
        _, selected = gates_by_hand(part, token, top_k)
        probabilities, _ = gates_by_hand(part, token, 4)
        for e in range(4):
            load[e] += (e in selected) / (top_k * len(tokens))
            share[e] += probabilities[e] / len(tokens)
    assert sum(load) == pytest.approx(1)
    expected = balance * 4 * sum(a * b for a, b in zip(load, share, strict=True))
    (loss,) = aux_losses.losses
    assert loss.shape == ()
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    nothing = AuxLosses(torch.zeros(B, T, dtype=torch.bool))
    part(x, nothing)
    assert nothing.losses[0].item() == 0


def test_the_balance_loss_of_one_token(x: Tensor) -> None:
    part, token = mixture(top_k=1, balance=0.5).train(), x[:1, :1]
    aux_losses = AuxLosses(torch.ones(1, 1, dtype=torch.bool))
    part(token, aux_losses)
    p, _ = gates_by_hand(part, token[0, 0], 4)
    assert aux_losses.losses[0].item() == pytest.approx(0.5 * 4 * max(p), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_added_in_training_alone(name: str, x: Tensor) -> None:
    part, is_token = feed_forward(name), torch.ones(B, T, dtype=torch.bool)
    aux_losses = AuxLosses(is_token)
    close(part.eval()(x, aux_losses), part.eval()(x))
    assert not aux_losses.losses
    close(part.train()(x, aux_losses), part.train()(x))
    assert len(aux_losses.losses) == (name in ("mixture_of_experts", "shared_experts"))


def test_experts_share_the_dropout_of_the_layer(x: Tensor) -> None:
    dropouts = [m for m in mixture(dropout=0.4).experts.modules() if isinstance(m, nn.Dropout)]
    assert [dropout.p for dropout in dropouts] == [0.4] * 4


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_the_matrices_that_tokens_go_through(name: str) -> None:
    part = feed_forward(name, d_ff=H)
    matrices = [w for n, w in part.named_parameters() if w.ndim == 2 and "router" not in n]
    assert [id(w) for w in part.weights()] == [id(w) for w in matrices]


def test_the_router_computes_in_single_precision_under_bf16(x: Tensor) -> None:
    """And its experts in bf16."""
    part, x = mixture().float(), x.float()
    exact = part._probabilities(x)
    kinds: list[torch.dtype] = []
    part.experts[0].register_forward_hook(lambda *call: kinds.append(call[2].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        p = part._probabilities(x)
        part(x)
    assert torch.equal(p, exact)
    assert kinds == [torch.bfloat16]
    assert part._probabilities(x.bfloat16()).dtype is torch.float32


def tokens_of(n_rows: int, n_tokens: int) -> tuple[Tensor, Tensor]:
    """Return tokens (B, T, D), and where they are no padding, (B, T)."""
    x = numbers(n_rows, n_tokens, D, seed=3)
    is_token = torch.ones(n_rows, n_tokens, dtype=torch.bool)
    is_token[-1, n_tokens // 2 :] = False
    return x, is_token


@pytest.mark.parametrize("name", ["mixture_of_experts", "shared_experts", "loss_free_experts"])
@pytest.mark.parametrize("top_k", [1, 2, 3])
@pytest.mark.parametrize("capacity", [0.3, 1.0, 1.25, None])
def test_experts_take_tokens_in_order_up_to_their_capacity(
    name: str, top_k: int, capacity: float | None
) -> None:
    """First choices before second ones, and no padding; by counting one token after the other."""
    x, is_token = tokens_of(3, 7)
    shared: dict[str, Any] = {"n_shared": 2} if name == "shared_experts" else {}
    part = feed_forward(name, d_ff=H, top_k=top_k, capacity=capacity, **shared).train()
    assert (part.router.bias, len(part.experts)) == (None, 4)
    room = [math.ceil((capacity or 100) * top_k * int(is_token.sum()) / 4)] * 4
    p = part._probabilities(x).detach()
    gates = torch.zeros(3, 7, 4, dtype=torch.float64)
    n_dropped = 0
    for choice in range(top_k):
        for b, t in is_token.nonzero().tolist():
            ranked = sorted(range(4), key=lambda e: -float(p[b, t, e]))
            total = float(p[b, t, ranked[:top_k]].sum()) if name == "mixture_of_experts" else 1.0
            e = ranked[choice]
            if room[e]:
                gates[b, t, e] = p[b, t, e] / (total if top_k > 1 else 1.0)
                room[e] -= 1
            else:
                n_dropped += 1
    expected = sum(gates[..., e, None] * part.experts[e](x) for e in range(4))
    if name == "shared_experts":
        assert len(part.shared) == 2
        expected = expected + part.shared[0](x) + part.shared[1](x)
    y = part(x, AuxLosses(is_token))
    close(y[is_token], expected[is_token])
    assert (capacity or 100) > 1 or n_dropped > 0
    if name != "shared_experts":
        assert torch.equal(y[is_token].any(dim=-1), gates[is_token].any(dim=-1))


def test_a_capacity_drops_nothing_in_evaluation() -> None:
    x, is_token = tokens_of(3, 7)
    narrow, wide = mixture(capacity=0.1), mixture()
    close(narrow.eval()(x, AuxLosses(is_token)), wide.eval()(x, AuxLosses(is_token)))
    one, other = AuxLosses(is_token), AuxLosses(is_token)
    assert not torch.equal(narrow.train()(x, one), wide.train()(x, other))
    assert torch.equal(one.losses[0], other.losses[0]), "the balance is that of the choices"


@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
@pytest.mark.parametrize("top_k", [1, 2])
def test_biases_move_by_the_sign_of_the_error_of_the_load(gate: str, top_k: int) -> None:
    """Algorithm 1 of Wang et al., token by token; the gates are without the bias."""
    x, is_token = tokens_of(3, 7)
    part = feed_forward("loss_free_experts", d_ff=H, gate=gate, top_k=top_k, rate=0.1).train()
    biases = [0.0] * 4
    moved = 0
    for _ in range(6):
        counts, y = [0] * 4, part(x, AuxLosses(is_token))
        for b, t in is_token.nonzero().tolist():
            scores = [float(row @ x[b, t]) for row in part.router.weight.detach()]
            if gate == "sigmoid":
                s = [1 / (1 + math.exp(-score)) for score in scores]
            else:
                s = [math.exp(a) / sum(math.exp(score) for score in scores) for a in scores]
            chosen = sorted(range(4), key=lambda i: s[i] + biases[i])[-top_k:]
            for i in chosen:
                counts[i] += 1
            expected = sum(s[i] * part.experts[i](x[b, t]) for i in chosen)
            close(y[b, t], expected)
        mean = sum(counts) / 4
        part.after_update()
        for i, count in enumerate(counts):
            biases[i] += 0.1 * (mean > count) - 0.1 * (mean < count)
            moved += mean != count
        close(part.offset, torch.tensor(biases, dtype=torch.float64))
    assert moved > 6


def test_biases_do_not_move_in_evaluation_and_are_stored() -> None:
    x, is_token = tokens_of(3, 7)
    part = feed_forward("loss_free_experts", d_ff=H, rate=0.5)
    part.eval()(x, AuxLosses(is_token))
    part.after_update()
    assert not part.offset.any()
    part.train()(x, AuxLosses(is_token))
    part.after_update()
    assert part.offset.any()
    other = feed_forward("loss_free_experts", d_ff=H, rate=0.5)
    other.load_state_dict(part.state_dict())
    assert torch.equal(other.eval()(x), part.eval()(x))
    assert "loads" not in part.state_dict()
