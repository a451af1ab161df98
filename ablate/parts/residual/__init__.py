"""Residual wirings: how the sub-layers of one layer join the residual stream."""

from ablate.parts.residual.contract import Calibration, NormMaker, Residual, Sublayer

__all__ = ["Calibration", "NormMaker", "Residual", "Sublayer"]
