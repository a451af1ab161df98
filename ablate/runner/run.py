"""One run from start to end: corpus, batches, model, training, decoding, measuring, record."""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_model

from ablate import measuring
from ablate.config import RunSpec
from ablate.data.batches import Batches, Encoded
from ablate.data.prepare import Prepared, prepare
from ablate.data.tokenizer import PAD
from ablate.decoding import Search, translate
from ablate.errors import AblateError, DivergedError, StoppedError
from ablate.model import Transformer, assemble
from ablate.registry import build
from ablate.runner import provenance, staleness
from ablate.runner.task import Task
from ablate.store import FINISHED, Store, write_whole
from ablate.training.loop import Job, Progress, train

Record = dict[str, Any]
Say = Callable[[str, Progress | None], None]
_KEPT = ("lock", "log.txt")
_WIDER = {"cuda": 8}  # a GPU has the memory, and waits for Python between small batches


def run_one(
    task: Task,
    store: Store,
    say: Say,
    should_stop: Callable[[], bool],
    cores: Callable[[], int] = lambda: 1,
) -> Record:
    """Train and measure one run, or continue it, unless it has been done meanwhile.

    Leaves in the run's folder ``model.safetensors``, ``tokenizer.json``, ``curve.csv``,
    ``hypotheses.<testset>.txt``, ``sentences.<testset>.csv`` and, last of all, ``record.json``. Any
    failure is a record too, with everything known by then, and its traceback in ``error.txt``.

    Args:
        task: the run.
        store: where its record goes.
        say: is told the phase and, while training, how far it is.
        should_stop: asked often; True makes it keep what it has and stop.
        cores: asked often: how many of a CPU it may keep busy; the numbers are the same.

    Raises:
        StoppedError: if ``should_stop`` said so; the next call continues.
    """
    say("waiting for another process", None)
    with store.lock(task.key, should_stop) as is_held:
        if not is_held:
            raise StoppedError("stopped while another process had the run")
        record = store.load(task.key)
        if record is not None and record["status"] in FINISHED and not task.fresh:
            return record
        folder = store.path(task.key)
        _clear(folder, everything=task.fresh)
        record = _Attempt(task, folder, say, should_stop, cores).record(
            store.load_probe(task.probe)
        )
        store.save(record)
        if record["status"] in FINISHED:
            _tidy(folder)
        return record


