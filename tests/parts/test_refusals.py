"""What parts refuse: the reason, with the way out, and what is next to it and accepted."""

from __future__ import annotations

from typing import Any

import pytest

from ablate.parts.dims import Dims
from ablate.parts.optimizer import Optimizer
from ablate.parts.schedule import Schedule
from ablate.registry import RefusedError, build, choose
from tests.tiny import tiny


def sizes(d_model: int = 24, n_heads: int = 4, **others: int) -> dict[str, int]:
    return {"d_model": d_model, "n_heads": n_heads, "max_len": 16, **others}


MODELS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"dims": sizes(n_heads=5)}, {"dims": sizes(n_heads=5, d_k=4, d_v=6)},
     r"d_model \(24\) is not a multiple of n_heads \(5\)"),
    ({"attention": {"name": "grouped_query", "n_groups": 3}}, {"attention": "grouped_query"},
     r"n_heads \(4\) evenly among n_groups \(3\); choose a number"),
    ({"attention": {"name": "grouped_query", "n_groups": 8}}, {},
     r"n_heads \(4\) evenly among n_groups \(8\); choose a number"),
    ({"attention": "per_head_shared", "dims": sizes(n_heads=5, d_k=4, d_v=4)}, {},
     r"d_model \(24\) must be a multiple of n_heads \(5\)"),
    ({"embedding": {"name": "tied", "init": "xavier", "init_std": 0.5}},
     {"embedding": {"name": "tied", "init": "xavier"}}, r"of its own.*leave out init_std \(0.5\)"),
    ({"embedding": {"name": "tied", "rank": 32}}, {"embedding": {"name": "tied", "rank": 31}},
     r"rank \(32\) must be smaller than d_model \(32\)"),
    ({"norm": "annotated", "dims": sizes(1, 1)}, {"norm": "annotated", "dims": sizes(2, 1)},
     "the width minus 1, and the width is 1; choose norm"),
    ({"position": "rotary", "dims": sizes(d_k=7)}, {"position": "rotary", "dims": sizes(d_k=8)},
     r"d_k \(7\) must be even; change d_model"),
    ({"position": "partial_rotary", "dims": sizes(d_k=1)},
     {"position": "partial_rotary", "dims": sizes(d_k=3)},
     r"d_k \(1\) must be at least 2; change d_model"),
    ({"position": {"name": "sinusoidal", "layout": "padded_halves"}}, {},
     "padded_halves needs an odd d_model, not 32; use halves"),
    ({"encoder": {"position": {"name": "t5", "max_distance": 8}}},
     {"encoder": {"position": {"name": "t5", "max_distance": 9}}},
     r"32 buckets gives distances below 8 .* max_distance \(8\) must"),
    ({"decoder": {"position": {"name": "t5", "max_distance": 16}}},
     {"decoder": {"position": {"name": "t5", "max_distance": 17}}},
     r"32 buckets gives distances below 16 .* max_distance \(16\) must"),
    ({"position": {"name": "alibi", "encoder": "asymmetric"}, "dims": sizes(n_heads=3)},
     {"position": "alibi", "dims": sizes(n_heads=3)}, r"n_heads \(3\) must be even; give an even"),
    ({"feed_forward": {"name": "mixture_of_experts", "n_experts": 4, "top_k": 4}},
     {"feed_forward": {"name": "mixture_of_experts", "n_experts": 4, "top_k": 3}},
     r"top_k \(4\) of 4 experts leaves nothing to choose"),
    *(({"sharing": {"name": name, "n_blocks": n}, "n_layers": n},
       {"sharing": {"name": name, "n_blocks": n}, "n_layers": n + 1},
       f"{n} blocks for the {n} layers of the encoder share nothing; choose {instead}, more")
      for name, n, instead in (("sequence", 2, "sharing: block"),
                               ("cycle_reversed", 2, "sharing: block"),
                               ("cycle", 3, r"fewer blocks \(n_blocks\)"))),
    ({"residual": "rezero"}, {"residual": "rezero", "norm": "none"},
     r"set the encoder's norm \(.*\) to none, or choose rezero_norm"),
    ({"residual": {"name": "parallel", "shared_norm": False}, "norm": "none"},
     {"residual": "parallel", "norm": "none"},
     "shared_norm: false gives each sub-layer a norm of its own"),
]  # fmt: skip


@pytest.mark.parametrize(("refused", "accepted", "reason"), MODELS, ids=str)
def test_a_model_that_cannot_be_is_refused(
    refused: dict[str, Any], accepted: dict[str, Any], reason: str
) -> None:
    assert tiny(**accepted)
    with pytest.raises((RefusedError, ValueError), match=reason):
        tiny(**refused)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("sgd", {"momentum": 0.0, "nesterov": True}, "nesterov needs a momentum, but it is 0"),
        ("ademamix", {"beta3": 0.0}, "beta3 is the decay of the slow mean"),
        ("schedule_free_adamw", {"betas": (0.0, 0.9)}, r"above 0, such as 0\.9"),
    ],
)
def test_an_optimizer_that_cannot_be_is_refused(
    name: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason):
        build(Optimizer, choose(Optimizer, name, **options))


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("wsd", {"form": "exponential"}, "never reaches a min_lr of 0; give a number"),
        ("one_cycle", {"warmup": 1, "n_phases": 3}, "a warmup of 1 is no rise; give one of at"),
        ("cosine_restarts", {"growth": 1e200}, "longer than any number; give a smaller growth"),
        ("cosine_restarts", {"n_cycles": 1024}, "longer than any number; give a smaller growth"),
        ("linear", {"lr": 0.1, "min_lr": 0.2}, r"min_lr \(0.2\) is above lr \(0.1\)"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(
    name: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RefusedError, match=reason):
        build(Schedule, choose(Schedule, name, **options), Dims.model_validate(sizes()), 1000)
    bounds = {"lr": 0.1, "min_lr": 0.1} if "min_lr" in options else {"warmup": 2}
    build(Schedule, choose(Schedule, name, **bounds), Dims.model_validate(sizes()), 1000)
