"""The protocol of training: which updates are made, of what, at which rate, and when it ends."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ablate.config import RunSpec
from ablate.config.experiment import BatchBy
from ablate.data.batches import Batch, Batches, Encoded, Resampled
from ablate.data.sentences import Ragged
from ablate.data.tokenizer import EOS, PAD
from ablate.errors import DivergedError, StoppedError
from ablate.model import Transformer
from ablate.parts.objective.likelihood import LabelSmoothing
from ablate.parts.objective.risk import MinimumRisk
from ablate.parts.schedule import Schedule
from ablate.registry import Choice, build, lookup, slots
from ablate.training import TrainingResult, loop, train
from ablate.training.candidates import draw_candidates
from ablate.training.engines.contract import Eager
from ablate.training.step import StepConfig, StepResult, count_steps
from tests.tiny import scrambled, some_batch, tiny
from tests.training.reversal import N_IDS, fresh, job, pairs, run, run_spec

N_PAIRS = 24
BATCH_TOKENS = 24


def curve(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "curve.csv")


def seeded(spec: RunSpec, seed: int) -> RunSpec:
    return spec.model_copy(update={"seed": seed})


def evaluations(*nlls: float) -> Callable[[Transformer], float]:
    """Return evaluations on dev with these results."""
    given = iter(nlls)
    return lambda _: next(given)


class Updates:
    """The batches of every update of a run, and what it learned.

    Args:
        spec: the run, of which `N_PAIRS` pairs are the text unless ``data`` is given.
        folder: its own.
        data: the training text.
    """

    def __init__(self, spec: RunSpec, folder: Path, data: Encoded | None = None) -> None:
        self.of_steps: list[list[Batch]] = []
        step = Eager.step

        def spy(engine: Eager, batches: Sequence[Batch]) -> StepResult:
            self.of_steps.append(list(batches))
            return step(engine, batches)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Eager, "step", spy)
            data = pairs(N_PAIRS) if data is None else data
            batches = Batches(data, spec.training.batch_tokens, PAD)
            self.result: TrainingResult = run(spec, folder, batches=batches)[0]

    @property
    def batches(self) -> list[Batch]:
        """Return the batches of all updates, in order."""
        return list(itertools.chain(*self.of_steps))


def short_run(**training: Any) -> RunSpec:
    """Return a run of small batches that is evaluated every epoch."""
    usual = {"steps": None, "batch_tokens": BATCH_TOKENS, "evaluate_every": "epoch"}
    return run_spec(**usual | training)


def epochs_of(batches: Sequence[Batch], n_per_epoch: int) -> list[list[int]]:
    """Return the rows of the text in the order in which each epoch visits them."""
    rows = [batch.index.tolist() for batch in batches]
    return [
        list(itertools.chain(*rows[begin : begin + n_per_epoch]))
        for begin in range(0, len(rows), n_per_epoch)
    ]


# The learning rate


@pytest.mark.parametrize("name", sorted(slots()["schedule"]))
def test_the_rate_at_step_n_is_the_schedules_at_n(name: str, tmp_path: Path) -> None:
    """And the schedule knows the dev losses of all evaluations before that step, no others."""
    nlls, n_steps = (3.0, 2.0, 2.5, 2.4, 2.3, 2.2), 12
    wanted = {"warmup": 3, "patience": 0, "factor": 0.5}
    known = lookup("schedule", name).options.model_fields
    choice = {"name": name} | {k: v for k, v in wanted.items() if k in known}
    spec = run_spec(steps=n_steps, evaluate_every=2, schedule=choice)
    rates: list[float] = []

    def record(optimizer: torch.optim.Optimizer, *_: object) -> None:
        rates.append(optimizer.param_groups[0]["lr"])

    hook = register_optimizer_step_pre_hook(record)
    try:
        run(spec, tmp_path, evaluate=evaluations(*nlls))
    finally:
        hook.remove()
    schedule = build(Schedule, spec.training.schedule, spec.model.dims, n_steps)
    expected = [schedule.rate(n, nlls[: (n - 1) // 2]) for n in range(1, n_steps + 1)]
    assert len(set(expected)) > 2, f"{name} must change its rate, or this test says nothing"
    assert rates == pytest.approx(expected, rel=1e-12)
    assert curve(tmp_path)["learning_rate"].tolist() == pytest.approx(expected, rel=1e-9)


# The order of the text


def test_an_epoch_visits_each_pair_once_and_epochs_differ_in_order(tmp_path: Path) -> None:
    updates = Updates(short_run(epochs=3), tmp_path)
    epochs = epochs_of(updates.batches, updates.result.batches_per_epoch)
    assert len(epochs) == updates.result.epochs == 3, "three epochs must be made"
    for epoch in epochs:
        assert sorted(epoch) == list(range(N_PAIRS)), "each pair must be visited exactly once"
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_a_seed_repeats_its_order_and_another_has_its_own(tmp_path: Path) -> None:
    spec = short_run(epochs=2)
    one, again, other = (
        [batch.index.tolist() for batch in Updates(seeded(spec, seed), tmp_path / folder).batches]
        for seed, folder in ((1, "one"), (1, "again"), (2, "other"))
    )
    assert one == again, "one seed must give one order of the text"
    assert one != other, "two seeds must give two orders of the text"


@dataclass(frozen=True)
class Renewed(Resampled):
    """A text with other sentences, of other lengths, in every epoch of every seed."""

    @classmethod
    def make(cls) -> Renewed:
        text = pairs(N_PAIRS)
        return cls(text.src, text.tgt, words=text, samplers=(), max_len=16)

    def of_epoch(self, seed: int, epoch: int) -> Encoded:
        return pairs(N_PAIRS, seed=1000 * seed + epoch)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_epoch_is_trained_on_its_own_segmentation(seed: int, tmp_path: Path) -> None:
    updates = Updates(seeded(short_run(epochs=4), seed), tmp_path, Renewed.make())
    left = iter(updates.batches)
    counts: list[int] = []
    for epoch in range(4):
        text = Renewed.make().of_epoch(seed, epoch)
        counts.append(Batches(text, BATCH_TOKENS, PAD).n_per_epoch)
        batches = list(itertools.islice(left, counts[-1]))
        for batch in batches:
            for row, ids in zip(batch.index.tolist(), batch.tgt_out.tolist(), strict=True):
                assert [i for i in ids if i != PAD] == text.tgt[row].tolist()
        rows = [i for batch in batches for i in batch.index.tolist()]
        assert sorted(rows) == list(range(N_PAIRS))
    assert not list(left), "four epochs must be made, and no more"
    assert len(set(counts)) > 1, "epochs must differ in length, or this test says less"


@pytest.mark.parametrize("by", get_args(BatchBy))
def test_the_batches_of_an_epoch_are_formed_as_those_of_any_text(by: BatchBy) -> None:
    batches = Batches(Renewed.make(), BATCH_TOKENS, PAD, by=by).of_epoch(2, 1)
    expected = Batches(Renewed.make().of_epoch(2, 1), BATCH_TOKENS, PAD, by=by)
    one, other = ([rows.tolist() for rows in of.epoch(2, 1)] for of in (batches, expected))
    assert one == other


# How many updates


@pytest.mark.parametrize("accumulate", [1, 2, 3])
def test_so_many_steps_are_so_many_updates(accumulate: int, tmp_path: Path) -> None:
    updates = Updates(short_run(steps=5, accumulate=accumulate), tmp_path)
    assert updates.result.steps == 5
    assert [len(batches) for batches in updates.of_steps] == [accumulate] * 5


@pytest.mark.parametrize("accumulate", [1, 5, 100])
def test_epochs_are_rounded_down_to_whole_updates(accumulate: int, tmp_path: Path) -> None:
    updates = Updates(short_run(epochs=2, accumulate=accumulate), tmp_path)
    n_batches = 2 * Batches(pairs(N_PAIRS), BATCH_TOKENS, PAD).n_per_epoch
    assert n_batches % 5, "a number that 5 divides says nothing of rounding"
    assert len(updates.of_steps) == max(1, n_batches // accumulate)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("data", [pairs(N_PAIRS), Renewed.make()], ids=["fixed", "renewed"])
def test_target_tokens_are_rounded_up_to_whole_updates(
    data: Encoded, accumulate: int, tmp_path: Path
) -> None:
    """Where they end within an update, at the end of one, and a token later."""
    spec = seeded(short_run(steps=9, accumulate=accumulate), 2)
    long_run = Updates(spec, tmp_path, data)
    tokens = [sum(batch.n_tokens for batch in batches) for batches in long_run.of_steps]
    ends = list(itertools.accumulate(tokens))
    batches = Batches(data, BATCH_TOKENS, PAD)
    for n_steps in range(1, 9):
        begin, end = ends[n_steps - 1] - tokens[n_steps - 1], ends[n_steps - 1]
        for n_tokens in (begin + 1, end - 1, end, end + 1):
            training = short_run(target_tokens=n_tokens, accumulate=accumulate).training
            expected = n_steps + (n_tokens > end)
            assert count_steps(training, batches, seed=2) == expected


def test_updates_are_made_as_the_run_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configs: list[StepConfig] = []
    step = Eager.step

    def note(engine: Eager, batches: Sequence[Batch]) -> StepResult:
        configs.append(engine.step_config)
        return step(engine, batches)

    monkeypatch.setattr(Eager, "step", note)
    objective = {"name": "label_smoothing", "epsilon": 0.25}
    spec = run_spec(steps=1, clip=0.5, loss_per="sentence", objective=objective)
    run(spec, tmp_path, precision="bf16")
    (config,) = configs
    assert (config.clip, config.loss_per, config.precision) == (0.5, "sentence", "bf16")
    assert isinstance(config.objective, LabelSmoothing)
    assert config.objective.epsilon == 0.25


# When it ends


@pytest.mark.parametrize("patience", [1, 2, 3])
def test_training_stops_after_exactly_patience_evaluations_without_improvement(
    patience: int, tmp_path: Path
) -> None:
    """An evaluation as good as the best is no improvement; an improvement begins the count anew."""
    worse = [2.5] * (patience - 1)
    nlls = [3.0, 2.0, *worse, 1.5, 1.5, *[1.6] * 20]
    spec = run_spec(steps=2 * len(nlls), evaluate_every=2, patience=patience)
    result, _ = run(spec, tmp_path, evaluate=evaluations(*nlls))
    n_evaluations = len(["of 3.0", "of 2.0", *worse, "of 1.5"]) + patience
    assert result.steps == 2 * n_evaluations
    assert result.stopped_early
    assert result.best_dev_nll == 1.5


def test_without_patience_training_goes_on_to_its_end(tmp_path: Path) -> None:
    nlls = [1.0, *[2.0] * 9]
    result, _ = run(run_spec(steps=10, evaluate_every=1), tmp_path, evaluate=evaluations(*nlls))
    assert (result.steps, result.stopped_early) == (10, False), "no patience, no early stop"


def run_with_losses(
    spec: RunSpec, folder: Path, losses: Sequence[float], stops: Sequence[bool] = ()
) -> TrainingResult:
    """Train with steps whose losses are given."""
    given, step = iter(losses), Eager.step

    def report(engine: Eager, batches: Sequence[Batch]) -> StepResult:
        return replace(step(engine, batches), loss=torch.tensor(next(given)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Eager, "step", report)
        return run(spec, folder, stops)[0]


@pytest.mark.parametrize(
    ("first", "ceiling"), [(10.0, 10.0), (1.0, math.log(N_IDS))], ids=["first_loss", "ln_V"]
)
def test_a_run_diverges_above_its_bound_times_the_first_loss_or_ln_v(
    first: float, ceiling: float, tmp_path: Path
) -> None:
    """The larger of the two; a run that was interrupted remembers its first loss."""
    spec = run_spec(steps=4, diverged_above=1.5)
    below, above = 0.999 * 1.5 * ceiling, 1.001 * 1.5 * ceiling
    try:
        result = run_with_losses(spec, tmp_path / "below", [first, below, first, below])
    except DivergedError as error:
        pytest.fail(f"a loss below 1.5 times the larger of ln V and the first diverged: {error}")
    assert result.steps == 4
    with pytest.raises(StoppedError):
        run_with_losses(spec, tmp_path / "below_in_parts", [first, below], [False, True])
    try:
        run_with_losses(spec, tmp_path / "below_in_parts", [below, below])
    except DivergedError as error:
        pytest.fail(f"a run that goes on has forgotten its first loss: {error}")
    with pytest.raises(DivergedError, match="the loss of step 2 is"):
        run_with_losses(spec, tmp_path / "above", [first, above, first, first])
    assert curve(tmp_path / "above")["train_loss"].tolist() == pytest.approx([first, above])


def test_a_loss_at_the_bound_is_not_past_it(tmp_path: Path) -> None:
    result = run_with_losses(run_spec(steps=2, diverged_above=1.5), tmp_path, [10.0, 15.0])
    assert result.steps == 2


def test_a_loss_that_is_no_number_is_past_its_bound(tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match="the loss of step 2 is nan nats per token; the bound"):
        run_with_losses(run_spec(steps=4), tmp_path, [3.0, math.nan, 3.0, 3.0])


# Dropout


def losses_of(seed: int, dropout: float, folder: Path, optimizer: str = "sgd") -> list[float]:
    """Return the losses of steps that differ in their dropout masks alone.

    Weights, which do not depend on the seed, stay as they are, and all sentences are the same.
    """
    one = [4, 5, 6, 7, EOS]
    text = Encoded(Ragged.of([one] * 4), Ragged.of([one] * 4))
    spec = run_spec(
        dropout,
        steps=4,
        evaluate_every=1,
        optimizer=optimizer,
        schedule={"name": "constant", "lr": 1e-30},
    )
    its_job = replace(job(seeded(spec, seed), folder), batches=Batches(text, 64, PAD))
    train(fresh(spec), its_job, lambda _: None, lambda: False)
    return [float(loss) for loss in curve(folder)["train_loss"]]


def test_two_seeds_differ_in_dropout_masks_and_one_seed_repeats(tmp_path: Path) -> None:
    without = losses_of(1, 0.0, tmp_path / "a") + losses_of(2, 0.0, tmp_path / "b")
    assert len(set(without)) == 1, "without dropout these steps must not differ"
    one, again, other = (
        losses_of(seed, 0.3, tmp_path / folder)
        for seed, folder in ((1, "one"), (1, "again"), (2, "other"))
    )
    assert one == again, "one seed must repeat its dropout masks"
    assert len(set(one)) == len(one)
    assert not set(one) & set(other), "two seeds must not share dropout masks"


def test_an_estimate_of_curvature_leaves_the_dropout_masks_of_its_step(tmp_path: Path) -> None:
    without, estimated = (
        losses_of(1, 0.3, tmp_path / name, optimizer=name) for name in ("sgd", "sophia")
    )
    assert estimated == pytest.approx(without, rel=1e-6)


class Seeds:
    """The seeds of a generator, in place of which it stands."""

    def __init__(self) -> None:
        self.of_steps: list[int] = []

    def manual_seed(self, seed: int) -> None:
        self.of_steps.append(seed)
        torch.manual_seed(seed)


def test_the_masks_of_a_step_are_of_a_seed_that_no_other_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other step, no calibration, and no run with another seed."""
    drawn: list[int] = []
    for seed in (1, 2, 3):
        seeds = Seeds()
        monkeypatch.setattr(loop, "generator_of", lambda _, seeds=seeds: seeds)
        run(seeded(run_spec(steps=3), seed), tmp_path / f"{seed}")
        drawn += seeds.of_steps
    assert len(drawn) == len(set(drawn)) == 3 * (1 + 3)
    stored = [1_000_003, 1_000_004, 1_000_005, 1_000_006]
    assert drawn[:4] == stored, "runs that are stored had these, and are repeated bit for bit"


