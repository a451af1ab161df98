"""Measuring: quality, likelihood, size, speed and memory."""

from ablate.measuring.counting import count_parameters
from ablate.measuring.flops import FlopCounter, count_flops
from ablate.measuring.likelihood import nll, perplexity
from ablate.measuring.metrics import score
from ablate.measuring.probe import probe, timed
from ablate.measuring.workload import Workload

__all__ = [
    "FlopCounter",
    "Workload",
    "count_flops",
    "count_parameters",
    "nll",
    "perplexity",
    "probe",
    "score",
    "timed",
]
