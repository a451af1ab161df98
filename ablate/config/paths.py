"""Paths of files in an experiment: relative to the file that holds them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from ablate.config.merge import MergeSchema
from ablate.config.source import Node
from ablate.registry import slots


def file_path(node: Node) -> Path:
    """Return the path that a text means: relative to its YAML file, in ``--set`` to the cwd."""
    source = node.start.source.path
    path = (source.parent if source else Path()) / str(node.value)
    shorter = Path(os.path.normpath(path))
    try:
        return shorter if shorter.resolve() == path.resolve() else path  # a link may be between
    except (OSError, ValueError):
        return path


def with_file_paths(node: Node, schema: MergeSchema) -> Node:
    """Return a tree in which the options that hold paths of files are relative to the cwd."""
    if schema.is_path:
        return _resolve(node)
    if schema.slot:
        name = node.get("name")
        entry = slots()[schema.slot.name].get(str(name.value) if name else schema.slot.default)
        options = entry.file_paths if entry else set()
        value = {key: _resolve(item) if key in options else item for key, item in node.items()}
    else:
        value = {key: with_file_paths(item, schema.at(key)) for key, item in node.items()}
    return replace(node, value=value) if isinstance(node.value, dict) else node


def _resolve(node: Node) -> Node:
    if isinstance(node.value, str):
        return replace(node, value=str(file_path(node)))
    if isinstance(node.value, list):
        return replace(node, value=[_resolve(item) for item in node.value])
    if isinstance(node.value, dict):
        return replace(node, value={key: _resolve(item) for key, item in node.items()})
    return node
