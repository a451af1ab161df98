"""``ablate check``: whether plugins keep the contracts of their slots; cautions about any rows."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ablate.config import Row, RunSpec
from ablate.config.identity import plugin_parts
from ablate.contracts import Finding, check_part
from ablate.data.cache import cache_folder, cached
from ablate.errors import SpecError
from ablate.hashing import digest
from ablate.registry import Entry, plugins, slots
from ablate.registry.plugins import load_plugin
from ablate.report.values import grouped
from ablate.runner.provenance import code_digest
from ablate.wording import and_list

_MOST_NAMES = 4


def check(files: Path | str | Sequence[Path | str] = ()) -> list[Finding]:
    """Test every contract of the parts that plugins register, by default all that are loaded.

    Raises:
        PluginError: if a plugin cannot be loaded, or registers a part that is refused.
        SpecError: if a file is an experiment.
    """
    files = [files] if isinstance(files, Path | str) else files
    for file in files:
        if Path(file).suffix in (".yaml", ".yml"):
            raise SpecError(f"{file}: is an experiment, not a plugin; `ablate plan` checks it")
    digests = {load_plugin(file).sha256 for file in files} or {p.sha256 for p in plugins()}
    return [
        finding
        for table in slots().values()
        for entry in table.values()
        if entry.origin is not None and entry.origin.sha256 in digests
        for finding in check_part(entry)
    ]


def cautions(rows: Sequence[Row]) -> list[str]:
    """Return in sentences what makes numbers of rows mean little, though they can be run."""
    return [*_broken_parts(row.spec for row in rows), *_long_warm_ups(rows)]


def _long_warm_ups(rows: Sequence[Row]) -> Iterator[str]:
    trained = [(row.name, row.spec.training) for row in rows]
    steps = ((name, of.schedule.options.get("warmup"), of.steps) for name, of in trained)
    long = grouped(
        ((n, of), name) for name, n, of in steps if isinstance(n, int) and of and n >= of
    )
    for (n, of), names in long.items():
        yield (
            f"{and_list(names, _MOST_NAMES)}: the rate rises for {n} steps (training.schedule."
            f"warmup), and training ends after {of}"
        )


def _broken_parts(runs: Iterable[RunSpec]) -> list[str]:
    """Return a sentence for each part of a plugin that breaks contracts, and may run all the same.

    What a part breaks is kept in the cache, for the content of its plugin and of this package.
    """
    parts = {(e.slot, e.name): e for run in runs for e in plugin_parts(run).values()}
    sentences = []
    for entry in parts.values():
        if broken := [name for name in _broken(entry).split("\n") if name]:
            assert entry.origin is not None, "it is of a plugin"
            name = entry.origin.name
            file = f" {shlex.quote(name)}" if entry.origin.source else ""
            sentences.append(
                f"{entry.slot} {entry.name} of {name} breaks {and_list(broken)}: its numbers may "
                f"mean nothing; `ablate check{file}` says more"
            )
    return sentences


def _broken(entry: Entry) -> str:
    """Return the names of the contracts that a part of a plugin breaks, a line each."""
    key = digest([entry.slot, entry.name, repr(entry.code), code_digest()])[:32]

    def test() -> str:
        return "\n".join(each.contract for each in check_part(entry) if not each.is_kept)

    return cached(cache_folder("contracts") / key, test)