def test_a_run_is_calibrated_with_its_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Any]] = []
    monkeypatch.setattr(
        Transformer, "calibrate", lambda _, *ids: seen.append([x.tolist() for x in ids])
    )
    updates = Updates(seeded(short_run(steps=2), 3), tmp_path)
    first = updates.batches[0]
    assert seen == [[first.src.tolist(), first.tgt_in.tolist()]]


def test_an_optimizer_is_asked_before_every_step_whether_it_wants_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, list[int]]] = []

    def estimate(_: Eager, step: int, batch: Batch) -> bool:
        asked.append((step, batch.index.tolist()))
        return False

    monkeypatch.setattr(loop, "estimate_curvature", estimate)
    updates = Updates(short_run(steps=3, accumulate=2), tmp_path)
    firsts = [batches[0].index.tolist() for batches in updates.of_steps]
    assert asked == list(enumerate(firsts, start=1)), "with the number and the first batch of it"


def test_a_calibration_has_the_masks_of_its_seed(tmp_path: Path) -> None:
    """Whatever was drawn before the training."""
    spec = run_spec(0.3, steps=2)
    spec = spec.model_copy(
        update={"model": spec.model.model_copy(update={"residual": Choice(name="admin")})}
    )
    ends: list[Any] = []
    for seed in (1, 1, 2):
        for n_draws in (0, 7):
            model, folder = fresh(spec), tmp_path / f"{len(ends)}"
            torch.rand(n_draws)
            train(model, job(seeded(spec, seed), folder), lambda _: None, lambda: False)
            ends.append([weight.tolist() for weight in model.parameters()])
    assert ends[0] == ends[1] == ends[2] == ends[3] != ends[4] == ends[5]


