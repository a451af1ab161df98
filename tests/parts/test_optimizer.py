"""Optimizers: against PyTorch's, against their papers in plain algebra, and from checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.contracts.training_parts import updates_rows_alike
from ablate.parts.optimizer import Averaging, EstimatesCurvature, Group, Optimizer
from ablate.registry import build, choose, lookup, slots
from ablate.training import checkpoint
from ablate.training.step import set_lr
from ablate.training.weights import Weights
from tests.tiny import alternatives

NAMES = sorted(slots()["optimizer"])
OPTIONS = [(n, o) for n in NAMES for o in lookup("optimizer", n).options.model_fields]
BEYOND: dict[str, list[Any]] = {
    "min_rms": [5.0],
    "clip": [1.5],
    "every": [1, 2],
    "sophia.every": [1, 2],
    "sophia.betas": [(0.5, 0.99), (0.96, 0.5)],
    "sophia.gamma": [10.0],
    "adan.betas": [(0.5, 0.6, 0.7), (0.98, 0.92, 0.5)],
}  # the usual values have no effect on these steps
LR = 0.1


class Bowl(nn.Module):
    """A small bumpy function of a matrix and a vector, in double precision."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        start = torch.linspace(-2.0, 1.0, 12, dtype=dtype)
        self.matrix = nn.Parameter(start.reshape(4, 3) ** 3)
        self.vector = nn.Parameter(torch.tensor([1.0, -2.0, 0.5], dtype=dtype))

    def forward(self) -> Tensor:
        x = self.matrix @ self.vector
        return x.square().sum() + (3 * self.vector).sin().sum() + self.matrix.cos().sum()

    def groups(self) -> list[Group]:
        """Return the two parameters; the vector learns half as fast."""
        return [Group([self.matrix], is_matrix=True), Group([self.vector], False, rate=0.5)]


def make(bowl: Bowl, name: str, **options: Any) -> torch.optim.Optimizer:
    return build(Optimizer, choose(Optimizer, name, **options)).make(bowl.groups())


def descend(bowl: Bowl, optimizer: torch.optim.Optimizer, n: int = 6) -> list[Tensor]:
    """Make ``n`` steps; return where they lead. The gradient does for an estimate of curvature.

    Gradients stay in the same memory, as in a CUDA graph.
    """
    for t in range(n):
        optimizer.zero_grad(set_to_none=False)
        bowl().backward()
        if isinstance(optimizer, EstimatesCurvature) and t % optimizer.every == 0:
            optimizer.add_curvature(3)
        optimizer.step()
    return [p.detach().clone() for p in bowl.parameters()]


def ours(name: str, n: int = 6, lr: float = LR, **options: Any) -> list[Tensor]:
    bowl = Bowl()
    optimizer = make(bowl, name, **options)
    set_lr(optimizer, lr)
    return descend(bowl, optimizer, n)


def theirs(make: Callable[..., torch.optim.Optimizer], **options: Any) -> list[Tensor]:
    """Do the same with an optimizer of PyTorch and two plain groups."""
    bowl = Bowl()
    groups = [{"params": [bowl.matrix], "lr": LR}, {"params": [bowl.vector], "lr": LR / 2}]
    return descend(bowl, make(groups, **options))


Rule = Callable[[Tensor, Tensor, dict[str, Any], int, float], Tensor]


def by_hand(rule: Rule) -> list[Tensor]:
    """Let ``rule`` take a weight, gradient, memory, step and rate, and return the weight."""
    bowl = Bowl()
    memories: list[dict[str, Any]] = [{}, {}]
    for t in range(1, 7):
        bowl.zero_grad()
        bowl().backward()
        with torch.no_grad():
            for p, memory, lr in zip(bowl.parameters(), memories, (LR, LR / 2), strict=True):
                assert p.grad is not None
                p.copy_(rule(p, p.grad, memory, t, lr))
    return [p.detach() for p in bowl.parameters()]


