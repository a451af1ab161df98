"""How small a difference from the baseline must be not to matter; no run depends on it."""

from __future__ import annotations

from pydantic import NonNegativeFloat

from ablate.registry import Frozen


class Negligible(Frozen):
    """Half the width of the band around 0 within which a difference is called none.

    Attributes:
        bleu: in points of BLEU.
        nll: in nats per target token.
    """

    bleu: NonNegativeFloat = 1.0
    nll: NonNegativeFloat = 0.02
