"""Engines: how the steps of a training run are executed. What they compute is the same."""

from ablate.training.engines.contract import Eager, Engine
from ablate.training.engines.factory import (
    NAMES,
    OF_ONE_DEVICE,
    capturer_for,
    engine_of,
    make_engine,
    random_draws,
    resolve,
)
from ablate.training.engines.fully_sharded import FullySharded
from ablate.training.engines.self_check import SelfCheck

__all__ = [
    "NAMES",
    "OF_ONE_DEVICE",
    "Eager",
    "Engine",
    "FullySharded",
    "SelfCheck",
    "capturer_for",
    "engine_of",
    "make_engine",
    "random_draws",
    "resolve",
]
