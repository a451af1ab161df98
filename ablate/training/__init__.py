"""Training: the loop, its checkpoints, and the averaging of weights."""

from ablate.training.loop import Progress, Trained, train

__all__ = ["Progress", "Trained", "train"]