class _Attempt:
    """The way through one run; ``known`` fills up on it."""

    def __init__(
        self,
        task: Task,
        folder: Path,
        say: Say,
        should_stop: Callable[[], bool],
        cores: Callable[[], int],
    ) -> None:
        self.task, self.folder = task, folder
        self.say, self.should_stop, self.cores = say, should_stop, cores
        self.spec = RunSpec.model_validate(task.spec)
        self.device = torch.device(task.device)
        self.timings: dict[str, float] = {}
        self.known: Record = {
            "hardware": provenance.hardware(task.device),
            "versions": provenance.versions(),
            "git": provenance.git() | {"code": staleness.code_digest()},
            "engine": task.engine,
            "n_together": task.runs_per_process,
            "started": provenance.now(),
            "timings": self.timings,
        }

    def record(self, probe: Record | None) -> Record:
        """Go all the way; return the record, of a failure too."""
        if probe is not None:
            self.known |= _columns(probe)
        status, error = "done", None
        try:
            self._go()
        except StoppedError:
            raise
        except Exception as caught:
            write_whole(self.folder / "error.txt", traceback.format_exc())
            status, error = _status(caught), _reason(caught)
        return self.task.record(status, error, **self.known, finished=provenance.now())

    def _go(self) -> None:
        with self._phase("reading the corpus"):
            prepared = prepare(self.spec)
        model = self._assemble(prepared)
        self._describe(prepared, model)
        with self._phase("training"):
            self._train(model, prepared)
        with self._phase("measuring dev"):
            self.known["dev"] = _of(self._likelihood(model, prepared.dev))
        self.known["test"] = {}
        for name in prepared.tests:
            with self._phase(f"translating {name}"):
                self.known["test"][name] = self._test(model, prepared, name)
        new = self.folder / "model.safetensors.new"
        save_model(model, str(new))
        new.chmod(0o644)  # safetensors lets nobody else read it
        new.replace(self.folder / "model.safetensors")

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Tell what is going on, measure how long it takes, and stop before it if told to."""
        if self.should_stop():
            raise StoppedError(f"stopped before {name}")
        self.say(name, None)
        began = time.perf_counter()
        try:
            yield
        finally:
            key = f"{name.replace(' ', '_')}_seconds"
            self.timings[key] = round(time.perf_counter() - began, 3)

    def _assemble(self, prepared: Prepared) -> Transformer:
        torch.manual_seed(self.spec.seed)
        return assemble(self.spec.model, prepared.tokenizers.vocabulary, PAD).to(self.device)

    def _describe(self, prepared: Prepared, model: Transformer) -> None:
        """Note what is known before training."""
        tokenizers, text = prepared.tokenizers, prepared.text
        write_whole(self.folder / "tokenizer.json", tokenizers.to_json())
        batches = self._batches(prepared.train)
        batch = batches.make(batches.epoch(0, 0)[0])  # the same for every variant and seed
        flops = measuring.count_flops(model, batch)
        self.known |= {
            "corpus": {
                "name": text.name,
                "src": text.src,
                "tgt": text.tgt,
                "fingerprint": prepared.corpus_fingerprint,
                "notes": list(text.notes),
                "n_train": len(prepared.train),
            },
            "tokenizer": {
                "fingerprint": tokenizers.fingerprint,
                "n_src": tokenizers.vocabulary.n_src,
                "n_tgt": tokenizers.vocabulary.n_tgt,
            },
            "params": measuring.count_parameters(model),
            "flops": {"train_per_target_token": flops},
        }

    def _train(self, model: Transformer, prepared: Prepared) -> None:
        job = Job(
            spec=self.spec,
            batches=self._batches(prepared.train),
            n_target_ids=prepared.tokenizers.vocabulary.n_tgt,
            evaluate=lambda m: self._likelihood(m, prepared.dev).nll,
            device=self.device,
            precision=self.task.precision,
            folder=self.folder,
            engine=self.task.engine,
            cores=self.cores,
        )
        trained = train(
            model, job, lambda progress: self.say("training", progress), self.should_stop
        )
        told = asdict(trained)
        self.known |= {key: told.pop(key) for key in tuple(told) if key.startswith("engine")}
        self.known["train"] = told

    def _test(self, model: Transformer, prepared: Prepared, name: str) -> Record:
        """Translate a test set, keep the translations and what each is worth, and score them."""
        bitext, encoded = prepared.text.tests[name], prepared.tests[name]
        search = build(Search, self.spec.decoding, at="decoding")
        best = translate(
            model,
            search,
            encoded.src,
            self._tokens_without_gradient(),
            self.device,
            self.known["engine"],
        )
        lines = [prepared.tokenizers.decode_tgt(hypotheses[0].tokens) for hypotheses in best]
        write_whole(self.folder / f"hypotheses.{name}.txt", "".join(f"{s}\n" for s in lines))
        scores = measuring.score(lines, bitext.tgt, is_tokenised=prepared.text.is_tokenised)
        found = self._likelihood(model, encoded)
        sentences = measuring.SentenceStatistics.of(
            lines, bitext.tgt, encoded.tgt.lengths, found.of_sentences
        )
        file = f"sentences.{name}.csv"
        write_whole(self.folder / file, sentences.to_csv())
        return {
            **scores,
            **_of(found),
            "bits_per_character": sentences.bits_per_character,
            "n_sentences": len(lines),
            "sentences": file,
        }

    def _likelihood(self, model: Transformer, encoded: Encoded) -> measuring.Likelihood:
        batches = Batches(encoded, self._tokens_without_gradient(), PAD, self.device)
        return measuring.likelihood(model, batches.in_order(), self.task.precision)

    def _tokens_without_gradient(self) -> int:
        """Return how many tokens a batch may have of which nothing is kept to go back."""
        return self.spec.training.batch_tokens * _WIDER.get(self.device.type, 1)

    def _batches(self, encoded: Encoded) -> Batches:
        return Batches(encoded, self.spec.training.batch_tokens, PAD, self.device)


def _of(found: measuring.Likelihood) -> Record:
    return {"nll": found.nll, "perplexity": measuring.perplexity(found.nll)}


def _clear(folder: Path, *, everything: bool) -> None:
    """Take away the record of a failure; a checkpoint stays unless ``everything`` goes."""
    (folder / "record.json").unlink(missing_ok=True)
    (folder / "error.txt").unlink(missing_ok=True)
    for path in folder.iterdir() if everything else ():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in _KEPT:
            path.unlink()


def _tidy(folder: Path) -> None:
    """Take away what only an unfinished run needs, and what a kill has left half written."""
    (folder / "checkpoint.pt").unlink(missing_ok=True)
    shutil.rmtree(folder / "snapshots", ignore_errors=True)
    for path in (*folder.glob(".*"), *folder.glob("*.new")):
        path.unlink()


def _status(error: Exception) -> str:
    if isinstance(error, DivergedError):
        return "diverged"
    # PyTorch has no type of its own for a CPU that is out of memory
    is_cpu_full = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    is_full = isinstance(error, MemoryError | torch.OutOfMemoryError) or is_cpu_full
    return "oom" if is_full else "failed"


def _reason(error: Exception) -> str:
    """Return one line; what we raise ourselves needs no type."""
    said = str(error).strip().partition("\n")[0]
    kind = "" if isinstance(error, AblateError) else type(error).__name__
    return ": ".join(text for text in (kind, said) if text)


def _columns(probe: Record) -> Record:
    """Sort what a probe measured into the record's places."""
    turns = {key: probe[key] for key in ("occasion", "rounds") if key in probe}
    speeds = {key: value for key, value in probe.items() if key.endswith("_per_second")}
    return {
        "speed": {**speeds, **turns},
        "memory": {key: value for key, value in probe.items() if key.endswith("_mib")},
    }