def test_candidates_are_drawn_without_dropout() -> None:
    """From the same random state, a model in training draws what one in evaluation mode draws."""
    objective, batch = MinimumRisk(PAD, n_samples=6, max_extra=2), some_batch()
    model = scrambled(tiny(n_layers=1, dropout={"embedding": 0.4, "residual": 0.4}).double())
    drawn = []
    for is_training in (True, False):
        model.train(is_training)
        torch.manual_seed(1)
        drawn.append(draw_candidates(model, objective, batch.src, batch.tgt_out, "fp32").tgt_out)
        assert model.training == is_training, "the mode of the model must stay as it is"
    assert drawn[0].tolist() == drawn[1].tolist()


# Losses


@pytest.mark.parametrize("column", ["train_loss", "own_loss"])
def test_losses_of_curve_csv_are_token_weighted_means_of_the_steps(
    column: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of three steps, against the rows of each step of the same run."""
    spec = short_run(steps=9, evaluate_every=3, feed_forward="mixture_of_experts")
    Updates(spec, tmp_path / "all")
    monkeypatch.setattr(loop, "has_row", lambda *_: False)
    Updates(spec, tmp_path / "few")
    every, few = curve(tmp_path / "all"), curve(tmp_path / "few")
    assert few["step"].tolist() == [3, 6, 9]
    n_tokens = every["tokens"].diff().fillna(every["tokens"])
    assert n_tokens.nunique() > 1, "steps must differ in tokens, or this test says nothing"
    group = (every["step"] - 1) // 3
    means = (every[column] * n_tokens).groupby(group).sum() / n_tokens.groupby(group).sum()
    assert few[column].tolist() == pytest.approx(means.tolist(), rel=1e-6)
