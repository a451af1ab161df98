"""Initialisations: the distribution of every linear layer, by shape, role and depth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ablate.config.experiment import ModelSpec
from ablate.model import Transformer, assemble
from ablate.parts.dims import Dims
from ablate.parts.initialisation import Initialisation, roles
from ablate.parts.optimizer import Optimizer
from ablate.registry import build, choose, slots
from ablate.training.step import parameter_groups, set_lr
from tests.tiny import PAD, PARTS, TINY, VOCABULARY, choices, fitted, tiny

NAMES = sorted(slots()["initialisation"])
WIDE: dict[str, Any] = {
    "dims": {"d_model": 96, "n_heads": 4, "max_len": 16, "d_k": 32, "d_v": 40},
    "n_layers": {"encoder": 2, "decoder": 3},
    "feed_forward": {"name": "relu", "d_ff": 256},
    "embedding": "separate",
}
DIMS = Dims.model_validate(WIDE["dims"])
KURTOSIS = {"uniform": 1.8, "normal": 3.0}


def wide(initialisation: Any, **changes: Any) -> Transformer:
    return tiny(**(WIDE | changes), initialisation=initialisation)


def linears(model: nn.Module) -> dict[str, nn.Linear]:
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}


def assert_spread(model: Transformer, std: Any, distribution: str) -> None:
    """Compare every matrix with ``std(path, fan_in, fan_out)``, and the kurtosis of all."""
    standardised: list[Tensor] = []
    for path, linear in linears(model).items():
        weight = linear.weight.detach().double()
        expected = std(path, linear.in_features, linear.out_features)
        assert weight.std().item() == pytest.approx(expected, rel=0.05), path
        assert weight.mean().item() == pytest.approx(0.0, abs=0.05 * expected), path
        standardised.append((weight / expected).flatten())
    kurtosis = torch.cat(standardised).pow(4).mean().item()
    assert kurtosis == pytest.approx(KURTOSIS[distribution], rel=0.04)


def xavier(path: str, fan_in: int, fan_out: int) -> float:
    return (2 / (fan_in + fan_out)) ** 0.5


def is_in(path: str, *names: str) -> bool:
    return path.rpartition(".")[2] in names


def layer_of(path: str) -> int:
    """Return the number of the layer, 1 first; 0 outside."""
    pieces = path.split(".")
    return int(pieces[2]) + 1 if pieces[1] == "layers" else 0


def ends_branch(path: str) -> bool:
    return path.endswith((".attention.out", ".cross_attention.out", ".feed_forward.down"))


def n_branches(path: str) -> int:
    return 2 * 2 if path.startswith("encoder") else 3 * 3


def gpt2(std: float) -> Any:
    return lambda path, i, o: std / (n_branches(path) ** 0.5 if ends_branch(path) else 1)


def depth_scaled(alpha: float) -> Any:
    return lambda p, i, o: xavier(p, i, o) * (alpha * layer_of(p) ** -0.5 if layer_of(p) else 1)


def t_fixup(path: str, fan_in: int, fan_out: int) -> float:
    is_scaled = ".feed_forward." in path or is_in(path, "v", "out")
    factor = 0.67 * 2**-0.25 if path.startswith("encoder") else (9 * 3) ** -0.25
    return xavier(path, fan_in, fan_out) * (factor if is_scaled else 1)


@pytest.mark.parametrize(
    ("choice", "std", "distribution"),
    [
        ("xavier", xavier, "uniform"),
        ({"name": "xavier", "gain": 0.5}, lambda p, i, o: 0.5 * xavier(p, i, o), "uniform"),
        ({"name": "xavier", "distribution": "normal"}, xavier, "normal"),
        (
            {"name": "xavier", "distribution": "normal", "gain": 2.0},
            lambda p, i, o: 2 * xavier(p, i, o),
            "normal",
        ),
        (
            "xavier_packed",
            lambda p, i, o: xavier(p, i, o) * (0.5**0.5 if is_in(p, "q", "k", "v") else 1),
            "uniform",
        ),
        (
            {"name": "xavier_packed", "packed": "kv"},
            lambda p, i, o: xavier(p, i, o) * (0.5**0.5 if is_in(p, "k", "v") else 1),
            "uniform",
        ),
        ("torch", lambda p, i, o: (3 * i) ** -0.5, "uniform"),
        ("normal", lambda p, i, o: 0.02, "normal"),
        ({"name": "normal", "std": 0.1}, lambda p, i, o: 0.1, "normal"),
        ("gpt2", gpt2(0.02), "normal"),
        ({"name": "gpt2", "std": 0.1}, gpt2(0.1), "normal"),
        (
            "small",
            lambda p, i, o: (2 / (5 * 96)) ** 0.5 if "attention" in p else xavier(p, i, o),
            "normal",
        ),
        ("depth_scaled", depth_scaled(1.0), "uniform"),
        ({"name": "depth_scaled", "alpha": 0.5}, depth_scaled(0.5), "uniform"),
        ("t_fixup", t_fixup, "uniform"),
        (
            {"name": "t_fixup", "queries_keys": "packed"},
            lambda p, i, o: t_fixup(p, i, o) * (0.5**0.5 if is_in(p, "q", "k") else 1),
            "uniform",
        ),
        (
            "mup",
            lambda p, i, o: 128**-0.5 if p == "embedding.output" else i**-0.5,
            "normal",
        ),
        (
            {"name": "mup", "base_d_model": 24},
            lambda p, i, o: 24**-0.5 if p == "embedding.output" else i**-0.5,
            "normal",
        ),
    ],
)
def test_every_matrix_has_its_distribution(choice: Any, std: Any, distribution: str) -> None:
    assert_spread(wide(choice), std, distribution)


@pytest.mark.parametrize("name", [n for n in NAMES if n != "fairseq"])
def test_biases_start_at_zero_except_pytorchs(name: str) -> None:
    biases = [linear.bias for linear in linears(wide(name)).values() if linear.bias is not None]
    assert biases
    if name == "torch":
        assert all(bool(bias.any()) for bias in biases)
    else:
        assert not any(bool(bias.any()) for bias in biases)


FAIRSEQ_TINY: dict[str, Any] = {
    "dims": {"d_model": 128, "n_heads": 4, "max_len": 16},
    "n_layers": 4,
    "feed_forward": {"name": "relu", "d_ff": 256},
    "embedding": {"name": "separate", "output_bias": True},
}
ATTENTION_SPREADS = {  # standard deviation and largest magnitude, of all layers together
    "q.weight": (0.062520, 0.108253),
    "k.weight": (0.062374, 0.108253),
    "v.weight": (0.062526, 0.108252),
    "out.weight": (0.088282, 0.153093),
    "q.bias": (0.051175, 0.088375),
    "k.bias": (0.050814, 0.088279),
    "v.bias": (0.051136, 0.088305),
    "out.bias": (0.0, 0.0),
    "embedding.output.weight": (0.088635, 0.458080),
    "embedding.output.bias": (0.0, 0.0),  # ours alone
}


@pytest.mark.parametrize(
    ("feed_forward", "spreads"),
    [
        (
            "torch",
            {
                "up.weight": (0.051030, 0.088388),
                "up.bias": (0.051556, 0.088371),
                "down.weight": (0.036107, 0.062499),
                "down.bias": (0.035488, 0.062479),
            },
        ),
        (
            "xavier",
            {
                "up.weight": (0.072218, 0.125),
                "up.bias": (0.0, 0.0),
                "down.weight": (0.072169, 0.125),
                "down.bias": (0.0, 0.0),
            },
        ),
    ],
)
def test_fairseqs_mixture_has_the_spreads_of_fairseq(
    feed_forward: str, spreads: dict[str, tuple[float, float]]
) -> None:
    """Numbers of fairseq 0.12.3, and of 0.9.0 for ``xavier``: 4 + 4 layers, seed 1, CPU."""
    torch.manual_seed(0)
    initialisation = {"name": "fairseq", "feed_forward": feed_forward}
    parameters = dict(tiny(**FAIRSEQ_TINY, initialisation=initialisation).named_parameters())
    for end, (std, largest) in (ATTENTION_SPREADS | spreads).items():
        ours = torch.cat([p.detach().flatten() for n, p in parameters.items() if n.endswith(end)])
        assert ours.std().item() == pytest.approx(std, rel=0.03), end
        is_normal = end == "embedding.output.weight"
        assert ours.abs().max().item() == pytest.approx(largest, rel=0.2 if is_normal else 0.003)


@pytest.mark.parametrize("names", [NAMES[:1], pytest.param(NAMES[1:], marks=pytest.mark.full)])
@pytest.mark.parametrize(("slot", "part"), [p for p in PARTS if p[0] != "initialisation"])
def test_every_linear_layer_is_initialised(slot: str, part: str, names: list[str]) -> None:
    """No linear layer of any part keeps the weights that its constructor drew."""
    model = fitted(slot, part)
    for name in names:
        for linear in linears(model).values():
            nn.init.constant_(linear.weight, 7.0)
        build(Initialisation, choose(Initialisation, name), DIMS).initialise(model)
        for path, linear in linears(model).items():
            assert linear.weight.abs().max() < 7.0, (name, path)


@pytest.mark.parametrize("feed_forward", sorted(slots()["feed_forward"]))
def test_every_feed_forward_declares_its_last_matrices(feed_forward: str) -> None:
    model = fitted("feed_forward", feed_forward)
    inside = {
        path: role
        for path, linear in linears(model).items()
        if (role := roles(model)[linear]).kind == "feed_forward"
    }
    ends = [path for path, role in inside.items() if role.ends_branch]
    assert 0 < len(ends) < len(inside)
    assert all(linears(model)[path].out_features == 32 for path in ends)


@pytest.mark.parametrize(
    ("sharing", "depths"),
    [
        ("none", [1, 2, 3, 4]),
        ("block", [1]),
        ({"name": "sequence", "n_blocks": 2}, [1, 3]),
        ({"name": "cycle", "n_blocks": 2}, [1, 2]),
    ],
)
def test_a_shared_block_has_the_depth_of_its_lowest_layer(sharing: Any, depths: list[int]) -> None:
    model = tiny(n_layers=4, sharing=sharing)
    all_roles = roles(model)
    for stack, n_sublayers in ((model.encoder, 2), (model.decoder, 3)):
        block_roles = [all_roles[block.attention.q] for block in stack.blocks]
        assert [role.depth for role in block_roles] == depths
        assert {role.n_layers for role in block_roles} == {4}
        assert {role.n_branches for role in block_roles} == {4 * n_sublayers}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("embedding", ["tied", "tied_target", "separate"])
def test_tables_depend_on_no_initialisation_but_t_fixup(name: str, embedding: str) -> None:
    actual, plain = (wide(i, embedding=embedding).embedding for i in (name, "xavier"))
    of_src, of_tgt = (9 * 2) ** -0.25, (9 * 3) ** -0.25
    factors = (of_src, of_src if embedding == "tied" else of_tgt) if name == "t_fixup" else (1, 1)
    tables = ((actual.src_table, plain.src_table), (actual.tgt_table, plain.tgt_table))
    for factor, (table, usual) in zip(factors, tables, strict=True):
        if table is not None and usual is not None:
            torch.testing.assert_close(table.weight, factor * usual.weight)


def test_mup_scales_the_logits_and_the_rates_of_matrices_alone() -> None:
    model = wide({"name": "mup", "base_d_model": 24})
    assert model.embedding.output_multiplier == 0.25
    assert wide("xavier").embedding.output_multiplier == 1.0
    mup = build(Initialisation, choose(Initialisation, "mup", base_d_model=24), DIMS)
    rates = {
        id(parameter): group.rate
        for group in parameter_groups(model, mup)
        for parameter in group.parameters
    }
    for path, parameter in model.named_parameters():
        in_layer = ".layers." in path and parameter.ndim == 2
        assert rates[id(parameter)] == (0.25 if in_layer else 1.0), path


@pytest.mark.full
@pytest.mark.parametrize(("slot", "name"), [p for p in PARTS if p[0] != "initialisation"])
def test_mup_and_the_optimizer_agree_on_the_matrices(slot: str, name: str) -> None:
    with torch.device("meta"):
        spec = ModelSpec.model_validate(TINY | choices(slot, name))
        model = assemble(spec, VOCABULARY, PAD)
    mup = build(Initialisation, choose(Initialisation, "mup"), spec.dims)
    groups = parameter_groups(model, mup)
    assert {(group.is_matrix, group.rate) for group in groups} == {(True, 4.0), (False, 1.0)}


@pytest.mark.parametrize("name", [n for n in NAMES if n != "mup"])
def test_all_others_have_one_rate_for_all_parameters(name: str) -> None:
    groups = parameter_groups(wide(name), build(Initialisation, choose(Initialisation, name), DIMS))
    assert {group.rate for group in groups} == {1.0}


def moved(
    initialisation: dict[str, Any], d_model: int, n_heads: int = 4, **changes: Any
) -> tuple[float, float]:
    """Make three steps of Adam; return how far the decoder's output and the logits moved (rms)."""
    spec = ModelSpec.model_validate(
        {
            "dims": {"d_model": d_model, "n_heads": n_heads, "max_len": 8},
            "n_layers": 1,
            "feed_forward": {"name": "relu", "d_ff": 2 * d_model},
            "residual": "pre",
            "scaling": "dk",
            "embedding": {"name": "tied", "scale": "none", "init_std": 1.0},
            "initialisation": initialisation,
            "dropout": {"embedding": 0.0, "residual": 0.0},
            **changes,
        }
    )
    torch.manual_seed(0)
    model = assemble(spec, VOCABULARY, PAD)
    chosen = build(Initialisation, spec.initialisation, spec.dims)
    optimizer = build(Optimizer, choose(Optimizer, "adam")).make(parameter_groups(model, chosen))
    set_lr(optimizer, 1e-2)
    src, tgt = torch.randint(4, 50, (2, 8, 6))

    def outputs() -> tuple[Tensor, Tensor]:
        hidden = model.hidden(src, model.encode(src))
        return hidden, model.embedding.logits(hidden)

    before = [x.detach() for x in outputs()]
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(outputs()[1].flatten(0, 1), tgt.flatten()).backward()
        optimizer.step()
    with torch.no_grad():
        hidden, logits = (
            (x - y).square().mean().sqrt().item() for x, y in zip(outputs(), before, strict=True)
        )
    return hidden, logits


