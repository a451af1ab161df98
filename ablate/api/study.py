"""Experiments and their results in Python, for notebooks and further analyses."""

from __future__ import annotations

import html
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate import report as reporting
from ablate.api.completion import RunOptions
from ablate.api.corpora import text_of_runs
from ablate.api.report import Outcome
from ablate.api.report import report as report_experiment
from ablate.api.run import run as run_experiment
from ablate.api.selection import Records, RunLookup, key_of, select, tasks
from ablate.config.paths import with_absolute_paths
from ablate.config.tree import dump
from ablate.errors import SpecError
from ablate.report.table import in_one_block
from ablate.runner import devices
from ablate.store import Store, write_whole
from ablate.training import engines
from ablate.writing import csv_rows, unquoted

if TYPE_CHECKING:
    import pandas as pd  # the methods import it: it is slow, and no command needs it


@dataclass(frozen=True)
class Experiment:
    """An experiment written in Python: what a YAML file would hold.

    Every method returns a new experiment. The content is checked by the schema of the files, when
    the experiment is run, tabulated or hashed, and gives the same runs as its file: for other
    functions of `ablate.api`, such as ``plan``, `save` it.

    Attributes:
        name: of the experiment, in tables and folders.
        content: what the YAML holds; numbers and arrays of NumPy become plain numbers and lists,
            and in the YAML paths of files are absolute, from the working directory in which the
            experiment was begun.
    """

    name: str = "experiment"
    content: Mapping[str, Any] = field(default_factory=dict)
    _folder: Path = field(default_factory=Path.cwd, kw_only=True, repr=False, compare=False)

    @classmethod
    def baseline(
        cls,
        name: str = "experiment",
        changes: Mapping[str, Any] | None = None,
        *,
        extends: str | Path | None = "ablate:presets/laptop",
        seeds: Iterable[int] | None = None,
        question: str | None = None,
    ) -> Experiment:
        """Return an experiment of one row.

        It has some changes, values by dotted path, ``{"model.norm": "rms"}``, of what it extends: a
        shipped preset, or a file by its path from the working directory; None are the defaults.
        """
        content: dict[str, Any] = {"question": question} if question else {}
        if extends is not None:
            content["extends"] = str(extends)
        for path, value in (changes or {}).items():
            _set(content, path.split("."), value, path)
        if seeds is not None:
            content["seeds"] = _listed(seeds)
        return cls(name, content)

    def variant(self, name: str, changes: Mapping[str, Any]) -> Experiment:
        """Return the experiment with one more row: its changes of the baseline, by path."""
        variants = self.content.get("variants", {})
        if name in variants:
            raise SpecError(f"variants.{name}: is given twice; choose another name")
        return self.with_content(variants={**variants, name: dict(changes)})

    def grid(self, axes: Mapping[str, Iterable[Any]]) -> Experiment:
        """Return the experiment with a row for every combination of values, by path."""
        if "grid" in self.content:
            raise SpecError("grid: is given twice; give all paths at once, as their product")
        return self.with_content(grid={path: _listed(values) for path, values in axes.items()})

    def with_content(self, **content: Any) -> Experiment:
        """Return the experiment with other values of the file's first level, such as ``tune``."""
        return replace(self, content={**self.content, **content})

    def to_yaml(self) -> str:
        """Return the text of its file; SpecError if YAML has no such value."""
        return dump(_plain(with_absolute_paths(_plain(self.content), self._folder)))

    def save(self, path: Path | str) -> Path:
        """Write its file; return the path."""
        write_whole(Path(path), self.to_yaml())
        return Path(path)

    def __str__(self) -> str:
        return self.to_yaml()


