"""What `ablate compare` compares: an experiment, a folder of results, or the tables of a commit."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ablate.analysis.summary import Record, Summary, summarise
from ablate.analysis.two_tables import RowSample
from ablate.api.metrics import scored
from ablate.api.selection import (
    Fingerprints,
    Records,
    RunLookup,
    print_remark,
    select,
    stored,
    stored_in_each,
)
from ablate.config import BASELINE, Experiment, RunSpec, contexts_of, experiment_name, shipped
from ablate.config.contexts import of_context
from ablate.errors import SpecError, StoreError
from ablate.record import scoring
from ablate.registry import Choice
from ablate.report.formats.markdown import unescaped
from ablate.report.provenance import PROVENANCE, provenance
from ablate.store import Store
from ablate.writing import csv_rows

_NOTE = re.compile(r"- \*\*(?P<label>[a-z]+)\*\*: (?P<text>.*)")


@dataclass(frozen=True)
class ResultRow:
    """One row of a result set; None is what is not known of it."""

    name: str
    changes: Mapping[str, Any] | None  # of the baseline, by path, as in the YAML
    spec: Mapping[str, Any] | None  # as plain data, without the seed
    base: Mapping[str, Any] | None  # the spec of its baseline
    samples: Mapping[str, RowSample]  # by metric
    outcomes: Mapping[str, int]  # how many runs ended with each status
    records: Mapping[int, Record] = field(default_factory=dict)  # by seed; of a table none
    context: str | None = None  # of the experiment, if it has some


@dataclass(frozen=True)
class ResultSet:
    """The results on one side of a comparison."""

    rows: Sequence[ResultRow]  # in the order of the experiment
    provenance: Mapping[str, str]  # corpus, tokenizer, hardware, software and commit, in words
    store: Store | None = None  # of its records; None for a table
    scorings: Mapping[str, str] = field(default_factory=dict)  # how each metric was computed
    experiment: Experiment | None = None  # whose results they are, if that is known
    contexts: Mapping[str, ResultSet] = field(default_factory=dict)  # of which these are the rows


def read_result_set(name: str, spec: str | None, results: Path) -> ResultSet:
    """Read one side of a comparison; arguments and errors are those of `compare`."""
    if not Path(name).exists() and "@" in name:
        return _of_commit(name, results)
    if Path(name).is_dir():
        if not (Path(name) / "runs").is_dir():
            raise SpecError(f"{name}: is no folder of results: it has no folder 'runs'")
        if spec is not None and (contexts := contexts_of(spec)):
            return _joined(stored_in_each(contexts, lambda path: _of_folder(name, str(path))))
        return _of_folder(name, spec)
    if contexts := contexts_of(name):
        read = stored_in_each(contexts, lambda path: read_result_set(str(path), None, results))
        return _joined(read)
    lookup = RunLookup(Store(results))
    selection = select(name, lookup=lookup)
    records = stored(selection, lookup)
    if not records:
        Fingerprints().known(selection.corpus)
        raise StoreError(
            f"{results} holds no run of {selection.experiment.name}; "
            f"`ablate run {shlex.quote(name)}` makes them, and --results names another folder"
        )
    found_by_hash = {row for row, _ in records}
    return _of_records(records, lookup.store, selection.experiment, found_by_hash)


def scored_set(side: ResultSet, metrics: Sequence[Choice]) -> ResultSet:
    """Return the results of an experiment with the scores of further metrics.

    Tables get no further scores, nor do runs of another corpus than the experiment's. If
    translations are missing, a remark says so, and nothing is added.
    """
    if side.contexts:
        return _joined({name: scored_set(each, metrics) for name, each in side.contexts.items()})
    if side.store is None or side.experiment is None:
        return side
    corpus = side.experiment.rows[0].spec.corpus
    fingerprint = Fingerprints().of(corpus)
    records = {(row.name, s): dict(each) for row in side.rows for s, each in row.records.items()}
    of_text = {
        run: record
        for run, record in records.items()
        if record.get("corpus", {}).get("fingerprint") == fingerprint
    }
    try:
        records |= scored(of_text, corpus, metrics, side.store)
    except StoreError as error:
        print_remark(f"{side.store.results}: further metrics are left out: {error}")
        return side
    seeds = sorted({seed for _, seed in records})
    summaries = summarise([row.name for row in side.rows], seeds, records)
    rows = [
        replace(row, samples=_samples(each)) for row, each in zip(side.rows, summaries, strict=True)
    ]
    return replace(side, rows=rows, scorings=_scorings(records))


def _joined(contexts: Mapping[str, ResultSet]) -> ResultSet:
    """Return the rows of all contexts, which share the header of their experiment alone."""
    rows = [
        replace(row, name=f"{context}: {row.name}", context=context)
        for context, each in contexts.items()
        for row in each.rows
    ]
    return replace(
        next(iter(contexts.values())),
        rows=rows,
        provenance=_merged([each.provenance for each in contexts.values()]),
        scorings=_merged([each.scorings for each in contexts.values()]),
        contexts=contexts,
    )


def _merged(notes: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return the text of every label; several texts after semicolons."""
    labels = dict.fromkeys(label for each in notes for label in each)
    return {at: "; ".join(sorted({each[at] for each in notes if at in each})) for at in labels}


