"""Residual schemes, layer by layer, against their formulas, with arbitrary norms and branches.

Whole stacks are tested in test_residual_stacks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablate.parts.dims import Dims, LayerInfo, Side
from ablate.parts.dropout import ElementDropout
from ablate.parts.norm import Norm
from ablate.parts.residual import Calibration, NormMaker, Residual
from ablate.parts.residual.streams import HyperConnections
from ablate.registry import RefusedError, build, choose, lookup, slots
from tests.parts.tensors import close, numbers

D = 8
DIMS = Dims.model_validate({"d_model": D, "n_heads": 2, "max_len": 4})
NAMES = sorted(slots()["residual"])
Step = Callable[[Tensor], Tensor]


class Odd(Norm):
    """A norm that is neither linear nor scale-invariant, with other parameters at every call.

    g x / (1 + |x|) + b. Swapping or omitting one changes the output.
    """

    def __init__(self, dims: Dims, seed: int) -> None:
        super().__init__(dims)
        generator = torch.Generator().manual_seed(seed)
        self.gain = nn.Parameter(1 + torch.rand(dims.d_model, generator=generator))
        self.bias = nn.Parameter(torch.rand(dims.d_model, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * x / (1 + x.abs()) + self.bias


def odd() -> NormMaker:
    seeds = itertools.count()
    return lambda width=None: Odd(DIMS, next(seeds))


def named(name: str) -> NormMaker:
    return lambda width=None: build(Norm, choose(Norm, name), DIMS)


def layer_info(side: Side = "encoder", n: int = 2, m: int = 2) -> LayerInfo:
    return LayerInfo(side=side, layer=0, n_encoder_layers=n, n_decoder_layers=m)


def scheme(
    name: str, side: Side = "encoder", norm: NormMaker | None = None, p: float = 0.0, **options: Any
) -> Residual:
    """Return the scheme of one layer, in double precision, with arbitrary parameters."""
    choice = choose(Residual, name, **options)
    layer = build(Residual, choice, layer_info(side), norm or odd(), p).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for path, parameter in layer.named_parameters():
            if "norm" not in path and "after" not in path:
                parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
    return layer


def fitted(
    name: str, side: Side = "encoder", norm: NormMaker | None = None, p: float = 0.0
) -> Residual:
    """Return the scheme of one layer with a norm that it accepts: an odd one, or none."""
    try:
        return scheme(name, side, norm, p)
    except RefusedError:
        return scheme(name, side, named("none"), p)


def first(x: Tensor) -> Tensor:
    return x.roll(1, dims=-1) ** 2 - 1.5 * x


def second(x: Tensor) -> Tensor:
    return 2 * x.abs() + 0.3


def third(x: Tensor) -> Tensor:
    return x.sin() + x.flip(-1) ** 3 / 9


BRANCHES = {"encoder": (first, third), "decoder": (first, second, third)}
SIDES: tuple[Side, Side] = ("encoder", "decoder")


@pytest.fixture
def x() -> Tensor:
    return numbers(3, 4, D, seed=0)


def chain(step: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Return a formula that takes one step after the other, for each of the branches."""

    def run(layer: Any, x: Tensor, fs: Sequence[Step], drop: Step) -> Tensor:
        for k, f in enumerate(fs):
            x = step(layer, k, x, f, drop)
        return x

    return run


post = chain(lambda a, k, x, f, drop: a.norms[k](x + drop(f(x))))
pre = chain(lambda a, k, x, f, drop: x + drop(f(a.norms[k](x))))
post_dropout_last = chain(lambda a, k, x, f, drop: drop(a.norms[k](x + f(x))))
post_branch = chain(lambda a, k, x, f, drop: x + drop(a.norms[k](f(x))))
sandwich = chain(lambda a, k, x, f, drop: x + a.after[k](drop(f(a.norms[k](x)))))
scaled_branches = chain(lambda a, k, x, f, drop: x + drop(f(a.norms[k](x))) * a.weights[k])
admin = chain(lambda a, k, x, f, drop: a.norms[k](x * a.omegas[k] + drop(f(x))))


def deepnorm(layer: Any, x: Tensor, fs: Sequence[Step], drop: Step) -> Tensor:
    alpha = {2: 0.81 * 32 ** (1 / 16), 3: 6**0.25}[len(fs)]  # N = M = 2
    for norm, f in zip(layer.norms, fs, strict=True):
        x = norm(alpha * x + drop(f(x)))
    return x


