"""Speed and memory, measured the same way for every row: alone, on fixed work, without its start.

To be called in a fresh process, with nothing else on the device.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ablate.data.batches import Batch, Batches, Encoded, Rows
from ablate.data.prepare import Prepared
from ablate.data.tokenizer import PAD
from ablate.decoding import Search
from ablate.measuring.flops import count_flops
from ablate.model import Transformer, assemble
from ablate.parts.initialisation import Initialisation
from ablate.parts.optimizer import Optimizer
from ablate.recording import Recorder
from ablate.registry import build
from ablate.spec import RunSpec
from ablate.spec.experiment import TrainingSpec
from ablate.training.engines import choose
from ablate.training.step import Recipe, parameter_groups, set_rate

_SECONDS = 1.5  # about, for each of the two measurements
_FEWEST, _MOST = 5, 50  # repeats
_N_BATCHES = 4  # to train on, spread over the lengths
_N_SENTENCES = 64  # of dev, to decode
_LEARNING_RATE = 1e-6  # a step must cost what it costs and lead nowhere
_MIB = 2**20
_HALF = 0.5
_MOST_RUNS = 8
_WIDE = 8192  # rows and columns of a matrix whose product keeps every GPU busy


def probe(
    spec: RunSpec, prepared: Prepared, device: torch.device, precision: str, engine: str = "eager"
) -> dict[str, float]:
    """Build the model of ``spec`` and measure decoding, then training.

    Every time is the median of repeats on the same work, after one that is not counted. A training
    step accumulates as many batches as the run's do, and the largest batch goes first, for the peak
    of memory. Sentences are decoded to exactly the length of their references, so that an untrained
    model does the work of a trained one.

    Returns:
        ``train_target_tokens_per_second``, padding not counted; ``decode_sentences_per_second``;
        ``train_peak_mib`` and ``decode_peak_mib``: on CUDA the most that the allocator held, on the
        CPU by how much the process grew, model included, interpreter and libraries not;
        ``target_tokens_per_step``, of the measured batches; and on CUDA ``runs_at_once``: of how
        many such runs the device has more side by side than one after the other.
    """
    steps = _steps(prepared.train, spec.training, device)
    sentences = _sentences(prepared.dev).to(device)
    _load_libraries(device)
    memory = _Memory(device)
    torch.manual_seed(spec.seed)
    model = assemble(spec.model, prepared.codec.vocabulary, PAD).to(device)
    search = build(Search, spec.decoding, at="decoding")
    decode_seconds = _median_seconds(_decoding(model, search, sentences, engine), device)
    decode_peak_mib = memory.peak_mib()
    train = _training(model, spec, precision, engine, steps[0][0])
    train(steps[-1:])
    train_seconds = _median_seconds(lambda: train(steps[:-1]), device)
    n_tokens = sum(batch.n_tokens for step in steps[:-1] for batch in step)
    measured = {
        "train_target_tokens_per_second": n_tokens / train_seconds,
        "decode_sentences_per_second": len(sentences.index) / decode_seconds,
        "train_peak_mib": memory.peak_mib(),
        "decode_peak_mib": decode_peak_mib,
        "target_tokens_per_step": n_tokens / (len(steps) - 1),
    }
    if device.type == "cuda":
        batches = [batch for step in steps[:-1] for batch in step]
        n_flops = sum(count_flops(model, batch) * batch.n_tokens for batch in batches)
        share = n_flops / train_seconds / _matrix_rate(device, precision)
        n_fitting = torch.cuda.mem_get_info(device)[1] / _MIB / measured["train_peak_mib"]
        measured["runs_at_once"] = runs_at_once(share, n_fitting)
    return measured


def runs_at_once(share: float, n_fitting: float) -> int:
    """Return how many runs a GPU should make side by side, at most 8.

    As many as use half of what it could compute, if they did not get in each other's way, and half
    of its memory: a matrix product alone reaches all of the former, and a run that meets longer
    sentences than the probe did needs more of the latter.

    Args:
        share: of the device's rate of matrix products, that one run reaches.
        n_fitting: how many would fill the memory.
    """
    return int(max(1, min(_MOST_RUNS, _HALF / share, _HALF * n_fitting)))


def _matrix_rate(device: torch.device, precision: str) -> float:
    """Return the floating-point operations per second of a large matrix product."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    x = torch.zeros(_WIDE, _WIDE, dtype=dtype, device=device)

    def multiply() -> None:
        torch.mm(x, x)

    return 2 * _WIDE**3 / _median_seconds(multiply, device)


