"""Mutants that compute the same as the original, with the reason; `tests.mutation` skips them."""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "dropout.py",
        "ElementDropout.forward",
        "Sub -> Add: n_dropped - _STEPS // 2",
    ): "the two thresholds differ by 2^16 and are compared as 16-bit integers",
    (
        "norm.py",
        "DynamicTanh.forward",
        "drop the call of _at_least_float32: _at_least_float32(x)",
    ): "the product with a parameter in single precision is computed in single precision",
}
"""By file under ``ablate/parts``, function and change."""