def _of_folder(name: str, spec: str | None) -> ResultSet:
    """Read the runs of a folder; a row whose runs now have other hashes is found by its name."""
    store, experiment = Store(Path(name)), None
    records: Records = {}
    if spec is not None:
        lookup = RunLookup(store)
        selection = select(spec, lookup=lookup)
        records, experiment = stored(selection, lookup), selection.experiment
    loaded = [store.load(path.parent.name) for path in store.results.glob("runs/*/record.json")]
    names = {"experiment", "variant", "seed"}
    usable = [r for r in loaded if r and "replaced_by" not in r and r.keys() >= names]
    if experiment is not None:
        usable = [record for record in usable if record["experiment"] == experiment.name]
    found_by_hash = {row for row, _ in records}
    of_file = [row.name for row in experiment.rows] if experiment else []
    for (row, seed), record in _by_name(usable).items():
        if row not in found_by_hash and (row in of_file or not found_by_hash):
            records[row, seed] = record
    if not records:
        of = f" of {spec}" if spec else ""
        listing = f"ablate runs list --results {shlex.quote(name)}"
        raise StoreError(f"{name}: holds no run{of}; `{listing}` shows all")
    return _of_records(records, store, experiment, found_by_hash)


def _by_name(records: Sequence[Record]) -> Records:
    """Return records by row and seed.

    Of several specs under one name, the one with most runs keeps it; the others get a number too.
    """
    several = len({record["experiment"] for record in records}) > 1
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in sorted(records, key=_order):
        name = f"{record['experiment']}:{record['variant']}" if several else record["variant"]
        groups.setdefault((name, json.dumps(_canonical(record), sort_keys=True)), []).append(record)
    by_name: Records = {}
    n_specs: Counter[str] = Counter()
    for (name, _), own in sorted(groups.items(), key=lambda group: -len(group[1])):
        n_specs[name] += 1
        unique = f"{name} ({n_specs[name]})" if n_specs[name] > 1 else name
        by_name |= {(unique, record["seed"]): dict(record) for record in own}
    return dict(sorted(by_name.items(), key=lambda item: _order(item[1])))


def _order(record: Record) -> tuple[str, bool, str, int]:
    row = str(record["variant"])
    return str(record["experiment"]), row != BASELINE, row, record["seed"]


def _of_records(
    records: Records, store: Store, experiment: Experiment | None, found_by_hash: Collection[str]
) -> ResultSet:
    rows_of_file = experiment.rows if experiment else ()
    stored_names = dict.fromkeys(row for row, _ in records)
    in_order = [row.name for row in rows_of_file if row.name in stored_names]
    names = list(dict.fromkeys((*in_order, *stored_names)))
    changes = {row.name: row.changes for row in rows_of_file if row.name in found_by_hash}
    seeds = sorted({seed for _, seed in records})
    of_rows = {n: {s: records[n, s] for s in seeds if (n, s) in records} for n in names}
    specs = {name: _canonical(next(iter(own.values()))) for name, own in of_rows.items()}
    rows = [
        ResultRow(
            name=each.name,
            changes=changes.get(each.name),
            spec=specs[each.name],
            base=specs.get("".join((*each.name.rpartition(":")[:2], BASELINE))),
            samples=_samples(each),
            outcomes=Counter(o for o in each.outcomes.values() if o != "missing"),
            records=of_rows[each.name],
        )
        for each in summarise(names, seeds, records)
    ]
    notes = {note.label: note.text for note in provenance(records)}
    notes["code"] = ", ".join(sorted(set(map(_code, records.values()))))
    return ResultSet(rows, notes, store, _scorings(records), experiment)


def _scorings(records: Records) -> dict[str, str]:
    """Return how each metric of the test sets was computed; several ways after semicolons."""
    ways: dict[str, set[str]] = {}
    for record in records.values():
        for scores in record.get("test", {}).values():
            for name, value in scores.items():
                if name.endswith("_signature") and value:
                    ways.setdefault(name.removesuffix("_signature"), set()).add(scoring(value))
    return {metric: "; ".join(sorted(own)) for metric, own in ways.items()}


def _samples(row: Summary) -> dict[str, RowSample]:
    return {name: RowSample.of(metric.values) for name, metric in row.metrics.items()}


def _code(record: Record) -> str:
    """Return the digests of the package and of the plugins that made a run."""
    own = str(record.get("git", {}).get("code") or "unknown")[:12]
    others = (f" with {each['name']} {each['sha256'][:12]}" for each in record.get("plugins", ()))
    return own + "".join(others)


