"""The JSON Schema of an experiment file, made from the models and the registry.

It agrees with `load` on every file without ``extends``, but for what depends on several values:
that d_model is a multiple of n_heads, that an option belongs to the part which another layer
names, that a required option or key is given in some layer, that there are two contexts, which
differ, and ``trend`` is a number in each, that two dotted paths do not give one value or two that
exclude each other, that ``looks`` ascend and the last is no less than the number of seeds, that
``tune`` has a path, that rows, metrics and the seeds of tuning differ, that rows with published
numbers exist, and so do those that ``match`` names or null removes; and that files exist. In JSON
Schema 2.0 is a whole number, in `load` it is none. PyYAML and other readers of YAML 1.1 take
``5e-3`` for a string, so where a number is expected such strings are valid.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from ablate.config.choices import why_not_tuned
from ablate.config.experiment import Layers, OneOf, PerSide, RunSpec, slot_of
from ablate.config.files import CONTEXTS, SECTIONS, UNUSABLE_CONTEXT, UNUSABLE_NAME, VARYING
from ablate.config.header import (
    SEED_BITS,
    Header,
    Match,
    Measures,
    Negligible,
    Published,
    TuneKeys,
)
from ablate.config.merge import model_of
from ablate.registry import Entry, argument_docs, slots

Schema = dict[str, Any]


def schema() -> Schema:
    """Return the schema of an experiment file, in JSON Schema 2020-12."""
    run = {key: info for key, info in RunSpec.model_fields.items() if key != "seed"}
    paths = dict(_paths({key: run[key] for key in VARYING}))
    change = {**_object(paths), "minProperties": 1, "description": _CHANGE}
    axes = {
        path: {"type": "array", "minItems": 1, "uniqueItems": True, "items": value}
        for path, value in paths.items()
    }
    ref = {"$ref": "#/$defs/change"}
    of_context = {**_object(dict(_paths(run))), "description": _CHANGE}
    tune = {
        **_object(
            {
                **{path: axis for path, axis in axes.items() if not why_not_tuned(path)},
                "seeds": _seeds(TuneKeys.model_fields["seeds"]),
                "extend": _of_field(TuneKeys.model_fields["extend"]),
            }
        ),
        "minProperties": 1,
    }
    properties: Schema = {
        "question": {"type": "string"},
        "extends": _FILE_PATHS,
        "plugins": _FILE_PATHS,
        **{key: _of_field(info) for key, info in run.items()},
        "seeds": _seeds(Header.model_fields["seeds"]),
        "looks": {**_of_field(Header.model_fields["looks"]), "uniqueItems": True},
        "negligible": _of_model(Negligible),
        "metrics": {"anyOf": [_METRIC, {"type": "array", "items": _METRIC}]},
        "published": _published(),
        "match": {"anyOf": [_match(), {"type": "null"}]},
        "tune": {"anyOf": [tune, {"type": "null"}]},
        "variants": {
            "type": ["object", "null"],
            "minProperties": 1,
            "propertyNames": {"not": {"anyOf": [{"const": "baseline"}, _UNUSABLE]}},
            "additionalProperties": {"anyOf": [ref, {"type": "null"}]},
        },
        "grid": {**_object(axes), "type": ["object", "null"], "minProperties": 1},
        "contexts": {
            "type": ["object", "null"],
            "minProperties": 1,
            "propertyNames": {"not": {"pattern": UNUSABLE_CONTEXT}},
            "additionalProperties": {"anyOf": [of_context, {"type": "null"}]},
        },
        "trend": _of_field(Header.model_fields["trend"]),
        "leave_one_out": {
            "anyOf": [
                {
                    "type": "object",
                    "minProperties": 2,
                    "propertyNames": {"not": _UNUSABLE},
                    "additionalProperties": ref,
                },
                {"type": "array", "minItems": 2, "items": ref},
                {"type": "null"},
            ]
        },
    }
    docs = {**argument_docs(RunSpec), **argument_docs(Header), **_SECTIONS}
    for key in properties.keys() & docs:
        properties[key] = {**properties[key], "description": docs[key]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An ablation experiment",
        **_object(properties),
        "anyOf": [  # null removes a section that is inherited
            {"required": ["extends"]},
            {"properties": {key: {"not": {"type": "null"}} for key in (*SECTIONS, CONTEXTS)}},
        ],
        "$defs": {
            "change": change,
            **{slot: _of_slot(slot, parts) for slot, parts in slots().items()},
        },
    }


_UNUSABLE: Schema = {"type": "string", "pattern": UNUSABLE_NAME}
_METRIC: Schema = {"$ref": "#/$defs/metric"}
_CHANGE = "the change of a row: dotted paths to values; several of them are one change"
_SECTIONS = {
    "extends": "files to build on, relative to this one; the right one wins over the left",
    "plugins": "Python files that register parts, relative to this one",
    "variants": "rows: names, each with a change of the baseline",
    "grid": "dotted paths to lists of values; a row for every combination",
    "leave_one_out": "changes that are made together, and with each of them left out",
    "contexts": "where every row is trained, and compared with the baseline there: names, each "
    "with a change of the baseline",
}
_NUMBER_AS_STRING = r"^[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+$"
_PERCENT = (
    r"^\+?(0*[1-9][0-9]?(\.[0-9]*)?|0*\.0*[1-9][0-9]*|([0-9]+(\.[0-9]*)?|\.[0-9]+)[eE][-+]?[0-9]+)"
    r"\s*%$"
)
"""Texts of numbers between 0 and 100, and of those with an exponent, whatever it is."""
_FILE_PATHS: Schema = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
    ],
}


def _object(properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _seeds(info: FieldInfo) -> Schema:
    seeds = _of_field(info)
    items = {**seeds["items"], "maximum": 2**SEED_BITS - 1}
    return {**seeds, "items": items, "uniqueItems": True}


def _published() -> Schema:
    """Return the schema of published numbers, or null, which removes inherited ones."""
    measures = _of_model(Measures)
    for key, one in measures["properties"].items():
        measures["properties"][key] = _without_null(one)
    published = _of_model(Published)
    published["properties"]["rows"] = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {**measures, "minProperties": 1},
        "description": published["properties"]["rows"]["description"],
    }
    return {"anyOf": [published, {"type": "null"}]}


def _match() -> Schema:
    """Return the schema of what rows are matched by; a tolerance may be a text, as in 1%."""
    match = _of_model(Match)
    properties = match["properties"]
    share = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    texts = [{"type": "string", "pattern": p} for p in (_PERCENT, _NUMBER_AS_STRING)]
    properties["tolerance"] = {**properties["tolerance"], "anyOf": [share, *texts]}
    properties["tolerance"].pop("type", None)
    two_lists = {
        "required": ["rows", "exclude"],
        "properties": {"rows": {"type": "array"}, "exclude": {"minItems": 1}},
    }
    return {**match, "required": ["on", "via"], "not": two_lists}


def _of_slot(slot: str, parts: dict[str, Entry]) -> Schema:
    """Return the choice of a part: its name, also with options; options alone, as of a parent's."""
    by_name = [
        {
            **_object({"name": {"const": name}, **_described(entry.options, entry.cls)}),
            "required": ["name"],
            "description": _summary(entry.cls),
        }
        for name, entry in sorted(parts.items())
    ]
    return {
        "description": f"the choice of a part for the slot {slot!r}",
        "anyOf": [{"enum": sorted(parts)}, *by_name, _object(_options_of_any(parts))],
    }


