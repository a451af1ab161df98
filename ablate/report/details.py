"""What stands behind a table: specs, curves, translations; for pages and figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ablate.analysis import Records, Sentences
from ablate.config import Experiment
from ablate.report.results import Results

Texts = Mapping[str, tuple[Sequence[str], Sequence[str]]]
"""Sources and references of each test set, by its name."""


@dataclass(frozen=True, repr=False)
class Details:
    """What stands behind the table of an experiment; what costs time is read when it is needed.

    Attributes:
        experiment: its rows and seeds.
        records: of the runs.
        sentences: what each test sentence contributes, of the runs that have kept it.
        folders: of the runs, by row and seed.
        read_texts: reads the test sets; returns none if that text is not on this machine.
        arguments: of the command line that makes these runs, as a shell reads them.
    """

    experiment: Experiment
    records: Records
    sentences: Sentences
    folders: Mapping[tuple[str, int], Path]
    read_texts: Callable[[], Texts]
    arguments: str

    @cached_property
    def results(self) -> Results:
        """The runs, compared."""
        return Results.of(self.experiment, self.records, self.sentences)

    @cached_property
    def texts(self) -> Texts:
        """The test sets."""
        return self.read_texts()

    def files(self, name: str) -> dict[tuple[str, int], Path]:
        """Return the files of one name in the folders of the runs, as far as there are any."""
        paths = {run: folder / name for run, folder in self.folders.items()}
        return {run: path for run, path in paths.items() if path.is_file()}
