"""Residual schemes: how the outputs of a layer's sub-layers enter the residual stream."""

from ablate.parts.residual.contract import Calibration, NormMaker, PerSublayer, Residual, Sublayer

__all__ = ["Calibration", "NormMaker", "PerSublayer", "Residual", "Sublayer"]
