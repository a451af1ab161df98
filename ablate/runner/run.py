"""One run from start to end: corpus, batches, model, training, decoding, measuring, record."""

from __future__ import annotations

import os
import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model

from ablate import measuring
from ablate.config import RunSpec
from ablate.cuda_graphs import GraphCapturer
from ablate.data.batches import Batch, Batches, Encoded
from ablate.data.corpus import bleu_tokenizer
from ablate.data.prepare import Prepared, prepare
from ablate.data.tokenizer import PAD
from ablate.decoding import Search, translate
from ablate.errors import RunError, StoppedError, StoreError
from ablate.model import Transformer, assemble
from ablate.record import FileContent
from ablate.registry import build
from ablate.runner import provenance
from ablate.runner.failures import reason_of, status_of
from ablate.runner.other_ranks import joined_ranks
from ablate.runner.probe import record_sections
from ablate.runner.run_files import CURVES, WEIGHTS, resume, tidy, trained_alike
from ablate.runner.task import WAITING, Report, Task, append_to_log
from ablate.store import (
    Store,
    describe,
    is_finished,
    readable,
    translations_file,
    writable,
    write_whole,
)
from ablate.training import TrainingResult
from ablate.training.engines import FullySharded, capturer_for
from ablate.training.engines.factory import batch_dependence
from ablate.training.loop import Job, train
from ablate.training.ranks import Ranks
from ablate.training.step import StepConfig, count_passes

Record = dict[str, Any]
_ENGINE = ("engine", "engine_note", "engine_seconds", "micro_batching")
_OF_TRAINING = ("train", *_ENGINE, "git", "versions")
"""What a record has of training, and of the code that began it."""

_EVALUATION_FACTOR = {"cuda": 8}  # without gradients; small batches would leave a GPU idle


class HeldError(RunError):
    """Another call is at work on the run."""


def run_one(
    task: Task,
    store: Store,
    report: Report,
    should_stop: Callable[[], bool],
    cores: Callable[[], int] = lambda: 1,
    goes_on: Callable[[], None] = lambda: None,
) -> Record:
    """Train and measure one run, or continue it, unless it has been done meanwhile.

    Writes into the run's folder ``model.safetensors``, ``tokenizer.json``, ``curve.csv``,
    ``layers.csv``, ``hypotheses.<testset>.txt``, ``sentences.<testset>.csv`` and, last of all,
    ``record.json``. A run that differs from a finished one in decoding alone takes its weights. A
    failure leaves a record too, its traceback in ``error.txt``, and is then
    raised.

    ``should_stop`` is called often; on True the run saves a checkpoint and raises a `StoppedError`,
    and the next call continues. ``cores`` returns how many cores of a CPU the run may keep busy,
    which does not change its numbers. ``goes_on`` is called with every batch that is evaluated or
    translated. If another process has the run, this one waits for it; a task that does not wait is
    a `HeldError`.
    """
    report(WAITING)
    with store.lock(task.key, should_stop if task.waits else lambda: True) as is_held:
        if not is_held and not task.waits:
            raise HeldError("another call is at work on it")
        if not is_held:
            raise StoppedError("stopped while another process had the run")
        record = store.load(task.key)
        if is_finished(record) and not task.fresh:
            return record
        if record is None:
            store.set_aside(task.key)
        folder = store.path(task.key)
        attempt = _Attempt(resume(task, folder), folder, report, should_stop, cores, goes_on)
        record = attempt.record(store.load_probe(task.probe))
        store.save(record)
        if is_finished(record):
            tidy(folder)
        elif attempt.error is not None:
            raise attempt.error
        return record


