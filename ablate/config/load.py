"""From a file to an experiment or the list of all its mistakes; from an experiment to its runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from ablate.config import shipped
from ablate.config.choices import mistakes_of_choices
from ablate.config.contexts import (
    in_contexts,
    mistakes_of_contexts,
    mistakes_of_sections,
    of_context,
    paths_of_contexts,
)
from ablate.config.experiment import RunSpec
from ablate.config.files import HEADER, override, read
from ablate.config.header import SEED_BITS, Header, TuneKeys
from ablate.config.merge import merge, merge_schema, schema_of, written
from ablate.config.messages import MistakesError, certain, validated
from ablate.config.paths import METRICS, with_file_paths
from ablate.config.rows import BASELINE, at_row, in_row, requested_names, rows
from ablate.config.runs import Experiment, Run, Tune, locate
from ablate.config.tree import Mark, Mistake, Node, Source, UnreadableError
from ablate.deprecation import warn_if_deprecated
from ablate.errors import SpecError
from ablate.printable import CONTROL, printable
from ablate.registry import Choice
from ablate.wording import no_such


class InvalidExperimentError(MistakesError):
    """An experiment has mistakes; ``valid`` holds the rows without any, if the baseline is one."""

    def __init__(self, mistakes: Iterable[Mistake], valid: Experiment | None) -> None:
        super().__init__(mistakes)
        self.valid = valid


_TAKEN = ("runs", "probes", "matches", "sessions", "exports", "slurm", "experiments")
"""What folders of results hold beside the tables of experiments."""


def load(path: Path | str, overrides: Sequence[str] = ()) -> Experiment:
    """Read an experiment and check all its rows, in each of its contexts.

    Args:
        path: the file, or the name of a shipped one, as in ``pe``; with ``#NAME`` at its end in
            that context alone.
        overrides: ``PATH=VALUE`` each, changes of the baseline; contexts and rows change it
            further.

    Raises:
        InvalidExperimentError: with every mistake of the file, its parents and the overrides.
    """
    path, requested = of_context(path)
    path = shipped.resolve(path)
    mistakes: list[Mistake] = []
    try:
        tree, is_whole = read(path, overrides, mistakes)
    except UnreadableError as error:
        raise InvalidExperimentError([*mistakes, error.mistake], None) from None
    if reason := why_taken(path):
        mistakes.append(Mistake(Mark(tree.start.source, 1, 1), "", f"{reason}; rename the file"))
    if not is_whole:
        raise InvalidExperimentError([*mistakes, *_certain_mistakes(tree)], None)
    header = _header(tree, mistakes) or Header()
    trees = in_contexts(tree)
    if requested is not None and requested not in trees:
        reason = no_such("context", requested, [*trees])
        mistakes.append(Mistake(Mark(tree.start.source, 1, 1), "", reason))
    if trees:
        experiment = _in_contexts(trees, tree, header, path, mistakes)
    else:
        experiment = _experiment(tree, header, path, mistakes)
    if experiment is not None and not mistakes:
        mistakes += mistakes_of_sections(tree, experiment.contexts, header.trend)
    if mistakes or experiment is None:
        raise InvalidExperimentError(mistakes, experiment)
    _warn_of_deprecated(tree, experiment)
    return experiment.contexts[requested] if requested is not None else experiment


def _in_contexts(
    trees: Mapping[str, Node], tree: Node, header: Header, path: Path, mistakes: list[Mistake]
) -> Experiment | None:
    """Return an experiment with its contexts; None if the baseline has mistakes in all of them."""
    contexts: dict[str, Experiment] = {}
    of_contexts: dict[str, list[Mistake]] = {}
    for name, there in trees.items():
        of_contexts[name] = []
        if experiment := _experiment(there, header, path, of_contexts[name]):
            folder, at = f"{experiment.name}/{name}", path.with_name(f"{path.name}#{name}")
            contexts[name] = replace(experiment, name=folder, path=at)
    mistakes += mistakes_of_contexts(tree, of_contexts, contexts)
    if not contexts:
        return None
    return replace(
        next(iter(contexts.values())),
        name=experiment_name(path),
        path=path,
        contexts=contexts,
        context_paths=paths_of_contexts(tree),
        trend=header.trend,
    )


def contexts_of(path: Path | str, overrides: Sequence[str] = ()) -> dict[str, Path]:
    """Return what to call each context of an experiment in place of its file, by name.

    It has none if it names one itself, or the file cannot be read.
    """
    file, requested = of_context(path)
    try:
        tree, _ = read(shipped.resolve(file), overrides, [])
    except UnreadableError:
        return {}
    names = in_contexts(tree) if requested is None else ()
    return {name: file.with_name(f"{file.name}#{name}") for name in names}


def _experiment(
    tree: Node, header: Header, path: Path, mistakes: list[Mistake]
) -> Experiment | None:
    """Return the rows of a merged tree as an experiment; None if the baseline has mistakes."""
    valid_rows, origins = rows(tree, mistakes)
    requested = requested_names(tree) if mistakes else [row.name for row in valid_rows[1:]]
    names = [BASELINE, *requested]
    mistakes += [
        Mistake(node.key, node.path, no_such("row", row, names))
        for row, node in tree.entries("published", "rows").items()
        if row not in names
    ]
    if BASELINE not in origins:
        return None
    first_seed = {"seed": header.seeds[0]}
    sections = {key: node for key in ("match", "tune") if (node := tree.get(key))}
    axes = sections["tune"].items() if header.tune else ()
    grid = {
        path: tuple(replace(value, key=axis.key) for value in axis.elements)
        for path, axis in axes
        if path not in TuneKeys.model_fields
    }
    experiment = Experiment(
        name=experiment_name(path),
        question=header.question or None,
        path=path,
        rows=tuple(replace(r, spec=r.spec.model_copy(update=first_seed)) for r in valid_rows),
        seeds=_with_later_looks(header),
        looks=header.looks,
        origins=origins,
        negligible=header.negligible,
        metrics=header.metrics,
        published=header.published,
        match=header.match,
        tune=Tune(grid, header.tune.seeds, header.tune.extend) if header.tune else None,
        sections=sections,
    )
    node = tree.get("looks")
    if node and header.looks and len(header.seeds) > header.looks[-1]:
        reason = f"the last look is at {header.looks[-1]} seeds, and there are {len(header.seeds)}"
        mistakes.append(Mistake(node.mark, node.path, reason))
    mistakes += mistakes_of_choices(experiment, requested)
    return experiment


def _warn_of_deprecated(tree: Node, experiment: Experiment) -> None:
    header = replace(tree, value={key: node for key, node in tree.items() if key in HEADER})
    uses = dict.fromkeys(written(header, schema_of(Header)))
    for each in experiment.contexts.values() or [experiment]:
        for origin in each.origins.values():
            uses |= dict.fromkeys(written(origin.tree, merge_schema()))
    for what, mark in uses:
        warn_if_deprecated(what, str(mark))


def _with_later_looks(header: Header) -> tuple[int, ...]:
    """Return the seeds of an experiment; those of later looks are numbered on."""
    n_more = max(0, max(header.looks, default=0) - len(header.seeds))
    largest = max(header.seeds)
    return (*header.seeds, *range(largest + 1, largest + 1 + n_more))


def _certain_mistakes(tree: Node) -> Iterator[Mistake]:
    """Yield the mistakes of an experiment that it has whatever its missing parents hold."""
    base = {key: node for key, node in tree.items() if key in merge_schema().children}
    header = {key: node for key, node in tree.items() if key in HEADER and key != "tune"}
    yield from certain(RunSpec, replace(tree, value=base), merge_schema())
    yield from certain(Header, replace(tree, value=header), schema_of(Header))
    for change in tree.entries("variants").values():
        yield from certain(RunSpec, change, merge_schema())


def load_corpus(name: str, options: Sequence[str]) -> Choice:
    """Return the choice of a corpus with some options, ``OPTION=VALUE`` each, or raise mistakes."""
    mistakes: list[Mistake] = []
    start = Mark(Source("--set", ()), 1, 1)
    tree = Node({}, start, start)
    for text in (f"corpus={name}", *(f"corpus.{option}" for option in options)):
        for layer in override(text, mistakes):
            tree = merge(tree, layer, merge_schema())
    spec, more = validated(RunSpec, tree, merge_schema())
    if spec is None or mistakes:
        raise MistakesError([*mistakes, *more])
    return spec.corpus


def expand(
    experiment: Experiment, seeds: Sequence[int] | None = None, only: Sequence[str] | None = None
) -> tuple[Run, ...]:
    """Return the runs of an experiment, row by row, and for each row seed by seed.

    A row for which some value is still to be chosen has none. ``seeds`` stand for the experiment's
    own, ``only`` are the names of rows instead of all.

    Raises:
        SpecError: if there is no row of such a name, or the seeds are invalid, with all reasons; or
            if ``only`` is one text, of which each character would be a name.
    """
    if isinstance(only, str):
        raise SpecError(f"only is a list, as in [{only!r}]; this is a text")
    chosen = experiment.seeds
    names = [row.name for row in experiment.rows]
    reasons = [no_such("row", name, names) for name in only or () if name not in names]
    if seeds is not None:
        try:
            chosen = Header(seeds=tuple(seeds)).seeds
        except ValidationError:
            reasons.append(
                f"seeds must be distinct whole numbers from 0 to 2^{SEED_BITS} - 1, at least one"
            )
    if reasons:
        raise SpecError("\n".join(reasons))
    return tuple(
        Run(experiment.name, row.name, row.spec.model_copy(update={"seed": seed}))
        for row in experiment.rows
        if (only is None or row.name in only) and not row.pending
        for seed in chosen
    )


def mistakes_error(
    experiment: Experiment, refusals: Iterable[tuple[str, str, str]]
) -> MistakesError:
    """Return an error with the refusals of a later check, each where the experiment causes it.

    A refusal, of a row, dotted path and reason, appears once if the baseline shares it, and where
    its row begins if its reason lies outside of the change.
    """
    listed = list(refusals)
    of_baseline = {(path, reason) for row, path, reason in listed if row == BASELINE}
    located = []
    for row, path, reason in listed:
        origin = experiment.origins[row]
        node, is_exact = locate(origin.tree, path.split("."))
        mistake = Mistake(node.mark, node.path if is_exact else path, reason)
        if row == BASELINE:
            located.append(mistake)
        elif (path, reason) not in of_baseline:
            moved = in_row(mistake, row, origin.layer, origin.at)
            located.append(moved if is_exact else at_row(mistake, row, origin.at))
    return MistakesError(located)


def _header(tree: Node, mistakes: list[Mistake]) -> Header | None:
    sections = {key: node for key, node in tree.items() if key in HEADER}
    if (tune := sections.get("tune")) and isinstance(tune.value, dict):
        others = {key: node for key, node in tune.items() if key in TuneKeys.model_fields}
        sections["tune"] = replace(tune, value=others)
    if metrics := sections.get("metrics"):
        sections["metrics"] = with_file_paths(metrics, METRICS)
    header, more = validated(Header, replace(tree, value=sections), schema_of(Header))
    mistakes += more
    return header


def experiment_name(path: Path) -> str:
    """Return the name of a file's experiment: with its folder, unless that is ``experiments``.

    A folder is also left out if results have one of that name for something else.
    """
    folder = path.resolve().parent.name
    return path.stem if folder in ("", *_TAKEN) else f"{folder}/{path.stem}"


def why_taken(path: Path) -> str | None:
    """Return why no experiment can have a file's name; None if one can."""
    name = experiment_name(path)
    if CONTROL.search(name):
        what = "contains a control character, or bytes that are not UTF-8"
        return f"an experiment cannot be called '{printable(name)}', which {what}"
    if name not in _TAKEN:
        return None
    return f"an experiment cannot be called {name!r}, as results have a folder of that name"
