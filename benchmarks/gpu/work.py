"""Models, batches and engines that the items measure, and the clocks.

Everything that calls the engines of the package is in this file, which alone changes with them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from presets import preset
from torch import Tensor

from ablate.cuda_graphs import GraphCapturer
from ablate.data.batches import Batch, Batches, Encoded
from ablate.data.prepare import Prepared
from ablate.data.sentences import Ragged
from ablate.data.tokenizer import EOS, PAD
from ablate.decoding import Hypothesis, Search, translate
from ablate.model import Transformer, assemble
from ablate.parts.embedding import Vocabulary
from ablate.registry import build
from ablate.training.engines import Engine, make_engine
from ablate.training.step import StepConfig, make_optimizer, set_lr
from gpu.script import Setting

FIRST_ID = 4  # after the special ones
LEARNING_RATE = 1e-4
N_WARM_PASSES = 3
"""Over the batches: shapes are computed eagerly, then captured, then replayed."""


@dataclass(frozen=True)
class Size:
    """A model and a corpus.

    Attributes:
        preset: the file of the model.
        changes: of the preset.
        n_ids: size of the vocabulary.
        mean: tokens of a sentence.
        n_pairs: sentences.
    """

    preset: str
    changes: tuple[str, ...]
    n_ids: int
    mean: int
    n_pairs: int


def size(name: str, setting: Setting) -> Size:
    """Return ``tiny``, as on Multi30k, or ``base``, as on WMT14 with 6,250 tokens a batch."""
    if name == "tiny":
        few = ("model.n_layers=2", "training.batch_tokens=512")
        counts = setting.pick((10_000, 13, 29_000), (500, 13, 600))
        return Size("tiny", setting.pick((), few), *counts)
    few = ("training.batch_tokens=256", "model.n_layers=1")
    changes = ("corpus=synthetic", "training.accumulate=1", *setting.pick((), few))
    return Size("vaswani_base", changes, *setting.pick((37_000, 27, 60_000), (1000, 27, 200)))


class Work:
    """A model and its batches, made of random sentences of random lengths.

    Args:
        of: which.
        setting: where.
    """

    def __init__(self, of: Size, setting: Setting) -> None:
        self.setting = setting
        self.run = preset(of.preset, *of.changes)
        self.pairs = _pairs(of)
        self.vocabulary = Vocabulary(of.n_ids, of.n_ids, is_joint=True)
        self.batches = Batches(self.pairs, self.run.training.batch_tokens, PAD, setting.device)

    def model(self, seed: int = 1) -> Transformer:
        """Return a new model."""
        torch.manual_seed(seed)
        return assemble(self.run.model, self.vocabulary, PAD).to(self.setting.device)

    def some(self, n: int) -> list[Batch]:
        """Return ``n`` batches, or as many as an epoch has."""
        return [self.batches.make(rows) for rows in self.batches.epoch(1, 0)[:n]]

    def prepared(self) -> Prepared:
        """Return these pairs in place of a corpus, with all that a probe reads."""
        tokenizers = SimpleNamespace(vocabulary=self.vocabulary)
        dev = self.pairs.take(np.arange(100))
        return cast(Prepared, SimpleNamespace(tokenizers=tokenizers, train=self.pairs, dev=dev))

    @contextmanager
    def engine(self, name: str, precision: str, seed: int = 1) -> Iterator[Engine]:
        """Yield an engine with a fresh model, and close it."""
        model = self.model(seed).train()
        optimizer = make_optimizer(self.run, model)
        set_lr(optimizer, LEARNING_RATE)
        step_config = StepConfig.of(self.run.training, precision)
        engine = make_engine(name, model, step_config, optimizer)
        try:
            yield engine
        finally:
            engine.close()

    def search(self, name: str, **options: Any) -> Search:
        """Return a search: each sentence is at most ten tokens longer than its source."""
        changes = [f"decoding={name}", "decoding.max_extra=10"]
        changes += [f"decoding.{key}={value}" for key, value in options.items()]
        return build(Search, preset("tiny", *changes).decoding, at="decoding")

    def translations(
        self, model: Transformer, search: Search, n: int, capturer: GraphCapturer | None
    ) -> list[list[Hypothesis]]:
        """Translate the first ``n`` sources, with the capturer of a run or without any."""
        sources = [self.pairs.src[row] for row in range(n)]
        n_tokens = 8 * self.run.training.batch_tokens
        return translate(model, search, sources, n_tokens, self.setting.device, capturer)


def captured(capturer: GraphCapturer, work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Warm up, capture, and return the replay."""
    for _ in range(2):
        capturer.warm_up(work)
    return capturer.capture("the work", work)


def pass_over(engine: Engine, batches: Sequence[Batch]) -> Callable[[], None]:
    """Return what makes a step of each batch."""

    def one_pass() -> None:
        for batch in batches:
            engine.step([batch])

    return one_pass


def memory_in_use(setting: Setting) -> dict[str, float]:
    """Return what a GPU and PyTorch say of its memory; nothing of a CPU."""
    if not setting.is_cuda:
        return {}
    free, total = torch.cuda.mem_get_info()
    return {
        "used_mib": (total - free) / 2**20,
        "reserved_mib": torch.cuda.memory_reserved() / 2**20,
        "peak_allocated_mib": torch.cuda.max_memory_allocated() / 2**20,
    }


def n_captures(engine: Engine) -> int:
    """Return how many captures an engine has; 0 for those that make none."""
    return int(vars(engine).get("n_captures", 0))


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Return the seconds until the host has enqueued ``work``, and until it is done."""
    wait(device)
    began = time.perf_counter()
    work()
    enqueued = time.perf_counter() - began
    wait(device)
    return enqueued, time.perf_counter() - began


def median_ms(work: Callable[[], object], device: torch.device, n: int) -> float:
    """Return the median milliseconds of ``work`` over ``n`` times, once it is warm."""
    work()
    return 1e3 * statistics.median(seconds_of(work, device)[1] for _ in range(n))


def relative_difference(measured: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the norm of the difference of some tensors, relative to that of ``expected``."""
    pairs = list(zip(measured, expected, strict=True))
    difference = torch.stack([(a - b).double().norm() for a, b in pairs]).norm()
    whole = torch.stack([b.double().norm() for _, b in pairs]).norm()
    return float(difference / whole)


def _pairs(of: Size) -> Encoded:
    """Return random sentences whose lengths spread as those of captions and of news do."""
    random = np.random.default_rng(0)
    tgt = np.clip(np.round(random.normal(of.mean, 0.3 * of.mean, of.n_pairs)), 3, 60)
    tgt = tgt.astype(np.int64)
    src = np.clip(tgt + random.integers(-2, 3, of.n_pairs), 3, 60).astype(np.int64)

    def side(lengths: Any) -> Ragged:
        flat = random.integers(FIRST_ID, of.n_ids, int(lengths.sum()), dtype=np.int32)
        flat[np.cumsum(lengths) - 1] = EOS
        return Ragged(flat, lengths)

    return Encoded(side(src), side(tgt))
