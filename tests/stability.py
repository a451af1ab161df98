"""What others may rely on, as lines of text: see docs/stability.md.

python -m tests.stability     # rewrites tests/snapshots/
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import typer
from pydantic import TypeAdapter

import ablate
from ablate import api, config, errors
from ablate.api.documents import DOCUMENTS
from ablate.cli.app import app
from ablate.cli.guard import INTERRUPTED
from ablate.config import shipped
from ablate.gate.reference import Reference
from ablate.record import Match, Probe, Record, Status
from ablate.registry import slots
from ablate.registry.table import TABLE

FOLDER = Path(__file__).parent / "snapshots"


def language() -> Iterator[str]:
    """What an experiment may say: its keys, and the parts with their options and defaults."""
    definition = api.schema()
    for path in _paths({**definition, "$defs": {}}):
        yield f"experiment {path}"
    for slot, parts in sorted(slots().items()):
        for name, entry in sorted(parts.items()):
            options = entry.options.model_json_schema().get("properties", {})
            yield f"part {slot} {name} version {entry.version}"
            for option, content in sorted(options.items()):
                default = json.dumps(content.get("default", "required"))
                yield f"part {slot} {name}.{option} {_type(content)} = {default}"


def identities() -> Iterator[str]:
    """The names of the runs of every shipped experiment, with a corpus of one content."""
    for name in sorted(shipped.names()):
        experiment = config.load(shipped.find(name) or "")
        for each in experiment.contexts.values() or [experiment]:
            for row in each.rows:
                known = config.identity(row.spec, "content", "fp32")
                yield f"{each.name.removeprefix('experiments/')} {row.name} {known}"


def interface() -> Iterator[str]:
    """`ablate.api` and `ablate`: names, arguments of functions, fields and methods of classes."""
    of_api = {name: getattr(api, name) for name in api.__all__}
    of_package = {f"ablate.{name}": getattr(ablate, name) for name in ablate.__all__}
    for name, member in sorted((of_api | of_package).items()):
        if inspect.isfunction(member):
            yield f"{name}{_signature(member)}"
        elif inspect.isclass(member):
            yield from (f"{name}.{each}" for each in sorted(_members(member)))


def commands() -> Iterator[str]:
    """Commands with their arguments and options, and exit statuses."""

    def visit(group: Any, before: str) -> Iterator[str]:
        for name, command in sorted(group.commands.items()):
            for parameter in command.params:
                yield f"{before}{name} {' '.join(parameter.opts)}"
            if hasattr(command, "commands"):
                yield from visit(command, f"{before}{name} ")

    yield from visit(typer.main.get_command(app), "")
    yield f"exit {INTERRUPTED}: interrupted"
    for name, kind in sorted(vars(errors).items()):
        if inspect.isclass(kind) and issubclass(kind, errors.AblateError):
            yield f"exit {kind.exit_status}: {name}"


def files() -> Iterator[str]:
    """The keys of what is stored: records, probes, matches and references."""
    yield f"record status: {', '.join(get_args(Status))}"
    for name, kind in (("record", Record), ("probe", Probe), ("match", Match)):
        for path in _paths(TypeAdapter(kind).json_schema()):
            yield f"{name} {path}"
    for path in _paths(Reference.model_json_schema()):
        yield f"reference {path}"


def documents() -> Iterator[str]:
    """The keys of what commands print as JSON."""
    for name in DOCUMENTS:
        for path in _paths(api.schema(name)):
            yield f"{name}: {path}"


def parts() -> Iterator[str]:
    """The methods that a part has or may have, by slot."""
    for slot, entries in sorted(TABLE.items()):
        bases = [set(entry.cls.__mro__) for entry in entries.values()]
        common = [base for base in set.intersection(*bases) if base.__module__.startswith("ablate")]
        for base in sorted(common, key=lambda each: each.__name__):
            for member in sorted(_members(base, own=True)):
                yield f"{slot} {base.__name__}.{member}"


SNAPSHOTS: Mapping[str, Callable[[], Iterator[str]]] = {
    each.__name__: each
    for each in (language, identities, interface, commands, files, documents, parts)
}


def _paths(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield every key of a JSON Schema with its type, by its path; definitions once."""
    for name, each in sorted(schema.get("$defs", {}).items()):
        yield from (f"{name}{path}" for path in _keys(each, ""))
    yield from (path.removeprefix(".") for path in _keys(schema, ""))


def _keys(schema: Any, path: str) -> Iterator[str]:
    for key, each in sorted(schema.get("properties", {}).items()):
        is_needed = "" if key in schema.get("required", ()) else "?"
        yield f"{path}.{key}{is_needed} {_type(each)}"
        yield from _keys(each, f"{path}.{key}")


def _type(schema: Mapping[str, Any]) -> str:
    """Return the type of a JSON Schema in a few words."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(_type(each) for each in schema[key])
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "const" in schema or "enum" in schema:
        return " | ".join(map(json.dumps, schema.get("enum", [schema.get("const")])))
    kind = schema.get("type", "any")
    name = " | ".join(kind) if isinstance(kind, list) else str(kind)
    if name == "array":
        item = schema.get("items") or {"anyOf": schema.get("prefixItems", [])}
        return f"array of ({_type(item)})"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of ({_type(schema['additionalProperties'])})"
    return name


def _members(kind: type, *, own: bool = False) -> Iterator[str]:
    """Yield the public fields and methods of a class."""
    if is_dataclass(kind):
        yield from (f"{each.name}: {each.type}" for each in fields(kind) if each.name[0] != "_")
    known = {each.name for each in fields(kind)} if is_dataclass(kind) else set()
    if not own and not is_dataclass(kind) and inspect.isfunction(vars(kind).get("__init__")):
        yield f"__init__{_signature(vars(kind)['__init__'])}"
    for name, member in vars(kind).items() if own else inspect.getmembers(kind):
        if name.startswith("_") or name in known:
            continue
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function):
            yield f"{name}{_signature(function)}"
        elif isinstance(member, property) and member.fget is not None:
            yield f"{name}: {inspect.get_annotations(member.fget)['return']}"


def _signature(function: Callable[..., Any]) -> str:
    text = " ".join(str(inspect.signature(function)).replace("'", "").split())
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def main() -> None:
    """Write every snapshot."""
    FOLDER.mkdir(exist_ok=True)
    for name, lines in SNAPSHOTS.items():
        (FOLDER / f"{name}.txt").write_text("\n".join(lines()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