def _canonical(record: Record) -> dict[str, Any]:
    """Return the spec of a record without its seed, with all options that parts now have."""
    spec = record.get("spec", {})
    try:
        spec = RunSpec.model_validate(spec).model_dump(mode="json")
    except ValidationError:
        spec = dict(spec)  # it has a part or an option that this version does not have
    return {key: value for key, value in spec.items() if key != "seed"}


def _of_commit(name: str, results: Path) -> ResultSet:
    """Read the tables that a commit holds: the values by seed if it has them, else the means."""
    spec, _, commit = name.rpartition("@")
    read = _git_reader(commit, results)
    file, context = of_context(spec)
    own = experiment_name(shipped.resolve(file))
    names = (spec, f"{own}/{context}" if context else own)
    experiment = next((each for each in names if read(f"{each}/table.csv")), names[-1])

    def lines_of(folder: str) -> list[dict[str, str]]:
        text = read(f"{folder}/table.csv")
        if text is None:
            raise StoreError(
                f"{name}: commit {commit} has no {results / folder / 'table.csv'}; commit the "
                "tables of results, or compare two folders of results"
            )
        return list(csv_rows(io.StringIO(text)))

    lines = lines_of(experiment)
    contexts = dict.fromkeys(line["context"] for line in lines if "context" in line)
    folders = {each: f"{experiment}/{each}" for each in contexts if not each.startswith("(")}
    if folders:
        return _joined({c: _of_tables(lines_of(of), of, read) for c, of in folders.items()})
    return _of_tables(lines, experiment, read)


def _of_tables(
    lines: Sequence[Mapping[str, str]], folder: str, read: Callable[[str], str | None]
) -> ResultSet:
    """Return what the tables of a folder hold, of which the first has these lines."""
    by_seed = read(f"{folder}/seeds.csv")
    samples, outcomes = _by_seed(by_seed) if by_seed else ({}, {})
    rows: list[ResultRow] = []
    scorings: dict[str, str] = {}
    for line in lines:
        row = line["row"]
        changes = {k[7:]: json.loads(v) for k, v in line.items() if k[:7] == "change." and v}
        counts = {k[5:]: int(v) for k, v in line.items() if k[:5] == "runs." and v != "0"}
        counts.pop("missing", None)
        scorings |= {k[10:]: scoring(v) for k, v in line.items() if k[:10] == "signature." and v}
        of_row = samples.get(row) or dict(_means(line))
        rows.append(ResultRow(row, changes, None, None, of_row, outcomes.get(row) or counts))
    matches = map(_NOTE.fullmatch, (read(f"{folder}/table.md") or "").splitlines())
    notes = {match["label"]: unescaped(match["text"]) for match in matches if match}
    named = {label: notes[label] for label in notes if label in PROVENANCE}
    return ResultSet(rows, named, scorings=scorings)


def _git_reader(commit: str, results: Path) -> Callable[[str], str | None]:
    """Return a function that reads a file of results from a commit, or returns None."""
    whole = results.absolute()
    folder = next(path for path in (whole, *whole.parents) if path.is_dir())

    def git(*words: str) -> str | None:
        command = ["git", "-C", str(folder), *words]
        done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
        return done.stdout if done.returncode == 0 else None

    top = git("rev-parse", "--show-toplevel")
    if top is None:
        raise SpecError(f"{folder} is in no git repository, so that no commit can be read")
    if git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") is None:
        raise SpecError(f"the git repository {top.strip()} has no commit {commit!r}")
    inside = results.resolve().relative_to(Path(top.strip()).resolve())
    return lambda file: git("show", f"{commit}:{(inside / file).as_posix()}")


def _by_seed(text: str) -> tuple[dict[str, dict[str, RowSample]], dict[str, Counter[str]]]:
    values: dict[str, dict[str, dict[int, float]]] = {}
    statuses: dict[str, dict[int, str]] = {}
    for line in csv_rows(io.StringIO(text)):
        row, seed = line["row"], int(line["seed"])
        if line["status"] != "missing":
            statuses.setdefault(row, {})[seed] = line["status"]
        if line["metric"]:
            of_row = values.setdefault(row, {})
            of_row.setdefault(line["metric"], {})[seed] = float(line["value"])
    samples = {r: {m: RowSample.of(v) for m, v in of_row.items()} for r, of_row in values.items()}
    return samples, {row: Counter(of_seeds.values()) for row, of_seeds in statuses.items()}


def _means(line: Mapping[str, str]) -> Iterator[tuple[str, RowSample]]:
    for column, value in line.items():
        metric, _, figure = column.rpartition(".")
        if figure == "mean" and value:
            sd, n = line.get(f"{metric}.sd"), line.get(f"{metric}.n") or line["runs.done"]
            yield metric, RowSample(int(n), float(value), float(sd) if sd else None)
