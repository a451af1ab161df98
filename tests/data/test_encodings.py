"""The cache of encoded text: what is encoded anew, and what becomes of damage and lack of room."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from ablate.data import encodings
from ablate.data import prepare as module
from ablate.data.batches import Batches, Encoded
from ablate.data.corpus import CorpusText
from ablate.data.files import Files
from ablate.data.prepare import Prepared, prepare
from ablate.data.sentences import Ragged
from ablate.data.tokenizer import PAD
from ablate.errors import DataError
from tests.data.texts import run_spec


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
