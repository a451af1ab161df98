"""Writing YAML that parsers of YAML 1.2, such as ours, read with the same types."""

from __future__ import annotations

from typing import Any

import yaml

from ablate.config.source import scalar


def dump(value: Any, *, width: int = 80, flow: bool | None = False) -> str:
    """Return a value as YAML, its keys in their order.

    Args:
        value: of the types that YAML has.
        width: of a line, in characters.
        flow: whether in one line, with braces and brackets; None does so with the innermost.
    """
    return yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=width,
        default_flow_style=flow,
    )


class _Dumper(yaml.SafeDumper):
    """Quotes texts that YAML 1.2 would read as numbers, such as the hash `12e4`."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = None if scalar(value) == value else "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
