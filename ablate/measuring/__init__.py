"""Measuring: quality, likelihood, size, speed and memory."""

from ablate.measuring.counts import FlopCounter, count_flops, count_parameters
from ablate.measuring.likelihood import Likelihood, likelihood, perplexity
from ablate.measuring.probe import probe, timed
from ablate.measuring.scores import SentenceStatistics, bleu_counts, cut_text, score
from ablate.measuring.workload import Workload

__all__ = [
    "FlopCounter",
    "Likelihood",
    "SentenceStatistics",
    "Workload",
    "bleu_counts",
    "count_flops",
    "count_parameters",
    "cut_text",
    "likelihood",
    "perplexity",
    "probe",
    "score",
    "timed",
]
