"""Trials: some of an experiment's rows or seeds, or runs under overrides.

The tables of a trial never replace those of the whole experiment.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ablate.api.selection import Fingerprints, Record, Selection, key_of
from ablate.config import shipped
from ablate.config.rows import BASELINE
from ablate.config.tree import dump
from ablate.hashing import sha256_of_text
from ablate.registry import lookup
from ablate.store import Store, is_finished
from ablate.wording import and_list, counted

_LONGEST_NAME = 80
_MOST_VALUES = 4
_MOST_GROUPS = 3
_MOST_NAMES = 5
_OTHER_HASH = " that have other hashes: the corpus, a file, a part or a plugin has changed since"


def remarks(selection: Selection) -> tuple[str, ...]:
    """Return in sentences how a selection differs from the experiment of its file."""
    whole, some = selection.whole, selection.experiment
    sentences = [f"the baseline has {override}" for override in selection.overrides]
    left_out = [row.name for row in whole.rows if row.name not in {r.name for r in some.rows}]
    if left_out:
        n_rows = counted(len(whole.rows), "row")
        sentences.append(f"{len(left_out)} of {n_rows} left out ({', '.join(left_out)})")
    if seeds := _narrowed(selection)[1]:
        ours, theirs = (", ".join(map(str, n)) for n in (seeds, whole.looks or whole.seeds))
        sentences.append(f"seeds {ours} in place of {'looks at ' * bool(whole.looks)}{theirs}")
    return tuple(sentences)


def arguments(selection: Selection) -> str:
    """Return the arguments with which ``ablate run`` makes the runs of a selection."""
    words = [shipped.as_given(selection.experiment.path)]
    for override in selection.overrides:
        words += ["--set", override]
    rows, seeds = _narrowed(selection)
    words += ["--seeds", ",".join(map(str, seeds))] if seeds else []
    for name in dict.fromkeys((BASELINE, *rows)) if rows else ():  # the table compares with it
        words += ["--only", name]
    return shlex.join(words)


def table_folder(selection: Selection, results: Path) -> Path:
    """Return the folder for the tables: that of the experiment or, for a trial, one inside it."""
    folder = results / selection.experiment.name
    return folder / "trials" / _name(selection) if remarks(selection) else folder


def hints(selection: Selection, store: Store) -> str:
    """Return in words which other runs of an experiment the store holds; empty if none."""
    requested = set(map(key_of, selection.tabulated))
    groups: dict[tuple[tuple[str, ...], bool], set[int]] = {}
    for changes, record in _stored(selection, store):
        is_requested = not changes and (record["variant"], record["seed"]) in requested
        groups.setdefault((changes, is_requested), set()).add(record["seed"])
    sentences = []
    for (changes, is_requested), of_group in islice(groups.items(), _MOST_GROUPS):
        seeds = list(map(str, sorted(of_group)))
        words = [word for change in changes for word in ("--set", change)]
        give = f": give {shlex.join([*words, '--seeds', ','.join(seeds)])}"
        sentences.append(
            f"runs with {' and '.join(changes) if changes else 'what the file says'} and "
            f"seeds {', '.join(seeds)}{_OTHER_HASH if is_requested else give}"
        )
    return f"; it holds {'; '.join(sentences)}" if sentences else ""


def remarks_on_missing(
    selection: Selection, store: Store, missing: Collection[tuple[str, int]]
) -> list[str]:
    """Return a sentence on the missing runs, by row and seed, that are stored with other hashes."""
    runs = {
        (record["variant"], record["seed"]): record["variant"]
        for changes, record in (_stored(selection, store) if missing else ())
        if not changes and is_finished(record)
    }
    rows = [row for run, row in runs.items() if run in missing]
    if not rows:
        return []
    names = and_list([*dict.fromkeys(rows)], _MOST_NAMES)
    return [
        f"missing runs: the store holds {len(rows)} of {len(missing)} ({names}) under other hashes:"
        " the text, a part or a plugin has another version, or the precision or the engine is "
        "another one; `ablate run` makes them anew"
    ]


def _stored(selection: Selection, store: Store) -> Iterator[tuple[tuple[str, ...], Record]]:
    """Yield how each stored run of an experiment differs from the file, and its record.

    Those that were trained when the file lay in another folder count if nothing else differs. Rows
    with values that are still to be chosen are left out: no override chooses them.
    """
    names = {row.name for row in selection.whole.rows if not row.pending}
    own = selection.experiment.name
    tail = own.removeprefix(f"{selection.experiment.path.resolve().parent.name}/")
    of_experiment = [
        store.load(run) or {}
        for run, heading in store.headings().items()
        if f"/{heading.experiment}".endswith(f"/{tail}") and heading.row in names
    ]
    fingerprint = Fingerprints().of(selection.corpus)
    for record in (each for each in of_experiment if each.keys() >= {"spec", "seed"}):
        changes = _changes(selection, record, fingerprint)
        if changes is not None and (record["experiment"] == own or not changes):
            yield changes, record


def _narrowed(selection: Selection) -> tuple[list[str], Sequence[int]]:
    """Return the rows and the seeds of a selection, each empty if they are those of its file."""
    whole, some = selection.whole, selection.experiment
    rows = [row.name for row in some.rows if row.name != BASELINE] or [BASELINE]
    has_all_rows = len(some.rows) == len(whole.rows)
    has_all_seeds = {*some.seeds} == {*whole.seeds} and some.looks == whole.looks
    return [] if has_all_rows else rows, () if has_all_seeds else some.seeds


def _name(selection: Selection) -> str:
    """Return the name of a trial's folder, different from those of other trials."""
    rows, seeds = _narrowed(selection)
    of_seeds = [f"seeds={','.join(map(str, sorted(seeds)))}"] if seeds else []
    whole_name = " ".join((*selection.overrides, *rows, *of_seeds))
    name = re.sub(r"[^\w.,=+-]+", "_", whole_name).strip("._") or "trial"
    if name == whole_name and len(name) <= _LONGEST_NAME:
        return name
    return f"{name[:_LONGEST_NAME]}-{sha256_of_text(whole_name)[:8]}"


