"""The protocol of a race: the job of a contender, and the lines of JSON that it writes.

A contender is a process of its own, ``python -m peers.NAME JOB`` in the folder of the benchmarks.
JOB is a JSON file (`Job`). The process writes one line of JSON to standard output when it is warm
and one line for every round; a round begins with a line on standard input, and the end of the input
ends the process.

This file runs in every environment: it needs the standard library, numpy and torch, nothing else.

B batch, S source tokens, T target tokens.
"""

from __future__ import annotations

import json
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

PAD, BOS, EOS, UNK = range(4)
N_WARM_UP = 64  # sentences that are decoded before anything is measured
NEVER = 10**9  # a step that is not reached, for what a library does every so many steps

T = TypeVar("T")
Ids = list[int]
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a post-norm model with ``n_layers`` layers a stack and one tied vocabulary."""

    d_model: int
    d_ff: int
    n_heads: int
    n_layers: int
    vocab_size: int
    max_len: int


@dataclass(frozen=True)
class Training:
    """How to train.

    Attributes:
        dropout: of embeddings and of the sub-layers' outputs; none elsewhere.
        label_smoothing: epsilon.
        betas: of Adam.
        eps: of Adam.
        clip: largest norm of the gradient.
        lr: constant.
        steps: of a round.
        warm_up: steps before the first round.
        batch_tokens: of the target, in a batch.
        own_batches: whether contenders make batches in their own way, of `Session.pairs`; else all
            have those of `Session.batches`, one for each step of a round.
        precision: ``fp32``, or ``bf16`` for autocast, from the contender's options.
    """

    dropout: float
    label_smoothing: float
    betas: tuple[float, float]
    eps: float
    clip: float
    lr: float
    steps: int
    warm_up: int
    batch_tokens: int
    own_batches: bool = False
    precision: str = "fp32"


@dataclass(frozen=True)
class Decoding:
    """How to decode.

    Attributes:
        beam: beams per sentence.
        length_penalty: exponent of the divisor of log-probabilities; 0 for none.
        max_tokens: of a hypothesis, EOS included.
        batch_tokens: of a batch, at most: rows times longest source.
        norm_eps: of the norms of the given weights.
    """

    beam: int
    length_penalty: float
    max_tokens: int
    batch_tokens: int
    norm_eps: float


@dataclass(frozen=True)
class Job:
    """The work of a contender: training or decoding.

    Attributes:
        sizes: of the model.
        device: ``cpu`` or ``cuda``.
        threads: of the CPU.
        data: an .npz file; see `Session.batches`, `Session.pairs`, `Session.sources` and
            `Session.weights`.
        spec: of the whole run, for our own code.
        training: unless it decodes.
        decoding: unless it trains.
        options: those of one contender.
        seed: of everything that is drawn, the order of the pairs included; each round has its own.
    """

    sizes: Sizes
    device: str
    threads: int
    data: Path
    spec: dict[str, Any]
    training: Training | None = None
    decoding: Decoding | None = None
    options: dict[str, Any] | None = None
    seed: int = 1

    def to_json(self) -> str:
        """Return the job as JSON."""
        return json.dumps({**asdict(self), "data": str(self.data)})

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that some JSON holds."""
        data = json.loads(text)
        training, decoding = data.pop("training"), data.pop("decoding")
        return cls(
            sizes=Sizes(**data.pop("sizes")),
            data=Path(data.pop("data")),
            training=None if training is None else Training(**training),
            decoding=None if decoding is None else Decoding(**decoding),
            **data,
        )


@dataclass(frozen=True)
class Batch:
    """Some pairs, padded with `PAD`.

    Attributes:
        src: sentences that end in EOS, (B, S).
        tgt_in: BOS and the tokens, (B, T).
        tgt_out: the tokens and EOS, (B, T).
        n_tokens: target tokens that are not padding.
    """

    src: Tensor
    tgt_in: Tensor
    tgt_out: Tensor
    n_tokens: int

    def to(self, device: str) -> Batch:
        """Return the batch on ``device``."""
        src, tgt_in, tgt_out = (x.to(device) for x in (self.src, self.tgt_in, self.tgt_out))
        return Batch(src, tgt_in, tgt_out, self.n_tokens)