class Study:
    """The results of an experiment: its rows, records and table, and where the runs are."""

    def __init__(self, outcome: Outcome, store: Store) -> None:
        self.outcome = outcome
        self.store = store

    @property
    def records(self) -> Records:
        """The records, by row and seed."""
        return self.outcome.records

    @property
    def conclusion(self) -> str:
        """The sentence that sums up the results."""
        return self.outcome.table.conclusion

    def table(self) -> pd.DataFrame:
        """Return every number in full: the content of ``table.csv``, by row.

        Of an experiment with contexts it has a line for each row, metric and context.
        """
        import pandas as pd

        text = reporting.render(self.outcome.table, "csv")
        frame = pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=["", "nan"])
        texts = frame.select_dtypes(exclude="number").columns
        frame[texts] = frame[texts].map(lambda x: unquoted(x) if isinstance(x, str) else x)
        names = [line["row"] for line in csv_rows(io.StringIO(text))]  # else numbers, or NaN
        return frame.assign(row=names).set_index("row")

    def view(self) -> pd.DataFrame:
        """Return the table for human eyes, as texts."""
        import pandas as pd

        table = in_one_block(self.outcome.table)
        lines = [[cell.text for cell in line.cells] for line in table.lines]
        view = pd.DataFrame(lines, columns=[column.title for column in table.columns])
        return view.set_index(view.columns[0])

    def curves(self) -> pd.DataFrame:
        """Return the learning curves of all runs, with columns ``row`` and ``seed`` in front."""
        import pandas as pd

        curves = []
        for (row, seed), record in self.records.items():
            file = self.store.path(record["hash"]) / "curve.csv"
            if file.exists():
                curve = pd.read_csv(file)
                curve.insert(0, "row", row)
                curve.insert(1, "seed", seed)
                curves.append(curve)
        return pd.concat(curves, ignore_index=True) if curves else pd.DataFrame()

    def translations(self, test_set: str | None = None) -> pd.DataFrame:
        """Return a test set, by default the first, with its translations by every run with any.

        Columns are ``source``, ``reference`` (with more of them ``reference.2`` and so on) and one
        per run, ``row:seed``.

        Raises:
            SpecError: if the corpus has no such test set.
            DataError: if the corpus cannot be read, or has another content than the runs have read.
            StoreError: if translations are damaged, or cannot be read.
        """
        import pandas as pd

        experiment = self.outcome.experiment
        if experiment.contexts:
            names = ", ".join(f"{experiment.path}#{name}" for name in experiment.contexts)
            raise SpecError(f"translations are those of one context: {names}")
        spec = experiment.rows[0].spec
        tests = text_of_runs(spec.corpus, self.records.values()).tests
        name = next(iter(tests)) if test_set is None else test_set
        if name not in tests:
            raise SpecError(f"the corpus has no test set {name!r}; it has {', '.join(tests)}")
        columns = {"source": list(tests[name].src), "reference": list(tests[name].tgt)}
        for number, further in enumerate(tests[name].more, start=2):
            columns[f"reference.{number}"] = list(further)
        for (row, seed), record in self.records.items():
            lines = self.store.translations(record, name)
            if lines is not None:
                columns[f"{row}:{seed}"] = lines
        return pd.DataFrame(columns)

    def __repr__(self) -> str:
        name, n_rows = self.outcome.experiment.name, len(self.outcome.experiment.rows)
        return f"Study({name!r}, {n_rows} rows, {len(self.records)} records)"

    def _repr_html_(self) -> str:
        table = self.outcome.table
        notes = [f"{note.label}: {note.text}" for note in table.footnotes]
        before, after = (
            "".join(f"<p>{html.escape(text)}</p>" for text in texts if text)
            for texts in ([table.question, table.conclusion], notes)
        )
        return f"{before}{self.view().to_html()}<small>{after}</small>"


def run(experiment: Experiment | Path | str, *, only: Sequence[str] = (), **options: Any) -> Study:
    """Train and measure what is missing of an experiment, and return the results.

    The experiment is written in Python, a file, or the name of a shipped one, as in ``pe``; of its
    rows ``only`` some are trained, by default all. Options are those of `RunOptions`.
    """
    chosen = RunOptions(**options)
    path = _file(experiment, chosen.store)
    return Study(run_experiment(path, chosen, only=only), chosen.store)


def study(
    experiment: Experiment | Path | str, *, results: Path | str = "results", **options: Any
) -> Study:
    """Return the stored results of an experiment; options are those of `ablate.api.report`."""
    store = Store(Path(results))
    return Study(report_experiment(_file(experiment, store), results=results, **options), store)


def hashes(
    experiment: Experiment | Path | str, *, results: Path | str = "results", device: str = "cpu"
) -> dict[tuple[str, int], str]:
    """Return the hash of every run, by row and seed.

    Runs in the folder of results choose some values (``match``, ``tune``); the device decides what
    ``precision: auto`` and ``--engine auto`` mean.
    """
    store, chosen = Store(Path(results)), devices.find(device)[0]
    engine = engines.resolve("auto", chosen.kind)
    lookup = RunLookup(store, devices.resolve("auto", chosen), engine)
    selection = select(_file(experiment, store), lookup=lookup)
    todo = tasks(selection.runs, chosen, store.results, engine=engine)
    return {key_of(each): task.key for each, task in zip(selection.runs, todo, strict=True)}


def _file(experiment: Experiment | Path | str, store: Store) -> Path:
    """Return the file of an experiment; one written in Python is saved among the results."""
    if isinstance(experiment, Experiment):
        return experiment.save(store.results / "experiments" / f"{experiment.name}.yaml")
    return Path(experiment)


def _plain(value: Any, path: str = "") -> Any:
    """Return a value as a file of YAML holds it; paths and values of NumPy become plain ones."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif hasattr(value, "tolist"):  # NumPy's, and tensors: also a single number
        value = value.tolist()
    if isinstance(value, Mapping):
        return {_plain(k, path): _plain(v, f"{path}.{k}".strip(".")) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item, f"{path}.{i}") for i, item in enumerate(value)]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise SpecError(
        f"{path}: an experiment cannot hold {value!r}, of type {type(value).__name__}; "
        "give a text, a number, a list or a mapping"
    )


def _listed(values: Any) -> Any:
    """Return the values of an iterable in a list, and what is no list for the schema to refuse."""
    is_one = isinstance(values, str | bytes | Mapping) or hasattr(values, "tolist")
    return list(values) if isinstance(values, Iterable) and not is_one else values


def _set(content: dict[str, Any], steps: Sequence[str], value: Any, path: str) -> None:
    """Merge a value into the content; the name of a part becomes a mapping where needed."""
    head, *rest = steps
    if rest:
        content[head] = _as_mapping(content.get(head, {}), path)
        _set(content[head], rest, value, path)
    elif head not in content:
        content[head] = value
    elif isinstance(content[head], Mapping) or isinstance(value, Mapping):
        content[head] = _as_mapping(content[head], path)
        for key, below in _as_mapping(value, path).items():
            _set(content[head], [key], below, f"{path}.{key}")
    else:
        raise SpecError(f"{path}: is given twice; remove one")


def _as_mapping(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, Mapping):
        return dict(value)
    raise SpecError(f"{path}: is given twice, once as {value!r}; remove one")
