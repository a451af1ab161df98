"""The language of an experiment: a YAML file in, a baseline with its rows and runs out."""

from ablate.config.experiment import ModelSpec, RunSpec, TrainingSpec
from ablate.config.identity import identity
from ablate.config.json_schema import schema
from ablate.config.load import expand, load, load_corpus, mistakes
from ablate.config.messages import MistakesError
from ablate.config.negligible import Negligible
from ablate.config.published import Published
from ablate.config.runs import Experiment, Row, Run
from ablate.config.source import Mark, Mistake

__all__ = [
    "Experiment",
    "Mark",
    "Mistake",
    "MistakesError",
    "ModelSpec",
    "Negligible",
    "Published",
    "Row",
    "Run",
    "RunSpec",
    "TrainingSpec",
    "expand",
    "identity",
    "load",
    "load_corpus",
    "mistakes",
    "schema",
]
