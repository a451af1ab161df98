"""Records: whole or not at all, and no run twice at a time."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ablate.errors import DamagedFileWarning, StoreError
from ablate.record import SCHEMA
from ablate.store import Store, describe, translations_file, verify

RUN = "0123456789abcdef"

SAVE_FOR_EVER = """
import sys
from pathlib import Path
from ablate.store import Store

store = Store(Path(sys.argv[1]))
for number in range(10**9):
    text = "x" * 100_000
    store.save({"hash": sys.argv[2], "status": "done", "number": number, "text": text})
"""

HOLD = """
import sys, time
from pathlib import Path
from ablate.store import Store

with Store(Path(sys.argv[1])).lock(sys.argv[2]):
    print("held", flush=True)
    time.sleep(60)
"""


def _python(program: str, *words: str) -> subprocess.Popen[str]:
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)
    return subprocess.Popen(
        [sys.executable, "-c", program, *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "results")


def test_a_saved_record_is_loaded_as_it_was(store: Store) -> None:
    record = {"schema": SCHEMA, "hash": RUN, "status": "done", "test": {"test": {"bleu": 34.5}}}
    assert store.load(RUN) is None
    store.save(record)
    assert store.load(RUN) == record


@pytest.mark.e2e
def test_a_kill_at_any_moment_leaves_a_whole_record(store: Store) -> None:
    process = _python(SAVE_FOR_EVER, str(store.results), RUN)
    file = store.path(RUN) / "record.json"
    try:
        while not file.exists():
            assert process.poll() is None
            time.sleep(0.01)
        deadline = time.monotonic() + 0.5  # read while it writes: never half a record
        while time.monotonic() < deadline:
            assert len(json.loads(file.read_bytes())["text"]) == 100_000
    finally:
        process.kill()
        process.communicate()
    record = store.load(RUN)
    assert record is not None
    assert len(record["text"]) == 100_000


@pytest.mark.parametrize(
    "content",
    ["", '{"hash": ', "[1, 2]", "\x00\xff", "{}", "[]", "3", '"text"', "{", "[" * 100_000],
    ids=lambda content: content[:9].encode("unicode_escape").decode(),
)
def test_an_unreadable_record_is_named(store: Store, content: str) -> None:
    file = store.path(RUN) / "record.json"
    file.parent.mkdir(parents=True)
    file.write_text(content, encoding="latin-1")
    with pytest.raises(StoreError, match=r"record\.json: .*`ablate run` makes the run again"):
        store.read(RUN)
    with pytest.warns(DamagedFileWarning, match=r"record\.json: .*`ablate run` makes it again"):
        assert store.load(RUN) is None


def test_a_number_that_has_changed_since_is_noticed(store: Store) -> None:
    store.save({"hash": RUN, "status": "done", "dev": {"nll": 3.25}})
    file = store.path(RUN) / "record.json"
    file.write_text(file.read_text(encoding="utf-8").replace("3.25", "3.26"), encoding="utf-8")
    with pytest.raises(StoreError, match="is not what was written"):
        store.read(RUN)


def test_a_damaged_probe_counts_as_none(store: Store) -> None:
    assert store.load_probe("key") is None
    store.save_probe("key", {"rounds": {"train": [1.5]}})
    assert store.load_probe("key") == {"rounds": {"train": [1.5]}}
    file = store.results / "probes" / "key.json"
    file.write_text('{"rounds": {"train": "fast"}}', encoding="utf-8")
    with pytest.warns(
        DamagedFileWarning, match=r"key\.json: .*rounds\.train cannot be 'fast'; the"
    ):
        assert store.load_probe("key") is None


def test_files_of_a_run_are_known_again(store: Store) -> None:
    folder = store.path(RUN)
    record = {"hash": RUN, "files": {name: describe(b"12") for name in ("a", "b", "gone")}}
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"12")
    (folder / "b").write_bytes(b"13")
    assert store.damaged_files(record) == [folder / "b"]
    verify(folder / "a", record)
    with pytest.raises(StoreError, match="b: is damaged"):
        verify(folder / "b", record)


def test_translations_are_read_line_by_line_and_damage_is_noticed(store: Store) -> None:
    content = "ab\u2028c\r\n\nd\n".encode()
    file = store.path(RUN) / translations_file("test")
    record = {"hash": RUN, "files": {file.name: describe(content)}}
    assert store.translations(record, "test") is None
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    assert store.translations(record, "test") == ["ab\u2028c\r", "", "d"]
    file.write_bytes(content + b"e\n")
    with pytest.raises(StoreError, match=r"hypotheses\.test\.txt: is damaged"):
        store.translations(record, "test")


def test_a_folder_that_is_a_file_is_an_error_of_the_store(store: Store) -> None:
    store.results.write_text("a file", encoding="utf-8")
    with pytest.raises(StoreError, match=r"record\.json: cannot be written: Not a directory"):
        store.save({"hash": RUN})
    with pytest.raises(StoreError, match="cannot be written: Not a directory"), store.lock(RUN):
        pass


@pytest.mark.e2e
def test_a_second_process_waits_until_the_first_has_died(store: Store) -> None:
    process = _python(HOLD, str(store.results), RUN)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    is_killed = threading.Event()

    def kill() -> None:
        is_killed.set()
        process.send_signal(signal.SIGKILL)

    threading.Timer(0.3, kill).start()
    with store.lock(RUN) as is_held:
        assert is_held
        assert is_killed.is_set()
    process.communicate()


def test_other_runs_of_a_process_go_on_while_one_waits_for_its_lock(store: Store) -> None:
    """With ``should_stop`` a waiting run yields its turn: each call is a step of the others."""
    n_calls = 0

    def wait() -> None:
        def should_stop() -> bool:
            nonlocal n_calls
            n_calls += 1
            return n_calls == 100

        with store.lock(RUN, should_stop):
            pass

    with store.lock(RUN), ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        pool.submit(wait).result()
    assert time.monotonic() - began < 5  # a tenth of a second for each call would be 10


def test_waiting_for_a_lock_can_be_stopped(store: Store) -> None:
    def is_held() -> bool:
        with store.lock(RUN, should_stop=lambda: True) as held:
            return held

    with store.lock(RUN) as first, ThreadPoolExecutor(1) as pool:
        assert first
        assert not pool.submit(is_held).result()
    assert is_held()


def test_a_file_that_locks_nothing_is_not_taken_for_a_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(fcntl, "flock", flock)
    message = "lock: cannot be locked: Function not implemented"
    with pytest.raises(StoreError, match=message), store.lock(RUN, should_stop=lambda: True):
        pass


def test_runs_are_found_by_the_beginning_of_their_hash_or_by_folder(store: Store) -> None:
    for run in ("aab0", "aac0", "bbb0"):
        store.save({"hash": run, "status": "done"})
    assert store.find("b")["hash"] == "bbb0"
    assert store.find("aac")["hash"] == "aac0"
    assert store.find(str(store.path("aab0")))["hash"] == "aab0"


@pytest.fixture
def named(store: Store) -> Store:
    """Three seeds of one row, the last one stored twice under different options."""
    for run, seed in (("aab0", 1), ("aac0", 2), ("aad0", 11), ("aae0", 12), ("aaf0", 12)):
        names = {"experiment": "real/pe", "variant": "rms: all", "seed": seed}
        store.save({"hash": run, "status": "done", **names})
    return store


def test_a_run_is_named_by_experiment_row_and_seed(named: Store) -> None:
    assert named.find("real/pe:rms: all:1")["hash"] == "aab0"
    assert named.find("pe:rms: all:1")["hash"] == "aab0"
    named.save(
        {"hash": "cc0", "status": "done", "experiment": "pe", "variant": "rms: all", "seed": 1}
    )
    assert named.find("pe:rms: all:1")["hash"] == "cc0"
    named.path("aab0").joinpath("record.json").unlink()
    with pytest.raises(StoreError, match="no run"):  # and not the one of seed 11
        named.find("real/pe:rms: all:1")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("real/pe:rms: all:12", "fits several runs: aae0, aaf0; give one of these"),
        ("real/pe:rms: al:2", "no run .* there\\); did you mean 'real/pe:rms: all:2'"),
        ("pe:baseline:1", "no run .*give experiment:row:seed"),
        ("aa", "several runs: aab0, aac0"),
        ("c", "no run 'c'"),
        ("", "no run"),
    ],
)
def test_a_name_that_is_not_of_one_run_is_an_error(named: Store, name: str, reason: str) -> None:
    with pytest.raises(StoreError, match=reason):
        named.find(name)


def test_a_run_that_was_made_in_place_of_another_is_its_outcome(
    named: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced = {"experiment": "real/pe", "variant": "rms: all", "seed": 1}
    failed = {"hash": "ccc0", "status": "failed", "engine_note": "not it", "replaced_by": "aab0"}
    named.save(failed | replaced)
    monkeypatch.chdir(named.path("ccc0").parent)  # where its hash is a folder
    names = ("ccc", "ccc0", str(named.path("ccc0")), "real/pe:rms: all:1")
    for actual in (named.load_outcome("ccc0") or {}, *map(named.find, names)):
        assert (actual["hash"], actual["status"]) == ("aab0", "done")
    assert (named.load_outcome("ccc0") or {})["engine_note"] == "not it"
    assert (named.load_outcome("aac0") or {})["hash"] == "aac0"
    named.path("aab0").joinpath("record.json").unlink()
    assert named.load_outcome("ccc0") is None
    for name in ("ccc", str(named.path("ccc0"))):
        with pytest.raises(StoreError, match=r"ccc0 was given up .* which has not ended"):
            named.find(name)
