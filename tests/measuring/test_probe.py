"""The probe measures the work that it documents."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ablate.config import RunSpec
from ablate.data.prepare import Prepared, prepare
from ablate.data.tokenizer import PAD
from ablate.decoding import Search
from ablate.errors import EngineError
from ablate.measuring import Workload, probe
from ablate.measuring.probe import _PeakMemory, runs_at_once
from ablate.training.averaging import MovingAverage
from ablate.training.engines.cuda_graph import CudaGraph
from tests.fake_cuda import GRAPH_MIB, CudaMachine

pytestmark = pytest.mark.train

CPU = torch.device("cpu")
probe_module = importlib.import_module("ablate.measuring.probe")  # its name is the function's


def run(d_model: int = 16, training: dict[str, Any] | None = None, **decoding: Any) -> RunSpec:
    return RunSpec.model_validate(
        {
            "corpus": {"name": "synthetic", "size": 300},
            "tokenizer": "word",
            "model": {
                "dims": {"d_model": d_model, "n_heads": 2, "max_len": 64},
                "n_layers": 1,
                "feed_forward": {"name": "relu", "d_ff": 2 * d_model},
            },
            "training": {"steps": 1, "batch_tokens": 200} | (training or {}),
            "decoding": {"name": "greedy"} | decoding,
        }
    )


@pytest.fixture(scope="module")
def prepared() -> Prepared:
    return prepare(run())


def test_rates_and_peaks_are_positive(prepared: Prepared) -> None:
    actual = probe(run(), prepared, CPU, "fp32")
    assert set(actual) == {
        "train_target_tokens_per_second",
        "decode_sentences_per_second",
        "train_peak_mib",
        "decode_peak_mib",
        "engine",
    }
    assert actual.pop("engine") == "eager"
    assert all(value >= 0 for value in actual.values())


def test_speeds_are_target_tokens_and_sentences_over_seconds(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a machine on which any work takes half a second, and no padding counts.

    It measures the memory of decoding first, then that of training.
    """

    def timed(work: Callable[[], None], device: torch.device) -> float:
        work()
        return 0.5

    peaks = iter((1.0, 2.0))
    monkeypatch.setattr(probe_module, "timed", timed)
    monkeypatch.setattr(_PeakMemory, "peak_mib", lambda _: next(peaks))
    work = Workload(run(), prepared, CPU)
    targets = [batch.tgt_out for step in work.steps for batch in step]
    n_tokens = sum(int((ids != PAD).sum()) for ids in targets)
    assert n_tokens < sum(ids.numel() for ids in targets), "this test needs padding"
    actual = probe(run(), prepared, CPU, "fp32")
    assert actual["train_target_tokens_per_second"] == 2 * n_tokens
    assert actual["decode_sentences_per_second"] == 2 * len(work.sentences.src)
    assert (actual["decode_peak_mib"], actual["train_peak_mib"]) == (1.0, 2.0)


