"""``ablate runs archive`` and ``restore``: the runs behind a table as one file.

An archive is a tar file of paths relative to the folder of results, such as
``runs/<hash>/record.json``: the values of rows that are matched on time, then of each run the
record and other files. The same runs give the same bytes. A run that is restored counts as done,
so that nothing is trained again.
"""

from __future__ import annotations

import gzip
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from io import BytesIO
from itertools import chain, groupby
from pathlib import Path
from typing import IO, Any, cast, get_args

from ablate import config
from ablate.api.looks import at_look
from ablate.api.runs import StoredRun, in_contexts, runs
from ablate.api.selection import RunLookup, key_of, match_keys, print_remark, select, stored
from ablate.compression import Unpacked
from ablate.errors import SpecError, StoreError
from ablate.record import Status, numbers, read_match, read_record, speed_sessions
from ablate.runner.run_files import Bundle, tidy, write
from ablate.store import (
    Store,
    describe,
    is_finished,
    parse,
    readable,
    translations_file,
    writable,
)
from ablate.wording import counted, no_such
from ablate.writing import atomic_write

CONTENTS = {
    "records": ("record.json",),
    "curves": ("curve.csv", "layers.csv"),
    "translations": (translations_file("*"), "sentences.*.csv", "metrics.json"),
    "weights": ("model.safetensors", "tokenizer.json"),
}
"""What an archive can hold of each run: one of these, and those before it; patterns of files."""

_COMPRESSIONS: dict[str, Callable[[IO[bytes]], AbstractContextManager[Any]]] = {
    ".tar.xz": partial(lzma.LZMAFile, mode="wb"),
    ".tar.gz": lambda stream: gzip.GzipFile("", "wb", fileobj=stream, mtime=0),
    ".tar": nullcontext,
}
"""By the end of an archive's name; without a time or a name, which would differ between calls."""
_DAMAGE = (tarfile.TarError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)
_MALFORMED = (ValueError, LookupError, RecursionError)
"""What `tarfile` raises of headers that no program writes."""
_MEMBER = re.compile(r"runs/([0-9a-f]{16})/([^/]+)")
_MATCH = re.compile(r"matches/([0-9a-f]{16})\.json")
_OF_PROBES = {"speed", "memory"}
"""Keys of a record that change when its speed is measured again."""
_MOST_NAMES = 10
_PATTERNS = tuple(chain.from_iterable(CONTENTS.values()))


@dataclass(frozen=True)
class Restored:
    """What restoring an archive did in a folder of results: hashes of runs."""

    new: tuple[str, ...]  # that the folder did not hold, or not finished
    present: tuple[str, ...]  # that are kept; those that are finished get missing files
    other: tuple[str, ...]  # that are kept although the archive has other numbers
    # of the same attempt, whose speed was measured again; they get the other sessions, too
    other_speeds: tuple[str, ...] = ()
    at_work: tuple[str, ...] = ()  # that are kept, because another process has them


def archive(
    specs: Sequence[Path | str],
    output: Path | str,
    *,
    results: Path | str = "results",
    content: str = "translations",
) -> list[StoredRun]:
    """Write the runs of experiments that have ended into one file, and return them.

    The name of the archive ends in .tar.xz, .tar.gz or .tar. Of each run it holds as much as
    ``content``, a key of `CONTENTS`, says. Remarks on standard error name the missing runs.

    Raises:
        StoreError: if no run has ended, a file is damaged, or the archive cannot be written.
    """
    output, store = Path(output), Store(Path(results))
    compressed = next((c for end, c in _COMPRESSIONS.items() if output.name.endswith(end)), None)
    if compressed is None:
        raise StoreError(f"{output}: the name of an archive ends in {', '.join(_COMPRESSIONS)}")
    if content not in CONTENTS:
        raise SpecError(no_such("content", content, CONTENTS))
    specs = in_contexts(specs)
    needed = (run for run in runs(results, specs=specs) if run.experiments)
    ended = [run for run in needed if run.status in get_args(Status)]
    if not ended:
        names = ", ".join(map(str, specs))
        raise StoreError(f"{store.results} holds no run of {names} that has ended")
    for spec in specs:
        _remark_on_missing(spec, store, {run.run for run in ended})
    with (
        writable(output),
        atomic_write(output) as stream,
        compressed(stream) as body,
        tarfile.open(fileobj=body, mode="w") as tar,
    ):
        for path, data in _files(specs, [run.run for run in ended], store, content):
            member = tarfile.TarInfo(path.relative_to(store.results).as_posix())
            member.size = len(data)
            tar.addfile(member, BytesIO(data))
    return ended


