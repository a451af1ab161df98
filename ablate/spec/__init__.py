"""The language of an experiment: a YAML file in, a baseline with its rows and runs out."""

from ablate.spec.experiment import ModelSpec, RunSpec, TrainingSpec
from ablate.spec.identity import identity
from ablate.spec.json_schema import schema
from ablate.spec.load import expand, load, mistakes
from ablate.spec.messages import MistakesError
from ablate.spec.published import Published
from ablate.spec.runs import Experiment, Row, Run
from ablate.spec.source import Mark, Mistake

__all__ = [
    "Experiment",
    "Mark",
    "Mistake",
    "MistakesError",
    "ModelSpec",
    "Published",
    "Row",
    "Run",
    "RunSpec",
    "TrainingSpec",
    "expand",
    "identity",
    "load",
    "mistakes",
    "schema",
]
