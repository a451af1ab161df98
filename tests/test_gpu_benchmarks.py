"""Benchmarks on a GPU measure replays, on a machine that keeps PyTorch's rules of captures."""

from __future__ import annotations

import itertools
from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import pytest
import step_profile
import training_speed
from peers import ours, protocol

from ablate.data.batches import Batches
from ablate.data.tokenizer import PAD
from ablate.training.engines import make_engine
from ablate.training.step import StepConfig, make_optimizer, set_lr
from tests.fake_cuda import CudaMachine
from tests.training.reversal import fresh, pairs, run_spec

pytestmark = pytest.mark.e2e


def test_a_profile_frees_no_gradient_that_a_graph_writes_to(
    machine: CudaMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = run_spec(dropout=0.0)
    model = fresh(spec).to(machine.device).train()
    optimizer = make_optimizer(spec, model)
    set_lr(optimizer, 1e-3)
    engine = make_engine("cuda_graph", model, StepConfig.of(spec.training, "fp32"), optimizer)
    batches = Batches(pairs(), spec.training.batch_tokens, PAD, machine.device)
    some = [batches.make(rows) for rows in batches.epoch(1, 0)[:2]]
    n_captures: list[int] = []

    def steps(*_: Any) -> Any:
        for batch in some:
            engine.step([batch])
        n_captures.append(machine.n_captures)
        return []

    monkeypatch.setattr(step_profile, "operations", steps)
    monkeypatch.setattr(step_profile, "timed", lambda of_round, device: len(steps()) + 1)
    measured = step_profile.measured(engine, some, n_cores=1, n_rounds=3)
    assert len(set(n_captures)) == 1, "all captures were made before the clock ran"
    assert measured.n_flops > 0


class EndError(Exception):
    """Ends a contender."""


@pytest.mark.parametrize("own_batches", [False, True])
def test_our_rounds_are_replays(own_batches: bool, machine: CudaMachine) -> None:
    spec = run_spec(dropout=0.0, schedule={"name": "constant", "lr": 1e-3})
    of_epoch = Batches(pairs(), spec.training.batch_tokens, PAD, machine.device)
    steps = 4 if own_batches else of_epoch.n_per_epoch
    options = Namespace(device="cuda", steps=steps, own_batches=own_batches)
    training = protocol.Training(
        dropout=0.0,
        label_smoothing=0.1,
        betas=(0.9, 0.98),
        eps=1e-9,
        clip=1.0,
        lr=1e-3,
        steps=steps,
        warm_up=training_speed.default_warm_up(options, of_epoch.n_per_epoch),
        batch_tokens=spec.training.batch_tokens,
        own_batches=own_batches,
    )
    n_captures: list[int] = []
    rounds: list[dict[str, Any]] = []

    def wait() -> None:
        n_captures.append(machine.n_captures)
        if len(n_captures) == 3:
            raise EndError

    session: Any = SimpleNamespace(
        job=SimpleNamespace(device=machine.device, options={"engine": "cuda_graph"}, seed=1),
        training=training,
        batches=lambda: [of_epoch.make(rows) for rows in of_epoch.epoch(1, 0)],
        pairs=lambda: tuple([list(ids) for ids in side] for side in (pairs().src, pairs().tgt)),
        ready=lambda *_: None,
        send=rounds.append,
        wait=wait,
        now=lambda: 0.0,
    )
    with pytest.raises(EndError):
        ours.train(session, spec, fresh(spec).to(machine.device))
    assert len(rounds) == 2
    if not own_batches:  # of which sources differ in length from epoch to epoch
        assert len(set(n_captures)) == 1
    assert [of_round["preparing_seconds"] > 0 for of_round in rounds] == [
        after > before for before, after in itertools.pairwise(n_captures)
    ]
