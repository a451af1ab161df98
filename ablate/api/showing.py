"""``ablate runs show``: the record of a run that is found by its name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablate import config
from ablate.api.runs import runs
from ablate.api.selection import Fingerprints, RunLookup, key_of, select, stored
from ablate.config import experiment_name, shipped
from ablate.errors import DataError, SpecError, StoreError
from ablate.store import Store


def show_run(run: str, *, results: Path | str = "results") -> dict[str, Any]:
    """Return the record of a run, or of the run that replaced it.

    Args:
        run: its folder, the first characters of its hash, or ``experiment:row:seed``. The last is
            the run that the experiment's file describes, if there is a file of that name in the
            working directory, in its folder ``experiments``, or among the shipped ones; else the
            run that was first trained under these names.
        results: the folder of results.

    Raises:
        StoreError: if there is no such run, or more than one.
    """
    store = Store(Path(results))
    key = None if (Path(run) / "record.json").is_file() else _described(run, store)
    return store.find(run if key is None else key)


def _described(run: str, store: Store) -> str | None:
    """Return the hash of the run that the file of its experiment describes.

    Returns:
        The hash; None if there is no such file, or it describes no such run, or says too little.

    Raises:
        StoreError: if a run is stored under this name and is not the one of the user's file.
    """
    name, _, rest = run.partition(":")
    row, _, seed = rest.rpartition(":")
    file = next(_files_of(name), shipped.find(name))
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
    others = [each.run for each in runs(store.results, labels=[run]) if each.label == run]
    is_described = is_known and wanted in map(key_of, described)
    if is_described and others and file != shipped.find(name):
        raise StoreError(
            f"{store.results} holds no run {run!r} as {file} describes it; under this name it "
            f"holds runs with other values or other content: {', '.join(others)}; give one of "
            f"these, or make the run with `ablate run {file}`"
        )
    return None


def _files_of(name: str) -> Iterator[Path]:
    """Yield the user's files of the experiment with a name."""
    stem = name.rpartition("/")[2]
    for file in (Path(f"{name}.yaml"), Path("experiments", f"{name}.yaml"), Path(f"{stem}.yaml")):
        if file.is_file() and experiment_name(file) == name:
            yield file
