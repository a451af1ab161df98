"""The language of an experiment: a YAML file in, a baseline with its rows and runs out."""

from ablate.config.choices import (
    Point,
    Tuning,
    points_beyond,
    seeds_are_shared,
    tuning_of,
    unmatched,
    with_match,
    with_tuning,
)
from ablate.config.experiment import ModelSpec, RunSpec, TrainingSpec
from ablate.config.header import Match, Negligible, Published
from ablate.config.identity import files_of, identity
from ablate.config.inheritance import value_at
from ablate.config.load import (
    InvalidExperimentError,
    contexts_of,
    expand,
    experiment_name,
    load,
    load_corpus,
    mistakes_error,
)
from ablate.config.messages import MistakesError
from ablate.config.rows import BASELINE
from ablate.config.runs import Experiment, Row, Run, Tune
from ablate.config.tree import Mistake

__all__ = [
    "BASELINE",
    "Experiment",
    "InvalidExperimentError",
    "Match",
    "Mistake",
    "MistakesError",
    "ModelSpec",
    "Negligible",
    "Point",
    "Published",
    "Row",
    "Run",
    "RunSpec",
    "TrainingSpec",
    "Tune",
    "Tuning",
    "contexts_of",
    "expand",
    "experiment_name",
    "files_of",
    "identity",
    "load",
    "load_corpus",
    "mistakes_error",
    "points_beyond",
    "seeds_are_shared",
    "tuning_of",
    "unmatched",
    "value_at",
    "with_match",
    "with_tuning",
]
