"""``ablate runs``: list, show and remove stored runs."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

from filelock import Timeout

from ablate import config
from ablate.api.selection import (
    ENGINES,
    PRECISIONS,
    Fingerprints,
    RunLookup,
    Selection,
    hash_of,
    key_of,
    precision_of,
    print_remark,
    select,
    stored,
    tuning_runs,
)
from ablate.config import experiment_name, shipped
from ablate.errors import DataError, SpecError, StoreError
from ablate.index import Heading
from ablate.record import Status
from ablate.runner.match import is_available
from ablate.store import Store, process_lock, readable
from ablate.wording import no_such, suggest
from ablate.writing import remove_tree

STATUSES = (*get_args(Status), "unfinished", "unreadable", "link")
"""What has become of a stored run."""

_HASH = re.compile(r"[0-9a-f]{16}")
_FILES = {
    *("record.json", "record.damaged.json", "log.txt", "curve.csv", "layers.csv"),
    *("checkpoint.pt", "changed.json", "snapshots", "tokenizer.json", "model.safetensors"),
}
"""What a run writes; a folder with none of them is not a run."""


@dataclass(frozen=True)
class StoredRun:
    """A run in the folder of results."""

    run: str  # its hash
    experiment: str | None  # the first for which it was trained; None while it has no record
    row: str | None
    seed: int | None
    status: str  # of its record; ``unfinished`` if it has none, ``unreadable`` if it is damaged
    bleu: float | None  # on its first test set
    finished: str | None
    n_bytes: int  # of its folder
    experiments: tuple[str, ...] = ()  # those of the given experiments that need it
    is_at_work: bool = False  # a worker holds its lock

    @property
    def label(self) -> str:
        """Return the name by which commands find it, as in ``pe:none:1``; else its hash."""
        if self.experiment is None:
            return self.run
        return f"{self.experiment}:{self.row}:{self.seed}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return asdict(self)


def runs(
    results: Path | str = "results",
    *,
    specs: Sequence[Path | str] = (),
    statuses: Collection[str] = (),
    labels: Collection[str] = (),
) -> list[StoredRun]:
    """Return the stored runs, by experiment, row and seed.

    Each run names those of the experiments ``specs`` that need it. If a row's matched or tuned
    value is not known, its runs name none, and a remark on standard error says so.

    Args:
        results: the folder of results.
        specs: experiment files.
        statuses: only runs with one of `STATUSES`; all by default.
        labels: only runs of ``experiment`` in each of its contexts, ``experiment:row`` or
            ``experiment:row:seed``, or, where a label is none of these, those whose hash begins so;
            all by default. A label that fits none is a remark on standard error.
    """
    unknown = next((status for status in statuses if status not in STATUSES), None)
    if unknown is not None:
        raise SpecError(no_such("status", unknown, STATUSES))
    store = Store(Path(results))
    needed, remarks = _needed(specs, store)
    for remark in remarks:
        print_remark(remark)
    every_run = _every_run(store, needed)
    labelled, unfit = _labelled(every_run, labels)
    for label in unfit:
        experiments = sorted({run.experiment for run in every_run if run.experiment})
        print_remark(no_such("stored run or experiment", label, experiments))
    chosen = labelled if labels else every_run
    return [run for run in chosen if not statuses or run.status in statuses]


def remove(
    results: Path | str, labels: Sequence[str], *, is_trial: bool = False
) -> list[StoredRun]:
    """Remove stored runs, unless at work, with all their files, and return them.

    Labels are as for `runs`. A trial only returns what would be removed.

    Raises:
        SpecError: if the labels are one text.
        StoreError: if a label fits no run; nothing is removed then.
    """
    every_run = runs(results)
    chosen, unfit = _labelled(every_run, labels)
    if unfit:
        meant = suggest(unfit[0], [run.label for run in every_run])
        known = f"{meant} `ablate runs list` shows them"
        raise StoreError(f"{Path(results) / 'runs'} holds no run {unfit[0]!r};{known}")
    return _remove(Path(results), chosen, is_trial=is_trial)


def collect_garbage(
    results: Path | str, specs: Sequence[Path | str], *, is_trial: bool = False
) -> list[StoredRun]:
    """Remove the runs that none of the experiments needs, and return them; as for `remove`.

    Raises:
        DataError: if the content of a corpus is not known here.
        StoreError: without an experiment, which would remove everything; or if a row's matched or
            tuned value is not known, so that runs which it needs would be removed.
    """
    if not specs:
        raise StoreError("no experiment was given, so every run would go; name those to keep")
    store = Store(Path(results))
    needed, unknown = _needed(specs, store)
    if unknown:
        raise StoreError(
            f"nothing is removed: {'; '.join(unknown)}; or leave the file out, if none of its runs "
            "is to be kept"
        )
    unused = [run for run in _every_run(store, needed) if not run.experiments]
    return _remove(Path(results), unused, is_trial=is_trial)


def show_run(run: str, *, results: Path | str = "results") -> dict[str, Any]:
    """Return the record of a run, or of the run that replaced it.

    ``run`` is its folder, the first characters of its hash, or ``experiment:row:seed``. The last is
    the run that the experiment's file describes, if there is a file of that name in the working
    directory, in its folder ``experiments``, or among the shipped ones; else the run that was first
    trained under these names. StoreError if there is no such run, or more than one.
    """
    store = Store(Path(results))
    key = None if (Path(run) / "record.json").is_file() else _described(run, store)
    return store.find(run if key is None else key)


def in_contexts(specs: Sequence[Path | str]) -> list[Path | str]:
    """Return experiments, those that have contexts in each of them."""
    flat: list[Path | str] = []
    for spec in specs:
        contexts = config.contexts_of(spec)
        flat.extend(contexts.values() if contexts else [spec])
    return flat


def _needed(
    specs: Sequence[Path | str], store: Store
) -> tuple[dict[str, set[str]], tuple[str, ...]]:
    """Return the hashes of the runs of experiments, by name; and in sentences, what is unknown."""
    needed: dict[str, set[str]] = {}
    unknown: dict[str, None] = {}
    kinds = [(None, None), *product(PRECISIONS, ENGINES)]
    for spec in in_contexts(specs):
        for precision, engine in kinds:
            lookup = RunLookup(store, precision, engine)
            selection = select(spec, lookup=lookup)
            needed.setdefault(selection.whole.name, set()).update(_hashes(selection))
            unknown |= dict.fromkeys(_unknown(selection, lookup))
            if selection.whole.tune is None:
                break  # else runs of each kind have chosen the values of the rows that follow
    return needed, tuple(unknown)


def _unknown(selection: Selection, lookup: RunLookup) -> Iterator[str]:
    """Yield in sentences which rows may have stored runs whose hashes are not known."""
    whole, match, tuning = selection.whole, selection.whole.match, selection.tuning
    baseline = whole.rows[0].spec
    for row in whole.rows:
        advice = f"`ablate run {shlex.quote(shipped.as_given(whole.path))}` chooses it"
        if match is not None and match.via in row.pending:
            path, how = match.via, "matched"
            if match.on != "time" and not is_available(baseline):
                advice = f"it takes the corpus, {baseline.corpus.name}, which is not here"
        elif tuning and row.pending and stored(tuning_runs(tuning, [row.name]), lookup):
            path, how = ", ".join(row.pending), "tuned"
        else:
            continue
        yield (
            f"{whole.path}: the {how} value of {path} is not known for {row.name}, so that its "
            f"runs cannot be distinguished from others; {advice}"
        )


def _hashes(selection: Selection) -> set[str]:
    """Return the hashes of an experiment's runs, tuning included, on any machine by any engine."""
    fingerprints, hashes = Fingerprints(), set[str]()
    runs = list(selection.runs)
    if selection.tuning is not None:
        names = [row.name for row in selection.whole.rows]
        runs += tuning_runs(selection.tuning, names).runs
    for run in runs:
        fingerprint = fingerprints.known(run.spec.corpus)
        hashes |= {
            hash_of(run.spec, fingerprint, precision_of(run.spec, auto), engine)
            for auto, engine in product(PRECISIONS, ENGINES)
        }
    return hashes