def restore(file: Path | str, *, results: Path | str = "results") -> Restored:
    """Put the runs of an archive into a folder of results.

    Finished runs of the folder keep their results and get missing files, and sessions in which the
    archive has their speeds. Matched values stay as they are. A run that is unfinished or has
    failed is replaced with all its files, unless the archive's has failed too and it can go on from
    its checkpoint.

    Raises:
        StoreError: if the file is damaged or no archive, or the folder cannot be written to; a
            run is restored even so if another one follows it before the damage.
    """
    store = Store(Path(results))
    hashes: dict[str, list[str]] = {"new": [], "present": [], "other": []}
    for folder, bundle in _bundles_in(Path(file)):
        if match := _MATCH.fullmatch(folder):
            try:
                value = parse(bundle[folder], read_match)
            except ValueError as error:
                raise StoreError(f"{file}: {folder} {error}") from error
            present = store.load_match(match[1])
            if present is None:
                store.save_match(match[1], value)
            elif present["value"] != value["value"]:
                print_remark(
                    f"{store.match_path(match[1])}: stays with the matched value "
                    f"{present['value']}; that of {file} is {value['value']}"
                )
            continue
        run = Path(folder).name
        record = _checked(bundle, run, Path(file))
        with store.lock(run, should_stop=lambda: True) as is_held:
            field = _restore(store, run, record, bundle) if is_held else "at_work"
        hashes.setdefault(field, []).append(run)
    return Restored(**{field: tuple(runs) for field, runs in hashes.items()})


def _remark_on_missing(spec: Path | str, store: Store, ended: Collection[str]) -> None:
    """Print which runs of an experiment are not among those that have ended."""
    lookup = RunLookup(store)
    selection = at_look(select(spec, lookup=lookup), lookup)
    there = {run for run, record in stored(selection, lookup).items() if record["hash"] in ended}
    missing = [run for run in map(key_of, selection.runs) if run not in there]
    if missing:
        names = ", ".join(f"{row}:{seed}" for row, seed in missing[:_MOST_NAMES])
        names += ", ..." if len(missing) > _MOST_NAMES else ""
        verb = "is" if len(missing) == 1 else "are"
        print_remark(
            f"{len(missing)} of {counted(len(selection.runs), 'run')} of {selection.whole.name} "
            f"{verb} not stored ({names})"
        )


def _files(
    specs: Sequence[Path | str], ended: Sequence[str], store: Store, content: str
) -> Iterator[tuple[Path, bytes]]:
    """Yield each stored match of experiments, then each file of their runs, the record first."""
    for key in sorted({key for spec in specs for key in match_keys(config.load(spec)).values()}):
        if store.load_match(key) is not None:
            with readable(store.match_path(key)):
                yield store.match_path(key), store.match_path(key).read_bytes()
    kinds = list(CONTENTS)[: list(CONTENTS).index(content) + 1]
    patterns = list(chain.from_iterable(CONTENTS[kind] for kind in kinds))
    for run in ended:
        record = store.read(run)
        if record is None:
            raise StoreError(
                f"{store.path(run)}: was removed, or begun again, while the archive was written; "
                "archive the runs when no other call changes them"
            )
        contents = record.get("files", {})
        for path in (path for each in patterns for path in sorted(store.path(run).glob(each))):
            with readable(path):
                data = path.read_bytes()
            if path.name in contents and describe(data) != contents[path.name]:
                raise StoreError(f"{path}: is damaged; `ablate run --fresh` makes the run again")
            yield path, data


def _bundles_in(file: Path) -> Iterator[tuple[str, Bundle]]:
    """Yield each run's folder with its files, and each match's file; one at a time in memory."""
    try:
        with file.open("rb") as packed, _opened(packed, file) as tar:
            for folder, members in groupby(_members(tar), lambda member: _folder_of(member, file)):
                contents = ((member.name, tar.extractfile(member)) for member in members)
                yield folder, {name: data.read() for name, data in contents if data is not None}
    except _DAMAGE as error:
        raise StoreError(f"{file}: cannot be unpacked: {error}") from error
    except OSError as error:
        raise StoreError(f"{file}: cannot be read: {error.strerror or error}") from error


