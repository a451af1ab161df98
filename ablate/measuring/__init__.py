"""Measuring: quality, likelihood, size, speed and memory."""

from ablate.measuring.counting import count_flops, count_parameters
from ablate.measuring.likelihood import nll, perplexity
from ablate.measuring.metrics import score
from ablate.measuring.probe import probe

__all__ = ["count_flops", "count_parameters", "nll", "perplexity", "probe", "score"]
