"""``ablate run``: train and measure what is missing, and tabulate."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ablate import config
from ablate import report as reporting
from ablate.api import trials
from ablate.api.check import cautions
from ablate.api.completion import DEFAULT, RunOptions, complete, made_in_each, opened, workers
from ablate.api.looks import at_look, note_look
from ablate.api.report import Outcome, checked, joined, tabulate
from ablate.api.selection import Selection, key_of, print_remark, select
from ablate.api.tune import select_chosen
from ablate.errors import RunError, StoreError
from ablate.hashing import sha256_of_text
from ablate.runner.provenance import stale_remarks
from ablate.store import is_finished, write_whole
from ablate.version import __version__
from ablate.wording import counted

_FIGURES = ".figures"
"""The file with a digest of what the figures beside it show, and their names."""


def run(path: Path | str, options: RunOptions = DEFAULT, *, only: Sequence[str] = ()) -> Outcome:
    """Train and measure what is missing of an experiment, in each of its contexts; tabulate it.

    Prints the progress on standard error. Writes ``table.*`` and figures into
    ``<results>/<experiment>/``; with overrides, other seeds or some rows alone into
    ``<results>/<experiment>/trials/``, so that the table of the whole experiment stays.

    Raises:
        SpecError: with every mistake of the file.
        DataError: if a corpus is unavailable.
        DeviceError: if the machine lacks the device.
    """
    if contexts := config.contexts_of(path, options.overrides):
        return _run_in_contexts(path, contexts, options, only)
    with opened(options) as options:
        chosen, store = select_chosen(path, options, only), options.store
        backend, lookup = workers(options)
        for remark in cautions(chosen.experiment.rows):
            print_remark(remark)
        selection = at_look(chosen, lookup)
        records, is_new = complete(selection, options)
        options = replace(options, fresh=False)
        while (later := at_look(chosen, lookup)).runs != selection.runs:
            print_remark(_progress(later))
            selection = later
            records, is_more = complete(selection, options)
            is_new = is_new or is_more
        device = backend.worker_slots[0]
    for remark in stale_remarks({k: r for k, r in records.items() if is_finished(r)}, device):
        print_remark(remark)
    folder = trials.table_folder(selection, store.results)
    table = tabulate(selection, records, store)
    is_written = _write(table, folder, with_figures=options.figures, is_new=is_new)
    with suppress(StoreError):  # the table was printed all the same
        note_look(selection, table, store.results)
    if table.trial and is_written:
        print_remark(f"a trial, not the whole experiment: its tables are in {folder}")
    is_done = all(records[key_of(run)]["status"] == "done" for run in selection.runs)
    exit_status = 0 if is_done and is_written else RunError.exit_status
    return Outcome(selection.experiment, records, table, exit_status)


def _run_in_contexts(
    path: Path | str, contexts: Mapping[str, Path], options: RunOptions, only: Sequence[str]
) -> Outcome:
    whole, names = checked(path, options.overrides), list(contexts)
    first = select(next(iter(contexts.values())), options.overrides, options.seeds, only)
    named = replace(first, experiment=replace(first.experiment, name=whole.name))
    folder = trials.table_folder(named, options.store.results)
    with opened(options) as options:

        def run_in(name: str, context: Path) -> Outcome:
            print_remark(f"context {name} ({names.index(name) + 1} of {len(names)})")
            return run(context, options, only=only)

        outcome = joined(whole, made_in_each(contexts, run_in))
    is_written = _write(outcome.table, folder, with_figures=options.figures, is_new=True)
    return outcome if is_written else replace(outcome, exit_status=RunError.exit_status)


def _progress(selection: Selection) -> str:
    """Return what a look has decided, and what follows."""
    experiment, looks = selection.experiment, selection.looks
    n, n_rows = experiment.looks[looks.n_looks - 1], len(experiment.rows) - 1
    n_next = experiment.looks[min(looks.n_looks, len(experiment.looks) - 1)]
    n_left = n_rows - len(looks.decided) - len(looks.given_up)
    return (
        f"look at {n} seeds: {len(looks.decided)} of {counted(n_rows, 'row')} decided, "
        f"{len(looks.given_up)} given up; "
        f"{counted(n_left, 'row')} and the baseline go on to {n_next} seeds"
    )


def _write(table: reporting.Table, folder: Path, *, with_figures: bool, is_new: bool) -> bool:
    """Write a table, and figures unless they would show the same records; return whether it was.

    If not, as on a full disk or in a read-only folder, the table can still be printed.
    """
    drawn, content = folder / _FIGURES, ""
    if table.details is not None:  # it is no overview of contexts, which is always drawn
        records = [[*run, record] for run, record in table.details.records.items()]
        experiment = table.details.experiment
        terms = experiment.negligible.model_dump(), experiment.looks
        content = sha256_of_text(json.dumps([__version__, records, *terms], sort_keys=True))
    try:
        reporting.write_tables(table, folder)
        before = drawn.read_text("utf-8").splitlines() if drawn.is_file() else []
        if with_figures and (is_new or before[:1] != [content]):
            from ablate.report import figures  # slow to import, and seldom needed

            files = [file.name for each in figures.drawings(table) for file in each.save(folder)]
            for name in set(before[1:]).difference(files):  # what the numbers no longer show
                (folder / Path(name).name).unlink(missing_ok=True)
            write_whole(drawn, "\n".join([content, *files]))
    except (StoreError, OSError) as error:
        print_remark(f"the table is printed, but not kept: {error}")
        return False
    return True
