"""Residual wirings: how the sub-layers of one layer join the residual stream."""

from ablate.parts.residual.contract import Calibration, NormMaker, OneByOne, Residual, Sublayer

__all__ = ["Calibration", "NormMaker", "OneByOne", "Residual", "Sublayer"]
