"""Tests with several references of a sentence: BLEU and chrF use all, as sacreBLEU's command."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ablate import api
from ablate.analysis import sentences
from ablate.measuring import SentenceStatistics, score
from ablate.parts.metric import Metric
from ablate.registry import build, choose
from ablate.report import render
from ablate.store import Store

HYPOTHESES = ["a man in a red shirt", "two dogs run fast", "the cat sleeps", "x"]
REFERENCES = [
    ["the man in a shirt", "two dogs run", "a cat sleeps now", "y"],
    ["a man wears a red shirt", "both dogs run very fast", "the cat sleeps", "x"],
]
EXPERIMENT = """
corpus: {name: files, src: en, tgt: de, train: [train.en, train.de], dev: [dev.en, dev.de],
  tests: {news: [news.en, news.de, news.2.de]}}
tokenizer: {name: bpe, vocab_size: 60}
model: {dims: {d_model: 16, max_len: 64}, n_layers: 1, attention: full}
training: {steps: 150, batch_tokens: 400, schedule: {name: constant, lr: 0.01}}
decoding: greedy
seeds: [1]
"""


def by_command(folder: Path, hypotheses: Sequence[str], metric: str, *options: str) -> float:
    """Return sacreBLEU's score of translations by the references ``0`` and ``1`` of a folder."""
    (folder / "translations").write_text("".join(f"{x}\n" for x in hypotheses), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", str(folder / "0"), str(folder / "1")]
    command += ["-i", str(folder / "translations"), "-m", metric, "-w", "12", "--force", *options]
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    assert "nrefs:2" in json.loads(printed)["signature"]
    return float(json.loads(printed)["score"])


def test_all_references_count_as_by_the_command_of_sacrebleu(tmp_path: Path) -> None:
    for number, lines in enumerate(REFERENCES):
        (tmp_path / str(number)).write_text("".join(f"{x}\n" for x in lines), encoding="utf-8")
    scores = score(HYPOTHESES, REFERENCES, tokenizer="13a", is_tokenised=True)
    counts = SentenceStatistics.of(HYPOTHESES, REFERENCES, np.ones(4, dtype=np.int64), np.ones(4))
    sums = {
        "bleu": sentences.bleu(counts.bleu.sum(axis=0)),
        "chrf": sentences.chrf(counts.chrf.sum(axis=0)),
    }
    for name in ("bleu", "chrf"):
        expected = by_command(tmp_path, HYPOTHESES, name)
        metric = build(Metric, choose(Metric, name))
        assert scores[name] == pytest.approx(expected, abs=1e-9)
        assert sums[name] == pytest.approx(expected, abs=1e-9)
        assert metric.score_by_all([], HYPOTHESES, REFERENCES) == pytest.approx(expected, abs=1e-9)
        assert metric.score([], HYPOTHESES, REFERENCES[0]) < expected - 5
        assert "nrefs:2" in scores[f"{name}_signature"]
    lower = by_command(tmp_path, HYPOTHESES, "bleu", "--tokenize", "none", "--lowercase")
    assert scores["bleu_lc_tok"] == pytest.approx(lower, abs=1e-9)
    assert scores["exact_match"] == 50
    assert counts.characters.tolist() == [len(line) for line in REFERENCES[0]]


def test_the_signature_of_bleu_has_the_number_of_references() -> None:
    metric = build(Metric, choose(Metric, "bleu"))
    metric.score_by_all([], HYPOTHESES, REFERENCES)
    assert metric.signature().startswith("nrefs:2|")
    metric.score([], HYPOTHESES, REFERENCES[0])
    assert metric.signature().startswith("nrefs:1|")


def test_a_metric_of_one_reference_takes_the_first() -> None:
    class Shared(Metric):
        def score(
            self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
        ) -> float:
            return sum(map(str.__eq__, hypotheses, references))

    both = REFERENCES, REFERENCES[::-1]
    assert [Shared().score_by_all([], HYPOTHESES, of) for of in both] == [0, 2]


@pytest.mark.e2e
def test_an_experiment_is_scored_by_all_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = "null eins zwei drei vier fünf sechs sieben acht neun".split()
    others = [*words[:2], "zwo", *words[3:]]
    for split, first, n in (("train", 100, 300), ("dev", 600, 20), ("news", 700, 60)):
        numbers = [str(number * 9973) for number in range(first, first + n)]
        targets = [" ".join(words[int(d)] for d in number) for number in numbers]
        seconds = [" ".join(others[int(d)] for d in number) for number in numbers]
        for name, lines in (
            (f"{split}.en", [" ".join(x) for x in numbers]),
            (f"{split}.de", targets),
            (f"{split}.2.de", seconds),
        ):
            Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    Path("x.yaml").write_text(EXPERIMENT, encoding="utf-8")
    for number, name in enumerate(("news.de", "news.2.de")):
        Path(str(number)).write_bytes(Path(name).read_bytes())
    options = api.RunOptions(device="cpu", figures=False, probes=False)
    (record,) = api.run("x.yaml", options).records.values()
    made = api.Study(api.report("x.yaml"), Store(Path("results")))
    translations = made.store.translations(record, "news")
    assert translations is not None
    scores = record["test"]["news"]
    for name in ("bleu", "chrf"):
        assert scores[name] == pytest.approx(by_command(tmp_path, translations, name), abs=1e-9)
        assert "nrefs:2" in scores[f"{name}_signature"]
    frame = made.translations()
    assert list(frame.columns) == ["source", "reference", "reference.2", "baseline:1"]
    assert list(frame["reference.2"]) == Path("news.2.de").read_text(encoding="utf-8").splitlines()
    page = render(made.outcome.table, "html")
    assert page.count("<dt>reference</dt>") > 4
    Path("y.yaml").write_text(f"{EXPERIMENT}metrics: {{name: bleu, tokenize: char}}\n")
    details = api.report("y.yaml").table.details
    assert details is not None
    (scored,) = details.records.values()
    expected = by_command(tmp_path, translations, "bleu", "--tokenize", "char")
    assert scored["test"]["news"]["bleu"] == pytest.approx(expected, abs=1e-9)
