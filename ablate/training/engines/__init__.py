"""Engines: how the steps of a training run are executed. What they compute is the same."""

from ablate.training.engines.choice import NAMES, choose, resolve
from ablate.training.engines.contract import Engine
from ablate.training.engines.eager import Eager
from ablate.training.engines.random_draws import random_draws

__all__ = ["NAMES", "Eager", "Engine", "choose", "random_draws", "resolve"]