def b2t(layer: Any, x: Tensor, fs: Sequence[Step], drop: Step) -> Tensor:
    a = layer.norms
    y = a[0](x + drop(fs[0](x)))
    if len(fs) == 3:
        y = a[1](y + drop(fs[1](y)))
    return a[-1](x + y + drop(fs[-1](y)))


def residual_dual(layer: Any, x: Tensor, fs: Sequence[Step], drop: Step) -> Tensor:
    stream, plain = x[..., :D], x[..., D:]
    for norm, f in zip(layer.norms, fs, strict=True):
        y = drop(f(stream))
        stream, plain = norm(stream + y), plain + y
    return torch.cat((stream, plain), dim=-1)


def normformer(layer: Any, x: Tensor, fs: Sequence[Step], drop: Step) -> Tensor:
    *attentions, feed_forward = fs
    for before, after, f in zip(layer.norms[:-1], layer.after[:-1], attentions, strict=True):
        x = x + drop(after(f(before(x))))
    return x + drop(feed_forward(layer.norms[-1](x)))


def parallel(layer: Any, x: Tensor, fs: Sequence[Step], drop: Step) -> Tensor:
    (norm,) = layer.norms
    outputs = [drop(f(norm(x))) for f in fs]
    return x + torch.stack(outputs).sum(dim=0)


def dlcl(layer: Any, x: Tensor, fs: Sequence[Step], drop: Step) -> Tensor:
    """The lowest of two layers: the stream has room for three outputs, and one is there."""
    z = layer.combination.weights[0] * layer.combination.norms[0](x[..., 2 * D :])
    for norm, f in zip(layer.norms, fs, strict=True):
        z = z + drop(f(norm(z)))
    return torch.cat((x[..., D:], z), dim=-1)


def hyper_connections(layer: Any, x: Tensor, fs: Sequence[Step], drop: Step) -> Tensor:
    """Token by token, with the matrix of eq. 5: what is read and kept stands side by side."""
    streams = x.unflatten(-1, (4, D))
    for norm, c, f in zip(layer.norms, layer.connections, fs, strict=True):
        normed = c.norm(streams)
        alpha, beta = c.scales
        read = c.read[:, 0] + alpha * (normed * c.reader[:, 0]).sum(dim=-1).tanh()
        keep = c.keep + alpha * torch.einsum("btnd,dm->btnm", normed, c.keeper).tanh()
        write = c.write[:, 0] + beta * (normed * c.writer[:, 0]).sum(dim=-1).tanh()
        mixed = torch.cat((read[..., None], keep), dim=-1)  # (B, T, n, 1 + n)
        both = torch.einsum("btnm,btnd->btmd", mixed, streams)
        y = drop(f(norm(both[:, :, 0])))
        streams = both[:, :, 1:] + torch.einsum("btn,btd->btnd", write, y)
    return streams.flatten(-2)


FORMULAS: dict[str, Callable[..., Tensor]] = {
    "post": post, "pre": pre, "post_dropout_last": post_dropout_last, "b2t": b2t,
    "residual_dual": residual_dual, "realformer": post, "sandwich": sandwich, "peri": sandwich,
    "normformer": normformer, "parallel": parallel, "rezero": scaled_branches,
    "rezero_norm": scaled_branches, "layer_scale": scaled_branches, "deepnorm": deepnorm,
    "admin": admin, "post_branch": post_branch, "layernorm_scaling": pre, "mix": post,
    "dlcl": dlcl, "hyper_connections": hyper_connections,
}  # fmt: skip


def stream(name: str, x: Tensor) -> Tensor:
    """Return a stream made of ``x``; of a stream of several widths the parts differ."""
    n = {"residual_dual": 2, "dlcl": 3, "hyper_connections": 4}.get(name, 1)
    parts = [x, 1.5 - x.flip(-1), x.roll(1, dims=1), 0.5 + 2 * x]
    return torch.cat(parts[:n], dim=-1)


