"""The protocol of a run: dev chooses, tests report, the seed decides, and the record is true."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sacrebleu
import torch
from safetensors.torch import load_file, load_model

import ablate.data
import ablate.decoding
import ablate.parts  # noqa: F401 - with the two above, every part is registered
from ablate.analysis.sentences import bleu, chrf
from ablate.config import RunSpec
from ablate.data.batches import Encoded
from ablate.data.prepare import Prepared, prepare
from ablate.data.tokenizer import BOS, PAD
from ablate.measuring import SentenceStatistics
from ablate.model import Transformer, assemble
from ablate.runner import run
from ablate.runner.run import run_one
from ablate.store import Store
from ablate.training.loop import Job, train
from tests.runner.conftest import SMALL, small_spec, task_of

SPEC = small_spec(model={**SMALL["model"], "dropout": {"residual": 0.1}})
TESTS = ["test", "test_long", "test_novel"]


@dataclass(frozen=True)
class Finished:
    """A run that has ended."""

    spec: RunSpec
    record: dict[str, Any]
    folder: Path
    jobs: list[Job]  # what its training was given
    first: dict[str, torch.Tensor]  # the weights that training began with


def finish(folder: Path, **changes: Any) -> Finished:
    """Execute a run of `SPEC` with changes."""
    spec = {**SPEC, **changes}
    task = task_of(folder, "none", spec=spec)
    jobs: list[Job] = []
    first: dict[str, torch.Tensor] = {}

    def spy(model: Transformer, job: Job, *others: Any) -> Any:
        jobs.append(job)
        first.update({name: x.clone() for name, x in model.state_dict().items()})
        return train(model, job, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "train", spy)
        store = Store(folder)
        record = run_one(task, store, lambda *_: None, lambda: False)
    return Finished(RunSpec.model_validate(spec), record, store.path(task.key), jobs, first)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finish(tmp_path_factory.mktemp("protocol"))


@pytest.fixture(scope="module")
def prepared(finished: Finished) -> Prepared:
    return prepare(finished.spec)


@pytest.fixture(scope="module")
def model(finished: Finished, prepared: Prepared) -> Transformer:
    """Return the model of the stored weights."""
    model = assemble(finished.spec.model, prepared.tokenizers.vocabulary, PAD).eval()
    load_model(model, str(finished.folder / "model.safetensors"))
    return model


@torch.no_grad()
def nlls(model: Transformer, split: Encoded) -> list[float]:
    """Return the negative log-likelihood of every sentence, computed alone and without padding."""
    results = []
    for src, tgt in zip(split.src, split.tgt, strict=True):
        tgt_in = torch.tensor([[BOS, *tgt[:-1].tolist()]])
        logits = model(torch.tensor(src.tolist())[None], tgt_in)[0].double()  # (T, V)
        log_probabilities = logits - logits.logsumexp(dim=-1, keepdim=True)
        chosen = log_probabilities[torch.arange(len(tgt)), torch.tensor(tgt.tolist())]
        results.append(-float(chosen.sum()))
    return results


def per_token(model: Transformer, split: Encoded) -> float:
    return sum(nlls(model, split)) / sum(len(tgt) for tgt in split.tgt)


def lines_of(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def different(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, x in one.items() if not torch.equal(x, other[name])]


def test_training_is_evaluated_on_dev_and_never_on_a_test_set(
    finished: Finished, prepared: Prepared, model: Transformer
) -> None:
    """Patience, plateaus and the best snapshot would else choose by what the table reports."""
    (job,) = finished.jobs
    of_dev = per_token(model, prepared.dev)
    for name in TESTS:
        assert per_token(model, prepared.tests[name]) != pytest.approx(of_dev, rel=1e-3)
    assert job.evaluate(model) == pytest.approx(of_dev, rel=1e-5)


def test_the_nll_of_each_split_is_the_one_of_its_sentences(
    finished: Finished, prepared: Prepared, model: Transformer
) -> None:
    splits = {"dev": (finished.record["dev"], prepared.dev)}
    splits |= {name: (finished.record["test"][name], prepared.tests[name]) for name in TESTS}
    for name, (recorded, split) in splits.items():
        nll = per_token(model, split)
        assert recorded["nll"] == pytest.approx(nll, rel=1e-5), name
        assert recorded["perplexity"] == pytest.approx(math.exp(nll), rel=1e-4), name


def test_scores_are_what_sacrebleu_says_of_the_stored_translations(
    finished: Finished, prepared: Prepared
) -> None:
    assert list(finished.record["test"]) == TESTS
    for name, recorded in finished.record["test"].items():
        lines = lines_of(finished.folder / f"hypotheses.{name}.txt")
        references = list(prepared.text.tests[name].tgt)
        assert recorded["n_sentences"] == len(references) == len(lines)
        assert recorded["bleu"] == pytest.approx(sacrebleu.corpus_bleu(lines, [references]).score)
        assert recorded["chrf"] == pytest.approx(sacrebleu.corpus_chrf(lines, [references]).score)
        assert "case:mixed" in recorded["bleu_signature"]
        assert "tok:13a" in recorded["bleu_signature"]


def test_sentence_statistics_are_those_of_each_sentence(
    finished: Finished, prepared: Prepared, model: Transformer
) -> None:
    for name in TESTS:
        split, references = prepared.tests[name], prepared.text.tests[name].tgt
        with (finished.folder / f"sentences.{name}.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        expected = nlls(model, split)
        assert [float(row["nll"]) for row in rows] == pytest.approx(expected, rel=1e-3, abs=1e-3)
        characters = sum(map(len, references))
        bits = sum(expected) / math.log(2) / characters
        assert finished.record["test"][name]["bits_per_character"] == pytest.approx(bits, rel=1e-4)
        text = (finished.folder / f"sentences.{name}.csv").read_text(encoding="utf-8")
        sums = SentenceStatistics.from_csv(text)
        recorded = finished.record["test"][name]
        assert bleu(sums.bleu.sum(axis=0)) == pytest.approx(recorded["bleu"])
        assert chrf(sums.chrf.sum(axis=0)) == pytest.approx(recorded["chrf"])


def test_translations_are_greedy_decodings_of_the_stored_weights(
    finished: Finished, prepared: Prepared, model: Transformer
) -> None:
    lines = lines_of(finished.folder / "hypotheses.test.txt")
    eos = prepared.tests["test"].tgt[0][-1]
    for row, line in enumerate(lines[:4]):
        src = torch.tensor(prepared.tests["test"].src[row].tolist())[None]
        ids = [BOS]
        while ids[-1] != eos and len(ids) <= len(line.split()):
            with torch.no_grad():
                ids.append(int(model(src, torch.tensor([ids]))[0, -1].argmax()))
        assert prepared.tokenizers.decode_tgt([i for i in ids[1:] if i != eos]) == line


def test_counts_are_those_of_the_weights_and_of_the_training_text(
    finished: Finished, prepared: Prepared
) -> None:
    record, spec = finished.record, finished.spec
    weights = load_file(finished.folder / "model.safetensors")
    assert record["params"]["total"] == sum(x.numel() for x in weights.values())
    assert record["train"]["steps"] == spec.training.steps
    (job,) = finished.jobs
    orders = (job.batches.epoch(spec.seed, epoch) for epoch in itertools.count())
    visits = itertools.islice(itertools.chain.from_iterable(orders), spec.training.steps)
    n_tokens = sum(len(prepared.train.tgt[row]) for rows in visits for row in rows)
    assert record["train"]["target_tokens"] == n_tokens
    assert record["corpus"]["n_train"] == len(prepared.train)
    assert record["tokenizer"]["n_tgt"] == prepared.tokenizers.vocabulary.n_tgt


def test_flops_are_those_of_the_matrix_products(finished: Finished, prepared: Prepared) -> None:
    """By hand: 2 m n k per product; twice as much in the gradient of its two sides."""
    dims, n_vocabulary = finished.spec.model.dims, prepared.tokenizers.vocabulary.n_tgt
    rows = next(iter(finished.jobs[0].batches.epoch(0, 0)))
    n = len(rows)
    n_src = max(len(prepared.train.src[row]) for row in rows)
    n_tgt = max(len(prepared.train.tgt[row]) for row in rows)
    d, d_ff = dims.d_model, 16

    def attention(queries: int, keys: int) -> int:
        return 2 * n * (2 * queries * d * d + 2 * keys * d * d + 2 * queries * keys * d)

    def feed_forward(tokens: int) -> int:
        return 2 * n * 2 * tokens * d * d_ff

    forward = attention(n_src, n_src) + feed_forward(n_src)
    forward += attention(n_tgt, n_tgt) + attention(n_tgt, n_src) + feed_forward(n_tgt)
    forward += 2 * n * n_tgt * d * n_vocabulary
    n_tokens = sum(len(prepared.train.tgt[row]) for row in rows)
    counted = finished.record["flops"]["train_per_target_token"]
    assert counted == pytest.approx(3 * forward / n_tokens)


def test_the_last_evaluation_of_the_curve_is_of_the_weights_at_that_step(
    finished: Finished,
) -> None:
    with (finished.folder / "curve.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert int(rows[-1]["step"]) == finished.spec.training.steps
    assert float(rows[-1]["dev_nll"]) == pytest.approx(finished.record["dev"]["nll"], rel=1e-5)
    assert int(rows[-1]["tokens"]) == finished.record["train"]["target_tokens"]


def test_the_seed_decides_the_first_weights_and_the_last(
    finished: Finished, tmp_path: Path
) -> None:
    again, other = finish(tmp_path / "again"), finish(tmp_path / "other", seed=2)
    assert not different(again.first, finished.first)
    weights = load_file(finished.folder / "model.safetensors")
    assert not different(load_file(again.folder / "model.safetensors"), weights)
    drawn = [name for name, x in finished.first.items() if x.numel() > 1 and x.std() > 0]
    assert drawn
    assert set(drawn) <= set(different(other.first, finished.first))


def test_the_record_names_every_file_by_its_hash(finished: Finished) -> None:
    files = {file.name: file for file in finished.folder.iterdir()}
    assert set(finished.record["files"]) == set(files) - {
        *("record.json", "lock", "curve.csv", "layers.csv")
    }
    assert {"model.safetensors", "tokenizer.json", "hypotheses.test.txt"} <= set(files)
    for name, content in finished.record["files"].items():
        data = files[name].read_bytes()
        assert content == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_timings_are_of_phases_one_after_another(tmp_path: Path) -> None:
    began = time.perf_counter()
    timings = finish(tmp_path).record["timings"]
    assert 0 < sum(timings.values()) <= time.perf_counter() - began
    assert {"training_seconds", "measuring_dev_seconds"} < timings.keys()


def test_the_record_is_what_the_folder_holds(finished: Finished) -> None:
    stored = json.loads((finished.folder / "record.json").read_text(encoding="utf-8"))
    assert stored == {**json.loads(json.dumps(finished.record)), "digest": stored["digest"]}
    assert stored["spec"] == finished.spec.model_dump(mode="json")
    assert stored["seed"] == finished.spec.seed
    assert stored["micro_batching"] is None
