"""The simulations of gate errors do together what the checks do one by one."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ablate.gate.checks.paired import Paired
from ablate.gate.checks.statistical import Statistical
from ablate.gate.evidence import Evidence, UnfitError
from ablate.gate.mean import MeanBlessing, MeanCheck
from ablate.gate.reference import Reference

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
POINTS = {"measure": "test.test.points", "better": "higher", "min_effect": 1.5}


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        return runpy.run_path(str(BENCHMARKS / "gate_errors.py"))
    finally:
        sys.path.remove(str(BENCHMARKS))


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
def test_simulations_agree_with_the_checks(
    benchmark: dict[str, Any], kind: type[MeanCheck]
) -> None:
    check = kind.model_validate(POINTS)
    setting = benchmark["Setting"](check.kind, 0.45)
    alpha = setting.promise.alpha
    drawn = benchmark["draws"](setting, np.random.default_rng(3), 150)
    sizes = benchmark["sizes_of"](setting, drawn.reference)
    new = drawn.unchanged - np.linspace(0, 3, 150)[:, None, None]
    fails = benchmark["fails"](setting, drawn.reference, sizes, new)
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
