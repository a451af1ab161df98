"""How measured times choose what rows that are to take as long as the baseline train."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext
from pathlib import Path

import pytest

from ablate import config
from ablate.api import tune
from ablate.api.completion import RunOptions, opened
from ablate.api.tune import select_chosen
from ablate.config import Row
from ablate.errors import SpecError
from ablate.runner.match import match_key
from ablate.runner.task import Task
from tests.api.test_tune import NLL, TEXT, Bench


class Clock:
    """Stands in for measurements: the time of a step grows with the width of the feed-forward."""

    def __init__(self, bench: Bench, noise: float) -> None:
        self.spec, self.store, self.noise = bench.spec, bench.store, noise
        self.n_measured = 0

    def chosen_row(self) -> Row:
        """Return the only variant of the experiment, with the values that are chosen for it."""
        with opened(RunOptions(device="cpu", results=self.store.results)) as options:
            return select_chosen(self.spec, options).experiment.rows[1]

    def measure(self, todo: Sequence[Task], *_: object) -> str:
        self.n_measured += 1
        for at, task in enumerate(todo):
            model = task.spec["model"]
            width = model["feed_forward"]["d_ff"] * model["n_layers"] + 100
            factors = (1 + at * self.noise, 1.0, 1 - at * self.noise)
            rounds = {"train_target_tokens_per_second": [1e6 / width * f for f in factors]}
            known = {"target_tokens_per_batch": 100.0, "batches_per_epoch": 10, "rounds": rounds}
            self.store.save_probe(task.probe, {**known, "session": str(self.n_measured)})
        return str(self.n_measured)


def matched_text(via: str, tolerance: str) -> str:
    """Return the experiment with a match of times in place of tuning."""
    match = f"match: {{on: time, via: {via}, tolerance: {tolerance}}}"
    return re.sub("^tune:.*$", match, TEXT, flags=re.MULTILINE)


MakeClock = Callable[..., Clock]


@pytest.fixture
def timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeClock:
    """Return what makes a clock of an experiment that is matched on time via a value."""

    def clock_of(via: str, noise: float = 0.01) -> Clock:
        text = matched_text(via, "2%")
        text = text.replace("pre: {model.residual: pre}", "deep: {model.n_layers: 2}")
        clock = Clock(Bench(tmp_path, text), noise)
        monkeypatch.setattr(tune, "measure", clock.measure)
        return clock

    return clock_of


def test_a_row_takes_as_long_as_the_baseline(timed: MakeClock) -> None:
    clock = timed("model.feed_forward.d_ff")
    row = clock.chosen_row()
    assert row.chosen == {"model.feed_forward.d_ff": "matched"}
    width = row.spec.model.feed_forward.options["d_ff"] * 2 + 100
    assert width == pytest.approx(256 + 100, rel=0.03)
    n_measured = clock.n_measured
    assert clock.chosen_row() == row
    assert clock.n_measured == n_measured  # it is stored


def test_a_row_of_other_batches_takes_the_time_of_its_own_tokens(
    timed: MakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are equally fast, and the row has half the target tokens in each step."""
    clock = timed("training.steps")

    def measure(todo: Sequence[Task], *rest: object) -> str:
        session = clock.measure(todo, *rest)
        for task in todo:
            probe = clock.store.load_probe(task.probe) or {}
            n_tokens = task.spec["training"]["batch_tokens"]
            rounds = {"train_target_tokens_per_second": [1e4, 1e4, 1e4]}
            change = {"target_tokens_per_batch": float(n_tokens), "rounds": rounds}
            clock.store.save_probe(task.probe, {**probe, **change})
        return session

    monkeypatch.setattr(tune, "measure", measure)
    row = "deep: {training.batch_tokens: 320}"
    clock.spec.write_text(clock.spec.read_text().replace("deep: {model.n_layers: 2}", row))
    baseline = config.load(clock.spec).rows[0].spec.training
    assert baseline.batch_tokens == 640
    assert clock.chosen_row().spec.training.steps == 2 * (baseline.steps or 0)


