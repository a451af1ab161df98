"""Feed-forwards: the sub-layers that act on every token by itself."""

from ablate.parts.feed_forward.contract import AuxLosses, FeedForward
from ablate.parts.feed_forward.dense import Gated, Relu, TwoLayer
from ablate.parts.feed_forward.mixture import MixtureOfExperts

__all__ = ["AuxLosses", "FeedForward", "Gated", "MixtureOfExperts", "Relu", "TwoLayer"]
