"""The JSON Schema of an experiment file, made from the models and the registry.

It agrees with `load` on every file that stands alone, but for what only the whole experiment can
tell: that d_model is a multiple of n_heads, that an option belongs to the part which another
layer names, that a required option or key is given somewhere, that rows differ, that numbers are
published of rows that there are; and JSON calls 2.0 a whole number, which `load` does not.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import combinations
from typing import Annotated, Any

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from ablate.config.experiment import Layers, OneOf, PerSide, RunSpec, slot_of
from ablate.config.files import VARYING
from ablate.config.load import Header
from ablate.config.merge import model_of
from ablate.config.negligible import Negligible
from ablate.config.published import Measures, Published
from ablate.registry import Entry, argument_docs, slots

Schema = dict[str, Any]


def schema() -> Schema:
    """Return the schema of an experiment file, in JSON Schema 2020-12."""
    run = RunSpec.model_fields
    varying = {key: run[key] for key in VARYING}
    paths = dict(_paths(varying))
    change = {**_object(paths), "minProperties": 1, "description": _CHANGE}
    axes = {path: {"type": "array", "minItems": 1, "items": value} for path, value in paths.items()}
    ref = {"$ref": "#/$defs/change"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An ablation experiment",
        **_object(
            {
                "question": {"type": "string", "description": "what the table answers"},
                "extends": _EXTENDS,
                **{key: _of_field(info) for key, info in run.items() if key != "seed"},
                "seeds": _seeds(),
                "negligible": _of_model(Negligible),
                "published": _published(),
                "variants": {
                    "type": "object",
                    "minProperties": 1,
                    "propertyNames": {"not": {"const": "baseline"}},
                    "additionalProperties": ref,
                },
                "grid": {**_object(axes), "minProperties": 1},
                "leave_one_out": {
                    "anyOf": [
                        {"type": "object", "minProperties": 2, "additionalProperties": ref},
                        {"type": "array", "minItems": 2, "items": ref},
                    ]
                },
            }
        ),
        "$defs": {"change": change, **_definitions()},
    }


_CHANGE = "what a row changes: dotted paths to values; several of them are one change"
_EXTENDS: Schema = {
    "description": "files to build on, relative to this one; the right one wins over the left",
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
    ],
}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _seeds() -> Schema:
    return {**_of_field(Header.model_fields["seeds"]), "uniqueItems": True}


def _published() -> Schema:
    """Return the schema of published numbers, or null, which takes away what is inherited."""
    measures = _of_model(Measures)
    for key, one in measures["properties"].items():
        measures["properties"][key] = {**_without_null(one), "description": one["description"]}
    whole = _of_model(Published)
    whole["properties"]["rows"] = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {**measures, "minProperties": 1},
        "description": whole["properties"]["rows"]["description"],
    }
    return {"anyOf": [whole, {"type": "null"}]}


def _definitions() -> Schema:
    return {name: _of_slot(name, parts) for name, parts in slots().items()}


def _of_slot(slot: str, parts: dict[str, Entry]) -> Schema:
    """Return the choice of a part: its name, or its name and options, or options alone.

    Options alone belong to the part that another layer names.
    """
    names = sorted(parts)
    whole = [
        {
            **_object({"name": {"const": name}, **_options(entry)}),
            "required": ["name"],
            "description": _summary(entry.cls),
        }
        for name, entry in sorted(parts.items())
    ]
    return {
        "description": f"the choice of a part for the slot {slot!r}",
        "anyOf": [{"enum": names}, *whole, _object(_options_of_any(parts))],
    }


def _options(entry: Entry) -> Schema:
    told = entry.option_docs
    return {
        key: {**_of_field(info), **({"description": told[key]} if key in told else {})}
        for key, info in entry.options.model_fields.items()
    }


def _options_of_any(parts: dict[str, Entry]) -> Schema:
    found: dict[str, list[Schema]] = {}
    for entry in parts.values():
        for key, info in entry.options.model_fields.items():
            known = found.setdefault(key, [])
            one = _of_field(info)
            one.pop("default", None)
            known += [] if one in known else [one]
    return {key: {"anyOf": ones} if len(ones) > 1 else ones[0] for key, ones in found.items()}


def _of_field(info: FieldInfo) -> Schema:
    """Return the schema of one field: a choice, a mapping of fields, or a plain value."""
    slot = slot_of(info)
    if slot:
        return {"$ref": f"#/$defs/{slot.name}"}
    if any(isinstance(mark, PerSide) for mark in info.metadata):
        return {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, _of_model(Layers)]}
    model = model_of(info)
    if model:
        return _of_model(model)
    plain = {**TypeAdapter(_annotated(info)).json_schema()}
    if not info.is_required():
        plain["default"] = TypeAdapter(Any).dump_python(info.default, mode="json")
    return plain


def _annotated(info: FieldInfo) -> Any:
    """Return a field's type with its limits, as it was written."""
    return Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation


def _of_model(model: type[BaseModel]) -> Schema:
    told = argument_docs(model)
    rivals = model.rivals if issubclass(model, OneOf) else ()
    properties = {}
    for key, info in model.model_fields.items():
        one = _of_field(info)
        if key in rivals:
            one = _without_null(one)
        properties[key] = {**one, **({"description": told[key]} if key in told else {})}
    pairs = [{"required": [one, other]} for one, other in combinations(rivals, 2)]
    clash: Schema = {"not": {"anyOf": pairs}} if pairs else {}
    return {**_object(properties), **clash, "description": _summary(model)}


def _without_null(one: Schema) -> Schema:
    """Return what may be written where nothing is said by leaving out, not by null."""
    kinds = [kind for kind in one["anyOf"] if kind != {"type": "null"}]
    return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}


def _paths(fields: dict[str, FieldInfo], above: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every dotted path of a run's spec, with the schema of what stands there."""
    for key, info in fields.items():
        path = f"{above}{key}"
        yield path, _of_field(info)
        slot, model = slot_of(info), model_of(info)
        if slot:
            yield f"{path}.name", {"enum": sorted(slots()[slot.name])}
            for option, value in _options_of_any(slots()[slot.name]).items():
                yield f"{path}.{option}", value
        elif any(isinstance(mark, PerSide) for mark in info.metadata):
            yield from _paths(Layers.model_fields, f"{path}.")
        elif model:
            yield from _paths(model.model_fields, f"{path}.")


def _summary(cls: type) -> str:
    return (inspect.getdoc(cls) or "").split("\n\n")[0].replace("\n", " ")
