"""Measurements are fair to all rows: they count the same work, and have no side effects."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ablate.config import RunSpec
from ablate.config.experiment import BatchBy, TrainingSpec
from ablate.data.batches import Batch, Batches, Encoded
from ablate.data.prepare import Prepared, prepare
from ablate.data.sentences import Ragged
from ablate.data.tokenizer import PAD
from ablate.decoding import Search
from ablate.measuring import Workload, count_flops, likelihood, perplexity, probe, workload
from ablate.model import Transformer
from ablate.training.engines import Eager
from ablate.training.step import StepResult
from tests.tiny import spec, tiny
from tests.training.reversal import fresh, pairs, run_spec

CPU = torch.device("cpu")

_PROBE_IN_A_PROCESS = """
import json, sys
from ablate import lazy_dynamo
lazy_dynamo.install()  # as workers do: what loads the compiler later would be counted
import torch
from tests.measuring.test_fairness import narrow
from ablate.data.prepare import prepare
from ablate.measuring import probe
torch.set_num_threads(1)
print(json.dumps(probe(narrow(), prepare(narrow()), torch.device("cpu"), "fp32")))
assert "torch._inductor" not in sys.modules
"""


def narrow(**training: int | str) -> RunSpec:
    """Return a run of about ten thousand weights."""
    return RunSpec.model_validate(
        {
            "corpus": {"name": "synthetic", "size": 300},
            "tokenizer": "word",
            "model": spec(
                dims={"d_model": 16, "n_heads": 2, "max_len": 64}, n_layers=1
            ).model_dump(),
            "training": {"steps": 1, "batch_tokens": 200} | training,
            "decoding": "greedy",
        }
    )


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(narrow())


@pytest.mark.e2e
@pytest.mark.skipif(
    sys.platform != "linux",
    reason="one process tells two peaks apart by /proc/self/clear_refs, which only Linux has",
)
def test_the_memory_of_a_small_model_is_not_that_of_the_libraries() -> None:
    command = [sys.executable, "-c", _PROBE_IN_A_PROCESS]
    actual = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert 0 < actual["decode_peak_mib"] < 40
    assert 0 < actual["train_peak_mib"] < 40


@pytest.mark.parametrize("accumulate", [1, 2, 3, 8])
def test_a_probed_step_accumulates_as_the_run_does(prepared: Prepared, accumulate: int) -> None:
    work = Workload(narrow(accumulate=accumulate), prepared, CPU)
    assert {len(step) for step in [*work.steps, work.largest]} == {accumulate}
    assert len(work.steps) == max(1, 4 // accumulate)
    longest = {batch.tgt_out.size(1) for step in work.steps for batch in step}
    assert len(longest) > 1 or accumulate * len(work.steps) == 1


def test_a_probed_step_has_the_precision_and_the_micro_batches_of_the_run(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: set[tuple[str, int]] = set()
    step = Eager.step

    def note(engine: Eager, batches: Sequence[Batch]) -> StepResult:
        steps.add((engine.step_config.precision, len(batches)))
        return step(engine, batches)

    monkeypatch.setattr(Eager, "step", note)
    probe(narrow(), prepared, CPU, "bf16", micro_batch_factor=2, seconds=0.0)
    assert steps == {("bf16", 2)}


@pytest.mark.parametrize("by", ["target", "source", "bucket"])
def test_probed_batches_are_formed_as_those_of_the_run(prepared: Prepared, by: BatchBy) -> None:
    work = Workload(narrow(batch_by=by), prepared, CPU)
    of_run = Batches(prepared.train, 200, PAD, by=by).epoch(0, 0)
    probed = {tuple(batch.index.tolist()) for step in [*work.steps, work.largest] for batch in step}
    assert probed <= {tuple(rows.tolist()) for rows in of_run}


def test_the_peak_is_that_of_the_largest_batch(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    step = Eager.step

    def size(batch: Batch) -> int:
        return batch.src.numel() + batch.tgt_in.numel()

    def note(engine: Eager, batches: Sequence[Batch]) -> StepResult:
        sizes.extend(map(size, batches))
        return step(engine, batches)

    monkeypatch.setattr(Eager, "step", note)
    probe(narrow(), prepared, CPU, "fp32", seconds=0.0)
    largest = max(map(size, Batches(prepared.train, 200, PAD).in_order()))
    assert sizes[0] == max(sizes) == largest


def test_each_sentence_is_decoded_to_the_length_of_its_reference(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Workload(narrow(), prepared, CPU)
    asked: list[list[int]] = []

    def search(self: Search, model: Transformer, src: Any, lengths: Any, capturer: Any) -> None:
        asked.append(lengths.tolist())
        assert not model.training, "dropout is no part of decoding"

    monkeypatch.setattr(Search, "search", search)
    model = work.model()
    assert model.training
    work.decoding(model)()
    n = len(work.sentences.src)
    assert asked == [[len(prepared.dev.tgt[row]) for row in range(n)]]
    assert asked != [[len(prepared.dev.src[row]) for row in range(n)]]


def test_steps_are_spread_over_the_lengths_of_targets_and_the_largest_is_the_largest() -> None:
    """Sources have an order of their own here."""
    lengths = np.arange(2, 18)
    of_src = np.random.default_rng(5).integers(2, 18, len(lengths))
    src = Ragged.of([[3] * int(n) for n in of_src])
    tgt = Ragged.of([[3] * int(n) for n in lengths])
    train = Encoded(src, tgt)
    training = TrainingSpec.model_validate({"steps": 1, "batch_tokens": 17, "accumulate": 2})
    steps, largest = workload._steps(train, training, CPU)
    assert [len(step) for step in steps] == [2, 2]
    longest = sorted(int(batch.tgt_out.size(1)) for step in steps for batch in step)
    every = Batches(train, 17, PAD).epoch(0, 0)
    of_all = sorted(int(tgt.lengths[rows].max()) for rows in every)
    assert len(of_all) == 13
    assert longest == [of_all[at] for at in (2, 5, 7, 10)], "at fifths, without both ends"
    sides = [[len(rows) * int(of.lengths[rows].max()) for of in (src, tgt)] for rows in every]
    sizes = [a + b for a, b in sides]
    for side in zip(*sides, strict=True):
        largest_alone = [size for size, own in zip(sizes, side, strict=True) if own == max(side)]
        assert max(largest_alone) < max(sizes), "no side alone says which is the largest"
    assert len(largest) == 2
    (batch, again) = largest
    assert batch is again
    assert len(batch.src) * (batch.src.size(1) + batch.tgt_out.size(1)) == max(sizes)


def test_the_first_sixty_four_sentences_of_dev_are_decoded(prepared: Prepared) -> None:
    work = Workload(narrow(), replace(prepared, dev=pairs(70)), CPU)
    assert work.sentences.index.tolist() == list(range(64))


def test_probed_steps_hardly_change_the_weights(prepared: Prepared) -> None:
    """What a step costs may depend on them, as where experts are chosen."""
    work = Workload(narrow(optimizer="adam"), prepared, CPU)
    model = work.model()
    before = [weight.detach().clone() for weight in model.parameters()]
    work.training(model, "fp32").run(work.steps)
    pairs_of = zip(model.parameters(), before, strict=True)
    moved = max(float((now - old).detach().abs().max()) for now, old in pairs_of)
    assert 0 < moved < 1e-5


def test_flops_of_tied_and_separate_embeddings_are_the_same() -> None:
    batch = Batches(pairs(), 64, PAD).make(np.arange(4))
    tied, separate = (count_flops(tiny(embedding=name), batch) for name in ("tied", "separate"))
    assert tied == separate


def test_a_failure_leaves_the_model_in_training() -> None:
    model = fresh(run_spec()).train()

    def broken() -> Iterator[Batch]:
        yield from Batches(pairs(4), 64, PAD).in_order()
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        likelihood(model, broken(), "fp32")
    assert model.training


def test_the_likelihood_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing to measure"):
        likelihood(fresh(run_spec()), [], "fp32")


def test_perplexity_is_the_exponential() -> None:
    assert perplexity(1.5) == math.exp(1.5)
    assert perplexity(1e4) == math.inf