def _every_run(store: Store, needed: dict[str, set[str]]) -> list[StoredRun]:
    """Return all stored runs, by experiment, row and seed."""
    headings, every_run = store.headings(), []
    for folder in sorted(_entries(store.results / "runs"), key=lambda folder: folder.name):
        is_link = folder.is_symlink()
        content = [] if is_link or not folder.is_dir() else _entries(folder.path)
        names = {entry.name for entry in content}
        has_text = any(name.startswith("hypotheses.") for name in names)
        is_run = names <= {"lock"} or not names.isdisjoint(_FILES) or has_text
        if not _HASH.fullmatch(folder.name) or not (is_link or (folder.is_dir() and is_run)):
            continue
        try:
            heading = headings.get(folder.name) or store.heading(folder.name)
        except StoreError:
            heading = Heading("unreadable")
        heading = Heading("link") if is_link else heading or Heading("unfinished")
        run = StoredRun(
            run=folder.name,
            experiment=heading.experiment,
            row=heading.row,
            seed=heading.seed,
            status=heading.status,
            bleu=heading.bleu,
            finished=heading.finished,
            n_bytes=sum(map(_n_bytes, content)),
            experiments=tuple(name for name, hashes in needed.items() if folder.name in hashes),
            is_at_work="lock" in names and _is_locked(f"{folder.path}/lock"),
        )
        every_run.append(run)
    return sorted(every_run, key=lambda run: (run.experiment or "", run.row or "", run.seed or 0))