def test_the_first_decoding_is_not_timed(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    search = Search.search

    def timed(work: Callable[[], None], device: torch.device) -> float:
        events.append("timed")
        work()
        return 1.0

    def note(self: Search, *arguments: Any) -> Any:
        events.append("decoding")
        return search(self, *arguments)

    monkeypatch.setattr(probe_module, "timed", timed)
    monkeypatch.setattr(Search, "search", note)
    probe(run(), prepared, CPU, "fp32", seconds=0.0)
    assert events[:3] == ["decoding", "timed", "decoding"]


@pytest.fixture
def _work_is_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a floating-point operation take a second, so that times do not depend on the machine."""

    def timed(work: Callable[[], None], device: torch.device) -> float:
        with FlopCounterMode(display=False) as counter:
            work()
        return float(counter.get_total_flops())

    monkeypatch.setattr(probe_module, "timed", timed)


@pytest.mark.usefixtures("_work_is_time")
def test_a_wider_model_is_slower_and_needs_more(prepared: Prepared) -> None:
    small, large = (probe(run(d), prepared, CPU, "fp32") for d in (16, 512))
    for rate in ("train_target_tokens_per_second", "decode_sentences_per_second"):
        assert large[rate] < small[rate] / 2
    assert large["train_peak_mib"] > small["train_peak_mib"] + 20


@pytest.mark.usefixtures("_work_is_time")
@pytest.mark.parametrize("every", [1, 10])
def test_estimates_of_the_curvature_count_as_often_as_they_are_made(
    every: int, prepared: Prepared
) -> None:
    plain, sophia = (
        probe(run(training={"optimizer": optimizer}), prepared, CPU, "fp32")[
            "train_target_tokens_per_second"
        ]
        for optimizer in ({"name": "adamw"}, {"name": "sophia", "every": every})
    )
    assert plain / sophia == pytest.approx(1 + 4 / 3 / every, rel=0.05)


def test_the_moving_average_is_a_part_of_every_step(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[list[str]] = []
    monkeypatch.setattr(MovingAverage, "add", lambda _, weights: names.append(list(weights)))
    work = Workload(run(training={"average": {"ema": 0.9}}), prepared, CPU)
    model = work.model()
    training = work.training(model, "fp32")
    with closing(training.engine):
        training.run(work.steps)
    assert names == [list(model.state_dict())] * len(work.steps)


@pytest.mark.usefixtures("_work_is_time")
def test_more_beams_decode_slower(prepared: Prepared) -> None:
    one, many = (
        probe(spec, prepared, CPU, "fp32")["decode_sentences_per_second"]
        for spec in (run(), run(name="beam", size=20))
    )
    assert many < one / 1.3


def test_a_process_measures_the_growth_of_each_phase() -> None:
    memory = _PeakMemory(CPU)
    block = np.ones(50 * 2**20 // 8)
    del block
    assert 45 < memory.peak_mib() < 80
    second = memory.peak_mib()
    assert second < 30 or sys.platform != "linux", "only Linux can tell two peaks apart"


class Reserved:
    """What PyTorch has reserved of a GPU, in MiB: for tensors, and for reuse."""

    used, reserved, peak = 1, 3, 99

    def use(self, n_mib: int) -> None:
        self.used = n_mib
        self.reserved = max(self.reserved, n_mib)
        self.peak = max(self.peak, self.reserved)

    def empty_cache(self) -> None:
        self.reserved = self.used

    def reset_peak_memory_stats(self, device: torch.device) -> None:
        self.peak = self.reserved

    def max_memory_reserved(self, device: torch.device) -> int:
        return self.peak * 2**20


def test_a_gpu_has_a_peak_of_each_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what an earlier phase has reserved and no longer uses."""
    gpu = Reserved()
    for name in ("empty_cache", "reset_peak_memory_stats", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, getattr(gpu, name))
    memory = _PeakMemory(torch.device("cuda"))
    peaks = []
    for phase in ((2, 50, 4), (7, 5)):
        for n_mib in phase:
            gpu.use(n_mib)
        peaks.append(memory.peak_mib())
    assert peaks == [50, 7]


def test_slow_repeats_do_not_change_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first says how many there are."""
    seconds = iter([0.05, 0.3, 0.01, 0.01, 0.01])
    monkeypatch.setattr(probe_module, "timed", lambda *_: next(seconds))
    assert probe_module._median_seconds(lambda: None, CPU, 0.25) == 0.01
    assert not list(seconds)


@pytest.mark.parametrize(("budget", "n_repeats"), [(0.0, 2), (0.31, 3), (99.0, 50)])
def test_work_is_repeated_for_about_its_budget(
    budget: float, n_repeats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []

    def timed(work: Callable[[], None], device: torch.device) -> float:
        calls.append(work)
        return 0.1

    monkeypatch.setattr(probe_module, "timed", timed)
    assert probe_module._median_seconds(lambda: None, CPU, budget) == 0.1
    assert len(calls) == n_repeats


@pytest.mark.usefixtures("_work_is_time")
def test_a_product_of_matrices_has_the_operations_that_pytorch_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_module, "_MATRIX_WIDTH", 64)
    assert probe_module.matrix_rate(CPU, torch.float32, 0.0) == 1  # one per second


@pytest.mark.parametrize(
    ("share", "n_fitting", "expected"),
    [
        (0.02, 1000.0, 8),  # however small a run is
        (0.1, 1000.0, 5),
        (0.24, 1000.0, 2),
        (0.45, 1000.0, 1),
        (0.9, 0.5, 1),  # it must be tried, even if it may not fit
        (0.02, 6.5, 3),
    ],
)
def test_runs_share_a_gpu_up_to_half_of_it(share: float, n_fitting: float, expected: int) -> None:
    assert runs_at_once(share, n_fitting) == expected


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaMachine]:
    monkeypatch.setattr(probe_module, "_MATRIX_WIDTH", 8)
    monkeypatch.setattr(probe_module, "count_flops", lambda *_: 1.0)  # no tensors of a device
    with CudaMachine() as machine:
        yield machine


def test_nothing_is_captured_while_training_is_timed(
    machine: CudaMachine, prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With captures in the clock the median would be of both, and runs would share a device."""
    n_captures: list[int] = []
    timed = probe_module.timed

    def count(work: Callable[[], None], device: torch.device) -> float:
        before = machine.n_captures
        seconds = timed(work, device)
        n_captures.append(machine.n_captures - before)
        return seconds

    monkeypatch.setattr(probe_module, "timed", count)
    actual = probe(run(), prepared, machine.device, "fp32", "cuda_graph", seconds=0.0)
    assert sum(n_captures[:2]) > 0, "decoding captures for every batch anew"
    assert n_captures[2:] == [0] * (len(n_captures) - 2)
    assert actual["runs_at_once"] >= 1


def test_the_memory_of_graphs_counts(machine: CudaMachine, prepared: Prepared) -> None:
    """PyTorch counts nothing of it as allocated, and the device has no other use for it."""
    eager, captured = (
        probe(run(), prepared, machine.device, "fp32", engine, seconds=0.0)
        for engine in ("eager", "cuda_graph")
    )
    assert captured["train_peak_mib"] >= eager["train_peak_mib"] + 4 * GRAPH_MIB
    gc.collect()
    assert machine.live_graphs == 0


def test_the_memory_of_training_is_without_that_of_decoding(
    machine: CudaMachine, prepared: Prepared
) -> None:
    """The reserved memory of a capture is free only when no graph of its pool lives any more."""
    n_graphs: list[int] = []

    def note() -> None:
        n_graphs.append(machine.live_graphs)

    probe(
        run(),
        prepared,
        machine.device,
        "fp32",
        "cuda_graph",
        before_training=note,
        seconds=0.0,
    )
    assert n_graphs == [0]


def test_an_engine_that_goes_on_capturing_is_an_error(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Workload(run(), prepared, CPU, "cuda_graph")
    training = work.training(work.model(), "fp32")
    step = CudaGraph.step

    def capturing(self: CudaGraph, batches: Any) -> Any:
        self.seconds_preparing += 1
        return step(self, batches)

    monkeypatch.setattr(CudaGraph, "step", capturing)
    with pytest.raises(EngineError, match="cuda_graph still captures or compiles after 10 times"):
        training.warm_up(work.steps)