def assert_same(left: list[Tensor], right: list[Tensor], tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(left, right, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_every_option_changes_the_steps(name: str, option: str) -> None:
    before = ours(name)
    beyond = BEYOND.get(f"{name}.{option}") or BEYOND.get(option)
    values = beyond or list(alternatives(lookup("optimizer", name), option))
    assert values
    for value in values:
        after = ours(name, **{option: value})
        assert any(not torch.allclose(x, y) for x, y in zip(before, after, strict=True)), value


@pytest.mark.parametrize("name", NAMES)
def test_a_rate_set_at_every_step_is_used(name: str) -> None:
    """The first group's rate alone moves it; the second has half the rate and keeps it."""
    bowl = Bowl()
    optimizer = make(bowl, name)
    set_lr(optimizer, 0.3)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates == {id(bowl.matrix): 0.3, id(bowl.vector): 0.15}
    set_lr(optimizer, LR)
    assert_same(descend(bowl, optimizer), ours(name))
    if isinstance(optimizer, Averaging):
        return  # after larger rates, averaging goes on at a rate of 0
    set_lr(optimizer, 0.0)
    before = [p.detach().clone() for p in bowl.parameters()]
    assert_same(descend(bowl, optimizer), before)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_checkpoint_continues_bit_for_bit(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    file = tmp_path / "checkpoint.pt"
    whole, first, second = Bowl(dtype), Bowl(dtype), Bowl(dtype)
    for bowl, n in ((whole, 7), (first, 4)):
        optimizer = make(bowl, name)
        set_lr(optimizer, 0.01)
        descend(bowl, optimizer, n)
    set_lr(optimizer, 7.0)  # the schedule sets the rate, not the checkpoint
    checkpoint.save(file, Weights(first), optimizer, {"step": 4})
    restored = make(second, name)
    assert checkpoint.restore(file, Weights(second), restored) == {"step": 4}
    assert sorted(group["rate"] for group in restored.param_groups) == [0.5, 1.0]
    set_lr(restored, 0.01)
    descend(second, restored, 3)
    assert all(bool(p.isfinite().all()) for p in whole.parameters())
    assert all(
        torch.equal(x, y) for x, y in zip(whole.parameters(), second.parameters(), strict=True)
    )


@pytest.mark.parametrize("name", NAMES)
def test_what_treats_every_element_by_itself_declares_that_weights_may_be_split(name: str) -> None:
    optimizer = build(Optimizer, choose(Optimizer, name))
    is_estimating = isinstance(make(Bowl(), name), EstimatesCurvature)  # from whole weights
    assert updates_rows_alike(optimizer) is (not optimizer.shard_blocker or is_estimating)


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_without_a_gradient_stays_where_it_is(name: str) -> None:
    bowl = Bowl()
    idle = [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(3))]
    groups = [
        Group([bowl.matrix, idle[0]], is_matrix=True),
        Group([bowl.vector, idle[1]], is_matrix=False, rate=0.5),
        Group([nn.Parameter(torch.ones(5))], is_matrix=False, rate=0.1),
    ]
    optimizer = build(Optimizer, choose(Optimizer, name)).make(groups)
    set_lr(optimizer, LR)
    assert_same(descend(bowl, optimizer), ours(name))
    left = [*idle, *groups[2].parameters]
    assert all(bool((p == 1).all()) for p in left)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_matrix", [True, False])
def test_one_kind_of_parameter_is_enough(name: str, is_matrix: bool) -> None:
    x = nn.Parameter(torch.ones(2, 3))
    optimizer = build(Optimizer, choose(Optimizer, name)).make([Group([x], is_matrix=is_matrix)])
    set_lr(optimizer, LR)
    for _ in range(2):  # the first step of soap makes its basis and moves nothing
        x.grad = None
        x.sum().backward()
        optimizer.step()
    assert bool((x - 1).sum() < 0)  # soap moves where there is no gradient, too
    optimizer.zero_grad(set_to_none=True)
    assert x.grad is None


@pytest.mark.parametrize(
    ("name", "options", "make", "plain"),
    [
        ("adam", {}, torch.optim.Adam, {"betas": (0.9, 0.98), "eps": 1e-9}),
        ("adam", {"weight_decay": 0.3}, torch.optim.Adam,
         {"betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.3}),
        ("adamw", {}, torch.optim.AdamW, {"betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.01}),
        ("sgd", {}, torch.optim.SGD, {"momentum": 0.9}),
        ("sgd", {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}, torch.optim.SGD,
         {"momentum": 0.5, "nesterov": True, "weight_decay": 0.1}),
        ("radam", {"betas": (0.8, 0.7), "eps": 1e-3, "weight_decay": 0.1}, torch.optim.RAdam,
         {"betas": (0.8, 0.7), "eps": 1e-3, "weight_decay": 0.1, "decoupled_weight_decay": True}),
        ("adafactor", {}, torch.optim.Adafactor, {"eps": (1e-30, 1e-3)}),
        ("adafactor", {"exponent": 0.6, "min_rms": 0.9, "clip": 1.2, "weight_decay": 0.1},
         torch.optim.Adafactor,
         {"eps": (1e-30, 0.9), "beta2_decay": -0.6, "d": 1.2, "weight_decay": 0.1}),
    ],
)  # fmt: skip
def test_the_steps_are_those_of_pytorch(
    name: str, options: dict[str, Any], make: Any, plain: dict[str, Any]
) -> None:
    assert_same(ours(name, **options), theirs(make, **plain))


def adam(p: Tensor, g: Tensor, memory: dict[str, Any], t: int, lr: float) -> Tensor:
    m = memory["m"] = 0.9 * memory.get("m", 0.0) + 0.1 * g
    v = memory["v"] = 0.98 * memory.get("v", 0.0) + 0.02 * g.square()
    return p - lr * (m / (1 - 0.9**t)) / ((v / (1 - 0.98**t)).sqrt() + 1e-9)


@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_adafactor_divides_by_no_less_than_the_root_of_1e_30(shape: tuple[int, ...]) -> None:
    """A gradient of 1e-17 is smaller than that, and its update is 1e-17 / 1e-15."""
    p = nn.Parameter(torch.ones(shape, dtype=torch.float64))
    optimizer = build(Optimizer, choose(Optimizer, "adafactor")).make([Group([p], False)])
    set_lr(optimizer, LR)
    p.grad = torch.full_like(p, 1e-17)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full_like(p, 1 - LR * 0.01))


def test_lion_takes_the_steps_of_its_paper() -> None:
    def rule(p: Tensor, g: Tensor, memory: dict[str, Any], t: int, lr: float) -> Tensor:
        m = memory.get("m", torch.zeros_like(p))
        update = torch.sign(0.9 * m + 0.1 * g)
        memory["m"] = 0.99 * m + 0.01 * g
        return p - lr * (update + 0.3 * p)

    assert_same(ours("lion", weight_decay=0.3), by_hand(rule))


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("adjust", ["match_rms_adamw", "original"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
def test_muon_is_pytorchs_for_matrices_and_adamw_for_the_rest(
    nesterov: bool, adjust: str, weight_decay: float
) -> None:
    bowl = Bowl()
    matrices = torch.optim.Muon(
        [bowl.matrix], lr=LR, momentum=0.8, nesterov=nesterov, ns_steps=4, adjust_lr_fn=adjust,
        weight_decay=weight_decay,
    )  # fmt: skip
    rest = torch.optim.AdamW(
        [bowl.vector], lr=LR / 2, betas=(0.8, 0.7), eps=1e-3, weight_decay=weight_decay
    )
    for _ in range(6):
        bowl.zero_grad()
        bowl().backward()
        matrices.step()
        rest.step()
    steps = ours(
        "muon", nesterov=nesterov, adjust=adjust, weight_decay=weight_decay, momentum=0.8,
        n_iterations=4, betas=(0.8, 0.7), eps=1e-3,
    )  # fmt: skip
    assert_same(steps, [p.detach() for p in bowl.parameters()])


@pytest.mark.parametrize("warmup", [0, 4])
def test_ademamix_takes_the_steps_of_its_paper(warmup: int) -> None:
    def rule(p: Tensor, g: Tensor, memory: dict[str, Any], t: int, lr: float) -> Tensor:
        share = min(t / warmup, 1) if warmup else 1
        alpha, beta3 = 3.0 * share, 0.99
        if share < 1:
            a, b = math.log(0.9), math.log(0.99)
            beta3 = math.exp(a * b / ((1 - share) * b + share * a))
        m1 = memory["m1"] = 0.9 * memory.get("m1", 0.0) + 0.1 * g
        m2 = memory["m2"] = beta3 * memory.get("m2", 0.0) + (1 - beta3) * g
        v = memory["v"] = 0.8 * memory.get("v", 0.0) + 0.2 * g.square()
        u = m1 / (1 - 0.9**t) + alpha * m2
        return p - lr * (u / ((v / (1 - 0.8**t)).sqrt() + 1e-3) + 0.2 * p)

    steps = ours(
        "ademamix",
        warmup=warmup,
        betas=(0.9, 0.8),
        beta3=0.99,
        alpha=3.0,
        eps=1e-3,
        weight_decay=0.2,
    )
    assert_same(steps, by_hand(rule))


def test_a_state_of_other_optimizers_is_refused() -> None:
    combined = make(Bowl(), "muon")
    states = combined.state_dict()["optimizers"]
    assert len(states) == 2
    with pytest.raises(ValueError, match="shorter"):
        combined.load_state_dict({"optimizers": states[:1]})


def test_adan_takes_the_steps_of_its_paper() -> None:
    """With the paper's b = 1 - beta, and the bias correction of the authors' code."""
    b1, b2, b3 = 0.3, 0.4, 0.1

    def rule(p: Tensor, g: Tensor, memory: dict[str, Any], t: int, lr: float) -> Tensor:
        change = g - memory.get("g", g)
        memory["g"] = g.clone()
        m = memory["m"] = (1 - b1) * memory.get("m", 0.0) + b1 * g
        v = memory["v"] = (1 - b2) * memory.get("v", 0.0) + b2 * change
        n = memory["n"] = (1 - b3) * memory.get("n", 0.0) + b3 * (g + (1 - b2) * change) ** 2
        c1, c2, c3 = (1 - (1 - b) ** t for b in (b1, b2, b3))
        step = (m / c1 + (1 - b2) * v / c2) / ((n / c3).sqrt() + 1e-3)
        return (p - lr * step) / (1 + 0.2 * lr)

    options: dict[str, Any] = {"betas": (0.7, 0.6, 0.9), "eps": 1e-3, "weight_decay": 0.2}
    assert_same(ours("adan", **options), by_hand(rule))


def test_lamb_takes_the_steps_of_its_paper() -> None:
    def rule(p: Tensor, g: Tensor, memory: dict[str, Any], t: int, lr: float) -> Tensor:
        m = memory["m"] = 0.9 * memory.get("m", 0.0) + 0.1 * g
        v = memory["v"] = 0.999 * memory.get("v", 0.0) + 0.001 * g.square()
        u = m / (1 - 0.9**t) / ((v / (1 - 0.999**t)).sqrt() + 1e-6) + 0.3 * p
        return p - lr * u * p.square().sum().sqrt() / u.square().sum().sqrt()

    assert_same(ours("lamb", weight_decay=0.3), by_hand(rule))


@pytest.mark.parametrize(
    ("start", "gradient", "moves_by"), [(0.0, 1.0, 0.5), (0.1, 2.0, 0.05), (0.1, 0.0, 0.0)]
)
def test_lamb_moves_zeros_by_the_rate_others_by_their_length_and_none_without_a_gradient(
    start: float, gradient: float, moves_by: float
) -> None:
    x = nn.Parameter(torch.full((4,), start))
    optimizer = build(Optimizer, choose(Optimizer, "lamb")).make([Group([x], is_matrix=False)])
    set_lr(optimizer, 0.5)
    (gradient * x).sum().backward()
    optimizer.step()
    torch.testing.assert_close(x.detach(), torch.full((4,), start - moves_by), atol=1e-5, rtol=0)


def test_cautious_adamw_leaves_alone_what_has_no_gradient_now() -> None:
    x = nn.Parameter(torch.tensor([1.0, 1.0]))
    choice = choose(Optimizer, "cautious_adamw", betas=(0.5, 0.5), eps=1.0, weight_decay=0.0)
    optimizer = build(Optimizer, choice).make([Group([x], is_matrix=False)])
    set_lr(optimizer, 0.1)
    for gradient in (torch.tensor([1.0, 1.0]), torch.tensor([1.0, 0.0])):
        x.grad = gradient
        optimizer.step()
    # u = 1 / (1 + 1); in the second step one of two elements agrees, so that it is doubled
    torch.testing.assert_close(x.detach(), torch.tensor([0.85, 0.95]))


@pytest.mark.parametrize(("n_agree", "n", "factor"), [(0, 1, 0.0), (1, 4, 4.0), (1, 4000, 1000.0)])
def test_cautious_adamw_multiplies_what_agrees_by_at_most_a_thousand(
    n_agree: int, n: int, factor: float
) -> None:
    """The second gradient is against the first but for some elements; of none, nothing moves."""
    x = nn.Parameter(torch.zeros(n, dtype=torch.float64))
    choice = choose(Optimizer, "cautious_adamw", betas=(0.9, 0.5), eps=1.0, weight_decay=0.0)
    optimizer = build(Optimizer, choice).make([Group([x], is_matrix=False)])
    agrees = (torch.arange(n) < n_agree).double()
    for rate, gradient in ((0.0, torch.ones_like(x)), (0.1, 1.5 * agrees - 0.5)):
        set_lr(optimizer, rate)
        x.grad = gradient
        optimizer.step()
    torch.testing.assert_close(x.detach(), -0.1 * factor * 0.5 * agrees)  # u = 1 / (1 + 1)


def test_cautious_adamw_leaves_out_what_the_gradient_speaks_against() -> None:
    shares = set()

    def rule(p: Tensor, g: Tensor, memory: dict[str, Any], t: int, lr: float) -> Tensor:
        step = p - adam(p, g, memory, t, lr)
        pairs = zip(step.flatten(), g.flatten(), strict=True)
        agrees = torch.tensor([float(a * b > 0) for a, b in pairs])
        shares.add(round(float(agrees.mean()), 3))
        agrees = agrees.reshape(p.shape).double()
        return p - lr * 0.2 * p - step * agrees / agrees.mean().clamp(min=1e-3)

    assert_same(ours("cautious_adamw", weight_decay=0.2), by_hand(rule), 1e-7)
    assert len(shares) > 1, "some step must be against the gradient"


def test_soap_finds_bases_where_single_precision_does_not_converge(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eigh, types = torch.linalg.eigh, set[torch.dtype]()

    def single() -> list[Tensor]:
        bowl = Bowl(torch.float32)
        optimizer = make(bowl, "soap")
        set_lr(optimizer, LR)
        return descend(bowl, optimizer)

    def in_double(x: Tensor) -> object:
        types.add(x.dtype)
        if x.dtype == torch.float32:
            raise torch.linalg.LinAlgError("failed to converge")  # type: ignore[attr-defined]
        return eigh(x)

    expected = single()
    monkeypatch.setattr(torch.linalg, "eigh", in_double)
    assert_same(single(), expected, 1e-4)
    assert types == {torch.float32, torch.float64}


def test_soap_diverges_without_an_error_where_a_gradient_is_not_finite() -> None:
    x = nn.Parameter(torch.ones(2, 3))
    optimizer = build(Optimizer, choose(Optimizer, "soap")).make([Group([x], is_matrix=True)])
    for _ in range(2):
        x.grad = torch.full((2, 3), math.nan)
        optimizer.step()
    assert bool(x.isnan().all())


def test_soap_takes_the_steps_of_its_paper() -> None:
    """A matrix, with the momentum in the original space, as algorithm 3 has it; adamw beside it."""
    every, b1, b2 = 2, 0.3, 0.2
    reordered = set()

    def rule(p: Tensor, g: Tensor, memory: dict[str, Any], t: int, lr: float) -> Tensor:
        if p.ndim == 1:
            m = memory["m"] = b1 * memory.get("m", 0.0) + (1 - b1) * g
            v = memory["v"] = b2 * memory.get("v", 0.0) + (1 - b2) * g.square()
            u = m / (1 - b1**t) / ((v / (1 - b2**t)).sqrt() + 1e-3)
            return p - lr * (u + 0.1 * p)
        factors = [g @ g.T, g.T @ g]
        if t == 1:
            memory["factors"] = [(1 - b2) * f for f in factors]
            memory["q"] = [torch.linalg.eigh(f).eigenvectors.flip(1) for f in memory["factors"]]
            return p
        n, (left, right) = t - 1, memory["q"]
        m = memory["m"] = b1 * memory.get("m", 0.0) + (1 - b1) * g
        v = memory["v"] = b2 * memory.get("v", 0.0) + (1 - b2) * (left.T @ g @ right).square()
        u = (left.T @ m @ right) / (1 - b1**n)
        u = left @ (u / (v.sqrt() + 1e-3) * (1 - b2**n) ** 0.5) @ right.T
        p = (p - lr * u) * (1 - 0.1 * lr)
        old = memory["factors"]
        memory["factors"] = [b2 * a + (1 - b2) * b for a, b in zip(old, factors, strict=True)]
        if n % every == 0:
            for side, (factor, q) in enumerate(zip(memory["factors"], memory["q"], strict=True)):
                order = (q.T @ factor @ q).diagonal().argsort(descending=True)
                if order.tolist() != sorted(order.tolist()):
                    reordered.add(side)
                memory["v"] = memory["v"][order] if side == 0 else memory["v"][:, order]
                memory["q"][side] = torch.linalg.qr(factor @ q[:, order]).Q
        return p

    steps = ours("soap", betas=(b1, b2), eps=1e-3, every=every, weight_decay=0.1)
    assert_same(steps, by_hand(rule), 1e-8)
    assert reordered == {0, 1}, "each side must have eigenvalues that overtake others"


def test_nadam_is_pytorchs_up_to_the_rounding_of_its_product_of_momenta() -> None:
    options: dict[str, Any] = {
        "betas": (0.9, 0.98),
        "eps": 1e-3,
        "weight_decay": 0.1,
        "momentum_decay": 0.3,
    }
    assert_same(ours("nadam", **options), theirs(torch.optim.NAdam, **options), 1e-6)


@pytest.mark.parametrize("gamma", [0.05, 20.0])
def test_sophia_takes_the_steps_of_its_paper(gamma: float) -> None:
    """Algorithm 3, with n g^2 as the estimate of every second step."""
    bounded = []

    def rule(p: Tensor, g: Tensor, memory: dict[str, Any], t: int, lr: float) -> Tensor:
        m = memory["m"] = 0.9 * memory.get("m", 0.0) + 0.1 * g
        if t % 2 == 1:
            memory["h"] = 0.8 * memory.get("h", 0.0) + 0.2 * 3 * g.square()
        p = p - lr * 0.3 * p
        u = torch.tensor([
            max(-1.0, min(1.0, a / max(gamma * h, 1e-3)))
            for a, h in zip(m.flatten().tolist(), memory["h"].flatten().tolist(), strict=True)
        ], dtype=torch.float64)  # fmt: skip
        bounded.extend((u.abs() < 1).tolist())
        return p - lr * u.reshape(p.shape)

    steps = ours("sophia", betas=(0.9, 0.8), gamma=gamma, eps=1e-3, every=2, weight_decay=0.3)
    assert_same(steps, by_hand(rule))
    assert any(bounded)


@pytest.mark.parametrize(("every", "n_passes"), [(1, 4 / 3), (4, 1 / 3)])
def test_an_estimate_of_sophia_is_two_passes_forward_and_one_back(
    every: int, n_passes: float
) -> None:
    """A pass forward is a third of one forward and backward; most steps have no estimate."""
    maker = build(Optimizer, choose(Optimizer, "sophia", every=every))
    assert maker.extra_passes == pytest.approx(n_passes)


def test_sophia_without_an_estimate_moves_every_weight_by_the_rate() -> None:
    bowl = Bowl()
    before = [p.detach().clone() for p in bowl.parameters()]
    optimizer = make(bowl, "sophia")
    set_lr(optimizer, LR)
    bowl().backward()
    optimizer.step()
    for p, old, rate in zip(bowl.parameters(), before, (LR, LR / 2), strict=True):
        torch.testing.assert_close((p - old).abs(), torch.full_like(old, rate))
