"""Files of corpora that are on this machine or downloaded, and checked before use.

A file is searched in ``$ABLATE_CORPORA/<corpus>/``, where the layout is that of its upstream
repository, then in the user's cache, then downloaded into the cache. With ``$ABLATE_MIRROR`` set,
``https://host/path`` is requested as ``$ABLATE_MIRROR/host/path``: for machines behind a mirror,
and for tests. Wherever a file comes from, its content must be the same.
"""

from __future__ import annotations

import functools
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

from filelock import FileLock
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ablate.console import Console
from ablate.data.cache import cache_folder
from ablate.data.corpus import Corpus, Report
from ablate.errors import DataError
from ablate.hashing import digest, sha256_of_file
from ablate.writing import write_whole

TIMEOUT_SECONDS = 30.0

_CHUNK = 1 << 18
_LINE_EVERY_S = 60.0


@dataclass(frozen=True)
class Remote:
    """One file of a corpus."""

    path: str  # below the folder of its corpus, as upstream has it
    url: str  # its address
    # of its content, in hex. None if none is published: the first copy on this machine is then
    # trusted, and every later one must equal it
    sha256: str | None


class RemoteCorpus(Corpus):
    """A corpus of downloaded files, in a folder of its name."""

    def __init__(self, name: str, remotes: Sequence[Remote]) -> None:
        super().__init__()
        self._name = name
        self.remotes = tuple(remotes)

    def is_available(self) -> bool:
        """Return whether every file is on this machine; reading them checks their content."""
        return all(self._find(remote) for remote in self.remotes)

    def fetch(self, report: Report) -> None:
        for remote in self.remotes:
            self.path(remote, report)

    def path(self, remote: Remote, report: Report = lambda _: None) -> Path:
        """Return the path of a file, after downloading it if necessary and checking its content."""
        path = self._find(remote)
        try:
            if path is None:
                path = self._cache_path(remote)
                path.parent.mkdir(parents=True, exist_ok=True)
                with FileLock(path.with_name(f".{path.name}.lock")):
                    if not path.is_file():  # another process may have been faster
                        self._download(remote, path, report)
            self._check(remote, path)
        except OSError as error:
            raise DataError(f"{error}; $ABLATE_CACHE moves the cache elsewhere") from error
        return path

    def fingerprint(self) -> str:
        parts: list[str] = []
        for remote in self.remotes:
            sha256 = remote.sha256
            if sha256 is None:
                if self._find(remote) is None:
                    raise DataError(
                        f"{self._name}: {remote.path} has not been downloaded, and no hash of it "
                        f"is published; run `ablate corpora fetch {self._name}`"
                    )
                sha256 = _hash_of(self.path(remote))
            parts += [remote.path, sha256]
        return digest(parts)

    def _find(self, remote: Remote) -> Path | None:
        paths = [folder / remote.path for folder in self._folders()]
        return next((path for path in paths if path.is_file()), None)

    def _folders(self) -> list[Path]:
        """Return the folders that may hold the files, the preferred one first."""
        own = os.environ.get("ABLATE_CORPORA")
        if own and not Path(own).is_dir():
            raise DataError(f"$ABLATE_CORPORA is {own}, and there is no such folder")
        cached = cache_folder("corpora") / self._name
        return [Path(own) / self._name, cached] if own else [cached]

    def _cache_path(self, remote: Remote) -> Path:
        return cache_folder("corpora") / self._name / remote.path

    def _check(self, remote: Remote, path: Path) -> None:
        """Compare a file with its pin, or with the first copy on this machine."""
        first = self._cache_path(remote).with_name(f"{Path(remote.path).name}.sha256")
        expected, actual = remote.sha256, _hash_of(path)
        if expected is None:
            if not first.is_file():
                write_whole(first, f"{actual}\n")
            expected = first.read_text(encoding="utf-8").strip()
        if actual != expected:
            origin = "" if remote.sha256 else f" (that of the first copy, kept in {first})"
            raise DataError(
                f"{path} has the wrong content: its SHA-256 is {actual}, not {expected}"
                f"{origin}; delete it to download {remote.url} anew"
            )

    def _download(self, remote: Remote, path: Path, report: Report) -> None:
        """Download to ``path``; a broken transfer leaves a part that the next call continues."""
        part = path.with_name(f"{path.name}.part")
        report(f"{self._name}: downloading {remote.url}")
        try:
            _transfer(remote.url, part, is_pinned=remote.sha256 is not None)
        except (OSError, HTTPException, ValueError) as error:  # of a mirror without a scheme
            reason = str(error) or type(error).__name__
            if isinstance(error, urllib.error.HTTPError):
                reason = f"the server answered {error.code} {error.reason}"
            elif isinstance(error, urllib.error.URLError):
                reason = f"no connection ({error.reason})"
            raise DataError(self._advice(remote, reason)) from error
        actual = _hash_of(part)
        if remote.sha256 not in (None, actual):
            part.unlink()
            reason = f"what arrived has SHA-256 {actual}, not {remote.sha256}"
            raise DataError(self._advice(remote, reason))
        part.replace(path)
        size = path.stat().st_size / 2**20
        report(f"{self._name}: {remote.path} is downloaded, {size:.1f} MiB")

    def _advice(self, remote: Remote, reason: str) -> str:
        target = self._folders()[0] / remote.path
        return (
            f"{self._name}: cannot download {remote.url}: {reason}; get the file by other means "
            f"and put it into the folder {target.parent} as {target.name}"
        )


