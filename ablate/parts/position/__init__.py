"""Position encodings: how the model learns where a token stands."""

from ablate.parts.position.absolute import Learned, NoPosition, Sinusoidal
from ablate.parts.position.contract import Position

__all__ = ["Learned", "NoPosition", "Position", "Sinusoidal"]
