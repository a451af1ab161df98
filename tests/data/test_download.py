"""The folders in which files are searched, their download, and the check before use."""

from __future__ import annotations

import hashlib
import io
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ablate.data import download
from ablate.data.corpus import CorpusText
from ablate.data.download import Remote, RemoteCorpus
from ablate.errors import DataError
from tests.data.server import Site

CONTENT = bytes(range(256)) * 2000
URL = "https://example.org/files/a.bin"
ASKED = "/example.org/files/a.bin"
PINNED = Remote("sub/a.bin", URL, hashlib.sha256(CONTENT).hexdigest())
UNPINNED = Remote("sub/a.bin", URL, None)


class Things(RemoteCorpus):
    """Has files and no text."""

    def load(self) -> CorpusText:
        raise AssertionError("a download reads no text")


def things(remote: Remote = PINNED) -> Things:
    return Things("things", [remote])


def quiet(_: str) -> None:
    return


def put(folder: Path, content: bytes = CONTENT) -> Path:
    path = folder / "things" / "sub" / "a.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return path


def test_a_file_is_downloaded_once_into_the_cache(site: Site, cache: Path) -> None:
    site.files[ASKED] = CONTENT
    lines: list[str] = []
    assert not things().is_available()
    things().fetch(lines.append)
    assert things().is_available()
    path = things().path(PINNED)
    assert path == cache / "corpora" / "things" / "sub" / "a.bin"
    assert path.read_bytes() == CONTENT
    assert site.requests == [(ASKED, None)]
    assert URL in lines[0]
    assert "0.5 MiB" in lines[1]


def test_the_users_folder_comes_before_the_cache(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = put(tmp_path / "mine")
    monkeypatch.setenv("ABLATE_CORPORA", str(tmp_path / "mine"))
    put(tmp_path / "cache" / "corpora")
    assert things().path(PINNED) == mine
    mine.unlink()
    assert things().path(PINNED) != mine
    assert site.requests == []


def test_a_folder_of_corpora_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ABLATE_CORPORA", str(tmp_path / "typo"))
    with pytest.raises(DataError, match=r"\$ABLATE_CORPORA is .*typo, and there is no such"):
        things().is_available()


def test_a_changed_local_file_is_never_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = put(tmp_path, b"something else")
    monkeypatch.setenv("ABLATE_CORPORA", str(tmp_path))
    with pytest.raises(DataError) as error:
        things().path(PINNED)
    for part in (mine, hashlib.sha256(b"something else").hexdigest(), PINNED.sha256):
        assert str(part) in str(error.value)


def test_a_download_with_the_wrong_content_is_thrown_away(site: Site, cache: Path) -> None:
    site.files[ASKED] = b"an error page"
    with pytest.raises(DataError, match="what arrived has SHA-256") as error:
        things().fetch(quiet)
    assert hashlib.sha256(b"an error page").hexdigest() in str(error.value)
    assert not [x for x in cache.rglob("*") if x.is_file() and x.stat().st_size]
    site.files[ASKED] = CONTENT
    things().fetch(quiet)


def test_a_missing_file_names_url_reason_and_where_to_put_it(site: Site, cache: Path) -> None:
    with pytest.raises(DataError) as error:
        things().fetch(quiet)
    assert URL in str(error.value)
    assert "the server answered 404" in str(error.value)
    folder = cache / "corpora" / "things" / "sub"
    assert f"put it into the folder {folder} as a.bin" in str(error.value)


def test_a_missing_connection_is_reported() -> None:
    with pytest.raises(DataError, match="no connection"):
        things().fetch(quiet)


def test_a_mirror_without_a_scheme_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ABLATE_MIRROR", "mirror.example.org")
    with pytest.raises(DataError, match=r"unknown url type: 'mirror\.example\.org/"):
        things().fetch(quiet)


@pytest.mark.parametrize(
    ("remote", "knows_ranges"), [(PINNED, True), (PINNED, False), (UNPINNED, True)]
)
def test_a_broken_transfer_of_a_pinned_file_is_continued_if_the_server_can(
    site: Site, remote: Remote, knows_ranges: bool
) -> None:
    site.files[ASKED], site.breaks_after, site.knows_ranges = CONTENT, 100_000, knows_ranges
    with pytest.raises(DataError, match="ended after 100000 of 512000 bytes"):
        things(remote).fetch(quiet)
    assert not things(remote).is_available()
    site.breaks_after = None
    assert things(remote).path(remote).read_bytes() == CONTENT
    second = "bytes=100000-" if remote is PINNED else None
    assert site.requests == [(ASKED, None), (ASKED, second)]


def test_a_part_that_is_already_whole_is_taken(site: Site, cache: Path) -> None:
    site.files[ASKED] = CONTENT
    put(cache / "corpora").rename(cache / "corpora" / "things" / "sub" / "a.bin.part")
    assert things().path(PINNED).read_bytes() == CONTENT


def test_without_a_pin_the_first_copy_is_trusted_and_no_other(site: Site) -> None:
    site.files[ASKED] = b"first"
    with pytest.raises(DataError, match="has not been downloaded"):
        things(UNPINNED).fingerprint()
    path = things(UNPINNED).path(UNPINNED)
    first = things(UNPINNED).fingerprint()
    path.unlink()
    things(UNPINNED).fetch(quiet)
    assert things(UNPINNED).fingerprint() == first
    path.unlink()
    site.files[ASKED] = b"second"
    with pytest.raises(DataError, match="that of the first copy"):
        things(UNPINNED).fetch(quiet)


def test_the_fingerprint_of_pinned_files_needs_no_files() -> None:
    other = Remote(PINNED.path, URL, "0" * 64)
    assert things().fingerprint() == things().fingerprint()
    assert things().fingerprint() != things(other).fingerprint()


def test_threads_that_fetch_at_once_download_once(site: Site) -> None:
    site.files[ASKED] = CONTENT
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(things().fetch, quiet) for _ in range(4)]:
            done.result()
    assert site.requests == [(ASKED, None)]


@pytest.mark.parametrize("remote", [PINNED, UNPINNED])
def test_an_unwritable_cache_is_reported(
    remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it cannot keep the hash of a file of the user's own."""
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("ABLATE_CACHE", str(tmp_path / "file"))
    if remote is UNPINNED:
        put(tmp_path)
        monkeypatch.setenv("ABLATE_CORPORA", str(tmp_path))
    with pytest.raises(DataError, match=r"\$ABLATE_CACHE moves the cache"):
        things(remote).fetch(quiet)


@pytest.mark.parametrize("line_every_s", [60.0, 0.0])
def test_a_pipe_gets_a_line_now_and_then_and_no_progress_bar(
    site: Site,
    line_every_s: float,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(download, "_LINE_EVERY_S", line_every_s)
    site.files[ASKED] = CONTENT
    things().fetch(quiet)
    lines = capfd.readouterr().err.split("\n")
    lines = [line for line in lines if line]  # rich below 15 ends a hidden bar with an empty one
    last = [] if line_every_s else ["a.bin: 0.5 of 0.5 MiB are downloaded"]
    assert lines[-1:] == last


def test_a_terminal_gets_one_on_standard_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    site.files[ASKED] = CONTENT
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    things().fetch(quiet)
    assert "a.bin" in terminal.getvalue()
    assert "512.0/512.0 kB" in terminal.getvalue()
