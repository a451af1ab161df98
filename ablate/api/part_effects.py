"""What parts are worth: their rows in the tables of experiments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate import config
from ablate.config import Experiment
from ablate.errors import SpecError
from ablate.writing import csv_rows

_DIFFERENCE = re.compile(r"(test\.[^.]+\.bleu)\.difference\.estimate")


@dataclass(frozen=True)
class MeasuredPart:
    """The row of a part in the table of an experiment.

    Attributes:
        experiment: its name.
        row: the name of the row; ``baseline`` if the baseline has the part.
        metric: BLEU of the first test set, by its path in records, ``test.test.bleu``.
        mean: of the metric over seeds.
        n_seeds: whose mean it is.
        difference: of the metric from the baseline; None for the baseline, or if unknown.
        low: the lower end of its 95% interval, which holds together with those of all rows.
        high: the upper end.
        beside: what else the row changes, by path.
    """

    experiment: str
    row: str
    metric: str
    mean: float | None
    n_seeds: int
    difference: float | None
    low: float | None
    high: float | None
    beside: dict[str, Any]


class MeasuredParts:
    """The parts that experiments have measured.

    A part's row is the one that changes the least, of all rows that have the part: the baseline if
    it has it.

    Args:
        experiments: files, or names of shipped ones; what several have is taken from the first.
        results: the folder of results, in which ``ablate run`` leaves the table of an experiment.

    Raises:
        SpecError: if an experiment is not valid or has no table.
    """

    def __init__(self, experiments: Sequence[Path | str], results: Path | str) -> None:
        self._experiments = [config.load(path) for path in experiments]
        self._tables = [_table(each, Path(results)) for each in self._experiments]

    def of(self, path: str, part: str) -> MeasuredPart | None:
        """Return the row of a part; None if no experiment has measured it.

        Args:
            path: where an experiment chooses it, as in ``model.position``.
            part: its name.
        """
        for experiment, table in zip(self._experiments, self._tables, strict=True):
            rows = [
                row
                for row in experiment.rows
                if config.value_at(row.spec.model_dump(mode="json"), f"{path}.name") == part
            ]
            row = min(rows, key=lambda row: len(row.changes), default=None)
            if row is not None and row.name in table:
                beside = {at: value for at, value in row.changes.items() if at != path}
                return _measured(experiment.name, row.name, table[row.name], beside)
        return None


def _table(experiment: Experiment, results: Path) -> dict[str, dict[str, str]]:
    """Return the lines of an experiment's table by their names."""
    file = results / experiment.name / "table.csv"
    if not file.is_file():
        raise SpecError(
            f"{experiment.name} has no table in {file.parent}; run it, or write the table of its "
            f"runs by `ablate report SPEC --output {file}`"
        )
    with file.open(encoding="utf-8", newline="") as lines:
        return {line["row"]: line for line in csv_rows(lines)}


def _measured(
    experiment: str, row: str, line: dict[str, str], beside: dict[str, Any]
) -> MeasuredPart:
    metric = next((match[1] for match in map(_DIFFERENCE.fullmatch, line) if match), "")

    def value(name: str) -> float | None:
        text = line.get(f"{metric}.{name}")
        return float(text) if text else None

    return MeasuredPart(
        experiment=experiment,
        row=row,
        metric=metric,
        mean=value("mean"),
        n_seeds=int(value("n") or 0),
        difference=value("difference.estimate"),
        low=value("difference.low"),
        high=value("difference.high"),
        beside=beside,
    )
