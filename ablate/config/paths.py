"""Paths of files in an experiment: relative to the file that holds them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablate.config import shipped
from ablate.config.experiment import PartField
from ablate.config.merge import MergeSchema, merge_schema
from ablate.config.tree import Mark, Node, Source
from ablate.registry import PluginError, load_plugin, slots

METRICS = MergeSchema(slot=PartField("metric", "bleu"))
"""Of a metric, or of each in a list."""

_PATHS = MergeSchema(is_path=True)


def file_path(node: Node) -> Path:
    """Return the path that a text means: relative to its YAML file, in ``--set`` to the cwd."""
    source = node.start.source.path
    path = (source.parent if source else Path()) / str(node.value)
    shorter = Path(os.path.normpath(path))
    return shorter if shorter.resolve() == path.resolve() else path  # a link may be between


def with_file_paths(node: Node, schema: MergeSchema) -> Node:
    """Return a tree in which the options that hold paths of files are relative to the cwd.

    The schema is that of the tree, or of each item if it is a list.
    """
    if schema.is_path:
        return _resolve(node)
    if isinstance(node.value, list):
        return replace(node, value=[with_file_paths(item, schema) for item in node.elements])
    if schema.slot:
        name = node.get("name")
        options = _path_options(schema.slot.name, str(name.value) if name else None)
        value = {key: _resolve(item) if key in options else item for key, item in node.items()}
    else:
        value = {key: with_file_paths(item, schema.at(key)) for key, item in node.items()}
    return replace(node, value=value) if isinstance(node.value, dict) else node


def with_absolute_paths(content: Mapping[str, Any], folder: Path) -> Any:
    """Return what a file of an experiment in ``folder`` holds as any other folder's file can.

    Plugins are loaded, because options of their parts may be paths.
    """
    root = _tree(content, Mark(Source("", (), folder.absolute() / "experiment.yaml"), 1, 1))
    plugins = root.get("plugins")
    for plugin in (plugins.elements or [plugins]) if plugins else ():
        try:
            load_plugin(file_path(plugin))
        except PluginError:
            continue  # loading the file reports it
    changes, one_out = MergeSchema(others=_Change()), root.get("leave_one_out")
    children = {
        **merge_schema().children,
        **dict.fromkeys(("extends", "plugins"), _PATHS),
        **dict.fromkeys(("grid", "tune"), _Change()),
        "metrics": METRICS,
        "variants": changes,
        "contexts": changes,
        "leave_one_out": _Change() if one_out and one_out.elements else changes,
    }
    return with_file_paths(root, MergeSchema(children=children)).plain()


@dataclass(frozen=True)
class _Change(MergeSchema):
    """The schema of a mapping of dotted paths."""

    def at(self, key: str) -> MergeSchema:
        schema = merge_schema()
        for step in key.split("."):
            is_path = schema.slot and step in _path_options(schema.slot.name)
            schema = _PATHS if is_path else schema.at(step)
        return schema


def _path_options(slot: str, name: str | None = None) -> set[str]:
    """Return the options that hold paths, of one part or of all parts of a slot."""
    entries = slots()[slot].items()
    return {option for key, each in entries if name in (None, key) for option in each.file_paths}


def _tree(value: Any, at: Mark) -> Node:
    if isinstance(value, Mapping):
        return Node({key: _tree(item, at) for key, item in value.items()}, at, at)
    return Node([_tree(item, at) for item in value] if isinstance(value, list) else value, at, at)


def _resolve(node: Node) -> Node:
    if isinstance(node.value, str):
        is_shipped = node.value.startswith(shipped.PREFIX)
        return node if is_shipped else replace(node, value=str(file_path(node)))
    if isinstance(node.value, list):
        return replace(node, value=[_resolve(item) for item in node.value])
    if isinstance(node.value, dict):
        return replace(node, value={key: _resolve(item) for key, item in node.items()})
    return node
