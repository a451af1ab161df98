"""The simulations of gate errors do together what the checks do one by one."""

from __future__ import annotations

from typing import Any

import gate_errors
import numpy as np
import pytest

from ablate.gate.checks.paired import Paired
from ablate.gate.checks.statistical import Statistical
from ablate.gate.evidence import Evidence, UnfitError
from ablate.gate.mean import MeanBlessing, MeanCheck
from ablate.gate.reference import Reference

POINTS = {"measure": "test.test.points", "better": "higher", "min_effect": 1.5}


def blessing(check: MeanCheck, values: tuple[float, ...], alpha: float) -> MeanBlessing:
    seeds = tuple(range(1, len(values) + 1))
    if isinstance(check, Statistical):
        return check.blessing(seeds, values, alpha)
    assert isinstance(check, Paired)
    return check.blessing(seeds, (0.0,) * len(values), alpha, repeats=values, other={"cpu": "b"})


def size_of(check: MeanCheck, values: Any, alpha: float) -> int:
    """Return with how many of the values, from 5 on, the check can be blessed; 0 with none."""
    for n in range(5, 41):
        try:
            blessing(check, tuple(map(float, values[:n])), alpha)
        except UnfitError:
            continue
        return n
    return 0


def is_failed(check: MeanCheck, values: Any, new: Any, alpha: float) -> bool:
    bounds = blessing(check, tuple(map(float, values)), alpha)
    reference = Reference(alpha=alpha, checks={"x": check.model_copy(update={"blessed": bounds})})
    seeds = (101, 102, 103) if isinstance(check, Statistical) else (1, 2, 3)
    records = {
        ("baseline", seed): {"status": "done", "test": {"test": {"points": float(value)}}}
        for seed, value in zip(seeds, new, strict=True)
    }
    (verdict,) = reference.judge(Evidence(records, {}), seeds)
    return not verdict.passed


@pytest.mark.parametrize("kind", [Statistical, Paired])
def test_simulations_agree_with_the_checks(kind: type[MeanCheck]) -> None:
    check = kind.model_validate(POINTS)
    setting = gate_errors.Setting(check.kind, 0.45)
    alpha = setting.promise.alpha
    drawn = gate_errors.draws(setting, np.random.default_rng(3), 150)
    sizes = gate_errors.sizes_of(setting, drawn.reference)
    new = drawn.unchanged - np.linspace(0, 3, 150)[:, None, None]
    fails = gate_errors.fails(setting, drawn.reference, sizes, new)
    outcomes = set()
    for values, n, gate, is_failure in zip(
        drawn.reference[:, 0], sizes, new[:, 0], fails, strict=True
    ):
        blessable = size_of(check, values, alpha)
        assert n in (0, *range(blessable, 41)), "a refusal may ask for more seeds than will do"
        if n:
            blessing(check, tuple(map(float, values[:n])), alpha)
            assert is_failed(check, values[:n], gate, alpha) == is_failure
            outcomes.add(bool(is_failure))
    assert outcomes == {True, False}
    assert 0 < (sizes == 0).sum() < 75
