"""Norms: each is its formula, also in its gradient, at zero and in half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ablate.parts.dims import Dims
from ablate.parts.norm import AdaNorm, LayerNorm, Norm
from ablate.parts.norm import ScaleNorm as Scale
from ablate.registry import build, choose, slots
from tests.parts.tensors import close, numbers

D = 8
NAMES = sorted(slots()["norm"])


def norm(name: str, width: int = D, **options: Any) -> Norm:
    """Return a norm in double precision, with parameters that are nothing special."""
    dims = Dims.model_validate({"d_model": width, "n_heads": 1, "max_len": 4})
    part = build(Norm, choose(Norm, name, **options), dims).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.double))
    return part


def fresh(name: str, **options: Any) -> Norm:
    """Return a norm as it is at the start of training."""
    dims = Dims.model_validate({"d_model": D, "n_heads": 2, "max_len": 4})
    return build(Norm, choose(Norm, name, **options), dims)


@pytest.fixture
def x() -> Tensor:
    """Vectors that have neither mean 0 nor variance 1."""
    return 0.7 + 1.6 * numbers(3, 4, D, seed=0)


def mean(x: Tensor) -> Tensor:
    return x.sum(dim=-1, keepdim=True) / x.size(-1)


def deviation(x: Tensor, lost: int) -> Tensor:
    """Return the sum of squares about the mean over D - ``lost``, rooted."""
    return ((x - mean(x)) ** 2).sum(dim=-1, keepdim=True).div(x.size(-1) - lost) ** 0.5


@pytest.mark.parametrize("eps", [1e-5, 0.3])
def test_layer_norm_by_hand(eps: float, x: Tensor) -> None:
    part = norm("layer", eps=eps)
    assert isinstance(part, LayerNorm)
    gain, bias = part.norm.weight, part.norm.bias
    close(part(x), gain * (x - mean(x)) / (deviation(x, 0) ** 2 + eps) ** 0.5 + bias)


@pytest.mark.parametrize(
    ("name", "options", "formula"),
    [
        ("rms", {"eps": 0.3}, lambda p, x: p.norm.weight * x / (mean(x**2) + 0.3) ** 0.5),
        ("annotated", {"eps": 0.3}, lambda p, x: (
            p.gain * (x - mean(x)) / (deviation(x, 1) + 0.3) + p.bias
        )),
        ("scale", {}, lambda p, x: p.length * x / (x**2).sum(dim=-1, keepdim=True) ** 0.5),
        ("dyt", {}, lambda p, x: p.gain * (2 / (1 + (-2 * p.alpha * x).exp()) - 1) + p.bias),
        ("ada", {"k": 0.7}, lambda p, x: (
            (y := (x - mean(x)) / (deviation(x, 0) ** 2 + 1e-5) ** 0.5) - 0.7 * y**2
        )),
    ],
)  # fmt: skip
def test_norms_by_hand(
    name: str, options: dict[str, Any], formula: Callable[[Any, Tensor], Tensor], x: Tensor
) -> None:
    part = norm(name, **options)
    close(part(x), formula(part, x))


def test_scale_norm_may_train_a_share_of_its_first_length(x: Tensor) -> None:
    part, plain = norm("scale", unit=True), norm("scale")
    assert isinstance(part, Scale)
    assert isinstance(plain, Scale)
    with torch.no_grad():
        part.length.fill_(1.25)
        plain.length.fill_(1.25 * D**0.5)
    close(part(x), plain(x))
    dims = Dims.model_validate({"d_model": D, "n_heads": 1, "max_len": 4})
    fresh = build(Norm, choose(Norm, "scale", unit=True), dims)
    assert [p.tolist() for p in fresh.parameters()] == [[1.0]]


def test_scale_norm_treats_short_vectors_as_a_hundred_thousandth_long() -> None:
    part = norm("scale")
    assert isinstance(part, Scale)
    short = torch.full((D,), 1e-6, dtype=torch.float64)
    close(part(short), part.length * short * 1e5)


def test_no_gradient_passes_the_factor_of_ada_norm(x: Tensor) -> None:
    part, x = norm("ada", k=0.7), x.requires_grad_()
    assert isinstance(part, AdaNorm)
    weights = torch.linspace(-1, 2, D, dtype=torch.float64)
    y = F.layer_norm(x, (D,))
    constant = torch.tensor((1 - 0.7 * y).tolist(), dtype=torch.float64)
    (expected,) = torch.autograd.grad((weights * constant * y).sum(), x)
    (actual,) = torch.autograd.grad((weights * part(x)).sum(), x)
    close(actual, expected)


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("layer", lambda x: (x - mean(x)) / (deviation(x, 0) ** 2 + 1e-5) ** 0.5),
        ("rms", lambda x: x / (mean(x**2) + 1e-6) ** 0.5),
        ("annotated", lambda x: (x - mean(x)) / (deviation(x, 1) + 1e-6)),
        ("scale", lambda x: D**0.5 * x / (x**2).sum(dim=-1, keepdim=True) ** 0.5),
        ("dyt", lambda x: (x / 2).tanh()),
        ("ada", lambda x: (y := (x - mean(x)) / (deviation(x, 0) ** 2 + 1e-5) ** 0.5) - y**2 / 10),
        ("none", lambda x: x),
    ],
)
def test_what_training_starts_from(name: str, formula: Callable[[Tensor], Tensor]) -> None:
    """Narrow vectors, so that a wrong eps shows."""
    x = 0.5 + 0.01 * torch.randn(3, 4, D, generator=torch.Generator().manual_seed(2)).double()
    torch.testing.assert_close(fresh(name).double()(x), formula(x), atol=0, rtol=1e-7)


def test_all_parameters_of_norms_are_trained() -> None:
    sizes = {"layer": 2 * D, "rms": D, "annotated": 2 * D, "scale": 1, "dyt": 2 * D + 1}
    for name in NAMES:
        trained = [p.numel() for p in norm(name).parameters() if p.requires_grad]
        assert sum(trained) == sizes.get(name, 0), name


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [3, D])
def test_norms_have_their_width_and_keep_the_shape(name: str, width: int) -> None:
    part = norm(name, width=width)
    assert part.width == width
    for shape in [(width,), (5, width), (2, 3, 4, width)]:
        assert part(torch.randn(shape, dtype=torch.float64)).shape == shape


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0.0, 2.5])
def test_constant_vectors_give_numbers_and_gradients(name: str, value: float) -> None:
    x = torch.full((2, D), value, dtype=torch.float64, requires_grad=True)
    y = norm(name)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert bool(y.isfinite().all())
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_in_computes_in_single(name: str, x: Tensor) -> None:
    """The only error is that of rounding the input, and, for some, the output."""
    part, x = fresh(name), x.bfloat16()
    expected = part(x.float())
    assert expected.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        y = part(x)
    torch.testing.assert_close(y.float(), expected, atol=2**-9, rtol=2**-8)


@pytest.mark.parametrize("name", ["rms", "annotated", "scale", "dyt", "ada"])
def test_what_is_computed_in_single_is_returned_in_single(name: str, x: Tensor) -> None:
    part, x = fresh(name), x.bfloat16()
    torch.testing.assert_close(part(x), part(x.float()), atol=1e-6, rtol=1e-6)
