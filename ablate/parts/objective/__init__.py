"""Objectives: what training minimises."""

from ablate.parts.objective.contract import Objective

__all__ = ["Objective"]