@pytest.mark.parametrize("n_rounds", [None, 0, 1])
def test_a_row_that_cannot_be_measured_is_a_mistake(
    timed: MakeClock, monkeypatch: pytest.MonkeyPatch, n_rounds: int | None
) -> None:
    clock = timed("model.feed_forward.d_ff")

    def measure(todo: Sequence[Task], *rest: object) -> str:
        session, ours = clock.measure(todo, *rest), todo[1].probe
        probe = clock.store.load_probe(ours) or {}
        speeds = probe["rounds"]["train_target_tokens_per_second"][:n_rounds]
        rounds = {"train_target_tokens_per_second": speeds}
        earlier = {"session": "earlier"} if n_rounds is None else {}
        clock.store.save_probe(ours, {**probe, "rounds": rounds, **earlier})
        return session

    monkeypatch.setattr(tune, "measure", measure)
    with pytest.raises(SpecError, match=r"not be measured; .*log says why \(in the row 'deep'\)"):
        clock.chosen_row()


def test_steps_are_matched_with_one_measurement(timed: MakeClock) -> None:
    clock = timed("training.steps")
    steps = clock.chosen_row().spec.training.steps
    assert steps == pytest.approx(500 * (256 + 100) / (256 * 2 + 100), rel=0.03)
    assert clock.n_measured == 1


def test_a_row_that_is_added_after_tuning_gets_its_time_once(
    timed: MakeClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = timed("training.steps")
    (block,) = re.findall("^tune:.*$", TEXT, flags=re.MULTILINE)
    bench = Bench(tmp_path, f"{(tmp_path / 'own.yaml').read_text()}{block}\n")
    bench.tuned(NLL, "baseline", engine="data_parallel")
    assert bench.row("baseline").chosen == {"training.schedule.lr": "tuned"}
    monkeypatch.setattr(tune, "_tune", lambda *_: None)  # as if it was interrupted
    row = clock.chosen_row()
    assert row.chosen == {"training.steps": "matched"}
    assert row.pending == ("training.schedule.lr",)
    assert (clock.chosen_row(), clock.n_measured) == (row, 1)


@pytest.mark.parametrize(("noise", "is_refused"), [(0.034, False), (0.036, True)])
def test_a_time_that_varies_too_much_is_refused(
    timed: MakeClock, noise: float, is_refused: bool
) -> None:
    """By the standard error in three rounds, which is the noise over sqrt(3); 2% are allowed."""
    clock = timed("training.steps", noise)
    message = r"speed varies too much for a tolerance of 0\.02.*'deep'"
    with pytest.raises(SpecError, match=message) if is_refused else nullcontext():
        clock.chosen_row()


def test_the_value_of_a_stored_match_is_that_of_the_row(tmp_path: Path) -> None:
    bench = Bench(tmp_path, matched_text("model.feed_forward.d_ff", "5%"))
    assert bench.row("pre").pending == ("model.feed_forward.d_ff",)
    loaded = config.load(bench.spec)
    bench.store.save_match(match_key(loaded, loaded.rows[1], ""), {"value": 200})
    assert bench.row("pre").spec.model.feed_forward.options["d_ff"] == 200
    bench.store.save_match(match_key(loaded, loaded.rows[1], ""), {"value": None})
    assert bench.row("pre").spec == loaded.rows[1].spec  # within the tolerance as it is


def test_a_value_that_another_call_measures_is_waited_for(
    timed: MakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = timed("model.feed_forward.d_ff")
    loaded, notes = config.load(clock.spec), list[str]()
    with ExitStack() as other_call, ThreadPoolExecutor(1) as thread:
        thread.submit(other_call.enter_context, clock.store.lock_matches(lambda: None)).result()

        def finish(text: str) -> None:
            notes.append(text)
            clock.store.save_match(match_key(loaded, loaded.rows[1], ""), {"value": 200})
            other_call.close()

        monkeypatch.setattr(tune, "print_remark", finish)
        row = clock.chosen_row()
    assert notes == ["another call measures which values take the baseline's time: waiting for it"]
    assert row.spec.model.feed_forward.options["d_ff"] == 200
    assert clock.n_measured == 0