class Session:
    """A contender's job and its connection to the race.

    The output of libraries goes to standard error, so that standard output has our lines only.

    Args:
        libraries: those whose versions are recorded.
    """

    def __init__(self, libraries: Sequence[str]) -> None:
        self.job = Job.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
        self._channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._versions = {name: version(name) for name in (*libraries, "torch", "numpy")}
        self._versions["python"] = platform.python_version()
        self._arrays: Arrays = dict(np.load(self.job.data))
        torch.set_num_threads(self.job.threads)
        torch.manual_seed(self.job.seed)
        random.seed(self.job.seed)

    @property
    def training(self) -> Training:
        """How to train."""
        assert self.job.training is not None, "the job is to train"
        data = self.job.options or {}
        return replace(self.job.training, precision=data.get("precision", "fp32"))

    @property
    def decoding(self) -> Decoding:
        """How to decode."""
        assert self.job.decoding is not None, "the job is to decode"
        return self.job.decoding

    def folder(self) -> Path:
        """Return a new folder for what a library writes; the maker of the job deletes it."""
        return Path(tempfile.mkdtemp(dir=self.job.data.parent))

    def batches(self) -> list[Batch]:
        """Return the batches of one round."""
        batches = []
        for i in range(self.training.steps):
            src, tgt_in, tgt_out = (
                torch.from_numpy(self._arrays[f"{name}_{i}"])
                for name in ("src", "tgt_in", "tgt_out")
            )
            batches.append(Batch(src, tgt_in, tgt_out, int((tgt_out != PAD).sum())))
        return batches

    def pairs(self) -> tuple[list[Ids], list[Ids]]:
        """Return the sentences to train on, sources and targets, each with EOS."""
        return self._sentences("src"), self._sentences("tgt")

    def write_pairs(self) -> tuple[Path, Path]:
        """Write sources and targets to two files of text, for libraries that read text.

        A line is a sentence without EOS, and a word of it a token: its id, or ``<unk>``.
        """
        folder, files = self.folder(), []
        for name, sentences in zip(("train.src", "train.tgt"), self.pairs(), strict=True):
            files.append(folder / name)
            with files[-1].open("w", encoding="utf-8") as file:
                for ids in sentences:
                    print(*("<unk>" if i == UNK else i for i in ids[:-1]), file=file)
        return files[0], files[1]

    def sources(self) -> list[Ids]:
        """Return the sentences to decode, each with EOS."""
        return self._sentences("source")

    def _sentences(self, name: str) -> list[Ids]:
        ends = np.cumsum(self._arrays[f"{name}_lengths"])[:-1]
        return [ids.tolist() for ids in np.split(self._arrays[f"{name}_ids"], ends)]

    def weights(self) -> dict[str, Tensor]:
        """Return the weights to decode with, by our names, and ``positions`` (max_len, D)."""
        named = {k.removeprefix("weights/"): v for k, v in self._arrays.items() if "/" in k}
        return {name: torch.from_numpy(array) for name, array in named.items()}

    def ready(self, n_parameters: int) -> None:
        """Send that the contender is warm."""
        self.send({"versions": self._versions, "n_parameters": n_parameters})

    def send(self, content: dict[str, Any]) -> None:
        """Send one line."""
        self._channel.write(json.dumps(content) + "\n")
        self._channel.flush()

    def wait(self) -> None:
        """Wait until the next round may begin; if there is none, end the process at once."""
        if not sys.stdin.readline():
            os._exit(0)  # before a library writes a checkpoint or a summary

    def now(self) -> float:
        """Return the time in seconds, once the device has finished its work."""
        if self.job.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter()


