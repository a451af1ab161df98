"""Small files that would unpack to large ones, and headers that no archive of ours has."""

from __future__ import annotations

import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from ablate import api, compression
from ablate.compression import Unpacked
from ablate.data.parallel import members, pieces_of
from ablate.errors import DataError, StoreError

PACK: dict[str, Callable[[bytes], bytes]] = {"xz": lzma.compress, "gz": gzip.compress}


@pytest.fixture(autouse=True)
def bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files hold a megabyte, so that the tests are quick."""
    monkeypatch.setattr(compression, "_FREE", 2**20)
    monkeypatch.setattr(compression, "_RATIO", 10)


def member(name: str, content: bytes = b"", **header: str) -> bytes:
    """Return a tar file with one member; of ``header`` its extended header has the fields."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo(name)
        info.size, info.pax_headers = len(content), header
        tar.addfile(info, io.BytesIO(content))
    return stream.getvalue()


@pytest.mark.parametrize("packing", ["xz", "gz", "tar"])
def test_content_is_read_as_it_was_packed(packing: str) -> None:
    content = bytes(range(256)) * 1000
    stream = Unpacked(io.BytesIO(PACK.get(packing, bytes)(content)), "it")
    assert stream.read(1000) == content[:1000]
    assert stream.tell() == 1000
    assert stream.seek(5000) == 5000
    assert stream.read(2**30) == content[5000:]


@pytest.mark.parametrize("packing", ["xz", "gz"])
def test_a_small_file_is_not_unpacked_to_a_large_one(packing: str) -> None:
    packed = PACK[packing](bytes(2**22))
    for read in (lambda stream: stream.read(2**30), lambda stream: stream.seek(2**21)):
        with pytest.raises(OSError, match="it unpacks to more than 1 MiB"):
            read(Unpacked(io.BytesIO(packed), "it"))


@pytest.mark.parametrize("packing", ["xz", "gz"])
def test_archives_that_unpack_to_too_much_are_refused(packing: str, tmp_path: Path) -> None:
    name = "runs/0123456789abcdef/curve.csv"
    archive = tmp_path / f"study.tar.{packing}"
    archive.write_bytes(PACK[packing](member(name, bytes(2**22))))
    with pytest.raises(StoreError, match="unpacks to more than 1 MiB, over 10 times its size"):
        api.restore(archive, results=tmp_path / "results")
    with (
        pytest.raises(DataError, match="unpacks to more than 1 MiB"),
        members(archive, ["another"]),
    ):
        pass


def test_text_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "train.en.gz"
    file.write_bytes(gzip.compress(b"a line\n" * 2**20))
    with pytest.raises(DataError, match=r"train.en.gz unpacks to more than 1 MiB"):
        list(pieces_of(file))


@pytest.mark.parametrize(
    "header", [{"GNU.sparse.size": "many"}, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}]
)
def test_a_crafted_header_is_refused_in_words(header: dict[str, str], tmp_path: Path) -> None:
    archive = tmp_path / "study.tar"
    archive.write_bytes(member("runs/0123456789abcdef/record.json", b"{}", **header))
    with pytest.raises(StoreError, match=r"study.tar: (cannot be unpacked|is no archive)"):
        api.restore(archive, results=tmp_path / "results")


def test_headers_of_headers_are_refused_in_words(tmp_path: Path) -> None:
    """Each asks tarfile for the next, one call inside of the other."""
    extended = member("x", comment="c")[: 2 * tarfile.BLOCKSIZE]
    archive = tmp_path / "study.tar"
    archive.write_bytes(extended * 5000 + member("x"))
    with pytest.raises(StoreError, match="cannot be unpacked: "):
        api.restore(archive, results=tmp_path / "results")
