"""Files from elsewhere: found on this machine or downloaded, and checked before use.

A file is looked for in ``$ABLATE_CORPORA/<corpus>/``, where the layout is that of its upstream
repository, then in the user's cache, then downloaded into the cache. With ``$ABLATE_MIRROR`` set,
``https://host/path`` is asked for as ``$ABLATE_MIRROR/host/path``: for machines that reach the
world through another, and for tests. Where a file came from never changes what it must contain.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from ablate.data.cache import cache_folder
from ablate.data.corpus import Report, digest
from ablate.errors import DataError
from ablate.writing import write_whole

TIMEOUT_SECONDS = 30.0

_CHUNK = 1 << 18


@dataclass(frozen=True)
class Remote:
    """One file of a corpus.

    Attributes:
        path: below the folder of its corpus, as upstream has it.
        url: where it is downloaded from.
        sha256: of its content, in hex. None if nobody published it: then the first copy seen on
            this machine is trusted, and every later one must equal it.
    """

    path: str
    url: str
    sha256: str | None


class RemoteFiles:
    """The files of one corpus, wherever they stand.

    Args:
        corpus: its name, and that of its folder.
        remotes: its files.
    """

    def __init__(self, corpus: str, remotes: Sequence[Remote]) -> None:
        self._corpus = corpus
        self.remotes = tuple(remotes)

    def is_complete(self) -> bool:
        """Return whether every file is here; their content is checked when they are read."""
        return all(self._find(remote) for remote in self.remotes)

    def fetch(self, report: Report) -> None:
        """Download what is missing and check all of it.

        Raises:
            DataError: if a file cannot be had, or is not what it should be.
        """
        for remote in self.remotes:
            self.path(remote, report)

    def path(self, remote: Remote, report: Report = lambda _: None) -> Path:
        """Return where a file is, downloaded if need be, its content checked.

        Raises:
            DataError: if it cannot be had, or is not what it should be.
        """
        path = self._find(remote)
        if path is None:
            path = self._cached(remote)
            try:
                with _locked(path.with_name(f".{path.name}.lock")):
                    if not path.is_file():  # nobody else was faster
                        self._download(remote, path, report)
            except OSError as error:
                raise DataError(f"{error}; $ABLATE_CACHE moves the cache elsewhere") from error
        self._check(remote, path)
        return path

    def fingerprint(self) -> str:
        """Return the SHA-256 of all files together, in hex, from what is known of each.

        Raises:
            DataError: if a file is neither pinned nor here.
        """
        return digest(
            part
            for remote in self.remotes
            for part in (remote.path, remote.sha256 or self._trusted(remote))
        )

    def _trusted(self, remote: Remote) -> str:
        path = self._find(remote)
        if path is None:
            raise DataError(
                f"{self._corpus}: {remote.path} is not here yet, and its content is not known "
                f"beforehand; run `ablate corpora fetch {self._corpus}`"
            )
        self._check(remote, path)
        return _hash_of(path)

    def _find(self, remote: Remote) -> Path | None:
        places = [folder / remote.path for folder in self._folders()]
        return next((place for place in places if place.is_file()), None)

    def _folders(self) -> list[Path]:
        """Return where the files may be, the first choice first."""
        own = os.environ.get("ABLATE_CORPORA")
        if own and not Path(own).is_dir():
            raise DataError(f"$ABLATE_CORPORA is {own}, and there is no such folder")
        cached = cache_folder("corpora") / self._corpus
        return [Path(own) / self._corpus, cached] if own else [cached]

    def _cached(self, remote: Remote) -> Path:
        return cache_folder("corpora") / self._corpus / remote.path

    def _check(self, remote: Remote, path: Path) -> None:
        """Compare a file with its pin, or with the first copy that this machine saw."""
        found = _hash_of(path)
        record = self._cached(remote).with_name(f"{Path(remote.path).name}.sha256")
        expected = remote.sha256
        if expected is None:
            if not record.is_file():
                write_whole(record, f"{found}\n")
            expected = record.read_text(encoding="utf-8").strip()
        if found != expected:
            origin = "" if remote.sha256 else f" (as the first copy had, says {record})"
            raise DataError(
                f"{path} is not the file it should be: its SHA-256 is {found}, not {expected}"
                f"{origin}; delete it to download {remote.url} anew"
            )

    def _download(self, remote: Remote, path: Path, report: Report) -> None:
        """Fetch into ``path``; a broken transfer leaves a part that the next call continues."""
        part = path.with_name(f"{path.name}.part")
        report(f"{self._corpus}: downloading {remote.url}")
        try:
            _transfer(_asked(remote.url), part, is_pinned=remote.sha256 is not None)
        except (OSError, HTTPException) as error:
            raise DataError(self._advice(remote, _reason(error))) from error
        found = _hash_of(part)
        if remote.sha256 not in (None, found):
            part.unlink()
            reason = f"what arrived has SHA-256 {found}, not {remote.sha256}"
            raise DataError(self._advice(remote, reason))
        part.replace(path)
        report(f"{self._corpus}: {remote.path} is here, {path.stat().st_size / 2**20:.1f} MiB")

    def _advice(self, remote: Remote, reason: str) -> str:
        place = self._folders()[0] / remote.path
        return (
            f"{self._corpus}: cannot download {remote.url}: {reason}; get the file by other means "
            f"and put it into the folder {place.parent} as {place.name}"
        )


def _asked(url: str) -> str:
    mirror = os.environ.get("ABLATE_MIRROR")
    if not mirror:
        return url
    parts = urlsplit(url)
    return f"{mirror.rstrip('/')}/{parts.netloc}{parts.path}"


def _transfer(url: str, part: Path, *, is_pinned: bool) -> None:
    """Append to ``part`` what it lacks; what is not pinned may have changed and starts over."""
    n_have = part.stat().st_size if is_pinned and part.is_file() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "ablate"})
    if n_have:
        request.add_header("Range", f"bytes={n_have}-")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            n_have = n_have if answer.status == 206 else 0
            with part.open("ab" if n_have else "wb") as file:
                for chunk in _chunks(answer, n_have, part.stem):
                    file.write(chunk)
    except urllib.error.HTTPError as error:
        error.close()
        if not (error.code == 416 and n_have):  # there is nothing after what we have
            raise


def _chunks(answer: HTTPResponse, n_have: int, name: str) -> Iterator[bytes]:
    """Yield the content of an answer, with a progress bar on a terminal.

    Raises:
        OSError: if the connection ends before the content does.
    """
    length = answer.headers.get("Content-Length")
    n_total = n_have + int(length) if length else None
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    is_quiet = not sys.stderr.isatty()
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=is_quiet) as progress:
        task = progress.add_task(name, total=n_total, completed=n_have)
        while chunk := answer.read(_CHUNK):
            n_have += len(chunk)
            progress.update(task, completed=n_have)
            yield chunk
    if n_total is not None and n_have < n_total:
        raise OSError(
            f"the connection ended after {n_have} of {n_total} bytes; call again to go on"
        )


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server says {error.code} {error.reason}"
    if isinstance(error, urllib.error.URLError):
        return f"no connection ({error.reason})"
    return str(error) or type(error).__name__


def _hash_of(path: Path) -> str:
    status = path.stat()
    return _hash_once(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=256)
def _hash_once(path: Path, _size: int, _changed_ns: int) -> str:
    """Hash a file once per process, as long as it does not change."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process in at a time; the lock ends with its holder, however that ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
