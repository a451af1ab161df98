"""Layers over layers: parents, the file, ``--set``, and the change that makes a row.

Mappings merge, everything else replaces. A part's name replaces the part, the same name merges
its options. Which paths choose parts is read from the models of the experiment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ablate.config.experiment import Layers, OneOf, PartField, PerSide, RunSpec, slot_of
from ablate.config.inheritance import SIDES, Steps, inherited
from ablate.config.tree import Mark, Mistake, Node
from ablate.registry import FilePaths


@dataclass(frozen=True)
class MergeSchema:
    """How the values at one path of an experiment merge."""

    children: Mapping[str, MergeSchema] = field(default_factory=dict)
    slot: PartField | None = None
    is_per_side: bool = False  # one number stands for both stacks
    # keys that exclude each other: a layer with one of them removes the others
    alternatives: tuple[str, ...] = ()
    others: MergeSchema | None = None  # the schema of every other key, or of every item
    is_path: bool = False

    def at(self, key: str) -> MergeSchema:
        return self.children.get(key) or self.others or LEAF


LEAF = MergeSchema()


@cache
def merge_schema() -> MergeSchema:
    """Return the schema of a run's spec, without its seed."""
    run = schema_of(RunSpec)
    children = {key: child for key, child in run.children.items() if key != "seed"}
    return replace(run, children=children)


def schema_of(model: type[BaseModel]) -> MergeSchema:
    """Return which keys a model has, and those of all models in it."""
    alternatives = model.alternatives if issubclass(model, OneOf) else ()
    children = {key: _schema_of_field(info) for key, info in model.model_fields.items()}
    return MergeSchema(children=children, alternatives=alternatives)


def merge(below: Node | None, above: Node, schema: MergeSchema) -> Node:
    """Return ``above`` merged onto ``below``, both normalized."""
    if below is None or not (isinstance(below.value, dict) and isinstance(above.value, dict)):
        return above
    if schema.slot:
        old, new = below.get("name"), above.get("name")
        if new is not None and new.value != (old.value if old else schema.slot.default):
            return above
        return replace(above, value={**below.entries(), **above.entries()})
    is_replaced = any(above.get(key) for key in schema.alternatives)
    merged = {k: v for k, v in below.items() if not (is_replaced and k in schema.alternatives)}
    for key, node in above.items():
        child = schema.at(key)
        if key in SIDES and child.children:
            child = with_names(child, replace(below, value={"model": below}), ("model", key))
        merged[key] = merge(merged.get(key), node, child)
    return replace(above, value=merged)


def with_names(schema: MergeSchema, tree: Node, path: Steps = ()) -> MergeSchema:
    """Return a schema, that of ``path``, in which a choice without a name has that of ``tree``."""
    if schema.slot:
        names = (tree.find(steps) for steps in inherited((*path, "name")))
        name = next((str(node.value) for node in names if node), schema.slot.default)
        return replace(schema, slot=replace(schema.slot, default=name))
    children = {
        key: with_names(child, tree, (*path, key)) for key, child in schema.children.items()
    }
    return replace(schema, children=children)


def normalize(node: Node, schema: MergeSchema) -> Node:
    """Return ``node`` with every ``learned`` as ``{name: learned}``, and both stacks' numbers."""
    if schema.slot and isinstance(node.value, str):
        return replace(node, value={"name": node}, is_flow=True)
    if schema.is_per_side and not isinstance(node.value, dict):
        return replace(node, value=dict.fromkeys(SIDES, node), is_flow=True)
    if not isinstance(node.value, dict):
        return node
    value = {key: normalize(item, schema.at(key)) for key, item in node.items()}
    return replace(node, value=value)


def change(node: Node, mistakes: list[Mistake]) -> Node:
    """Return a mapping of dotted paths as a normalized layer; adds what is given twice."""
    layer = replace(node, value={})
    for key, value in node.items():
        part = normalize(nested(key.split("."), value), merge_schema())
        layer = union(layer, replace(part, start=node.start, key=node.key), mistakes)
    return replace(layer, path=node.path, is_flow=node.is_flow)