def test_the_steps_of_mup_do_not_grow_with_the_width() -> None:
    """A learning rate does to a wide model what it does to a narrow one; not so with `xavier`."""
    mup = {"name": "mup", "base_d_model": 32}
    (narrow, narrow_logits), (broad, broad_logits) = (moved(mup, d) for d in (32, 128))
    assert broad == pytest.approx(narrow, rel=0.1)
    assert 0.4 < broad_logits / narrow_logits < 1.2
    plain = {"name": "xavier"}
    (narrow, narrow_logits), (broad, broad_logits) = (moved(plain, d) for d in (32, 128))
    assert broad > 1.15 * narrow
    assert broad_logits > 2.5 * narrow_logits


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {"n_heads": (4, 16)},
        {"position": ({"name": "learned", "init_std": 0.5},) * 2},
        {"norm": ({"name": "scale", "unit": True},) * 2},
        {"feed_forward": tuple({"name": "mixture_of_experts", "d_ff": d} for d in (64, 256))},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_nor_with_more_heads_or_with_parts_that_have_scales_of_their_own(
    changes: dict[str, tuple[Any, Any]],
) -> None:
    mup = {"name": "mup", "base_d_model": 32}
    (narrow, narrow_logits), (broad, broad_logits) = (
        moved(mup, d, **{key: values[i] for key, values in changes.items()})
        for i, d in enumerate((32, 128))
    )
    assert broad == pytest.approx(narrow, rel=0.25)
    assert 0.4 < broad_logits / narrow_logits < 1.2
