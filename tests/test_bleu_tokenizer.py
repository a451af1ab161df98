"""BLEU in the tokens of the target language: the scores of sacreBLEU's own command."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from sacrebleu.tokenizers import tokenizer_ja_mecab
from sacrebleu.tokenizers.tokenizer_char import TokenizerChar

from ablate import api
from ablate.analysis import sentences
from ablate.data.corpus import bleu_tokenizer
from ablate.errors import DataError
from ablate.measuring import SentenceStatistics, score
from ablate.report import render
from ablate.store import Store
from tests.made_up_runs import EXPERIMENT, finish

TEXTS = {  # references and translations
    "zh": ("一只小狗在雪地里奔跑。", "一只狗在雪地里跑。"),
    "ja": ("小さな犬が雪の中を走っています。", "犬が雪の中を走っている。"),
    "th": ("สุนัขตัวเล็กวิ่งอยู่ในหิมะ", "สุนัขวิ่งในหิมะ"),
    "de": ("Ein kleiner Hund rennt durch den Schnee.", "Ein Hund rennt durch den Schnee."),
}


@pytest.mark.parametrize("language", TEXTS)
def test_bleu_is_that_of_the_command_of_sacrebleu(language: str, tmp_path: Path) -> None:
    files = [tmp_path / "reference", tmp_path / "translation"]
    for file, line in zip(files, TEXTS[language], strict=True):
        file.write_text(f"{line}\n", encoding="utf-8")
    tokenizer = bleu_tokenizer(language)
    options = ["-b", "-w", "10", "--tokenize", tokenizer]
    command = [sys.executable, "-m", "sacrebleu", str(files[0]), "-i", str(files[1]), *options]
    printed = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    reference, translation = TEXTS[language]
    scores = score([translation], [[reference]], tokenizer=tokenizer, is_tokenised=False)
    assert scores["bleu"] == pytest.approx(float(printed), abs=1e-9)
    assert scores["bleu"] > 20
    assert f"tok:{tokenizer}" in scores["bleu_signature"]


def test_languages_without_spaces_are_not_scored_by_words() -> None:
    tokenizers = {"ar": "13a", "hi": "13a", "de": "13a", "zh": "zh", "zh_Hant": "zh"}
    tokenizers |= dict.fromkeys(("ja", "th", "km"), "char")
    tokenizers |= {"cmn": "zh", "zho_Hans": "zh", "jpn_Jpan": "char", "tha": "char", "deu": "13a"}
    assert {language: bleu_tokenizer(language) for language in tokenizers} == tokenizers


def signature(outcome: api.Outcome) -> str:
    assert outcome.table.results is not None
    return outcome.table.results.signatures["bleu"]


class Segmenter(TokenizerChar):
    """Stands for MeCab, whose packages may be missing: its signature has a version too."""

    def signature(self) -> str:
        return "ja-mecab-0.996-IPA"


@pytest.mark.parametrize(
    ("tokenizer", "signed"), [("char", "tok:char|"), ("ja-mecab", "tok:ja-mecab-0.996-IPA|")]
)
def test_a_chosen_tokenizer_holds_for_the_scores_and_for_what_is_counted_of_sentences(
    tokenizer: str, signed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_ja_mecab, "TokenizerJaMecab", Segmenter)
    path, results = tmp_path / "pe.yaml", tmp_path / "results"
    path.write_text(EXPERIMENT, encoding="utf-8")
    finish(path, results, has_files=True)
    before = api.report(path, results=results)
    of_files = {run: record["test"]["test"]["bleu"] for run, record in before.records.items()}
    metrics = f"metrics: {{name: bleu, tokenize: {tokenizer}}}\n"
    path.write_text(f"{EXPERIMENT}{metrics}", encoding="utf-8")
    after = api.report(path, results=results)
    assert after.table.details is not None
    assert signed in signature(after)
    (_, references) = after.table.details.texts()["test"]
    for run, record in after.records.items():
        lines = Store(results).translations(record, "test")
        assert lines is not None
        scored = after.table.details.records[run]["test"]["test"]
        expected = score(lines, references, tokenizer=tokenizer, is_tokenised=False)["bleu"]
        assert scored["bleu"] == pytest.approx(expected, abs=1e-9)
        assert scored["bleu"] != pytest.approx(of_files[run], abs=0.5)
        counted = after.table.details.sentences[run]["test"]
        assert isinstance(counted, SentenceStatistics)
        assert sentences.bleu(counted.bleu.sum(axis=0)) == pytest.approx(expected, abs=1e-9)
    path.write_text(EXPERIMENT, encoding="utf-8")
    assert signature(api.report(path, results=results)) == signature(before)


def test_scores_that_are_stored_are_shown_where_the_text_is_not_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a pinned corpus, whose hash is known before it is fetched."""
    path, results = tmp_path / "pe.yaml", tmp_path / "results"
    path.write_text(f"{EXPERIMENT}metrics: {{name: bleu, tokenize: char}}\n", encoding="utf-8")
    finish(path, results, has_files=True)
    before = api.report(path, results=results).table

    def refuse(*_: object) -> None:
        raise DataError("no network")

    monkeypatch.setattr(import_module("ablate.api.report"), "text_of_runs", refuse)
    after = api.report(path, results=results).table
    assert before.details is not None
    assert after.details is not None
    assert after.details.records == before.details.records
    assert all(before.details.sentences.values())
    assert not any(after.details.sentences.values())  # of other tokens
    assert render(after, "csv").count("\n") == render(before, "csv").count("\n")


CHINESE = """
corpus: {name: files, src: en, tgt: zh, train: [train.en, train.zh], dev: [dev.en, dev.zh],
  tests: {news: [news.en, news.zh]}}
tokenizer: {name: bpe, vocab_size: 60}
model: {dims: {d_model: 16, max_len: 64}, n_layers: 1, attention: full}
training: {steps: 3, batch_tokens: 200, schedule: {name: constant, lr: 0.01}}
decoding: greedy
seeds: [1]
"""


@pytest.mark.e2e
def test_a_run_of_a_chinese_target_is_scored_in_chinese_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    digits = "零一二三四五六七八九"
    for split, first, n in (("train", 100, 300), ("dev", 600, 20), ("news", 700, 20)):
        numbers = [str(number) for number in range(first, first + n)]
        source = "".join(f"{' '.join(number)}\n" for number in numbers)
        target = "".join("".join(digits[int(d)] for d in number) + "。\n" for number in numbers)
        Path(f"{split}.en").write_text(source, encoding="utf-8")
        Path(f"{split}.zh").write_text(target, encoding="utf-8")
    Path("zh.yaml").write_text(CHINESE, encoding="utf-8")
    options = api.RunOptions(device="cpu", figures=False, probes=False)
    (record,) = api.run("zh.yaml", options).records.values()
    assert "tok:zh" in record["test"]["news"]["bleu_signature"]
    assert api.check_corpus("zh.yaml").faults == ()
