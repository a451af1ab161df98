"""Contexts: the same rows elsewhere, each compared with the baseline there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ablate.config import shipped
from ablate.config.files import CONTEXTS
from ablate.config.inheritance import value_at
from ablate.config.merge import leaves, marks, merge, merge_schema
from ablate.config.runs import Experiment
from ablate.config.tree import Mistake, Node


def of_context(path: Path | str) -> tuple[Path, str | None]:
    """Return the file of ``size.yaml#wide``, and the context; None if none is named."""
    file, at, context = str(path).rpartition("#")
    is_file = shipped.resolve(Path(path)).exists()
    return (Path(path), None) if not at or is_file else (Path(file), context)


def in_contexts(tree: Node) -> dict[str, Node]:
    """Return an experiment's tree in each of its contexts by name; none without contexts."""
    rest = replace(tree, value={key: node for key, node in tree.items() if key != CONTEXTS})
    return {
        name: replace(merge(rest, layer, merge_schema()), start=tree.start)
        for name, layer in tree.entries(CONTEXTS).items()
    }


def paths_of_contexts(tree: Node) -> tuple[str, ...]:
    """Return the paths that some context changes."""
    layers = tree.entries(CONTEXTS).values()
    return tuple(dict.fromkeys(p for layer in layers for p, _ in leaves(layer, merge_schema())))


def mistakes_of_contexts(
    tree: Node,
    of_contexts: Mapping[str, Sequence[Mistake]],
    contexts: Mapping[str, Experiment],
) -> Iterator[Mistake]:
    """Yield the mistakes of each context once; one that not all share names its context."""
    layers = tree.entries(CONTEXTS)
    shared = set.intersection(*map(set, of_contexts.values())) if of_contexts else set()
    for name, mistakes in of_contexts.items():
        for each in mistakes:
            is_clear = each in shared or each.mark in set(marks(layers[name]))
            reason = each.reason if is_clear else f"{each.reason} (in the context {name!r})"
            yield replace(each, reason=reason)
    same: dict[object, str] = {}
    for name, experiment in contexts.items():
        other = same.setdefault(experiment.rows[0].spec, name)
        if other != name:
            reason = f"is the same as the context {other!r}; remove one"
            yield Mistake(layers[name].key, f"{CONTEXTS}.{name}", reason)


def mistakes_of_sections(
    tree: Node, contexts: Mapping[str, Experiment], trend: str | None
) -> Iterator[Mistake]:
    """Yield the mistakes of ``contexts`` and ``trend`` that show where each context is valid."""
    section, node = tree.get(CONTEXTS), tree.get("trend")
    every = dict.fromkeys(row.name for each in contexts.values() for row in each.rows)
    for name, each in contexts.items():
        own = {row.name for row in each.rows}
        for row in (row for row in every if row not in own):
            reason = f"has no row {row!r}, as that point of the grid is its baseline"
            yield Mistake(tree.entries(CONTEXTS)[name].key, f"{CONTEXTS}.{name}", reason)
        yield from _mistakes_of_tuned(tree.entries(CONTEXTS)[name], each)
    if section and len(contexts) == 1:
        reason = "needs two or more, each a name and a change, as in {small: {}, large: {...}}"
        yield Mistake(section.mark, CONTEXTS, reason)
    if not node or trend is None or len(contexts) == 1:
        return
    numbers = list(trend_of(trend, contexts).values())
    if not section:
        yield Mistake(node.mark, "trend", "is of contexts, and there are none")
    elif None in numbers:
        paths = paths_of_contexts(tree)
        fit = [path for path in paths if None not in trend_of(path, contexts).values()]
        such = f", such as {fit[0]}" if fit else ""
        reason = f"needs the path of a positive number in every context{such}"
        yield Mistake(node.mark, "trend", reason)
    elif len(set(numbers)) == 1:
        yield Mistake(node.mark, "trend", "is the same in every context")


def _mistakes_of_tuned(layer: Node, context: Experiment) -> Iterator[Mistake]:
    """Yield the mistakes of a context that sets what is chosen for its rows."""
    for path in context.tune.axes if context.tune else ():
        node = layer.find(path.removesuffix(".name").split("."))
        if node is not None:
            reason = "is what `tune` chooses for every row; leave it out, or give another path"
            yield Mistake(node.key, node.path, reason)


def trend_of(path: str, contexts: Mapping[str, Experiment]) -> dict[str, float | None]:
    """Return the number at a path of each context's baseline; None where that is no number."""
    specs = {name: each.rows[0].spec.model_dump(mode="json") for name, each in contexts.items()}
    values = {name: value_at(spec, path) for name, spec in specs.items()}
    return {
        name: float(value) if type(value) in (int, float) and value > 0 else None
        for name, value in values.items()
    }