def _opened(packed: IO[bytes], file: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=cast("IO[bytes]", Unpacked(packed, "it")), mode="r:")
    except (*_DAMAGE, *_MALFORMED) as error:
        text = "it is no archive of `ablate runs archive`, or its beginning is damaged"
        raise StoreError(f"{file}: cannot be unpacked: {text}") from error


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield what an archive holds, up to its end.

    `tarfile` takes a header that is damaged or missing for the end of an archive, and reads no
    checksum that follows the end.

    Raises:
        tarfile.ReadError: if a header is malformed, or the last member is not followed by zeros
            alone, and by a block of them at least.
    """
    try:
        yield from tar
    except _MALFORMED as error:
        raise tarfile.ReadError("it is damaged: a header cannot be read") from error
    stream, n_zeros = cast("IO[bytes]", tar.fileobj), 0
    stream.seek(tar.offset)
    while rest := stream.read(tarfile.RECORDSIZE):
        n_zeros += len(rest)
        if rest.strip(b"\0"):
            raise tarfile.ReadError("it is damaged, or cut off")
    if n_zeros < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("it is damaged, or cut off")


def _folder_of(member: tarfile.TarInfo, file: Path) -> str:
    """Return the folder of the run that a member belongs to; of a match, its own path."""
    match = _MEMBER.fullmatch(member.name)
    is_plain = member.isreg() and not member.issparse() and member.size >= 0
    if is_plain and _MATCH.fullmatch(member.name):
        return member.name
    if match is None or not is_plain or not any(fnmatchcase(match[2], p) for p in _PATTERNS):
        raise StoreError(
            f"{file}: is no archive of runs: it holds {member.name!r}; `ablate runs archive` "
            "writes such archives"
        )
    return f"runs/{match[1]}"


def _checked(bundle: Bundle, run: str, file: Path) -> dict[str, Any]:
    """Return the record of a run, after comparing the run's files with it."""
    name = f"runs/{run}/record.json"
    if name not in bundle:
        raise StoreError(f"{file}: {name} is missing")
    try:
        record = parse(bundle[name], read_record)
    except ValueError as error:
        raise StoreError(f"{file}: {name} {error}") from error
    if record["hash"] != run:
        raise StoreError(f"{file}: {name} is the record of another run, {record['hash']}")
    for path, content in record.get("files", {}).items():
        data = bundle.get(f"runs/{run}/{path}")
        if data is not None and describe(data) != content:
            raise StoreError(f"{file}: runs/{run}/{path} is damaged")
    return record


def _restore(store: Store, run: str, record: dict[str, Any], bundle: Bundle) -> str:
    """Write what is missing of a run; return the field of `Restored` that it belongs to."""
    present, folder = store.load(run), store.path(run)
    if not is_finished(present):
        is_begun, files = (folder / "checkpoint.pt").exists(), record.get("files", {})
        if is_begun and not is_finished(record):
            return "present"
        with writable(folder):
            for path in folder.iterdir():  # the names in a record may lead out of the folder
                is_half = is_begun and path.name in CONTENTS["curves"]
                is_other = path.name in files and describe(path.read_bytes()) != files[path.name]
                if is_half or is_other or path.name == "error.txt":
                    path.unlink()
        write(bundle, store.results)
        with writable(folder):
            tidy(folder)
        return "new"
    if _result(present) != _result(record):
        return "other"
    missing = {name: data for name, data in bundle.items() if not (store.results / name).exists()}
    write(missing, store.results)
    differing = {key for key in {*present, *record} if present.get(key) != record.get(key)}
    if not differing or not differing <= _OF_PROBES:  # the same attempt, or one that was repeated
        return "present"
    measured = {key: record[key] for key in _OF_PROBES & record.keys()}
    if speed := present.get("speed"):
        sessions = {**speed_sessions(record.get("speed")), **speed_sessions(speed)}
        sessions.pop(speed.get("session", ""), None)
        measured = {"speed": {**speed, "earlier": dict(sorted(sessions.items()))}}
    store.save({**present, **measured})
    return "other_speeds"


def _result(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return what is the same whenever and wherever a run gives the same numbers."""
    scores = {key: record.get(key) for key in ("dev", "test")}
    return record["status"], record.get("files", {}), dict(numbers(scores))
