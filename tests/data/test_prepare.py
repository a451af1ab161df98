"""From a run's choices to ids, and the cache of trained tokenizers."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
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
from ablate.data.batches import Batches, Encoded, Resampled
from ablate.data.corpus import Bitext, Corpus, CorpusText
from ablate.data.files import Files
from ablate.data.prepare import (
    Prepared,
    n_bytes_to_encode,
    prepare,
    trained_tokenizers,
    vocabulary_at_hand,
)
from ablate.data.sentences import Ragged
from ablate.data.subwords import BytePair
from ablate.data.tokenizer import EOS, PAD, Tokenizer, TokenizerPair
from ablate.errors import DataError
from ablate.registry import build, choose, load_plugin
from tests.data.texts import corpus_text
from tests.registrations import temporary_registrations
from tests.tiny import TINY


def run_spec(folder: Path, max_len: int = 16, **tokenizer: Any) -> RunSpec:
    """Return a run on the user's files in ``folder``, word by word."""
    files = {x: [str(folder / f"{x}.en"), str(folder / f"{x}.de")] for x in ("train", "dev")}
    tests = {"news": [str(folder / "news.en"), str(folder / "news.de")]}
    return RunSpec.model_validate(
        {
            "corpus": {"name": "files", "src": "en", "tgt": "de", "tests": tests, **files},
            "tokenizer": {"name": "word", "min_frequency": 1, **tokenizer},
            "model": TINY | {"dims": {"d_model": 32, "n_heads": 4, "max_len": max_len}},
        }
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write training pairs of 1 to 9 words, one of them long on one side, and long tests."""
    words = " ".join("abcdefghijklmnop")
    src = [words[: 2 * n - 1] for n in range(1, 10)] + [words]
    tgt = [words[: 2 * n - 1].upper() for n in range(1, 10)] + ["A"]
    for split, sides in {
        "train": (src, tgt),
        "dev": ([words, "a"], ["A", words.upper()]),
        "news": (["b", words], ["B", "C"]),
    }.items():
        for language, lines in zip(("en", "de"), sides, strict=True):
            (tmp_path / f"{split}.{language}").write_text("\n".join(lines) + "\n")
    return tmp_path


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


def test_training_pairs_that_are_too_long_are_left_out_and_noted(folder: Path) -> None:
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


def same(left: Prepared, right: Prepared) -> bool:
    """Return whether two are equal to the last id."""
    texts = (left.text, left.corpus_fingerprint) == (right.text, right.corpus_fingerprint)
    tokenizers = left.tokenizers.to_json() == right.tokenizers.to_json()
    return texts and tokenizers and all(map(_same_ids, _splits(left), _splits(right)))


def _splits(of: Prepared) -> list[Encoded]:
    return [of.train, of.dev, *of.tests.values()]


def _same_ids(left: Encoded, right: Encoded) -> bool:
    return all(
        [ids.tolist() for ids in a] == [ids.tolist() for ids in b]
        for a, b in ((left.src, right.src), (left.tgt, right.tgt))
    )


def only_entry(cache: Path) -> Path:
    (entry,) = (cache / "encodings").iterdir()
    return entry


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return a function that makes reading the corpus fail from then on."""

    def forbid(*_: object) -> CorpusText:
        raise AssertionError("the text was read again")

    return lambda: monkeypatch.setattr(Files, "read", forbid)


def test_text_is_encoded_once(folder: Path, unread: Callable[[], None]) -> None:
    first = prepare(run_spec(folder, max_len=8))
    assert first.text.notes
    unread()
    again = prepare(run_spec(folder, max_len=8))
    assert same(first, again)
    batch = Batches(again.train, 20, PAD).make(np.arange(3))
    assert batch.n_tokens == int(again.train.tgt.lengths[:3].sum())


@pytest.mark.parametrize("change", ["max_len", "tokenizer", "text", "code", "library"])
def test_whatever_ids_depend_on_encodes_anew(
    folder: Path, cache: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(run_spec(folder, max_len=8))
    spec = run_spec(folder, max_len=8)
    if change == "max_len":
        spec = run_spec(folder, max_len=9)
    elif change == "tokenizer":
        spec = run_spec(folder, max_len=8, lowercase=True)
    elif change == "text":
        (folder / "dev.en").write_text("a b\nc\n")
    elif change == "code":
        monkeypatch.setattr(module, "_OWN_CODE", "other")
    else:
        monkeypatch.setattr(module, "version", lambda _: "99.1.0")
    assert same(first, prepare(spec)) == (change in ("code", "library"))
    assert len(list((cache / "encodings").iterdir())) == 2


def test_a_corpus_that_changes_while_it_is_read_is_refused_and_not_cached(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Files.read

    def changing(corpus: Files) -> CorpusText:
        text = load(corpus)
        (folder / "dev.en").write_text("p o n m\na\n")
        return text

    monkeypatch.setattr(Files, "read", changing)
    with pytest.raises(DataError, match=r"changed while they were read; call again"):
        prepare(run_spec(folder))
    monkeypatch.setattr(Files, "read", load)
    prepared = prepare(run_spec(folder))
    assert prepared.text.dev.src[0] == "p o n m"


def test_a_run_is_refused_a_corpus_that_it_was_not_planned_with(folder: Path) -> None:
    run = run_spec(folder)
    planned = prepare(run).corpus_fingerprint
    assert prepare(run, planned).corpus_fingerprint == planned
    (folder / "train.en").write_text((folder / "train.en").read_text().replace("a b c", "c b a"))
    with pytest.raises(DataError, match=rf"planned with {planned[:12]}: its files have changed"):
        prepare(run, planned)


@pytest.mark.parametrize("name", ["text.json", "train.tgt.ids", "tests.news.src.lengths"])
@pytest.mark.parametrize("damage", ["gone", "short", "changed"])
def test_a_damaged_entry_is_encoded_anew(folder: Path, cache: Path, name: str, damage: str) -> None:
    first = prepare(run_spec(folder))
    file = only_entry(cache) / name
    content = file.read_bytes()
    file.unlink()  # not written over: a process that has mapped it keeps the old content
    if damage != "gone":
        file.write_bytes(content[:-3] if damage == "short" else content[:-1] + b"\x07")
    assert same(first, prepare(run_spec(folder)))
    assert file.read_bytes() == content


def test_a_draft_of_an_entry_is_none(folder: Path, cache: Path) -> None:
    """As a process leaves it that is killed while it writes."""
    first = prepare(run_spec(folder))
    entry = only_entry(cache)
    entry.replace(entry.with_name(f".{entry.name}.abc"))
    assert same(first, prepare(run_spec(folder)))


def test_without_a_cache_text_is_encoded_every_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(run_spec(folder))
    (folder / "file").write_text("in the way")
    monkeypatch.setenv("ABLATE_CACHE", str(folder / "file"))
    assert same(first, prepare(run_spec(folder)))


@given(st.lists(st.lists(st.integers(4, 99), max_size=9), max_size=8), st.integers(1, 6))
def test_cutting_keeps_the_beginning_and_the_end(bodies: list[list[int]], n: int) -> None:
    sentences = [[*body, EOS] for body in bodies]
    cut = [ids.tolist() for ids in Ragged.of(sentences).cut(n)]
    assert cut == [x if len(x) <= n else [*x[: n - 1], EOS] for x in sentences]


def test_a_corpus_in_many_parts_is_encoded_alike(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once = prepare(run_spec(folder, max_len=8))
    (entry,) = (cache / "encodings").iterdir()
    written = {file.name: file.read_bytes() for file in entry.iterdir()}
    shutil.rmtree(entry)
    monkeypatch.setattr(module, "_BLOCK", 3)
    assert same(once, prepare(run_spec(folder, max_len=8)))
    assert {file.name: file.read_bytes() for file in entry.iterdir()} == written


def test_without_room_in_the_cache_ids_are_made_elsewhere(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = prepare(run_spec(folder, max_len=8))
    shutil.rmtree(cache / "encodings")
    (cache / "encodings").write_text("in the way")
    temporary = folder / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert same(whole, prepare(run_spec(folder, max_len=8)))
    assert list(temporary.iterdir()) == [], "it left something"


def test_a_full_disk_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(encodings.CacheWriter, "write", full)
    with pytest.raises(DataError, match=r"files: cannot be prepared: .*No space left.* need room"):
        prepare(run_spec(folder))


def test_of_two_that_start_together_one_encodes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, write = [], encodings.CacheWriter.write
    has_begun = threading.Event()

    def slow(writer: encodings.CacheWriter, split: str, parts: Iterable[Encoded]) -> int:
        written.append(split)
        has_begun.set()
        return write(writer, split, parts)

    monkeypatch.setattr(encodings.CacheWriter, "write", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(prepare, run_spec(folder, max_len=8))
        has_begun.wait(timeout=60)
        second = pool.submit(prepare, run_spec(folder, max_len=8))
        assert same(first.result(), second.result())
    assert written.count("train") == 1


def test_what_takes_long_is_reported(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, reports = run_spec(folder), list[str]()
    entry = module._entry(run, build(Corpus, run.corpus).fingerprint(), "")
    (cache / "locks").mkdir(parents=True)
    with ThreadPoolExecutor() as pool, FileLock(cache / "locks" / f"{entry.name}.lock") as lock:
        preparation = pool.submit(prepare, run, report=reports.append)
        while not reports:
            assert not preparation.done()
        lock.release()
        preparation.result()
    assert reports == [
        "waiting for another process to encode the corpus",
        "learning the vocabulary",
    ]
    prepare(run, report=reports.append)
    assert len(reports) == 2, "it reads the cache"


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


def test_what_killed_processes_have_left_in_the_cache_is_removed(folder: Path, cache: Path) -> None:
    """Drafts of other entries go too, unless a process still writes them."""
    prepare(run_spec(folder, max_len=8))
    entry = only_entry(cache)
    drafts = {name: entry.parent / f".{name}.abc" for name in (entry.name, "other", "held")}
    for draft in drafts.values():
        draft.mkdir()
        (draft / "train.src.ids").write_bytes(b"half")
    shutil.rmtree(entry)
    with FileLock(cache / "locks" / "held.lock"):
        prepare(run_spec(folder, max_len=8))
    assert {name for name, draft in drafts.items() if draft.exists()} == {"held"}
    assert entry.is_dir()


def test_a_process_that_finishes_an_entry_second_reads_its_own(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepare(run_spec(folder, max_len=8))
    monkeypatch.setattr(encodings, "read_cache", lambda _: None)
    # As if it came a moment later
    monkeypatch.setattr(encodings, "remove_tree", lambda *_, **__: None)
    written, write = [], encodings.CacheWriter.write

    def counted(writer: encodings.CacheWriter, split: str, parts: Iterable[Encoded]) -> int:
        written.append(split)
        return write(writer, split, parts)

    monkeypatch.setattr(encodings.CacheWriter, "write", counted)
    assert same(first, prepare(run_spec(folder, max_len=8)))
    assert written.count("train") == 1, "it encoded everything twice"
    monkeypatch.undo()
    assert len([entry for entry in (cache / "encodings").iterdir() if entry.name[0] != "."]) == 1


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


def test_a_split_without_a_pair_reads_back_as_one(tmp_path: Path, folder: Path) -> None:
    prepared = prepare(run_spec(folder))
    nothing = Encoded(Ragged.of([]), Ragged.of([]))
    with encodings.CacheWriter(tmp_path / "entry") as writer:
        assert writer.write("train", [nothing, nothing]) == 0
        assert writer.write("dev", [prepared.dev, nothing, prepared.dev]) == 4
        _, _, splits = writer.finish(prepared.text, prepared.tokenizers)
    again = encodings.read_cache(tmp_path / "entry")
    assert again is not None
    for encoded in (splits, again[2]):
        assert len(encoded["train"]) == len(encoded["train"].src.flat) == 0
        assert encoded["dev"].src.flat.tolist() == 2 * prepared.dev.src.flat.tolist()
        assert encoded["dev"].tgt.flat.tolist() == 2 * prepared.dev.tgt.flat.tolist()


def test_another_process_is_waited_for_without_end(cache: Path) -> None:
    """It may train a tokenizer for hours; without the lock both would do so."""
    assert encodings._lock_of("entry").timeout == -1


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
