"""Whether what a command prints is what its JSON Schema describes."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator

from ablate import api


def assert_described(printed: Any, name: str) -> None:
    """Compare with the schema of a command, which must have every key but those of a spec."""
    schema, plain = api.schema(name), json.loads(json.dumps(printed))
    Draft202012Validator(schema if name == "runs show" else _closed(schema)).validate(plain)


def _closed(schema: Any) -> Any:
    """Return a schema that allows no key which it does not have."""
    if isinstance(schema, list):
        return list(map(_closed, schema))
    if not isinstance(schema, dict):
        return schema
    inner = {key: _closed(each) for key, each in schema.items()}
    return inner | ({"additionalProperties": False} if "properties" in schema else {})
