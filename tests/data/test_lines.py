"""Text on disk: equal to a list in memory, in next to none of it."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.data.corpus import Bitext, digest_of_lines
from ablate.data.sentences import Lines
from ablate.hashing import digest

SENTENCES = st.lists(st.text(st.characters(codec="utf-8")))
PLACES = st.one_of(st.none(), st.integers(-9, 9))


@given(SENTENCES, SENTENCES, st.builds(slice, PLACES, PLACES, st.sampled_from([None, 1, 2, -1])))
def test_it_is_a_list_that_grows(some: list[str], more: list[str], rows: slice) -> None:
    lines = Lines(some)
    assert list(lines) == some
    lines.extend(more)
    whole = some + more
    assert list(lines) == whole
    assert lines[rows] == tuple(whole[rows])
    assert [lines[i] for i in range(-len(whole), len(whole))] == [*whole, *whole]
    with pytest.raises(IndexError):
        lines[len(whole)]


@given(SENTENCES, SENTENCES)
def test_it_equals_what_holds_the_same(some: list[str], others: list[str]) -> None:
    for other in (tuple(others), others, Lines(others)):
        assert (Lines(some) == other) == (some == others)
        assert (other == Lines(some)) == (some == others)
    assert Lines(["a", "b"]) != "ab"


@given(st.lists(SENTENCES))
def test_the_digest_of_lines_is_that_of_their_text(sides: list[list[str]]) -> None:
    whole = digest("\n".join(side) for side in sides)
    assert digest_of_lines(sides) == whole
    assert digest_of_lines([Lines(side) for side in sides]) == whole


@pytest.mark.parametrize("n", [10_000, 10_001, 25_000])
def test_the_digest_of_many_lines_is_that_of_their_text(n: int) -> None:
    lines = [str(i) for i in range(n)]
    assert digest_of_lines([lines, Lines(lines)]) == digest(["\n".join(lines)] * 2)


@pytest.mark.train
def test_many_lines_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    n, line = 20_000, 18 * "a sentence of some forty letters or a few more. "
    for module in ("corpus", "sentences"):
        monkeypatch.setattr(f"ablate.data.{module}._BLOCK", 1_000)

    def pairs() -> Iterator[tuple[str, str]]:
        return ((f"{line} {i}", f"{i} {line}") for i in range(n))

    tracemalloc.start()
    try:
        text = Bitext.on_disk(pairs())
        both = zip(text.src, text.tgt, strict=True)
        assert all(pair == known for pair, known in zip(both, pairs(), strict=True))
        digest_of_lines([text.src, text.tgt])
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 16 * n + 2**23, "where lines begin, and some thousand lines"
    assert most < n * len(line)


def test_lines_that_are_added_after_reading_stand_at_the_end() -> None:
    lines = Lines(["first", "second"])
    assert lines[0] == "first"
    lines.extend(["third"])
    assert list(lines) == ["first", "second", "third"]


def test_the_file_has_no_name_and_goes_with_the_lines(cache: Path) -> None:
    lines = Lines(["x"])
    file = lines._file
    assert list((cache / "scratch").iterdir()) == []
    del lines
    gc.collect()
    assert file.closed


def test_where_the_cache_cannot_be_written_the_file_is_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "file"))
    assert list(Lines(["x", "y"])) == ["x", "y"]


def test_threads_read_at_once() -> None:
    known = [str(i) * (i % 7) for i in range(5_000)]
    lines = Lines(known)
    wrong: list[object] = []

    def read() -> None:
        for _ in range(5):
            wrong.extend(a for a, b in zip(lines, known, strict=True) if a != b)
            wrong.extend(i for i in range(0, 5_000, 50) if lines[i] != known[i])

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_split_on_disk_equals_one_in_memory() -> None:
    pairs = list(chain(zip("abc", "xyz", strict=True), repeat(("long", "lang"), 25_000)))
    assert Bitext.on_disk(pairs) == Bitext.of(pairs)
    assert [len(part) for part in Bitext.on_disk(pairs).parts(10_000)] == [10_000, 10_000, 5_003]
    assert Bitext.of([]) == Bitext.on_disk([]) == Bitext((), ())
