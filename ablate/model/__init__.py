"""The encoder-decoder Transformer, assembled from a spec."""

from ablate.model.assembly import assemble
from ablate.model.decodable import Decodable, DecoderState, Memory, Output
from ablate.model.ensemble import Ensemble
from ablate.model.stack import Layer, Stack
from ablate.model.transformer import Transformer

__all__ = [
    "Decodable",
    "DecoderState",
    "Ensemble",
    "Layer",
    "Memory",
    "Output",
    "Stack",
    "Transformer",
    "assemble",
]
