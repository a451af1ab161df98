"""Engines: how the steps of a training run are executed. What they compute is the same."""

from ablate.training.engines.choice import NAMES, choose, resolve
from ablate.training.engines.contract import Engine
from ablate.training.engines.eager import Eager

__all__ = ["NAMES", "Eager", "Engine", "choose", "resolve"]