def identity(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", FORMULAS)
def test_a_layer_is_its_formula_with_dropout_where_that_has_it(
    name: str, side: Side, x: Tensor
) -> None:
    layer, x = fitted(name, side, p=0.4), stream(name, x)
    torch.manual_seed(0)
    actual = layer.train()(x, *BRANCHES[side])
    torch.manual_seed(0)
    expected = FORMULAS[name](layer, x, BRANCHES[side], ElementDropout(0.4))
    close(actual, expected)
    close(layer.eval()(x, *BRANCHES[side]), FORMULAS[name](layer, x, BRANCHES[side], identity))


def test_parallel_may_have_a_norm_for_each_branch(x: Tensor) -> None:
    layer = scheme("parallel", "decoder", shared_norm=False)
    assert len(layer.norms) == 3
    outputs = [f(norm(x)) for norm, f in zip(layer.norms, BRANCHES["decoder"], strict=True)]
    close(layer(x, *BRANCHES["decoder"]), x + outputs[0] + outputs[1] + outputs[2])


NORM_AT_INPUT = {"peri"}
NORM_AT_OUTPUT = {
    "pre", "sandwich", "peri", "normformer", "parallel", "rezero_norm", "layer_scale",
    "post_branch", "layernorm_scaling",
}  # fmt: skip
SEVERAL_STREAMS = {"residual_dual", "dlcl", "hyper_connections"}


@pytest.mark.parametrize("name", sorted(set(FORMULAS) - SEVERAL_STREAMS))
def test_transforms_at_the_ends_of_a_stack(name: str, x: Tensor) -> None:
    layer = fitted(name)
    for transform, has_norm in (
        (layer.input_transform(odd()), NORM_AT_INPUT),
        (layer.output_transform(odd()), NORM_AT_OUTPUT),
    ):
        close(transform.double()(x), odd()().double()(x) if name in has_norm else x)


@pytest.mark.parametrize("name", ["post", "pre", "realformer"])
@pytest.mark.parametrize("final_norm", [False, True])
def test_a_final_norm_is_there_when_asked_for(name: str, final_norm: bool, x: Tensor) -> None:
    transform = scheme(name, final_norm=final_norm).output_transform(odd()).double()
    close(transform(x), odd()().double()(x) if final_norm else x)


def test_residual_dual_starts_with_two_streams_and_adds_them_at_the_end(x: Tensor) -> None:
    layer = scheme("residual_dual")
    stream, output = layer.input_transform(odd())(x), layer.output_transform(odd()).double()
    assert torch.equal(stream[..., :D], x)
    assert torch.equal(stream[..., D:], x)
    close(output(torch.cat((x, 2 - x), dim=-1)), x + odd()().double()(2 - x))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", FORMULAS)
def test_the_norms_of_a_layer_are_distinct_modules(name: str, side: Side) -> None:
    n = {"sandwich": 2, "peri": 2}.get(name, 1) * len(BRANCHES[side])
    n = {"parallel": 1, "rezero": 0, "normformer": 2 * n - 1, "dlcl": n + 1}.get(name, n)
    n *= 1 + (name == "hyper_connections")
    norms = [m for m in fitted(name, side).modules() if isinstance(m, Odd)]
    assert len(norms) == len({id(m) for m in norms}) == n


@pytest.mark.parametrize("name", NAMES)
def test_a_scheme_that_needs_norms_is_refused_without(name: str) -> None:
    reason = getattr(lookup("residual", name).cls, "needs_norm")  # noqa: B009 - of the slot
    if not reason:
        assert scheme(name, norm=named("none"))
        return
    with pytest.raises(RefusedError) as refusal:
        scheme(name, norm=named("none"))
    assert refusal.value.reason == (
        f"{reason}, but the encoder's norm (model.norm, model.encoder.norm) is none; "
        "choose a norm, or a residual that needs none: post, pre or rezero"
    )


def test_these_schemes_need_norms() -> None:
    parts = {name: lookup("residual", name).cls for name in FORMULAS}
    assert {name for name, cls in parts.items() if getattr(cls, "needs_norm", "")} == {
        "b2t", "residual_dual", "sandwich", "peri", "normformer", "deepnorm", "admin",
        "rezero_norm", "post_branch", "layernorm_scaling", "mix", "dlcl", "hyper_connections",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options", "initial", "width"),
    [
        ("rezero", {}, 0.0, 1),
        ("rezero_norm", {}, 0.0, 1),
        ("layer_scale", {}, 0.1, D),
        ("layer_scale", {"initial": 0.25}, 0.25, D),
    ],
)
@pytest.mark.parametrize("side", SIDES)
def test_trained_weights_of_branches(
    name: str, options: Any, initial: float, width: int, side: Side
) -> None:
    norm = named("none" if name == "rezero" else "layer")
    layer: Any = build(Residual, choose(Residual, name, **options), layer_info(side), norm, 0.0)
    weights = [weight for n, weight in layer.named_parameters() if "norms" not in n]
    assert len(weights) == len(BRANCHES[side])
    for weight in weights:
        assert weight.requires_grad
        assert weight.tolist() == pytest.approx([initial] * width)


@pytest.mark.parametrize(
    ("side", "n", "alpha", "beta"),
    [
        ("encoder", 6, 1.41794, 0.49699), ("decoder", 6, 2.05977, 0.34329),
        ("encoder", 12, 1.76088, 0.40020), ("decoder", 12, 2.44949, 0.28868),
        ("encoder", 18, 1.99875, 0.35257), ("decoder", 18, 2.71081, 0.26085),
    ],
)  # fmt: skip
def test_deepnorm_has_the_constants_of_its_paper(
    side: Side, n: int, alpha: float, beta: float
) -> None:
    layer: Any = build(Residual, choose(Residual, "deepnorm"), layer_info(side, n, n), odd(), 0.0)
    assert (layer.alpha, layer.beta) == pytest.approx((alpha, beta), abs=5e-6)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (16, 1), (1, 16), (3, 27)])
