"""Measuring: quality, likelihood, size, speed and memory."""

from ablate.measuring.flops import FlopCounter, count_flops
from ablate.measuring.likelihood import Likelihood, likelihood, perplexity
from ablate.measuring.metrics import score
from ablate.measuring.parameters import count_parameters
from ablate.measuring.probe import probe, timed
from ablate.measuring.sentences import SentenceStatistics, cut_text
from ablate.measuring.workload import Workload

__all__ = [
    "FlopCounter",
    "Likelihood",
    "SentenceStatistics",
    "Workload",
    "count_flops",
    "count_parameters",
    "cut_text",
    "likelihood",
    "perplexity",
    "probe",
    "score",
    "timed",
]
