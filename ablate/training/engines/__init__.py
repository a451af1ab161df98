"""Engines: how the steps of a training run are executed. What they compute is the same."""

from ablate.training.engines.contract import Engine
from ablate.training.engines.eager import Eager
from ablate.training.engines.factory import NAMES, capturer_for, engine_of, make_engine, resolve
from ablate.training.engines.random_draws import random_draws
from ablate.training.engines.self_check import SelfCheck

__all__ = [
    "NAMES",
    "Eager",
    "Engine",
    "SelfCheck",
    "capturer_for",
    "engine_of",
    "make_engine",
    "random_draws",
    "resolve",
]
