"""Speed and memory, measured the same way for every row: alone, on fixed work, without its start.

To be called in a fresh process, with nothing else on the device.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ablate.data.batches import Batch, Batches, Encoded
from ablate.data.prepare import Prepared
from ablate.data.tokenizer import PAD
from ablate.decoding import Search
from ablate.model import Transformer, assemble
from ablate.parts.objective import Objective
from ablate.parts.optimizer import Optimizer
from ablate.registry import build
from ablate.spec import RunSpec
from ablate.training.step import train_step

_SECONDS = 1.5  # about, for each of the two measurements
_FEWEST, _MOST = 5, 50  # repeats
_N_BATCHES = 4  # to train on, spread over the lengths
_N_SENTENCES = 64  # of dev, to decode
_LEARNING_RATE = 1e-6  # a step must cost what it costs and lead nowhere
_MIB = 2**20


def probe(
    spec: RunSpec, prepared: Prepared, device: torch.device, precision: str
) -> dict[str, float]:
    """Build the model of ``spec`` and measure decoding, then training.

    Every time is the median of repeats on the same work, after one that is not counted. Sentences
    are decoded to exactly the length of their references, so that an untrained model does the work
    of a trained one.

    Returns:
        ``train_target_tokens_per_second``, padding not counted; ``decode_sentences_per_second``;
        ``train_peak_mib`` and ``decode_peak_mib``: on CUDA the most that the allocator held, on the
        CPU by how much the process grew, model included, interpreter and libraries not; and
        ``target_tokens_per_step``, of the measured batches.
    """
    memory = _Memory(device)
    torch.manual_seed(spec.seed)
    model = assemble(spec.model, prepared.codec.vocabulary, PAD).to(device)
    sentences = _sentences(prepared.dev).to(device)
    search = build(Search, spec.decoding, at="decoding")
    decode_seconds = _median_seconds(_decoding(model, search, sentences), device)
    decode_peak_mib = memory.peak_mib()
    batches = [batch.to(device) for batch in _batches(prepared.train, spec.training.batch_tokens)]
    train_seconds = _median_seconds(_training(model, spec, batches, precision), device)
    n_tokens = sum(batch.n_tokens for batch in batches)
    return {
        "train_target_tokens_per_second": n_tokens / train_seconds,
        "decode_sentences_per_second": len(sentences.index) / decode_seconds,
        "train_peak_mib": memory.peak_mib(),
        "decode_peak_mib": decode_peak_mib,
        "target_tokens_per_step": n_tokens / len(batches),
    }


def _batches(train: Encoded, batch_tokens: int) -> list[Batch]:
    """Return a few batches, from the shortest sentences to the longest."""
    batches = Batches(train, batch_tokens, PAD)
    every = list(batches.in_order())
    places = np.linspace(0, len(every) - 1, min(_N_BATCHES, len(every)) + 2)[1:-1]
    return [every[round(place)] for place in places] or every


def _sentences(dev: Encoded) -> Batch:
    rows = np.arange(min(_N_SENTENCES, len(dev)))
    return Batches(dev, 1, PAD).make(rows)


def _decoding(model: Transformer, search: Search, batch: Batch) -> Callable[[], None]:
    lengths = (batch.tgt_out != PAD).sum(dim=1)
    model.eval()

    def decode() -> None:
        with torch.inference_mode():
            search.search(model, batch.src, lengths)

    return decode


def _training(
    model: Transformer, spec: RunSpec, batches: list[Batch], precision: str
) -> Callable[[], None]:
    objective = build(Objective, spec.training.objective, PAD, at="training.objective")
    maker = build(Optimizer, spec.training.optimizer, at="training.optimizer")
    optimizer = maker.make(model.parameters())
    for group in optimizer.param_groups:
        group["lr"] = _LEARNING_RATE
    model.train()

    def train() -> None:
        for batch in batches:
            train_step(
                model,
                objective,
                optimizer,
                [batch],
                clip=spec.training.clip,
                precision=precision,
            )

    return train


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
        try:
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # see proc(5)
        except OSError:  # not Linux, or forbidden: the second peak then includes the first
            return


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
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (_MIB if sys.platform == "darwin" else 1024)
