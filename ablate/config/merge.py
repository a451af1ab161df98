"""Layers over layers: parents, the file, ``--set``, and the change that makes a row.

Mappings merge, everything else replaces. A part's name replaces the part, the same name merges
its options. Which paths are choices of parts is read off the models of the experiment.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ablate.config.experiment import SIDES, Layers, OneOf, PartField, PerSide, RunSpec, slot_of
from ablate.config.source import Mark, Mistake, Node


@dataclass(frozen=True)
class MergeSchema:
    """How values at one place of a run's spec merge.

    Attributes:
        below: the shapes of a mapping's keys.
        slot: the choice of a part.
        is_per_side: one number that may stand for both stacks.
        rivals: keys of which a layer that says one drops the others.
        others: the shape below every other key.
        is_demanding: a mapping some keys of which must be said.
    """

    below: Mapping[str, MergeSchema] = field(default_factory=dict)
    slot: PartField | None = None
    is_per_side: bool = False
    rivals: tuple[str, ...] = ()
    others: MergeSchema | None = None
    is_demanding: bool = False

    def at(self, key: str) -> MergeSchema:
        """Return the shape below a key."""
        return self.below.get(key) or self.others or LEAF

    def is_complete_at(self, path: Iterable[str | int]) -> bool:
        """Return whether everything that is not said there has a default: no part, no list."""
        here = self
        for step in path:
            here = here.at(str(step))
            if here.slot:
                return False
        return bool(here.below) and not here.is_demanding


LEAF = MergeSchema()


@cache
def merge_schema() -> MergeSchema:
    """Return the shape of a run's spec, without its seed."""
    whole = _schema_of_model(RunSpec)
    return replace(whole, below={k: v for k, v in whole.below.items() if k != "seed"})


def merge(below: Node | None, above: Node, at: MergeSchema) -> Node:
    """Return ``above`` merged onto ``below``, both spelled out.

    Args:
        below: what was said before.
        above: what is said now.
        at: the shape of the place.
    """
    if below is None or not (isinstance(below.value, dict) and isinstance(above.value, dict)):
        return above
    if at.slot:
        return _choice_over(below, above, at.slot.default)
    merged = {k: v for k, v in below.items() if k not in at.rivals or not _says(above, at.rivals)}
    for key, node in sorted(above.items(), key=lambda item: item[0] in SIDES):
        known = at.at(key)
        if key in SIDES and known.below:
            known = _named(known, _names(merged, known, at))
        merged[key] = merge(merged.get(key), node, known)
    return replace(above, value=merged)


def normalize(node: Node, at: MergeSchema) -> Node:
    """Return ``node`` with every ``learned`` as ``{name: learned}``, and both stacks' numbers."""
    if at.slot and isinstance(node.value, str):
        return replace(node, value={"name": node}, is_flow=True)
    if at.is_per_side and not isinstance(node.value, dict):
        return replace(node, value=dict.fromkeys(SIDES, node), is_flow=True)
    if not isinstance(node.value, dict):
        return node
    value = {key: normalize(item, at.at(key)) for key, item in node.items()}
    return replace(node, value=value)


def change(node: Node, mistakes: list[Mistake]) -> Node:
    """Return the change that a mapping of dotted paths describes, as a layer, spelled out.

    What is said twice is added to ``mistakes``.
    """
    whole = replace(node, value={})
    for key, value in node.items():
        layer = normalize(nested(key.split("."), value), merge_schema())
        whole = _union(whole, replace(layer, start=node.start, key=node.key), mistakes)
    return replace(whole, path=node.path, is_flow=node.is_flow)


def nested(steps: list[str], value: Node, offset: int | None = None) -> Node:
    """Return ``value`` below a mapping for each of ``steps``, which its key says with dots.

    Args:
        steps: the key, split.
        value: whose key mark is that of the whole key.
        offset: columns from there to the first step; 1 if the key is in quotes, unless given.
    """
    at = value.key
    if offset is None:
        offset = int(at.excerpt[at.column - 1 : at.column] in ("'", '"'))
    before = value.path.removesuffix(".".join(steps))
    node = value
    for depth in range(len(steps), 0, -1):
        mark = at.shifted(offset + len(".".join([*steps[: depth - 1], ""])))
        node = replace(node, key=mark)
        path = before + ".".join(steps[: depth - 1])
        node = Node({steps[depth - 1]: node}, mark, mark, path.removesuffix("."))
    return node


def leaves(node: Node, at: MergeSchema, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield the dotted path and node of each thing a change says, a part with its name as one."""
    is_whole = at.slot is not None and node.get("name") is not None
    both = [node.get(side) for side in SIDES] if at.is_per_side else [None, None]
    if both[0] is not None and both[0] is both[1]:
        yield path, both[0]
    elif is_whole or not isinstance(node.value, dict):
        yield path, node
    else:
        for key, item in node.items():
            yield from leaves(item, at.at(key), f"{path}.{key}" if path else key)


def model_of(info: FieldInfo) -> type[BaseModel] | None:
    """Return the model that a field holds, if it holds one and not several by name."""
    kinds = (info.annotation, *get_args(info.annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)


def marks(node: Node) -> Iterator[Mark]:
    """Yield every place that a tree points to."""
    yield from (node.start, node.key)
    below: Iterable[Node] = (
        node.value if isinstance(node.value, list) else dict(node.items()).values()
    )
    for item in below:
        yield from marks(item)


def _schema_of_model(model: type[BaseModel]) -> MergeSchema:
    rivals = model.rivals if issubclass(model, OneOf) else ()
    below = {key: _schema_of_field(info) for key, info in model.model_fields.items()}
    return MergeSchema(below=below, rivals=rivals)


def _schema_of_field(info: FieldInfo) -> MergeSchema:
    slot = slot_of(info)
    if slot:
        return MergeSchema(slot=slot)
    if any(isinstance(mark, PerSide) for mark in info.metadata):
        return replace(_schema_of_model(Layers), is_per_side=True)
    model = model_of(info)
    return _schema_of_model(model) if model else LEAF


def _says(node: Node, keys: Iterable[str]) -> bool:
    return any(node.get(key) is not None for key in keys)


def _choice_over(below: Node, above: Node, default: str) -> Node:
    said, new = below.get("name"), above.get("name")
    name = said.value if said else default
    if new is not None and new.value != name:
        return above
    return replace(above, value={**dict(below.items()), **dict(above.items())})


def _names(model: Mapping[str, Node], side: MergeSchema, at: MergeSchema) -> dict[str, str]:
    """Return the parts that both stacks share, by the names of one stack's fields."""
    found = {}
    for key, own in side.below.items():
        shared = "attention" if key == "cross_attention" else key
        if own.slot and shared in at.below:
            node = model[shared].get("name") if shared in model else None
            found[key] = str(node.value) if node else own.slot.default
    return found


def _named(side: MergeSchema, names: Mapping[str, str]) -> MergeSchema:
    below = {
        key: replace(own, slot=replace(own.slot, default=names[key])) if own.slot else own
        for key, own in side.below.items()
    }
    return replace(side, below=below)


def _union(one: Node, other: Node, mistakes: list[Mistake]) -> Node:
    if not (isinstance(one.value, dict) and isinstance(other.value, dict)):
        line = one.key.line
        mistakes.append(Mistake(other.key, other.path, f"is said twice; first in line {line}"))
        return one
    value = dict(one.items())
    for key, node in other.items():
        value[key] = _union(value[key], node, mistakes) if key in value else node
    return replace(one, value=value)