def _transfer(url: str, part: Path, *, is_pinned: bool) -> None:
    """Append the rest to ``part``; a file without a pin may have changed and starts over."""
    if mirror := os.environ.get("ABLATE_MIRROR"):
        address = urlsplit(url)
        url = f"{mirror.rstrip('/')}/{address.netloc}{address.path}"
    n_bytes = part.stat().st_size if is_pinned and part.is_file() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "ablate"})
    if n_bytes:
        request.add_header("Range", f"bytes={n_bytes}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
            n_bytes = n_bytes if response.status == 206 else 0
            with part.open("ab" if n_bytes else "wb") as file:
                for chunk in _chunks(response, n_bytes, part.stem):
                    file.write(chunk)
    except urllib.error.HTTPError as error:
        error.close()
        if not (error.code == 416 and n_bytes):  # the part is complete
            raise


def _chunks(response: HTTPResponse, n_bytes: int, name: str) -> Iterator[bytes]:
    """Yield the content of a response, with a progress bar on a terminal and lines elsewhere."""
    length = response.headers.get("Content-Length")
    n_total = n_bytes + int(length) if length else None
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    is_quiet = not sys.stderr.isatty()
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=is_quiet) as progress:
        task = progress.add_task(name, total=n_total, completed=n_bytes)
        last_line = time.monotonic()
        while chunk := response.read(_CHUNK):
            n_bytes += len(chunk)
            progress.update(task, completed=n_bytes)
            if is_quiet and time.monotonic() - last_line >= _LINE_EVERY_S:
                of_all = f" of {n_total / 2**20:.1f}" if n_total else ""
                text = f"{name}: {n_bytes / 2**20:.1f}{of_all} MiB are downloaded"
                console.print(text, markup=False, highlight=False, soft_wrap=True)
                last_line = time.monotonic()
            yield chunk
    if n_total is not None and n_bytes < n_total:
        raise OSError(
            f"the connection ended after {n_bytes} of {n_total} bytes; call again to go on"
        )


def _hash_of(path: Path) -> str:
    status = path.stat()
    return _hash_once(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _hash_once(path: Path, _size: int, _changed_ns: int) -> str:
    """Hash a file once per process, as long as it does not change."""
    return sha256_of_file(path)
