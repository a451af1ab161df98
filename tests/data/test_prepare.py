"""From a run's choices to ids, and the cache of trained tokenizers."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from ablate.config.experiment import RunSpec
from ablate.data import encodings
from ablate.data import prepare as module
from ablate.data.batches import Encoded, Resampled
from ablate.data.corpus import Bitext, Corpus, CorpusText
from ablate.data.files import Files
from ablate.data.prepare import (
    n_bytes_to_encode,
    prepare,
    trained_tokenizers,
    vocabulary_at_hand,
)
from ablate.data.sentences import Ragged
from ablate.data.subwords import BytePair
from ablate.data.tokenizer import EOS, Tokenizer, TokenizerPair
from ablate.decoding import Search
from ablate.errors import DataError
from ablate.registry import build, choose, load_plugin
from tests.data.texts import corpus_text, run_spec
from tests.registrations import temporary_registrations


def test_every_split_is_encoded_by_the_same_tokenizers(folder: Path) -> None:
    prepared = prepare(run_spec(folder, max_len=20))
    text, tokenizers = prepared.text, prepared.tokenizers
    whole = build(Corpus, run_spec(folder).corpus).load()
    assert replace(whole, train=text.train) == text
    assert not len(text.train), "the training text is not needed once it is encoded"
    for split, encoded in [
        (whole.train, prepared.train),
        (text.dev, prepared.dev),
        (text.tests["news"], prepared.tests["news"]),
    ]:
        assert [x.tolist() for x in encoded.src] == tokenizers.encode_src(split.src)
        assert [x.tolist() for x in encoded.tgt] == tokenizers.encode_tgt(split.tgt)
    corpus = run_spec(folder).corpus
    assert prepared.corpus_fingerprint == build(Corpus, corpus).fingerprint()
    assert text.notes == ()


def test_dev_and_tests_may_be_several_files_and_references(folder: Path) -> None:
    for split, language in product(("dev", "news"), ("en", "de")):
        (folder / f"{split}_2.{language}").write_text(f"{split} {language}\n")
    (folder / "second.de").write_text("BB\nCC\n")
    (folder / "second_2.de").write_text("DD\n")
    run = run_spec(folder, max_len=20)
    options = run.corpus.options | {
        "dev": (str(folder / "dev*.en"), str(folder / "dev*.de")),
        "tests": {"news": tuple(str(folder / x) for x in ("news*.en", "news*.de", "second*.de"))},
    }
    run = run.model_copy(update={"corpus": choose(Corpus, "files", **options)})
    for prepared in (prepare(run), prepare(run)):  # the second is from the cache
        text, encoded = prepared.text, prepared.tests["news"]
        assert text.dev.src[2:] == ("dev en",)
        assert text.tests["news"].tgt[2:] == ("news de",)
        assert text.tests["news"].more == (("BB", "CC", "DD"),)
        assert len(prepared.dev) == len(encoded) == 3


@pytest.mark.parametrize("languages", [("en", "de"), ("de", "en")])
def test_training_pairs_that_are_too_long_on_a_side_are_left_out_and_noted(
    languages: tuple[str, str], folder: Path
) -> None:
    sides = [(folder / f"train.{language}").read_text() for language in ("en", "de")]
    for language, side in zip(languages, sides, strict=True):
        (folder / f"train.{language}").write_text(side)
    prepared = prepare(run_spec(folder, max_len=7))
    assert len(prepared.train) == 6, "six words and EOS"
    assert max(*prepared.train.src.lengths, *prepared.train.tgt.lengths) == 7
    assert "train: 4 of 10 pairs left out, more than 7 tokens on a side" in prepared.text.notes


def test_a_vocabulary_from_a_sample_is_noted(folder: Path) -> None:
    note = "tokenizer: learned from 6 of 10 training pairs, evenly spaced"
    for n_pairs, is_noted in ((6, True), (10, False), (None, False)):
        run = run_spec(folder, name="bpe", vocab_size=60, train_on=n_pairs)
        assert (note in prepare(run).text.notes) == is_noted


def test_a_text_is_to_be_encoded_until_its_ids_are_in_the_cache(folder: Path) -> None:
    run = run_spec(folder)
    fingerprint = build(Corpus, run.corpus).fingerprint()
    n_bytes = sum(path.stat().st_size for path in folder.glob("*.??"))
    assert n_bytes_to_encode(run, fingerprint) == n_bytes
    prepare(run)
    assert n_bytes_to_encode(run, fingerprint) == 0
    assert n_bytes_to_encode(run_spec(folder, max_len=17), fingerprint) == n_bytes
    assert n_bytes_to_encode(RunSpec.model_validate({"corpus": "synthetic"}), "") == 0


def test_long_sentences_elsewhere_are_cut_and_noted_but_references_are_whole(folder: Path) -> None:
    prepared = prepare(run_spec(folder, max_len=8))
    whole = prepare(run_spec(folder, max_len=40))
    assert prepared.text.tests == whole.text.tests
    assert len(prepared.dev) == len(prepared.tests["news"]) == 2
    cut = prepared.tests["news"].src[1].tolist()
    assert cut == [*whole.tests["news"].src[1][:7].tolist(), EOS]
    assert prepared.tests["news"].src[0].tolist() == whole.tests["news"].src[0].tolist()
    assert "news: 1 of 2 sources cut to 8 tokens" in prepared.text.notes
    assert any(note.startswith("dev: 1 of 2 targets") for note in prepared.text.notes)
    assert max(prepared.dev.tgt.lengths) == 8


def test_unknown_tokens_of_a_test_are_noted(folder: Path) -> None:
    corpus = build(Corpus, run_spec(folder).corpus).load()
    for name, is_noted in (("word", True), ("byte_bpe", False)):
        run = run_spec(folder, name=name, vocab_size=260)
        (folder / "news.de").write_text("Unbekannt\n" * len(corpus.tests["news"]), "utf-8")
        note = "news: 50.0% of the target tokens are unknown, so that the NLL does not count their"
        assert any(x.startswith(note) for x in prepare(run).text.notes) == is_noted


def test_targets_that_no_translation_may_be_as_long_as_are_noted(folder: Path) -> None:
    """Of characters a translation from Chinese has many more than its source."""
    (folder / "news.en").write_text("狗在睡觉。\n猫。\n", "utf-8")
    (folder / "news.de").write_text(f"{'Der Hund schläft. ' * 4}\nDie Katze.\n", "utf-8")
    of_words = run_spec(folder, max_len=99)
    run = of_words.model_copy(update={"tokenizer": choose(Tokenizer, "char")})
    of_more = run.model_copy(update={"decoding": choose(Search, "beam", max_extra=70)})
    note = (
        "news: 50.0% of the targets have over 50 tokens more than their sources, and no "
        "translation may (decoding.max_extra)"
    )
    for each, is_noted in ((run, True), (of_more, False), (of_words, False)):
        assert (note in prepare(each).text.notes) == is_noted


def test_a_model_too_short_for_every_pair_is_refused(folder: Path) -> None:
    with pytest.raises(DataError, match=r"at most 1 tokens on both sides; raise model\.dims"):
        prepare(run_spec(folder, max_len=1))


def test_a_tokenizer_is_trained_once_per_text_and_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_trained = 0
    train = BytePair.fit

    def counting(self: BytePair, *args: Any) -> Any:
        nonlocal n_trained
        n_trained += 1
        return train(self, *args)

    monkeypatch.setattr(BytePair, "fit", counting)
    text = corpus_text()
    prints = [trained_tokenizers(choose(Tokenizer, "bpe"), text).fingerprint for _ in range(2)]
    assert n_trained == 1
    assert prints[0] == prints[1]
    same = replace(text, name="renamed", dev=text.train, tests={})
    trained_tokenizers(choose(Tokenizer, "bpe"), same)
    assert n_trained == 1, "something that no tokenizer reads made a difference"
    trained_tokenizers(choose(Tokenizer, "bpe", vocab_size=60), text)
    trained_tokenizers(choose(Tokenizer, "bpe"), corpus_text(seed=1))
    trained_tokenizers(choose(Tokenizer, "bpe"), replace(text, is_tokenised=True))
    for other in (Bitext(text.train.tgt, text.train.tgt), Bitext(text.train.src, text.train.src)):
        trained_tokenizers(choose(Tokenizer, "bpe"), replace(text, train=other))
    monkeypatch.setattr(module, "version", lambda _: "99.1.0")
    trained_tokenizers(choose(Tokenizer, "bpe"), text)
    assert n_trained == 7


def test_a_tokenizer_of_a_plugin_is_trained_anew_when_its_code_has_changed(tmp_path: Path) -> None:
    text, sizes = corpus_text(), []
    for lines in ("lines[:1]", "lines"):
        with temporary_registrations():
            (tmp_path / "mine.py").write_text(
                "from ablate.data.tokenizer import Word\n"
                "from ablate.registry import register\n"
                "@register('mine', source='ours')\n"
                "class Mine(Word):\n"
                "    'Words.'\n"
                "    def fit(self, lines, is_tokenised):\n"
                f"        return super().fit({lines}, is_tokenised)\n"
            )
            load_plugin(tmp_path / "mine.py")
            sizes.append(trained_tokenizers(choose(Tokenizer, "mine"), text).vocabulary.n_src)
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff\xfe\x00", b"half", b"edited"])
def test_a_damaged_cache_entry_is_made_anew(cache: Path, damage: bytes) -> None:
    text = corpus_text()
    tokenizers = trained_tokenizers(choose(Tokenizer, "bpe"), text)
    (entry,) = (cache / "tokenizers").iterdir()
    content = entry.read_bytes()
    damaged = {b"half": content[: len(content) // 2], b"edited": content[:-1] + b" "}
    entry.write_bytes(damaged.get(damage, damage))
    again = trained_tokenizers(choose(Tokenizer, "bpe"), text)
    assert again.fingerprint == tokenizers.fingerprint
    assert entry.read_bytes() == content


def test_a_run_is_refused_a_corpus_that_it_was_not_planned_with(folder: Path) -> None:
    run = run_spec(folder)
    planned = prepare(run).corpus_fingerprint
    assert prepare(run, planned).corpus_fingerprint == planned
    (folder / "train.en").write_text((folder / "train.en").read_text().replace("a b c", "c b a"))
    with pytest.raises(DataError, match=rf"planned with {planned[:12]}: its files have changed"):
        prepare(run, planned)


@given(st.lists(st.lists(st.integers(4, 99), max_size=9), max_size=8), st.integers(1, 6))
def test_cutting_keeps_the_beginning_and_the_end(bodies: list[list[int]], n: int) -> None:
    sentences = [[*body, EOS] for body in bodies]
    cut = [ids.tolist() for ids in Ragged.of(sentences).cut(n)]
    assert cut == [x if len(x) <= n else [*x[: n - 1], EOS] for x in sentences]


def test_what_takes_long_is_reported(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, reports = run_spec(folder), list[str]()
    entry = module._entry(run, build(Corpus, run.corpus).fingerprint(), "")
    (cache / "locks").mkdir(parents=True)
    monkeypatch.setattr(encodings, "_POLL_S", 0.01)
    with ThreadPoolExecutor() as pool, FileLock(cache / "locks" / f"{entry.name}.lock") as lock:
        preparation = pool.submit(prepare, run, report=reports.append)
        while len(reports) < 2:  # a worker without news would count as stalled
            assert not preparation.done()
        lock.release()
        preparation.result()
    assert list(dict.fromkeys(reports)) == [
        "waiting for another process to encode the corpus",
        "learning the vocabulary",
    ]
    n_reports = len(reports)
    prepare(run, report=reports.append)
    assert len(reports) == n_reports, "it reads the cache"


def test_the_rate_of_encoding_is_reported_every_five_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times, reports = iter((100.0, 102.0, 104.0, 105.0, 110.0, 112.0)), list[str]()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(times)))
    text = Bitext(["a"] * 20_000, ["b"] * 20_000)
    block = Bitext(text.src[:4_000], text.tgt[:4_000])
    ids = Ragged(np.ones(4_000, np.int32), np.ones(4_000, np.int64))
    monkeypatch.setattr(module, "_encoded_ahead", lambda *_: [(block, Encoded(ids, ids))] * 5)
    deque(module._short_pairs(cast(TokenizerPair, None), text, 8, reports.append), maxlen=0)
    assert reports == [
        "encoding: 12,000 of 20,000 pairs, 2,400 a second, 0:03 left",
        "encoding: 16,000 of 20,000 pairs, 1,600 a second, 0:02 left",
    ]


def test_a_sentence_of_just_the_longest_length_is_whole_and_not_noted(folder: Path) -> None:
    prepared = prepare(run_spec(folder, max_len=17))
    assert max(prepared.dev.src.lengths) == 17
    assert prepared.text.notes == ()
    shorter = prepare(run_spec(folder, max_len=16)).text.notes
    assert any(note.startswith("news: 1 of 2 sources cut to 16 tokens") for note in shorter)


def test_what_is_left_out_leaves_sources_with_their_targets(folder: Path) -> None:
    """Words, too, where they are segmented anew in every epoch."""
    lines = [f"{'a ' * (1 + 5 * i % 11)}{i}" for i in range(40)]
    for language, other in (("en", "s"), ("de", "t")):
        content = "".join(f"{line}{other}\n" for line in lines)
        (folder / f"train.{language}").write_text(content)
    options = {"name": "bpe", "dropout": 0.5, "vocab_size": 60, "min_frequency": 1, "joint": False}
    train = prepare(run_spec(folder, max_len=12, **options)).train
    tokenizers = prepare(run_spec(folder, max_len=12, **options)).tokenizers
    assert isinstance(train, Resampled)
    assert 0 < len(train) < 40

    def pieces(encoded: Encoded) -> list[tuple[str, str]]:
        sides = ([ids.tolist() for ids in side] for side in (encoded.src, encoded.tgt))
        return [
            ("".join(tokenizers.src_pieces(s[:-1])), "".join(tokenizers.tgt_pieces(t[:-1])))
            for s, t in zip(*sides, strict=True)
        ]

    whole = pieces(Encoded(train.src, train.tgt))
    assert pieces(train.of_epoch(1, 0)) == whole, "ids and words belong to other pairs"
    for src, tgt in whole:
        assert src.removesuffix("s") == tgt.removesuffix("t")
        assert (src[-1], tgt[-1]) == ("s", "t")


def test_a_fingerprint_that_is_unknown_before_the_text_is_there_is_known_afterwards(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a corpus that is not pinned and has yet to be downloaded."""
    known, load, fingerprint = prepare(run_spec(folder)), Files.read, Files.fingerprint
    loaded: list[Files] = []

    def noted(corpus: Files) -> CorpusText:
        loaded.append(corpus)
        return load(corpus)

    def only_of_loaded(corpus: Files) -> str:
        if not loaded:
            raise DataError("not downloaded")
        return fingerprint(corpus)

    monkeypatch.setattr(Files, "read", noted)
    monkeypatch.setattr(Files, "fingerprint", only_of_loaded)
    assert prepare(run_spec(folder)).corpus_fingerprint == known.corpus_fingerprint


def test_the_vocabulary_of_a_large_text_is_at_hand_once_it_is_in_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other = run_spec(folder), run_spec(folder, lowercase=True)
    actual = vocabulary_at_hand(other)
    assert actual is not None
    assert actual.n_src < 30
    monkeypatch.setattr(module, "_FEW_BYTES", 0)
    assert vocabulary_at_hand(other) == actual
    assert vocabulary_at_hand(run) is None
    assert vocabulary_at_hand(run_spec(folder / "missing")) is None
    prepared = prepare(run)
    assert vocabulary_at_hand(run) == prepared.tokenizers.vocabulary
