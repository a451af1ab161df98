"""Export of finished runs from their records and curves, as they end or later.

A failed export ends no run: the reason is printed in one sentence, and the next call repeats it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from typing import Any

from ablate.errors import SpecError, first_line
from ablate.exports.contract import EXPORTERS, NAMES, ExportedRun, Exporter, exported_run
from ablate.hashing import sha256_of_text
from ablate.runner.backends.registry import import_extra
from ablate.store import Store, is_finished, write_whole
from ablate.wording import no_such


class Exports:
    """Exports runs to some trackers; unchanged runs are exported once.

    ``classes`` are those of the exporters, by tracker; one is opened when there is a run for it.
    """

    def __init__(self, classes: Mapping[str, type[Exporter]], store: Store) -> None:
        self._classes = dict(classes)
        self._open: dict[str, Exporter] = {}
        self._store = store

    def export(self, experiment: str, row: str, record: dict[str, Any]) -> str:
        """Export a run, if it has finished, under the names of the experiment and the row.

        Return what went wrong, in one sentence, or nothing; that tracker gets no more runs.
        """
        remarks = []
        for name in list(self._classes) if is_finished(record) else ():
            try:
                curve = self._store.path(record["hash"]) / "curve.csv"
                self._export(name, exported_run(experiment, row, record, curve))
            except Exception as error:  # whatever a tracker raises
                del self._classes[name]
                reason = first_line(error)
                remarks.append(f"not exported to {name}: {reason}; the next call repeats it")
        return "; ".join(remarks)

    def close(self) -> None:
        """Close what has been opened."""
        for exporter in self._open.values():
            with suppress(Exception):  # every run is written whole before
                exporter.close()

    def _export(self, name: str, run: ExportedRun) -> None:
        folder = self._store.results / "exports" / name
        exported = folder / "exported" / run.id
        version = sha256_of_text(repr(run))
        if exported.is_file() and exported.read_text(encoding="utf-8") == version:
            return
        if name not in self._open:
            folder.mkdir(parents=True, exist_ok=True)
            self._open[name] = self._classes[name](folder)
        self._open[name].export(run)
        write_whole(exported, version)


def exporting(names: Sequence[str], store: Store) -> AbstractContextManager[Exports]:
    """Return the exports of runs to the trackers of these names, into ``<results>/exports/``.

    SpecError if there is no such tracker, or if a package is missing.
    """
    return closing(Exports({name: _exporter_class(name) for name in names}, store))


def _exporter_class(name: str) -> type[Exporter]:
    if name not in EXPORTERS:
        raise SpecError(no_such("tracker", name, NAMES))
    class_name, packages = EXPORTERS[name]
    module = import_extra(f"ablate.exports.{name}", packages, "--log", name)
    return getattr(module, class_name)