def _described(model: type[BaseModel], documented: type) -> Schema:
    """Return the schemas of a model's fields, with their lines in the docstring of a class."""
    docs = argument_docs(documented)
    return {
        key: {**_of_field(info), **({"description": docs[key]} if key in docs else {})}
        for key, info in model.model_fields.items()
    }


def _options_of_any(parts: dict[str, Entry]) -> Schema:
    options: dict[str, list[Schema]] = {}
    for entry in parts.values():
        for key, info in entry.options.model_fields.items():
            known = options.setdefault(key, [])
            one = _of_field(info)
            one.pop("default", None)
            known += [] if one in known else [one]
    return {key: {"anyOf": ones} if len(ones) > 1 else ones[0] for key, ones in options.items()}


def _of_field(info: FieldInfo) -> Schema:
    slot = slot_of(info)
    if slot:
        return {"$ref": f"#/$defs/{slot.name}"}
    if PerSide() in info.metadata:
        return {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, _of_model(Layers)]}
    model = model_of(info)
    if model:
        return _of_model(model)
    plain = _with_strings(TypeAdapter(info.rebuild_annotation()).json_schema())
    if not info.is_required():
        plain["default"] = TypeAdapter(Any).dump_python(info.default, mode="json")
    return plain


def _with_strings(schema: Any) -> Any:
    """Return a schema in which ``5e-3`` as a string is a number, as for readers of YAML 1.1."""
    if isinstance(schema, list):
        return [_with_strings(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") == "number":
        return {"anyOf": [schema, {"type": "string", "pattern": _NUMBER_AS_STRING}]}
    return {key: _with_strings(item) for key, item in schema.items()}


def _of_model(model: type[BaseModel]) -> Schema:
    properties = _described(model, model)
    alternatives = model.alternatives if issubclass(model, OneOf) else ()
    for key in alternatives:
        properties[key] = _without_null(properties[key])
    pairs = [{"required": [one, other]} for one, other in combinations(alternatives, 2)]
    clash: Schema = {"not": {"anyOf": pairs}} if pairs else {}
    return {**_object(properties), **clash, "description": _summary(model)}


def _without_null(schema: Schema) -> Schema:
    """Return the schema of a value that may be left out but not be null."""
    kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
    about = {"description": schema["description"]} if "description" in schema else {}
    return {**(kinds[0] if len(kinds) == 1 else {"anyOf": kinds}), **about}


def _paths(
    fields: dict[str, FieldInfo], above: str = "", alternatives: tuple[str, ...] = ()
) -> Iterator[tuple[str, Schema]]:
    """Yield every dotted path of a run's spec, with the schema of its value."""
    for key, info in fields.items():
        path = f"{above}{key}"
        yield path, _without_null(_of_field(info)) if key in alternatives else _of_field(info)
        slot, model = slot_of(info), model_of(info)
        if slot:
            yield f"{path}.name", {"enum": sorted(slots()[slot.name])}
            for option, value in _options_of_any(slots()[slot.name]).items():
                yield f"{path}.{option}", value
        elif PerSide() in info.metadata:
            yield from _paths(Layers.model_fields, f"{path}.")
        elif model:
            alternatives_below = model.alternatives if issubclass(model, OneOf) else ()
            yield from _paths(model.model_fields, f"{path}.", alternatives_below)


def _summary(cls: type) -> str:
    return inspect.cleandoc(cls.__doc__ or "").split("\n\n")[0].replace("\n", " ")
