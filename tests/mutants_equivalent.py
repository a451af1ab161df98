"""Mutants that compute the same as the original, with the reason; `tests.mutation` skips them.

Another one, which is not generated: dropout of the activated gate alone in a gated feed-forward is
dropout of the product, since each element of the product has one element of the gate.
"""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str], str] = {
    (
        "dropout.py",
        "ElementDropout.forward",
        "Sub -> Add: n_dropped - _STEPS // 2",
    ): "the two thresholds differ by 2^16 and are compared as 16-bit integers",
    (
        "dropout.py",
        "ElementDropout.forward",
        "detach: input (2)",
    ): "only the shape and the type of the new tensor are read from it",
    **{
        ("norm.py", "AdaNorm.forward", change): "the bracket is detached"
        for change in ("detach: self.k * y", "detach: y", "halve the gradient: self.k * y")
    },
    (
        "norm.py",
        "DynamicTanh.forward",
        "drop the call of _at_least_float32: _at_least_float32(x)",
    ): "the product with a parameter in single precision is computed in single precision",
}
"""By file under ``ablate/parts``, function and change."""