@dataclass
class _Attempt:
    """One attempt at a run; ``fields`` collects those of its record."""

    task: Task
    folder: Path
    report: Report = lambda *_: None
    should_stop: Callable[[], bool] = lambda: False
    cores: Callable[[], int] = lambda: 1
    goes_on: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        task = self.task
        self.error: Exception | None = None  # that ended it early
        self.spec = RunSpec.model_validate(task.spec)
        self.device = torch.device(task.device)
        self.capturer: GraphCapturer | None = None
        self.timings: dict[str, float] = {}
        self._taken: FileContent | None = None  # of the weights of another run
        self.fields: Record = {
            "hardware": provenance.hardware(task.device),
            "versions": provenance.versions(),
            "git": provenance.git() | {"code": provenance.code_digest()},
            "engine": task.engine,
            "engine_note": task.engine_note,
            "is_fallback": bool(task.engine_note),
            "runs_per_process": task.runs_per_process,
            "micro_batching": micro_batching(task),
            "started": provenance.now(),
            "timings": self.timings,
            "files": {},
        }

    def record(self, probe: Record | None) -> Record:
        """Execute the run; return the record, of a failure too."""
        if probe is not None:
            self.fields |= record_sections(probe)
        status, reason = "done", None
        try:
            self._execute()
        except StoppedError:
            raise
        except Exception as error:
            write_whole(self.folder / "error.txt", traceback.format_exc())
            self.error, status, reason = error, status_of(error), reason_of(error)
        return self.task.record(status, reason, **self.fields, finished=provenance.now())

    def _execute(self) -> None:
        with self._phase("reading the corpus"):
            prepared = prepare(
                self.spec, self.task.corpus_fingerprint, self.task.teacher_sha256, self.report
            )
        model = self._assemble(prepared)
        self.capturer = capturer_for(self.task.engine, model, self.device)
        self._describe(prepared, model)
        batches = self._batches(prepared.train)
        epoch = batches.of_epoch(0, 0).epoch(self.spec.seed, 0)
        largest_batch = max(map(len, epoch))
        with self._phase("training", largest_batch):
            if not self._take_weights(model):
                self._make_weights(model, prepared)
        with self._phase("measuring dev"):
            self.fields["dev"] = _nll_and_perplexity(self._likelihood(model, prepared.dev))
        self.fields["test"] = {}
        for name in prepared.tests:
            with self._phase(f"translating {name}"):
                self.fields["test"][name] = self._test(model, prepared, name)
        self._save(model)

    def _make_weights(self, model: Transformer, prepared: Prepared) -> None:
        dependence = ""
        if self.task.micro_batch_factor > 1:
            objective = StepConfig.of(self.spec.training, self.task.precision).objective
            dependence = batch_dependence(model, objective)
        with joined_ranks(self.task, follow_run) as ranks:
            facts = asdict(self._train(model, prepared, ranks))
        self.fields |= {key: facts.pop(key) for key in tuple(facts) if key.startswith("engine")}
        self.fields["engine_note"] = self.fields["engine_note"] or self.task.engine_note
        n, division = facts.pop("micro_batches"), self.fields["micro_batching"]
        if division is not None:
            note = "each micro-batch draws dropout of its own"
            note += f", and is looked at by itself: {dependence}" if dependence else ""
            division |= {"n": n, "note": note}
        self.fields |= facts.pop("made_by")  # a run that other code began is not of this code
        self.fields["train"] = facts

    def _take_weights(self, model: Transformer) -> bool:
        """Load the weights of a run that was trained alike; return whether there is one.

        Weights are of the ids of their tokenizer, and other libraries may learn another one.
        """
        trained = trained_alike(self.task)
        if trained is None or trained.get("tokenizer") != self.fields["tokenizer"]:
            return False
        folder = Store(self.task.results).path(trained["hash"])
        with readable(folder / WEIGHTS):
            load_model(model, folder / WEIGHTS)
        for name in CURVES:
            with writable(self.folder / name), suppress(FileNotFoundError):
                shutil.copyfile(folder / name, self.folder / name)
        self.fields |= {key: trained[key] for key in _OF_TRAINING if key in trained}
        self.fields["engine_note"] = self.task.engine_note or self.fields["engine_note"]
        self.fields["weights_of"] = trained["hash"]
        self._taken = trained.get("files", {}).get(WEIGHTS)
        return True

    def _save(self, model: Transformer) -> None:
        """Write the weights, with the permissions that other files have.

        Those of another run are the same file if the file system can link it.
        """
        file = self.folder / WEIGHTS
        new = file.with_name(f"{file.name}.new")
        with writable(file):
            new.unlink(missing_ok=True)
            if self._taken is not None and self._link_weights(new):
                self.fields["files"][file.name] = self._taken
                new.replace(file)
                return
            new.touch()
            permissions = new.stat().st_mode
            try:
                save_model(model, str(new))  # makes it readable for its owner alone
            except SafetensorError as error:
                raise StoreError(f"{file}: cannot be written: {error}") from error
            new.chmod(permissions)
            self.fields["files"][file.name] = describe(new.read_bytes())
            new.replace(file)

    def _link_weights(self, new: Path) -> bool:
        """Link the file of the run that the weights are of, unless it has changed meanwhile."""
        with suppress(OSError):
            os.link(Store(self.task.results).path(self.fields["weights_of"]) / WEIGHTS, new)
            if describe(new.read_bytes()) == self._taken:
                return True
            new.unlink()
        return False

    def _write(self, name: str, text: str) -> None:
        write_whole(self.folder / name, text)
        self.fields["files"][name] = describe(text.encode())

    @contextmanager
    def _phase(self, name: str, largest_batch: int | None = None) -> Iterator[None]:
        """Report a phase and measure how long it takes; stop before it if asked to."""
        if self.should_stop():
            raise StoppedError(f"stopped before {name}")
        self.report(name, None, largest_batch)
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
        tokenizers, text = prepared.tokenizers, prepared.text
        self._write("tokenizer.json", tokenizers.to_json())
        batches = self._batches(prepared.train).of_epoch(0, 0)
        batch = batches.make(batches.epoch(0, 0)[0])  # the same for every variant and seed
        flops = measuring.count_flops(model, batch, count_passes(self.spec.training))
        self.fields |= {
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

    def _train(self, model: Transformer, prepared: Prepared, ranks: Ranks) -> TrainingResult:
        # The first rank may resume with fallbacks; others wait until its folder is prepared
        factor = int(ranks.from_first(lambda: self.task.micro_batch_factor))
        is_sharded = ranks.from_first(lambda: self.task.engine == FullySharded.name)
        job = Job(
            spec=self.spec,
            batches=self._batches(prepared.train),
            n_target_ids=prepared.tokenizers.vocabulary.n_tgt,
            evaluate=lambda m: self._likelihood(m, prepared.dev).nll,
            device=self.device,
            precision=self.task.precision,
            folder=self.folder,
            engine=FullySharded.name if is_sharded else self.task.engine,
            capturer=self.capturer,
            cores=self.cores,
            micro_batch_factor=factor,
            ranks=ranks,
            made_by={key: self.fields[key] for key in ("git", "versions")},
            resumed=lambda step: append_to_log(self.task.log, f"continues after step {step}"),
        )
        return train(
            model, job, lambda progress: self.report("training", progress), self.should_stop
        )

    def _test(self, model: Transformer, prepared: Prepared, name: str) -> Record:
        """Translate a test set, write translations and sentence statistics, and return scores."""
        text, encoded = prepared.text, prepared.tests[name]
        bitext = text.tests[name]
        search = build(Search, self.spec.decoding, at="decoding")
        best = translate(
            model,
            search,
            encoded.src,
            self._tokens_without_gradient(),
            self.device,
            self.capturer,
            self.goes_on,
        )
        lines = [prepared.tokenizers.decode_tgt(hypotheses[0].tokens) for hypotheses in best]
        self._write(translations_file(name), "".join(f"{s}\n" for s in lines))
        tokenizer = bleu_tokenizer(text.tgt)
        scores = measuring.score(
            lines, bitext.references, tokenizer=tokenizer, is_tokenised=text.is_tokenised
        )
        likelihood = self._likelihood(model, encoded)
        n_tokens = encoded.tgt.lengths
        scored = measuring.cut_text(bitext.tgt, n_tokens, prepared.tokenizers.encode_tgt)
        sentences = measuring.SentenceStatistics.of(
            lines, bitext.references, n_tokens, likelihood.of_sentences, scored, tokenizer
        )
        file = f"sentences.{name}.csv"
        self._write(file, sentences.to_csv())
        return {
            **scores,
            **_nll_and_perplexity(likelihood),
            "bits_per_character": sentences.bits_per_character,
            "n_sentences": len(lines),
            "sentences": file,
        }

    def _likelihood(self, model: Transformer, encoded: Encoded) -> measuring.Likelihood:
        batches = Batches(encoded, self._tokens_without_gradient(), PAD, self.device)
        return measuring.likelihood(model, self._reported(batches.in_order()), self.task.precision)

    def _reported(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            self.goes_on()
            yield batch

    def _tokens_without_gradient(self) -> int:
        n_tokens = self.spec.training.batch_tokens * _EVALUATION_FACTOR.get(self.device.type, 1)
        return max(1, n_tokens // self.task.micro_batch_factor)

    def _batches(self, encoded: Encoded) -> Batches:
        training = self.spec.training
        return Batches(encoded, training.batch_tokens, PAD, self.device, training.batch_by)


def follow_run(task: Task, ranks: Ranks) -> None:
    """Train with the first rank, and write nothing: a run's part for any other rank."""
    attempt = _Attempt(task, Store(task.results).path(task.key))
    prepared = prepare(attempt.spec, task.corpus_fingerprint, task.teacher_sha256)
    attempt._train(attempt._assemble(prepared), prepared, ranks)


def _nll_and_perplexity(likelihood: measuring.Likelihood) -> Record:
    return {"nll": likelihood.nll, "perplexity": measuring.perplexity(likelihood.nll)}


def micro_batching(task: Task) -> Record | None:
    """Return a record's entry about micro-batches; None if batches are not divided."""
    return {"factor": task.micro_batch_factor} if task.micro_batch_factor > 1 else None
