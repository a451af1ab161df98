"""The training loop: steps, evaluations, and checkpoints from which an interrupted run goes on.

Every step draws its dropout masks from its own seed, so that an interrupted run ends with the same
numbers as any other.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from ablate.config.experiment import RunSpec
from ablate.cuda_graphs import GraphCapturer, generator_of
from ablate.data.batches import Batches
from ablate.errors import DivergedError, StoppedError
from ablate.model import Transformer
from ablate.parts.schedule import Schedule
from ablate.processes import give_back_free_memory
from ablate.registry import build
from ablate.training import checkpoint
from ablate.training.averaging import MovingAverage, Snapshots, evaluated_weights
from ablate.training.curve import Curve, LayerRecorder, Row, UnreadStep, has_row
from ablate.training.engines import SelfCheck, make_engine
from ablate.training.engines.contract import estimate_curvature
from ablate.training.ranks import ALONE, Ranks
from ablate.training.step import BatchStream, StepConfig, count_steps, make_optimizer, set_lr

_CHECKPOINT_SECONDS = 20.0
_SAVE, _STOP = 1, 2
_MAX_UNREAD_STEPS = 20  # on CUDA the host runs ahead of the device, before it reads the losses


@dataclass(frozen=True)
class Job:
    """A run, its data, and where and how its steps are computed."""

    spec: RunSpec
    batches: Batches  # of the training split, made on the device
    n_target_ids: int
    evaluate: Callable[[Transformer], float]  # returns the dev NLL, in nats per token
    device: torch.device
    precision: str  # fp32 or bf16
    folder: Path  # the run's own
    engine: str = "eager"
    capturer: GraphCapturer | None = None
    cores: Callable[[], int] = lambda: 1  # how many cores of a CPU the run may use now
    micro_batch_factor: int = 1  # how many times smaller than usual the parts of a batch are
    ranks: Ranks = ALONE
    made_by: Mapping[str, Any] = field(default_factory=dict)  # code and libraries, as in a record
    # called in the first rank with the last step of the checkpoint from which the run goes on
    resumed: Callable[[int], None] = lambda _: None


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    step: int
    n_steps: int
    loss: float  # of the objective, per target token, lately
    dev_nll: float | None  # at the last evaluation, in nats per token
    tokens_per_second: float  # target tokens, over this process' share of the run
    seconds_left: float  # at that pace


@dataclass(frozen=True)
class TrainingResult:
    """What training did, for the record; the model holds the averaged weights."""

    steps: int
    epochs: int  # seen to the end
    batches_per_epoch: int  # where epochs differ, of the first with seed 0
    target_tokens: int  # padding not counted
    seconds: float  # in the loop, evaluation included, over all processes of the run
    final_loss: float  # of the objective, per target token, over the last row of the curve
    final_aux_loss: float  # likewise, what parts of the model added to it
    best_dev_nll: float  # in nats per token
    averaged_steps: list[int]
    stopped_early: bool
    engine: str  # in this process
    engine_note: str  # why not the one that was asked for; empty if it was
    engine_seconds: float  # for captures, compilation and the self-check, in this process
    micro_batches: int  # into how many parts batches were divided to fit into memory, at most
    made_by: dict[str, Any]  # the code and the libraries that began the run


def train(
    model: Transformer,
    job: Job,
    progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> TrainingResult:
    """Train ``model``, from the last checkpoint in ``job.folder`` if there is one.

    Writes ``checkpoint.pt``, ``snapshots/``, ``curve.csv`` and ``layers.csv`` into the folder. The
    model ends with the averaged weights, in evaluation mode. ``progress`` is called at every row of
    the curve, ``should_stop`` after every step: on True the checkpoint is saved and a
    `StoppedError` raised. A loss that became NaN or rose past its bound, or an NLL on dev that is
    not finite, is a `DivergedError`.
    """
    return _Loop(model, job, progress, should_stop).run()


@dataclass
class _State:
    """What changes from step to step and is saved in checkpoints."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    target_tokens: int = 0
    seconds: float = 0.0
    first_loss: float | None = None
    best_dev_nll: float = math.inf
    evaluations_without_gain: int = 0
    is_finished: bool = False
    since_row: list[list[float]] = field(default_factory=list)  # losses and tokens of each step
    curve: list[Row] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)  # entries of the snapshots
    layers: list[Any] = field(default_factory=list)
    made_by: dict[str, Any] = field(default_factory=dict)