def _entries(folder: Path | str) -> list[os.DirEntry[str]]:
    """Return what is in a folder that other processes may be changing."""
    with readable(Path(folder)), suppress(FileNotFoundError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _n_bytes(entry: os.DirEntry[str]) -> int:
    """Return the size of a file, or of all files in a folder."""
    if entry.is_dir(follow_symlinks=False):
        return sum(map(_n_bytes, _entries(entry.path)))
    with readable(Path(entry)), suppress(FileNotFoundError):
        return entry.stat(follow_symlinks=False).st_size
    return 0


def _is_locked(file: str) -> bool:
    try:
        with Path(file).open("r+b") as stream:  # NFS locks only what is open for writing
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)  # FileLock's, in a tenth of the time
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _labelled(
    every_run: Sequence[StoredRun], labels: Collection[str]
) -> tuple[list[StoredRun], list[str]]:
    """Return the runs whose name, or else hash, fits a label; and the labels that fit none."""
    if isinstance(labels, str):  # of which each character would be the beginning of a hash
        raise SpecError(f"labels are a list, as in [{labels!r}]; this is a text")
    chosen, unfit = set[str](), []
    for label in labels:
        fitting = {
            run.run
            for run in every_run
            if label in (run.experiment, f"{run.experiment}:{run.row}", run.label)
            or (run.experiment or "").startswith(f"{label}/")
        }
        fitting = fitting or {run.run for run in every_run if label and run.run.startswith(label)}
        chosen |= fitting
        if not fitting:
            unfit.append(label)
    return [run for run in every_run if run.run in chosen], unfit


def _remove(results: Path, chosen: Sequence[StoredRun], *, is_trial: bool) -> list[StoredRun]:
    """Remove runs unless a worker holds their locks; return those that are removed.

    A record is removed first: after an interruption the run counts as unfinished. Of a link to a
    folder the link alone is removed: what lies elsewhere may not be ours.
    """
    removed = []
    for run in (each for each in chosen if not each.is_at_work):
        folder = results / "runs" / run.run
        try:
            if not is_trial and folder.is_symlink():
                remove_tree(folder)
            elif not is_trial:
                with process_lock(folder / "lock").acquire(timeout=0):
                    remove_tree(folder, first="record.json")
        except Timeout:
            continue
        except OSError as error:
            raise StoreError(f"{folder}: cannot be removed: {error.strerror or error}") from error
        removed.append(run)
    return removed


def _described(run: str, store: Store) -> str | None:
    """Return the hash of the run that the file of its experiment describes; None if unknown."""
    name, _, rest = run.partition(":")
    row, _, seed = rest.rpartition(":")
    file = _file_of(name)
    if file is None or not seed.isdecimal():
        return None
    try:
        selection = select(file, lookup=RunLookup(store))
        seeds = dict.fromkeys((*selection.whole.seeds, int(seed)))
        described = config.expand(selection.whole, list(seeds))
        records = stored(replace(selection, tabulated=described), RunLookup(store))
        is_known = Fingerprints().of(selection.corpus) is not None
    except (SpecError, DataError):
        return None
    wanted = row, int(seed)
    if wanted in records:
        return str(records[wanted]["hash"])
    label = f"{selection.whole.name}:{rest}"
    others = [each.run for each in _every_run(store, {}) if each.label == label]
    is_described = is_known and wanted in map(key_of, described)
    if is_described and others and not file.is_relative_to(shipped.FOLDER):
        raise StoreError(
            f"{store.results} holds no run {run!r} as {file} describes it; under this name it "
            f"holds runs with other values or other content: {', '.join(others)}; give one of "
            f"these, or make the run with `ablate run {shlex.quote(str(file))}`"
        )
    return None


def _file_of(name: str) -> Path | None:
    """Return the file of an experiment by its name in records, with its context if it is in one.

    As in `Store.find`, the folder may be left out.
    """
    whole, _, stem = name.rpartition("/")
    own = (Path(f"{name}.yaml"), Path("experiments", f"{name}.yaml"), Path(f"{stem}.yaml"))
    names = {file: experiment_name(file) for file in own if file.is_file()}
    exact = next((file for file in names if names[file] == name), shipped.find(name))
    file = exact or next((file for file in names if names[file].endswith(f"/{name}")), None)
    if file is None and whole and (file_of_all := _file_of(whole)):
        return config.contexts_of(file_of_all).get(stem)
    return file