def union(one: Node, other: Node, mistakes: list[Mistake]) -> Node:
    """Return two normalized layers as one, in either order the same; adds what both give."""
    if not (isinstance(one.value, dict) and isinstance(other.value, dict)):
        line = one.key.line
        mistakes.append(Mistake(other.key, other.path, f"is given twice; first in line {line}"))
        return one
    value = one.entries()
    for key, node in other.items():
        value[key] = union(value[key], node, mistakes) if key in value else node
    return replace(one, value=value)


def nested(steps: list[str], value: Node, offset: int | None = None) -> Node:
    """Return ``value`` below a mapping for each of ``steps``, which its key joins with dots.

    The first step begins ``offset`` columns right of the key: 1 if that is in quotes, unless given.
    """
    key = value.key
    if offset is None:
        offset = int(key.excerpt[key.column - 1 : key.column] in ("'", '"'))
    prefix = value.path.removesuffix(".".join(steps))
    node = value
    for depth in range(len(steps), 0, -1):
        mark = key.shifted(offset + len(".".join([*steps[: depth - 1], ""])))
        node = replace(node, key=mark)
        path = prefix + ".".join(steps[: depth - 1])
        node = Node({steps[depth - 1]: node}, mark, mark, path.removesuffix("."))
    return node


def leaves(node: Node, schema: MergeSchema, path: str = "") -> Iterator[tuple[str, Node]]:
    """Yield the dotted path and node of each value of a change, a part with its name as one."""
    is_part = schema.slot is not None and node.get("name") is not None
    both = [node.get(side) for side in SIDES] if schema.is_per_side else [None, None]
    if both[0] is not None and both[0] is both[1]:
        yield path, both[0]
    elif is_part or not isinstance(node.value, dict):
        yield path, node
    else:
        for key, item in node.items():
            yield from leaves(item, schema.at(key), f"{path}.{key}" if path else key)


def excluded_by(path: str) -> list[str]:
    """Return the dotted paths that have no value where ``path`` has one."""
    *above, key = path.split(".")
    schema = merge_schema()
    for step in above:
        schema = schema.at(step)
    others = [other for other in schema.alternatives if other != key]
    return [".".join((*above, other)) for other in others if key in schema.alternatives]


def written(node: Node, schema: MergeSchema, path: str = "") -> Iterator[tuple[str, Mark]]:
    """Yield what a tree uses, and where: dotted paths, ``slot: part``, ``slot: part.option``."""
    if schema.slot:
        name = node.get("name")
        part = f"{schema.slot.name}: {name.value if name else schema.slot.default}"
        yield part, (name or node).mark
        yield from ((f"{part}.{key}", item.key) for key, item in node.items() if key != "name")
        return
    for key, item in node.items():
        below = f"{path}.{key}" if path else key
        yield below, item.key
        yield from written(item, schema.at(key), below)


def model_of(info: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a field, or of each value of a mapping, if there is one."""
    kinds = (info.annotation, *get_args(info.annotation))
    return next((k for k in kinds if isinstance(k, type) and issubclass(k, BaseModel)), None)


def marks(node: Node) -> Iterator[Mark]:
    """Yield every mark of a tree."""
    yield from (node.start, node.key)
    for child in (*node.elements, *node.entries().values()):
        yield from marks(child)


def _schema_of_field(info: FieldInfo) -> MergeSchema:
    if PerSide() in info.metadata:
        return replace(schema_of(Layers), is_per_side=True)
    if FilePaths() in info.metadata:
        return MergeSchema(is_path=True)
    slot, model = slot_of(info), model_of(info)
    schema = MergeSchema(slot=slot) if slot else schema_of(model) if model else LEAF
    has_several = get_origin(info.annotation) in (dict, tuple)
    return MergeSchema(others=schema) if has_several else schema
