"""Mutants that compute the same as the original, with the reason; `tests.mutation` skips them.

Another one, which is not generated: dropout of the activated gate alone in a gated feed-forward is
dropout of the product, since each element of the product has one element of the gate.
"""

from __future__ import annotations

from fnmatch import fnmatch

from tests.mutants import Mutant

_TWO_DIMENSIONS = "the tensor has two dimensions, of which the last is 1"
_IN_PLACE = "a detached tensor is changed in place like the parameter whose memory it shares"
_NO_GRADIENT_INSIDE = "autograd records nothing inside of an autograd.Function"

EQUIVALENT: tuple[tuple[str, str, str, str], ...] = (
    (
        "dropout.py",
        "ElementDropout.forward",
        "Sub -> Add: n_dropped - _STEPS // 2",
        "the two thresholds differ by 2^16 and are compared as 16-bit integers",
    ),
    (
        "dropout.py",
        "ElementDropout.forward",
        "detach: input (2)",
        "only the shape and the type of the new tensor are read from it",
    ),
    ("norm.py", "AdaNorm.forward", "detach: self.k * y", "the bracket is detached"),
    ("norm.py", "AdaNorm.forward", "detach: y", "the bracket is detached"),
    ("norm.py", "AdaNorm.forward", "halve the gradient: self.k * y", "the bracket is detached"),
    (
        "norm.py",
        "DynamicTanh.forward",
        "drop the call of _at_least_float32: _at_least_float32(x)",
        "the product with a parameter in single precision is computed in single precision",
    ),
    ("objective.py", "LabelSmoothing.loss", "drop a minus: -1", _TWO_DIMENSIONS),
    ("objective.py", "LabelSmoothing.loss", "drop a minus: -1 (2)", _TWO_DIMENSIONS),
    ("objective.py", "RDrop.loss", "drop a minus: -1*", _TWO_DIMENSIONS),
    ("objective.py", "ZLoss.loss", "drop a minus: -1*", _TWO_DIMENSIONS),
    ("objective.py", "ConfidencePenalty.loss", "drop a minus: -1*", _TWO_DIMENSIONS),
    ("objective.py", "_SmoothedCrossEntropy.forward", "drop a minus: -1*", _TWO_DIMENSIONS),
    ("objective.py", "_SmoothedCrossEntropy.forward", "detach: *", _NO_GRADIENT_INSIDE),
    ("objective.py", "_SmoothedCrossEntropy.forward", "halve the gradient: *", _NO_GRADIENT_INSIDE),
    ("optimizer/*", "*.__init__", "True -> False: True", "foreach is faster and computes the same"),
    ("initialisation/*", "*", "detach: linear.weight*", _IN_PLACE),
    ("initialisation/*", "*", "detach: linear.bias*", _IN_PLACE),
    ("embedding.py", "TokenEmbedding.draw", "detach: *", _IN_PLACE),
    ("position/*", "*.__init__", "detach: self.table", _IN_PLACE),
    ("residual/scaled.py", "Admin.forward", "detach: omega", _IN_PLACE),
)
"""File under ``ablate/parts``, function, change, and reason; ``*`` is any text, at its end."""


def is_equivalent(mutant: Mutant) -> bool:
    """Return whether a mutant is in the list."""
    file, function, change = mutant.key
    return any(
        fnmatch(file, files) and fnmatch(function, functions) and _matches(change, pattern)
        for files, functions, pattern, _ in EQUIVALENT
    )


def _matches(change: str, pattern: str) -> bool:
    return change.startswith(pattern[:-1]) if pattern.endswith("*") else change == pattern