def _changes(
    selection: Selection, record: Mapping[str, Any], fingerprint: str | None
) -> tuple[str, ...] | None:
    """Return how a stored run differs from its row in the file; None if in too many values.

    Paths to a text of the same ``fingerprint``, or to a teacher's file of the same name, make no
    difference: they depend on the working directory.
    """
    row = next(row for row in selection.whole.rows if row.name == record["variant"])
    current = row.spec.model_dump(mode="json")
    stored = {**record["spec"], "seed": current["seed"]}
    name, read = stored["corpus"]["name"], record.get("corpus", {}).get("fingerprint")
    if name == selection.corpus.name and read is not None and read == fingerprint:
        paths = {
            option: current["corpus"][option] for option in lookup("corpus", name).fingerprinted
        }
        stored["corpus"] = {**stored["corpus"], **paths}
    teachers = [each["training"].get("teacher") or "" for each in (current, stored)]
    if Path(teachers[0]).name == Path(teachers[1]).name:
        stored["training"] = {**stored["training"], "teacher": current["training"]["teacher"]}
    if current["training"]["precision"] == "auto":
        stored["training"] = {**stored["training"], "precision": "auto"}
    changes = tuple(_differences(current, stored))
    return changes if len(changes) <= _MOST_VALUES else None


def _differences(current: Any, stored: Any, path: str = "") -> Iterator[str]:
    """Yield ``path=value`` for each value that is stored and not current."""
    are_mappings = isinstance(current, Mapping) and isinstance(stored, Mapping)
    if are_mappings and current.get("name") == stored.get("name"):
        for key in stored:
            yield from _differences(current.get(key), stored[key], f"{path}.{key}".lstrip("."))
    elif current != stored:
        text = dump(stored, width=1000, flow=True)
        yield f"{path}={text.removesuffix('...' + chr(10)).strip()}"
