"""The encoder-decoder Transformer, assembled from a spec."""

from ablate.model.assembly import assemble
from ablate.model.stack import Layer, Stack
from ablate.model.state import Memory, State
from ablate.model.transformer import Transformer

__all__ = ["Layer", "Memory", "Stack", "State", "Transformer", "assemble"]