def _steps(train: Encoded, training: TrainingSpec, device: torch.device) -> list[list[Batch]]:
    """Return the batches of a few steps, spread over the lengths.

    The last step has the largest batch of all, for the peak of memory alone.
    """
    batches = Batches(train, training.batch_tokens, PAD, device)

    def n_tokens(rows: Rows) -> int:
        return len(rows) * int(train.src.lengths[rows].max() + train.tgt.lengths[rows].max())

    every = sorted(batches.epoch(0, 0), key=lambda rows: train.tgt.lengths[rows].max())
    n_steps = max(1, _N_BATCHES // training.accumulate)
    places = np.linspace(0, len(every) - 1, n_steps * training.accumulate + 2)[1:-1]
    some = [batches.make(every[round(place)]) for place in places]
    largest = batches.make(max(every, key=n_tokens))
    return [*(some[i::n_steps] for i in range(n_steps)), [largest] * training.accumulate]


def _sentences(dev: Encoded) -> Batch:
    rows = np.arange(min(_N_SENTENCES, len(dev)))
    return Batches(dev, 1, PAD).make(rows)


def _decoding(model: Transformer, search: Search, batch: Batch, engine: str) -> Callable[[], None]:
    lengths = (batch.tgt_out != PAD).sum(dim=1)
    recorder = None if engine == "eager" else Recorder(batch.src.device)
    model.eval()

    def decode() -> None:
        with torch.inference_mode():
            search.search(model, batch.src, lengths, recorder)

    return decode


def _training(
    model: Transformer, spec: RunSpec, precision: str, engine: str, example: Batch
) -> Callable[[list[list[Batch]]], None]:
    recipe = Recipe.of(spec.training, precision)
    maker = build(Optimizer, spec.training.optimizer, at="training.optimizer")
    initialisation = build(Initialisation, spec.model.initialisation, spec.model.dims)
    optimizer = maker.make(parameter_groups(model, initialisation))
    set_rate(optimizer, _LEARNING_RATE)
    chosen = choose(engine, model.train(), recipe, optimizer, example)

    def train(steps: list[list[Batch]]) -> None:
        for batches in steps:
            chosen.step(batches)

    return train


def _load_libraries(device: torch.device) -> None:
    """Take one step with next to nothing, so that what PyTorch loads for it is not counted."""
    layer = torch.nn.Linear(8, 8, device=device)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.0, fused=True)
    optimizer.zero_grad(set_to_none=True)
    hidden = layer(torch.zeros(4, 8, device=device)).softmax(dim=-1)
    hidden.log_softmax(dim=-1).sum().backward()
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    optimizer.step()


def _median_seconds(work: Callable[[], None], device: torch.device) -> float:
    """Return the median wall time of ``work``, repeated for about `_SECONDS`, at least 5 times."""
    _timed(work, device)
    seconds = [_timed(work, device)]
    n = min(max(_FEWEST, int(_SECONDS / seconds[0])), _MOST)
    seconds += [_timed(work, device) for _ in range(n - 1)]
    return statistics.median(seconds)


def _timed(work: Callable[[], None], device: torch.device) -> float:
    began = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


class _Memory:
    """The peak since the last question, above what there was at first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reset()
        self._before = 0.0 if device.type == "cuda" else _resident_mib("VmRSS")

    def peak_mib(self) -> float:
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device) / _MIB
        else:
            peak = _resident_mib("VmHWM") - self._before
        self._reset()
        return peak

    def _reset(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        _give_back_free_memory()
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # see proc(5)
        except OSError:  # not Linux, or forbidden: the second peak then includes the first
            return


def _give_back_free_memory() -> None:
    """Return to the system what was freed, so that its later use counts as growth."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone has it
        if trim is not None:
            trim(0)


def _resident_mib(field: str) -> float:
    """Return the process' resident memory, now (VmRSS) or at its peak (VmHWM)."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return _peak_mib_elsewhere()
    line = next(line for line in status.splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) / 1024


def _peak_mib_elsewhere() -> float:
    """Return the peak on systems without /proc; macOS counts in bytes."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (_MIB if sys.platform == "darwin" else 1024)
