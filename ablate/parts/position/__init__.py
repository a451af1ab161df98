"""Position encodings: how the model gets the positions of tokens."""

from ablate.parts.position.absolute import Learned, NoPosition, Sinusoidal
from ablate.parts.position.contract import Position

__all__ = ["Learned", "NoPosition", "Position", "Sinusoidal"]
