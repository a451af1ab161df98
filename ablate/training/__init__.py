"""Training: the loop, its checkpoints, and the averaging of weights."""

from ablate.training.loop import train
from ablate.training.progress import Progress, TrainingResult

__all__ = ["Progress", "TrainingResult", "train"]