def test_deepnorm_distinguishes_the_depths_of_the_stacks(n: int, m: int) -> None:
    encoder: Any
    decoder: Any
    encoder, decoder = (
        build(Residual, choose(Residual, "deepnorm"), layer_info(side, n, m), odd(), 0.0)
        for side in SIDES
    )
    assert (encoder.alpha / 0.81) ** 16 == pytest.approx(n**4 * m)
    assert (encoder.beta / 0.87) ** -16 == pytest.approx(n**4 * m)
    assert decoder.alpha**4 == pytest.approx(3 * m)
    assert decoder.beta**-4 == pytest.approx(12 * m)


def test_admin_starts_with_ones() -> None:
    layer: Any = build(Residual, choose(Residual, "admin"), layer_info("decoder"), odd(), 0.0)
    assert [omega.tolist() for omega in layer.omegas] == [[1.0] * D] * 3
    assert all(omega.requires_grad for omega in layer.omegas)
    assert layer.needs_calibration
    assert layer.calibration is None


@pytest.mark.parametrize("p", [0.0, 0.4])
def test_admin_profiles_from_the_bottom_up(p: float, x: Tensor) -> None:
    """Two decoder layers: the variance accumulated below each sub-layer determines its weight."""
    layers: list[Any] = [scheme("admin", "decoder", p=p) for _ in range(2)]
    calibration, fs, stream = Calibration(), BRANCHES["decoder"], x
    torch.manual_seed(0)
    for layer in layers:
        layer.train().calibration = calibration
        stream = layer(stream, *fs)
    torch.manual_seed(0)
    accumulated, y = 1.0, x
    for layer in layers:
        for norm, f, omega in zip(layer.norms, fs, layer.omegas, strict=True):
            close(omega, torch.full((D,), accumulated**0.5, dtype=torch.float64))
            branch = ElementDropout(p)(f(y))
            accumulated = accumulated * variance(y) + variance(branch)
            y = norm(omega * y + branch)
    close(stream, y)
    assert float(calibration.variance) == pytest.approx(accumulated, rel=1e-12)


def test_admin_keeps_the_weight_of_the_last_layer_of_a_block(x: Tensor) -> None:
    """One block as both layers of a stack gets the weight of the second of two blocks."""
    block: Any = scheme("admin")
    block.calibration = Calibration()
    once = block(x, first, third)
    accumulated = float(block.calibration.variance)
    block(once, first, third)
    close(block.omegas[0], torch.full((D,), accumulated**0.5, dtype=torch.float64))


def variance(x: Tensor) -> float:
    x = x.detach()
    return float(((x - x.sum() / x.numel()) ** 2).sum() / x.numel())


def at(
    name: str, layer: int, n: int = 4, side: Side = "encoder", p: float = 0.0, **options: Any
) -> Any:
    """Return the scheme of one layer of ``n``, in double precision, as it is initialised.

    The other stack is deeper.
    """
    depths = {"n_encoder_layers": n + 4, "n_decoder_layers": n + 4, f"n_{side}_layers": n}
    where = LayerInfo.model_validate({"side": side, "layer": layer, **depths})
    return build(Residual, choose(Residual, name, **options), where, odd(), p).double()


