"""The work on which speed and memory are measured, the same for every model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ablate.config import RunSpec
from ablate.config.experiment import TrainingSpec
from ablate.data.batches import Batch, Batches, Encoded
from ablate.data.prepare import Prepared
from ablate.data.sentences import Rows
from ablate.data.tokenizer import PAD
from ablate.decoding import Search
from ablate.errors import EngineError
from ablate.model import Transformer, assemble
from ablate.parts.optimizer import EstimatesCurvature
from ablate.registry import build
from ablate.training.averaging import MovingAverage, evaluated_weights
from ablate.training.engines import Engine, capturer_for, make_engine
from ablate.training.engines.contract import estimate_curvature
from ablate.training.step import StepConfig, make_optimizer, set_lr

_N_BATCHES = 4  # to train on, spread over the lengths
_N_SENTENCES = 64  # of dev, to decode
_MOST_WARM_UPS = 10  # repeats of the same steps
_LEARNING_RATE = 1e-6  # weights must hardly change: the cost of a step may depend on them

Step = Sequence[Batch]
"""Batches whose gradients are accumulated."""


class Workload:
    """Steps to train on and sentences to decode, which do not depend on the model."""

    def __init__(
        self,
        spec: RunSpec,
        prepared: Prepared,
        device: torch.device,
        engine: str = "eager",
        micro_batch_factor: int = 1,
    ) -> None:
        self.spec, self.device, self.engine = spec, device, engine
        self.micro_batch_factor = micro_batch_factor
        # Spread over the lengths, and a step on the largest batch of all, for the peak of memory
        self.steps, self.largest = _steps(prepared.train, spec.training, device)
        rows = np.arange(min(_N_SENTENCES, len(prepared.dev)))  # the first of dev
        self.sentences = Batches(prepared.dev, 1, PAD).make(rows).to(device)
        self._vocabulary = prepared.tokenizers.vocabulary

    @property
    def n_target_tokens(self) -> int:
        """Return how many target tokens `steps` have, padding not counted."""
        return sum(batch.n_tokens for step in self.steps for batch in step)

    def model(self) -> Transformer:
        """Return the run's model, untrained."""
        torch.manual_seed(self.spec.seed)
        return assemble(self.spec.model, self._vocabulary, PAD).to(self.device)

    def decoding(self, model: Transformer) -> Callable[[], None]:
        """Return a function that decodes each sentence to exactly the length of its reference.

        An untrained model then does the work of a trained one.
        """
        search = build(Search, self.spec.decoding, at="decoding")
        src, lengths = self.sentences.src, (self.sentences.tgt_out != PAD).sum(dim=1)
        capturer = capturer_for(self.engine, model, self.device)

        def decode() -> None:
            model.eval()
            with torch.inference_mode():
                search.search(model, src, lengths, capturer)

        return decode

    def training(self, model: Transformer, precision: str) -> TrainingWork:
        """Return work that makes the run's optimizer steps on `model`, which it trains."""
        step_config = StepConfig.of(self.spec.training, precision)
        optimizer = make_optimizer(self.spec, model)
        set_lr(optimizer, _LEARNING_RATE)
        engine = make_engine(self.engine, model.train(), step_config, optimizer)
        return TrainingWork(engine, self.micro_batch_factor, self.spec.training.average.ema)


class TrainingWork:
    """Makes optimizer steps, and what a run does beside them."""

    def __init__(self, engine: Engine, micro_batch_factor: int, ema: float | None = None) -> None:
        self.engine = engine
        self._micro_batch_factor = micro_batch_factor
        self._moving_average: MovingAverage | None = None
        if ema is not None:
            self._moving_average = MovingAverage(engine.weights.local_state_dict(), ema)

    @property
    def estimates_per_step(self) -> float:
        """Return how many times per step the optimizer gets an estimate of the curvature."""
        optimizer = self.engine.optimizer
        return 1 / optimizer.every if isinstance(optimizer, EstimatesCurvature) else 0.0

    def warm_up(self, steps: Sequence[Step]) -> None:
        """Make steps until the engine captures and compiles nothing more for them.

        Estimates of the curvature, if there are any, come first. EngineError if it still does after
        many repeats.
        """
        for n in range(1, _MOST_WARM_UPS + 1):
            before = self.engine.seconds_preparing
            self.estimate(steps)
            self.run(steps)
            is_ready = self.engine.seconds_preparing == before
            if is_ready and (n > 1 or not self.engine.captures):  # captures begin with repeat 2
                return
        raise EngineError(
            f"{self.engine.name} still captures or compiles after {_MOST_WARM_UPS} times the same "
            "steps"
        )

    def run(self, steps: Sequence[Step]) -> None:
        """Make steps, without estimates of the curvature."""
        self.engine.model.train()
        for batches in steps:
            self.engine.step(self._micro_batches(batches))
            if self._moving_average:
                with evaluated_weights(self.engine.optimizer):
                    self._moving_average.add(self.engine.weights.local_state_dict())

    def estimate(self, steps: Sequence[Step]) -> None:
        """Make the estimate of the curvature that may precede a step, for each of ``steps``."""
        self.engine.model.train()
        for batches in steps:
            estimate_curvature(self.engine, 1, self._micro_batches(batches)[0])

    def _micro_batches(self, batches: Step) -> list[Batch]:
        return self.engine.micro_batches(batches, self._micro_batch_factor)


def _steps(
    train: Encoded, training: TrainingSpec, device: torch.device
) -> tuple[list[list[Batch]], list[Batch]]:
    """Return a few steps, spread over the lengths, and the one with the largest batch of all."""
    train = train.of_epoch(0, 0)
    batches = Batches(train, training.batch_tokens, PAD, device, training.batch_by)

    def n_tokens(rows: Rows) -> int:
        return len(rows) * int(train.src.lengths[rows].max() + train.tgt.lengths[rows].max())

    by_length = sorted(batches.epoch(0, 0), key=lambda rows: train.tgt.lengths[rows].max())
    n_steps = max(1, _N_BATCHES // training.accumulate)
    indices = np.linspace(0, len(by_length) - 1, n_steps * training.accumulate + 2)[1:-1]
    sample = [batches.make(by_length[round(index)]) for index in indices]
    largest = batches.make(max(by_length, key=n_tokens))
    return [sample[i::n_steps] for i in range(n_steps)], [largest] * training.accumulate
