"""Training: the loop, its checkpoints, and the averaging of weights."""

from ablate.training.loop import Progress, TrainingResult, train

__all__ = ["Progress", "TrainingResult", "train"]
