"""The additive model of a table: value = row + seed + error, with one error variance for all cells.

A seed gives every row the same data in the same order, so that seeds are the blocks of a randomised
block design and rows its treatments. Least squares, with cells missing where a run is; Scheffé
1959, "The Analysis of Variance", ch. 4; Searle 1971, "Linear Models", ch. 7.

R rows, the baseline first; K = R - 1 rows that are compared with it; S seeds; N observed cells.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.linalg import matrix_rank
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

_SINGULAR = 1e-9  # an eigenvalue below this is 0
_ROUNDING = 1e-9  # what is below this share of the values' size is rounding, not error


class TwoWay:
    """The least squares of one pattern of observed cells (R, S), for any number of tables.

    ``df`` are the degrees of freedom of the error, N less the rank of the model; ``is_estimable``
    (K,) whether a row's difference from the baseline follows from the cells; ``covariance`` (K, K)
    that of the estimated differences over the error variance, NaN where one is not estimable.
    """

    def __init__(self, observed: Mask) -> None:
        self.observed = np.asarray(observed, dtype=bool)
        cells = self.observed.astype(np.float64)
        self._per_seed = cells / np.maximum(cells.sum(axis=0), 1)  # (R, S)
        # the normal equations of the rows once the seeds are eliminated
        information = np.diag(cells.sum(axis=1)) - self._per_seed @ cells.T  # (R, R)
        self._solution = _inverse(information)
        contrasts = np.eye(len(cells))[1:] - np.eye(len(cells))[0]  # (K, R)
        estimable = contrasts @ self._solution @ information
        self.is_estimable: Mask = np.isclose(estimable, contrasts, atol=1e-8).all(axis=1)
        self.covariance: Floats = contrasts @ self._solution @ contrasts.T
        self.covariance[~self.is_estimable] = np.nan
        self.covariance[:, ~self.is_estimable] = np.nan
        rank = matrix_rank(information, _SINGULAR, hermitian=True) + cells.any(axis=0).sum()
        self.df = int(cells.sum() - rank)

    def differences(self, values: Floats) -> Floats:
        """Return every row's estimated difference (..., K) from the baseline of (..., R, S).

        NaN where a difference is not estimable, exactly 0 where it is no more than rounding. What
        is not observed is not read.
        """
        effects = self._effects(self._zero_filled(values))
        differences = effects[..., 1:] - effects[..., :1]
        is_rounding = np.abs(differences) <= _ROUNDING * self._size(values)[..., None]
        differences = np.where(is_rounding, 0.0, differences)
        return np.where(self.is_estimable, differences, np.nan)

    def residuals(self, values: Floats) -> Floats:
        """Return what the model leaves of ``values`` (..., R, S); 0 where nothing is observed."""
        known = self._zero_filled(values)
        rest = known - self._effects(known)[..., :, None] * self.observed
        seeds = (rest * self._per_seed).sum(axis=-2, keepdims=True)
        return (rest - seeds) * self.observed

    def variance(self, values: Floats) -> Floats:
        """Return the pooled error variance of tables (..., R, S); NaN where df is 0."""
        squares = (self.residuals(values) ** 2).sum(axis=(-2, -1))
        if self.df == 0:
            return np.full(squares.shape, np.nan)
        return np.where(squares > (_ROUNDING * self._size(values)) ** 2, squares / self.df, 0.0)

    def departures(self, values: Floats) -> tuple[Floats, NDArray[np.int64]]:
        """Compare the error within each row with the error of the table without it.

        Where all errors are normal with one variance, the ratio follows the F distribution. The
        numerator is what the sum of squared residuals loses with the row, over the degrees of
        freedom that it loses. Returns the ratios (..., R), NaN where nothing is left to compare
        with, and the degrees of freedom that each row holds (R,); the denominator has the others.
        """
        residuals, variance = self.residuals(values), self.variance(values)
        variance = np.where(variance > 0, variance, np.nan)
        ratios = np.full(residuals.shape[:-1], np.nan)
        for row, (inverse, df) in enumerate(self._row_blocks):
            own = residuals[..., row, :][..., self.observed[row]]
            within = np.einsum("...s,st,...t->...", own, inverse, own)
            if df == 0 or df == self.df:
                continue
            rest = np.maximum(variance * self.df - within, 0.0) / (self.df - df)
            with np.errstate(divide="ignore", invalid="ignore"):
                ratios[..., row] = (within / df) / rest
        return ratios, np.array([df for _, df in self._row_blocks])

    def _zero_filled(self, values: Floats) -> Floats:
        return np.where(self.observed, values, 0.0)

    def _size(self, values: Floats) -> Floats:
        """Return the largest absolute value of each table, (...)."""
        return np.abs(self._zero_filled(values)).max(axis=(-2, -1), initial=0.0)

    def _effects(self, known: Floats) -> Floats:
        """Return the rows' effects (..., R), of which only differences have a meaning."""
        seeds = (known * self._per_seed).sum(axis=-2, keepdims=True)  # means
        adjusted = ((known - seeds) * self.observed).sum(axis=-1)
        return adjusted @ self._solution

    @cached_property
    def _row_blocks(self) -> list[tuple[Floats, int]]:
        """Of every row the inverse of its block of I - H, and the rank of that block."""
        rows, seeds = np.nonzero(self.observed)
        n_rows, n_seeds = self.observed.shape
        of_rows, of_seeds = rows[:, None] == np.arange(n_rows), seeds[:, None] == np.arange(n_seeds)
        model = np.concatenate([of_rows, of_seeds], axis=1).astype(np.float64)  # (N, R + S)
        spread = _inverse(model.T @ model)
        each = [model[rows == row] for row in range(n_rows)]
        blocks = [np.eye(len(own)) - own @ spread @ own.T for own in each]
        ranks = [int(matrix_rank(block, _SINGULAR, hermitian=True)) for block in blocks]
        return list(zip(map(_inverse, blocks), ranks, strict=True))


@lru_cache(maxsize=256)
def _of_pattern(pattern: tuple[tuple[bool, ...], ...]) -> TwoWay:
    return TwoWay(np.array(pattern, dtype=bool).reshape(len(pattern), -1))


def two_way(observed: Any) -> TwoWay:
    """Return the model of a pattern of observed cells (R, S), the same object for the same one."""
    return _of_pattern(tuple(tuple(map(bool, row)) for row in observed))


def _inverse(symmetric: Floats) -> Floats:
    """Return the pseudoinverse of a matrix whose entries are of the order of 1, or more."""
    values, vectors = np.linalg.eigh(symmetric)
    is_nonzero = np.abs(values) > _SINGULAR
    return (vectors[:, is_nonzero] / values[is_nonzero]) @ vectors[:, is_nonzero].T