class _Loop:
    def __init__(
        self,
        model: Transformer,
        job: Job,
        progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self.model, self.job, self.ranks = model, job, job.ranks
        self.progress, self.should_stop = progress, should_stop
        training, seed = job.spec.training, job.spec.seed
        self.training = training
        self.n_steps = count_steps(training, job.batches, seed)
        self.schedule = build(
            Schedule, training.schedule, job.spec.model.dims, self.n_steps, at="training.schedule"
        )
        self.generator = generator_of(job.device)
        model.train()
        self._seed_dropout(0)
        for batch in BatchStream(job.batches, seed).take(1):  # a residual scheme may calibrate
            model.calibrate(batch.src, batch.tgt_in)
        self.optimizer = make_optimizer(job.spec, model)
        step_config = StepConfig.of(training, job.precision)
        self.engine = make_engine(job.engine, model, step_config, self.optimizer, job.capturer)
        self.weights = self.engine.weights
        self.self_check = SelfCheck(self.engine)
        self.file = job.folder / "checkpoint.pt"
        with self.ranks.first_rank_first():  # it removes a damaged file
            saved = checkpoint.restore(self.file, self.weights, self.optimizer, self._is_usable)
        saved = saved or {}
        totals = self.weights.split(saved.pop("moving", {}))
        self.state = _State(**{"made_by": dict(job.made_by), **saved})
        if saved and self.ranks.is_first:
            job.resumed(self.state.step)
        self.moving_average: MovingAverage | None = None
        if training.average.ema is not None:
            weights = self.weights.local_state_dict()
            self.moving_average = MovingAverage(weights, training.average.ema, totals)
        self.snapshots = Snapshots(job.folder / "snapshots", training.average, self.state.kept)
        self.stream = BatchStream(job.batches, seed, self.state.epoch, self.state.index)
        self.curve = Curve(self.state.curve, self.state.since_row)
        self.layers = LayerRecorder(self.engine, self.state.layers)
        self.unread_steps: list[UnreadStep] = []
        self.started_at = self.saved_at = time.perf_counter()
        self.tokens_before, self.seconds_before = self.state.target_tokens, self.state.seconds

    def _is_usable(self, saved: Mapping[str, Any]) -> bool:
        if not saved.keys() - {"moving"} <= {f.name for f in fields(_State)}:
            return False
        folder, average = self.job.folder / "snapshots", self.training.average
        return Snapshots(folder, average, saved["kept"]).are_intact()

    def run(self) -> TrainingResult:
        with closing(self.engine):
            while not self.state.is_finished:
                # Not right after a step: other runs of the process have their turn in between
                if len(self.unread_steps) >= _MAX_UNREAD_STEPS and self._read():
                    self._report()
                self._step()
                if self._is_evaluation_due():
                    self._read()
                    dev_nll = self._evaluate()
                    self.curve.add_row(self.last_step, self._seconds(), dev_nll)
                    self._report()
                elif self.job.device.type == "cpu" and self._read():
                    self._report()
                self.state.is_finished |= self.state.step == self.n_steps
                self._save_if_due()
            average = self.moving_average
            mean = self.weights.gather(average.mean(self.state.step)) if average else None
        if self.ranks.is_first:
            self.model.zero_grad(set_to_none=True)
            give_back_free_memory()  # of steps, before the snapshots are read
            self.model.load_state_dict(mean or self.snapshots.mean())
            self.model.eval()
        return self._result()

    def _seed_dropout(self, step: int) -> None:
        """Seed the generator of dropout alone: `torch.manual_seed` would seed all devices."""
        self.generator.manual_seed(self.job.spec.seed * 1_000_003 + step)

    def _step(self) -> None:
        state, training = self.state, self.training
        state.step += 1
        self._seed_dropout(state.step)
        rate = self.schedule.rate(state.step, self.curve.dev_nlls)
        set_lr(self.optimizer, rate)
        self.epochs_before = self.stream.finished_epochs
        self.engine.cores = self.job.cores()
        batches = list(self.stream.take(training.accumulate))
        batches = self.engine.micro_batches(batches, self.job.micro_batch_factor)
        if estimate_curvature(self.engine, state.step, batches[0]):
            self._seed_dropout(state.step)
        self.layers.before_step(state.step)
        result = self.engine.step(batches)
        self.layers.after_step(state.step)
        self.self_check.after_step()
        if self.moving_average:
            with evaluated_weights(self.optimizer):
                self.moving_average.add(self.weights.local_state_dict())
        state.epoch, state.index = self.stream.epoch, self.stream.index
        state.target_tokens += result.n_tokens
        self.last_step = UnreadStep(
            state.step,
            result,
            state.target_tokens,
            rate,
            self._seconds(),
            has_row(state.step, self.n_steps) and not self._is_evaluation_due(),
        )
        self.unread_steps.append(self.last_step)

    def _read(self) -> bool:
        """Read the numbers of the unread steps in one go; return whether the curve has new rows."""
        results = [step.result for step in self.unread_steps]
        tensors = [torch.stack((r.loss, r.aux_loss, r.gradient_norm)) for r in results]
        numbers = torch.stack(tensors).tolist() if tensors else []
        n_rows = len(self.curve.rows)
        for step, (loss, aux_loss, norm) in zip(self.unread_steps, numbers, strict=True):
            self.curve.add_step(step, loss, aux_loss, norm)
            if self.state.first_loss is None:
                self.state.first_loss = loss
            ceiling = max(math.log(self.job.n_target_ids), self.state.first_loss)
            bound = self.training.diverged_above * ceiling
            is_within = loss <= bound  # no NaN is
            if step.has_row or not is_within:
                self.curve.add_row(step, step.seconds)
            if not is_within:
                self._write()
                raise DivergedError(
                    f"the loss of step {step.number} is {loss:.4g} nats per token; "
                    f"the bound is {bound:.4g} (training.diverged_above)"
                )
        self.unread_steps.clear()
        return len(self.curve.rows) > n_rows

    def _is_evaluation_due(self) -> bool:
        every = self.training.evaluate_every
        if self.state.step == self.n_steps:
            return True
        if every == "epoch":
            return self.stream.finished_epochs > self.epochs_before
        return self.state.step % every == 0

    def _evaluate(self) -> float:
        """Return the NLL on dev; update the best one and patience, and take a snapshot."""
        state = self.state
        with evaluated_weights(self.optimizer), self.weights.in_model():
            dev_nll = self.ranks.from_first(lambda: self.job.evaluate(self.model))
            self.model.train()
            if not math.isfinite(dev_nll):
                self.curve.add_row(self.last_step, self._seconds())
                self._write()
                raise DivergedError(f"after step {state.step} the NLL on dev is {dev_nll}")
            if dev_nll < state.best_dev_nll:
                state.best_dev_nll, state.evaluations_without_gain = dev_nll, 0
            else:
                state.evaluations_without_gain += 1
            patience = self.training.patience
            if patience is not None and state.evaluations_without_gain >= patience:
                state.is_finished = True
            if not self.moving_average and self.ranks.is_first:
                self.snapshots.add(self.model, state.step, dev_nll, self._n_evaluations_left())
        return dev_nll

    def _n_evaluations_left(self) -> int:
        """Return how many evaluations will follow at least."""
        training, n_left = self.training, self.n_steps - self.state.step
        if training.patience is not None or self.job.batches.are_resampled:
            return 0  # an epoch that is segmented anew may have any number of batches
        if training.evaluate_every != "epoch":
            return n_left // training.evaluate_every
        return min(n_left, n_left * training.accumulate // self.job.batches.n_per_epoch)

    def _report(self) -> None:
        state, seconds = self.state, time.perf_counter() - self.started_at
        n_tokens = state.target_tokens - self.tokens_before
        steps_per_second = n_tokens / seconds * state.step / state.target_tokens
        self.progress(
            Progress(
                step=state.step,
                n_steps=self.n_steps,
                loss=self.curve.last("train_loss"),
                dev_nll=self.curve.dev_nlls[-1] if self.curve.dev_nlls else None,
                tokens_per_second=n_tokens / seconds,
                seconds_left=(self.n_steps - state.step) / steps_per_second,
            )
        )

    def _save_if_due(self) -> None:
        action = self.ranks.from_first(self._action_due)  # the others have no snapshots
        if not action:
            return
        self._read()
        self.state.seconds = self._seconds()
        self.state.kept = list(self.snapshots.entries)
        state = asdict(self.state)
        if self.moving_average:
            state["moving"] = self.weights.gather(self.moving_average.total)
        checkpoint.save(self.file, self.weights, self.optimizer, state, self.ranks.is_first)
        if self.ranks.is_first:
            self.snapshots.prune()
        self._write()
        self.saved_at = time.perf_counter()
        if action == _STOP:
            raise StoppedError(f"stopped after step {self.state.step} of {self.n_steps}")

    def _action_due(self) -> int:
        """Return what to do after a step: nothing (0), `_SAVE`, or `_STOP` after a save."""
        if not self.state.is_finished and self.should_stop():
            return _STOP
        is_due = time.perf_counter() - self.saved_at > _CHECKPOINT_SECONDS
        is_new = self.state.kept != self.snapshots.entries  # the saved list must match the files
        return _SAVE if is_due or is_new or self.state.is_finished else 0

    def _write(self) -> None:
        if self.ranks.is_first:
            self.curve.write(self.job.folder)
            self.layers.write(self.job.folder)

    def _seconds(self) -> float:
        return self.seconds_before + time.perf_counter() - self.started_at

    def _result(self) -> TrainingResult:
        state = self.state
        return TrainingResult(
            steps=state.step,
            epochs=self.stream.finished_epochs,
            batches_per_epoch=self.job.batches.of_epoch(0, 0).n_per_epoch,
            target_tokens=state.target_tokens,
            seconds=state.seconds,
            final_loss=self.curve.last("train_loss"),
            final_aux_loss=self.curve.last("own_loss"),
            best_dev_nll=state.best_dev_nll,
            averaged_steps=self.snapshots.steps,
            stopped_early=state.step < self.n_steps,
            engine=self.engine.name,
            engine_note=self.engine.note,
            engine_seconds=round(self.engine.seconds_preparing, 3),
            micro_batches=self.engine.max_micro_batches(
                self.job.batches, self.job.micro_batch_factor
            ),
            made_by=state.made_by,
        )