class Clock:
    """Divides training into rounds, from inside a loop that may be a library's.

    The steps before the first round are for warming up and are not measured.

    Args:
        session: of the contender.
        n_parameters: of the model, each counted once.
        preparing_seconds: returns the wall time that went into captures and compilation so far.
    """

    def __init__(
        self,
        session: Session,
        n_parameters: int,
        preparing_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._session = session
        self._n_parameters = n_parameters
        self._preparing_seconds = preparing_seconds
        self._prepared = 0.0
        self._is_warm = False
        self._n_steps = self._n_tokens = self._n_places = 0
        self._began = 0.0

    def around(
        self, batches: Iterable[T], size: Callable[[T], tuple[int, int]] | None = None
    ) -> Iterator[T]:
        """Yield ``batches``; the step on a batch ends when the next one is requested.

        Args:
            batches: in the order of training.
            size: target tokens of a batch, without padding and with it; of ours unless given.
        """
        for batch in batches:
            yield batch
            self.tick(*(size or _size)(batch))

    def tick(self, n_tokens: int, n_padded: int) -> None:
        """Count a step that is done, and its target tokens, without padding and with it."""
        self._n_steps += 1
        self._n_tokens += n_tokens
        self._n_places += n_padded
        training = self._session.training
        if self._n_steps < (training.steps if self._is_warm else training.warm_up):
            return
        seconds = self._session.now() - self._began
        if self._is_warm:
            counted = {
                "n_tokens": self._n_tokens,
                "n_places": self._n_places,
                "preparing_seconds": self._preparing_seconds() - self._prepared,
            }
            self._session.send({"seconds": seconds, **counted})
        else:
            self._session.ready(self._n_parameters)
        self._session.wait()
        self._is_warm = True
        self._n_steps = self._n_tokens = self._n_places = 0
        self._prepared = self._preparing_seconds()
        self._began = self._session.now()


def _size(batch: Any) -> tuple[int, int]:
    return batch.n_tokens, batch.tgt_out.numel()


def serve(
    session: Session, decode: Callable[[list[Ids]], list[Ids]], n_parameters: int
) -> NoReturn:
    """Decode all sentences, round after round.

    Args:
        session: of the contender.
        decode: sources, each with EOS, to hypotheses in the same order, without BOS and EOS.
        n_parameters: of the model.
    """
    sources = session.sources()
    decode(sources[:N_WARM_UP])
    session.ready(n_parameters)
    while True:
        session.wait()
        began = session.now()
        hypotheses = decode(sources)
        session.send({"seconds": session.now() - began, "hypotheses": hypotheses})


def in_batches(
    sources: list[Ids], batch_tokens: int, decode: Callable[[Tensor], list[Ids]]
) -> list[Ids]:
    """Decode sentences of about equal length together, longest first, as our own code does.

    Args:
        sources: sentences that end in EOS.
        batch_tokens: rows times longest source, at most.
        decode: sources (B, S) to hypotheses.
    """
    hypotheses: list[Ids] = [[] for _ in sources]
    rows = sorted(range(len(sources)), key=lambda row: -len(sources[row]))
    while rows:
        n_rows = max(1, batch_tokens // len(sources[rows[0]]))
        some, rows = rows[:n_rows], rows[n_rows:]
        padded = nn.utils.rnn.pad_sequence(
            [torch.tensor(sources[row]) for row in some], batch_first=True, padding_value=PAD
        )
        for row, ids in zip(some, decode(padded), strict=True):
            hypotheses[row] = ids
    return hypotheses


def until_eos(ids: Sequence[int], eos: int = EOS) -> Ids:
    """Return ``ids`` up to EOS, or all of them if there is none."""
    whole = list(ids)
    return whole[: whole.index(eos)] if eos in whole else whole


def count_parameters(model: Any) -> int:
    """Return the number of trained parameters, tied ones once."""
    module = cast(nn.Module, model)
    return sum(p.numel() for p in module.parameters() if p.requires_grad)
