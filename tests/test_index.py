"""The index of stored runs: lists are the same with it, without it, and with any other file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ablate import api, index
from ablate.errors import DamagedFileWarning, StoreError
from ablate.store import Store

HASHES = ["a" * 16, "b" * 16, "c" * 16]


def _save(store: Store, run: str, bleu: float, **fields: Any) -> None:
    names = {"experiment": "pe", "variant": "none", "seed": HASHES.index(run)}
    scores = {"test": {"test": {"bleu": bleu}}}
    store.save({"hash": run, "status": "done", **names, **scores, **fields})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of three runs with an index."""
    monkeypatch.setattr(index, "SETTLED_NS", -1)
    store = Store(tmp_path / "results")
    for number, run in enumerate(HASHES):
        _save(store, run, 31.0 + number)
    api.runs(store.results)
    assert _file(store).is_file()
    return store


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hashes of the records that are read for the index."""
    runs: list[str] = []
    heading = Store.heading

    def noted(store: Store, run: str) -> index.Heading | None:
        runs.append(run)
        return heading(store, run)

    monkeypatch.setattr(Store, "heading", noted)
    return runs


def _file(store: Store) -> Path:
    return store.results / "runs" / "index.json"


def _bleu(store: Store) -> dict[str, float | None]:
    return {run.run: run.bleu for run in api.runs(store.results)}


def test_a_record_is_read_once(store: Store, reads: list[str]) -> None:
    listed = api.runs(store.results)
    assert reads == []
    _file(store).unlink()
    assert api.runs(store.results) == listed
    assert reads == HASHES
    assert {run.status for run in listed} == {"done"}


def test_a_record_that_may_still_change_is_read_again(
    store: Store, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "SETTLED_NS", 10**18)
    _save(store, HASHES[0], 12.0)
    _bleu(store), _bleu(store)
    assert reads == [HASHES[0], *HASHES]


def _replace(store: Store) -> None:
    _save(store, HASHES[1], 12.0)


def _write_over(store: Store) -> None:
    """Change the record in place, and set back its time of change."""
    file = store.path(HASHES[1]) / "record.json"
    times = file.stat()
    other = Store(store.results.parent / "other")
    _save(other, HASHES[1], 12.0)
    with file.open("r+b") as stream:
        stream.write((other.path(HASHES[1]) / "record.json").read_bytes())
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("change", [_replace, _write_over])
def test_a_record_of_the_same_size_is_noticed(
    change: Callable[[Store], None], store: Store, reads: list[str]
) -> None:
    before = (store.path(HASHES[1]) / "record.json").stat()
    change(store)
    after = (store.path(HASHES[1]) / "record.json").stat()
    assert before.st_size == after.st_size
    assert _bleu(store) == {HASHES[0]: 31.0, HASHES[1]: 12.0, HASHES[2]: 33.0}
    assert reads == HASHES[1:2]


def test_runs_that_come_and_go_are_noticed(store: Store, reads: list[str]) -> None:
    shutil.rmtree(store.path(HASHES[0]))
    (store.path(HASHES[1]) / "record.json").unlink()
    assert [(run.run, run.status) for run in api.runs(store.results)] == [
        (HASHES[1], "unfinished"),
        (HASHES[2], "done"),
    ]
    assert list(json.loads(_file(store).read_text().partition("\n")[2])) == HASHES[2:]
    _save(store, HASHES[0], 12.0)
    assert _bleu(store)[HASHES[0]] == 12.0


def test_a_damaged_record_is_never_indexed(store: Store) -> None:
    (store.path(HASHES[1]) / "record.json").write_text("{")
    for _ in range(2):
        assert [run.status for run in api.runs(store.results)] == ["unreadable", "done", "done"]
        with pytest.warns(DamagedFileWarning), pytest.raises(StoreError, match="no run"):
            store.find("pe:none:1")
        with pytest.warns(DamagedFileWarning):
            assert store.find("pe:none:2")["hash"] == HASHES[2]


@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda _: b"\xff",
        lambda content: content[:-30],
        lambda content: content.replace(b"32.0", b"99.0"),
        lambda content: content.partition(b"\n")[2],
    ],
)
def test_a_damaged_or_foreign_index_is_written_anew(
    damage: Callable[[bytes], bytes], store: Store
) -> None:
    whole = _file(store).read_bytes()
    assert damage(whole) != whole
    _file(store).write_bytes(damage(whole))
    assert _bleu(store) == dict(zip(HASHES, (31.0, 32.0, 33.0), strict=True))
    assert _file(store).read_bytes() == whole


def test_the_index_of_a_copy_or_of_another_version_is_not_read(
    store: Store, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Store(store.results.parent / "copy")
    shutil.copytree(store.results, copy.results)  # with the times of change
    assert api.runs(copy.results) == api.runs(store.results)
    assert reads == HASHES
    monkeypatch.setattr(index, "VERSION", index.VERSION + 1)
    api.runs(store.results), api.runs(store.results)
    assert reads == [*HASHES, *HASHES]


def test_a_folder_that_cannot_be_written_to_is_listed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("Read-only file system")

    _file(store).unlink()
    monkeypatch.setattr(index, "write_whole", refuse)
    assert len(api.runs(store.results)) == 3
    assert not _file(store).exists()
    _file(store).mkdir()
    assert len(api.runs(store.results)) == 3


def test_an_index_is_no_run(store: Store) -> None:
    assert [run.run for run in api.remove(store.results, ["pe"])] == HASHES
    assert api.runs(store.results) == []
