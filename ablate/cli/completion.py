"""What a shell completes: names of stored runs, and of the rows of an experiment."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

import typer

from ablate.errors import AblateError


def run_names(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the stored runs, as ``pe:none:1``, whose names begin so."""
    from ablate import api

    results = Path(context.params.get("results") or "results")
    try:
        stored = api.runs(results) if results.is_dir() else []
    except AblateError:
        return []
    return sorted(run.label for run in stored if run.label.startswith(incomplete))


def row_names(context: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the rows of the experiment that the command names, which begin so."""
    from ablate import config
    from ablate.registry.plugins import load_plugin, without_plugins

    others = (word for word in context.args if not word.startswith("-"))  # not yet parsed
    spec = context.params.get("spec") or next(others, None)
    no_plugins = context.find_root().params.get("no_plugins")
    try:
        with without_plugins() if no_plugins else nullcontext():
            for file in context.params.get("plugins") or ():
                load_plugin(file)
            rows = config.load(Path(spec)).rows if spec else ()
    except AblateError:
        return []
    return [row.name for row in rows if row.name.startswith(incomplete)]