def test_layernorm_scaling_divides_by_the_root_of_the_number_of_the_layer(x: Tensor) -> None:
    for number in range(4):
        layer, y = at("layernorm_scaling", number), x
        for norm, f in zip(layer.norms, (first, third), strict=True):
            y = y + f(norm(y) / (number + 1) ** 0.5)
        close(layer(x, first, third), y)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("share", "n_post"), [(0.25, 1), (0.3, 2), (0.75, 3), (0.99, 4)])
def test_mix_is_post_below_and_pre_above(share: float, n_post: int, side: Side, x: Tensor) -> None:
    for number in range(4):
        layer = at("mix", number, side=side, p=0.4, share=share)
        formula = post if number < n_post else pre
        torch.manual_seed(0)
        actual = layer(x, *BRANCHES[side])
        torch.manual_seed(0)
        close(actual, formula(layer, x, BRANCHES[side], ElementDropout(0.4)))
    end = at("mix", 3, side=side, share=share).output_transform(odd()).double()
    close(end(x), x if n_post == 4 else odd()().double()(x))


@pytest.mark.parametrize("side", SIDES)
def test_dlcl_combines_all_outputs_below(side: Side, x: Tensor) -> None:
    """A stack of three layers, with a list of outputs in place of a wide stream."""
    layers = [at("dlcl", number, n=3, side=side) for number in range(3)]
    end = layers[-1].output_transform(odd()).double()
    with torch.no_grad():
        for combination in [*(layer.combination for layer in layers), end[0]]:
            assert isinstance(combination.weights, nn.Parameter)
            n = len(combination.weights)
            assert combination.weights.tolist() == pytest.approx([1 / n] * n)
            combination.weights.copy_(torch.linspace(0.3, 1.7, n))
    stream, outputs = layers[0].input_transform(odd())(x), [x]
    for layer in layers:
        stream = layer(stream, *BRANCHES[side])
        pairs = zip(layer.combination.weights, layer.combination.norms, outputs, strict=True)
        z = sum((w * norm(y) for w, norm, y in pairs), start=torch.zeros_like(x))
        outputs.append(pre(layer, z, BRANCHES[side], identity))
        assert stream.shape[-1] == 4 * D
    pairs = zip(end[0].weights, end[0].norms, outputs, strict=True)
    close(end(stream), end[1](sum((w * norm(y) for w, norm, y in pairs), torch.zeros_like(x))))


def test_hyper_connections_start_as_a_pre_norm_stack_with_copies(x: Tensor) -> None:
    """At first every stream is the sum of all branches, so that it does not matter which is read.

    Eq. 14: sub-layer k reads stream k mod n.
    """
    layers = [at("hyper_connections", number, n=2, side="decoder") for number in range(2)]
    streams, plain = layers[0].input_transform(odd())(x), x
    for number, layer in enumerate(layers):
        for k, connection in enumerate(layer.connections):
            assert connection.read[:, 0].argmax() == (3 * number + k) % 4
            assert connection.scales.tolist() == pytest.approx([0.01, 0.01])
            assert "scales" in dict(connection.named_parameters())
        streams = layer(streams, first, second, third)
        plain = pre(layer, plain, (first, second, third), identity)
        close(streams, plain.repeat(1, 1, 4))
    end = layers[-1].output_transform(odd()).double()
    close(end(streams), odd()().double()(4 * plain))


def test_static_connections_have_no_norms_of_their_own(x: Tensor) -> None:
    layer = scheme("hyper_connections", dynamic=False, n_streams=2)
    assert isinstance(layer, HyperConnections)
    names = {name.rpartition(".")[2] for name, _ in layer.connections.named_parameters()}
    assert names == {"read", "keep", "write"}
    streams = torch.stack((x, 1 - x), dim=-2)
    connections: list[Any] = list(layer.connections)
    for norm, c, f in zip(layer.norms, connections, (first, third), strict=True):
        y = f(norm(c.read[0] * streams[..., 0, :] + c.read[1] * streams[..., 1, :]))
        residuals = [sum(c.keep[i, j] * streams[..., i, :] for i in range(2)) for j in range(2)]
        streams = torch.stack([residuals[j] + c.write[j] * y for j in range(2)], dim=-2)
    close(layer(torch.cat((x, 1 - x), dim=-1), first, third), streams.flatten(-2))
