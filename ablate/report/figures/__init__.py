"""The figures of an experiment. This package alone imports matplotlib, which is slow to import."""

from ablate.report.figures.costs import draw_costs
from ablate.report.figures.curves import Curves, draw_curves
from ablate.report.figures.differences import draw_differences
from ablate.report.figures.lengths import draw_lengths

__all__ = ["Curves", "draw_costs", "draw_curves", "draw_differences", "draw_lengths"]
