"""Atomic writes of texts and streams."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import stat
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from ablate.hashing import digest, sha256, sha256_of_file, sha256_of_text
from ablate.writing import atomic_write, write_csv, write_whole


def test_a_stream_replaces_the_file_at_the_end(tmp_path: Path) -> None:
    file = tmp_path / "new" / "x.bin"
    for content in (b"old", b"new"):
        with atomic_write(file) as stream:
            stream.write(content)
            assert not file.exists() or file.read_bytes() == b"old"
        assert file.read_bytes() == content
    assert list(file.parent.iterdir()) == [file]


def test_a_failure_keeps_the_old_content_and_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    write_whole(file, "old ä\n")
    lines = (str(1 / n) for n in (1, 0))
    with pytest.raises(ZeroDivisionError), atomic_write(file, "w") as stream:
        stream.writelines(lines)
    assert file.read_text(encoding="utf-8") == "old ä\n"
    assert list(tmp_path.iterdir()) == [file]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    pipe = tmp_path / "table.md"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "content ä\n")
    assert os.read(reader, 100).decode() == "content ä\n"
    os.close(reader)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


def test_no_file_takes_the_place_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:  # else a failure would cost the machine its own
        pytest.fail(f"{target} would be a file")

    monkeypatch.setattr(Path, "replace", refuse)
    write_whole(Path(os.devnull), "content\n")


def test_a_file_behind_a_device_keeps_what_it_holds(tmp_path: Path) -> None:
    """As in ``ablate report SPEC --output /dev/stdout >> log``."""
    log, stdout = tmp_path / "log", os.dup(1)
    log.write_text("before\n", encoding="utf-8")
    try:
        with log.open("ab") as stream:
            os.dup2(stream.fileno(), 1)
        write_whole(Path("/dev/stdout"), "content ä\n")
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    assert log.read_text(encoding="utf-8") == "before\ncontent ä\n"


def _sync(error: int) -> Callable[[int], None]:
    """Return `os.fsync` on a file system where it fails so for folders."""
    of_file = os.fsync

    def sync(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(error, os.strerror(error))
        of_file(handle)

    return sync


def test_a_file_system_that_synchronises_no_folders_takes_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", _sync(errno.EINVAL))
    write_whole(tmp_path / "x", "new")
    assert (tmp_path / "x").read_text(encoding="utf-8") == "new"
    monkeypatch.setattr(os, "fsync", _sync(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        write_whole(tmp_path / "x", "newer")


def test_a_hash_is_of_the_content_however_it_arrives(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes("grün".encode())
    expected = hashlib.sha256("grün".encode()).hexdigest()
    assert sha256_of_file(tmp_path / "x") == sha256_of_text("grün") == expected
    assert sha256([b"gr", "ün".encode()]) == expected


def test_a_digest_tells_apart_how_a_text_is_divided() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"]) != digest(["abc"])
    assert digest(["ab"]) == hashlib.sha256(b"\0" * 7 + b"\x02ab").hexdigest()


def test_a_csv_file_is_what_pandas_writes(tmp_path: Path) -> None:
    values = [None, 0.1, -1e-05, 1e16, 123456789.125, float("nan"), float("inf"), 5e-324]
    rows = [{"step": n, "layer": 'a "b", c', "value": value} for n, value in enumerate(values)]
    write_csv(tmp_path / "x.csv", rows)
    assert (tmp_path / "x.csv").read_text() == pd.DataFrame(rows).to_csv(index=False)


def test_a_full_disk_is_the_systems_error_whatever_pytorch_makes_of_it(tmp_path: Path) -> None:
    """A limit of a file's size acts like a full disk, which no test can have."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = tmp_path / "checkpoint.pt"
    write_whole(old, "old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    message = r"File too large: .*checkpoint\.pt"
    try:
        with pytest.raises(OSError, match=message), atomic_write(old) as stream:
            torch.save({"weights": torch.zeros(10**5)}, stream)
        with pytest.raises(OSError, match=message):  # to close the stream fails, too
            write_whole(old, "x" * 10_001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert old.read_text() == "old"
    assert list(tmp_path.iterdir()) == [old]
    if Path("/dev/full").exists():
        with (
            pytest.raises(OSError, match="No space left"),
            atomic_write(Path("/dev/full")) as stream,
        ):
            torch.save({"weights": torch.zeros(10**5)}, stream)


def test_another_error_of_a_writer_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="other"), atomic_write(tmp_path / "x"):
        raise RuntimeError("other")
    assert list(tmp_path.iterdir()) == []
