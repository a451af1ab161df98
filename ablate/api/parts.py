"""The catalogue of parts, read from the registry."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ablate import config
from ablate.api.costs import Cost, Costs
from ablate.api.selection import load
from ablate.config import Experiment, RunSpec
from ablate.config.experiment import PartField, slot_of
from ablate.config.merge import model_of
from ablate.config.tree import dump
from ablate.errors import SpecError
from ablate.registry import Entry, slots
from ablate.wording import no_such, suggest
from ablate.writing import csv_rows

_Tables = list[tuple[Experiment, dict[str, dict[str, str]]]]
_DIFFERENCE = re.compile(r"(test\.[^.]+\.bleu)\.difference\.estimate")


@dataclass(frozen=True)
class OptionListing:
    """One option of a part."""

    name: str
    type: str  # in words, with its range
    default: Any  # None for an option that must be given
    is_required: bool
    meaning: str  # from the part's documentation


@dataclass(frozen=True)
class MeasuredPart:
    """The row of a part in the table of an experiment."""

    experiment: str
    row: str  # its name; ``baseline`` if the baseline has the part
    metric: str  # BLEU of the first test set, by its path in records, ``test.test.bleu``
    mean: float | None  # of the metric over ``n_seeds`` seeds
    n_seeds: int
    # of the metric from the baseline; None for the baseline, or if unknown
    difference: float | None
    # the lower end of its 95% interval, which holds together with those of all rows
    low: float | None
    high: float | None  # the upper end
    beside: dict[str, Any]  # what else the row changes, by path


@dataclass(frozen=True)
class PartListing:
    """One registered part."""

    slot: str
    slot_summary: str  # the purpose of the slot
    path: str | None  # of its choice in an experiment; None if no experiment can choose it
    is_default: bool
    name: str
    formula: str  # of its computation, in one line; empty where nothing is computed
    summary: str  # the first line of its documentation
    text: str  # the complete documentation
    options: tuple[OptionListing, ...]
    source: str  # the paper and section, or the code, that it follows
    version: int
    cost: Cost | None  # at the base size; None for what is no part of a model
    measured: MeasuredPart | None  # in the first of the experiments that have it
    example: str  # the smallest experiment that has it
    origin: dict[str, str] | None  # name and SHA-256 of its plugin; None for a part of this package

    @property
    def prose(self) -> str:
        """Return the documentation before its sections."""
        return re.split(r"\n\n(?=\w+:\n)", self.text)[0]

    def to_json(self) -> dict[str, Any]:
        """Return the listing as plain data."""
        return asdict(self)


def parts(
    slot: str | None = None,
    name: str | None = None,
    *,
    measured: Sequence[Path | str] = (),
    results: Path | str = "results",
) -> tuple[PartListing, ...]:
    """Return every part, or those of one slot, or one of them.

    Slots come in the order in which a run's spec names them; of a slot the default comes first.
    Instead of a slot the name of a part can be given, for the parts of that name in all slots.
    ``measured`` are experiments whose tables, in ``results``, show what parts are worth.

    Raises:
        SpecError: if there is no such slot or part, or an experiment is not valid or has no table.
    """
    tables, costs = _tables(measured, Path(results)), Costs()
    paths: dict[str, tuple[str, PartField]] = {}  # of slots, in the order of a spec
    for path, field in (*_paths(RunSpec), ("metrics", PartField("metric", "bleu"))):
        paths.setdefault(field.name, (path, field))
    entries = _entries(slots(), slot, name)
    listed = [_listing(entry, paths.get(entry.slot), costs, tables) for entry in entries]
    order = {slot: number for number, slot in enumerate(paths)}
    listed.sort(key=lambda part: (order.get(part.slot, len(order)), not part.is_default, part.name))
    return tuple(listed)


def _entries(
    table: Mapping[str, Mapping[str, Entry]], slot: str | None, name: str | None
) -> list[Entry]:
    if slot is None:
        return [entry for of_slot in table.values() for entry in of_slot.values()]
    if slot in table and (name is None or name in table[slot]):
        return [table[slot][name]] if name else [*table[slot].values()]
    if slot in table:
        raise SpecError(no_such(slot, str(name), sorted(table[slot])))
    named = [of_slot[slot] for of_slot in table.values() if slot in of_slot]
    if name is None and named:
        return named
    names = [] if name else [part for of_slot in table.values() for part in of_slot]
    hint = suggest(slot, [*table, *names])
    kind = "slot or part" if names else "slot"
    raise SpecError(f"no {kind} is called {slot!r};{hint} slots: {', '.join(sorted(table))}")


def _tables(experiments: Sequence[Path | str], results: Path) -> _Tables:
    """Return experiments with the lines of their tables, by row."""
    tables = []
    for experiment in map(load, experiments):
        file = results / experiment.name / "table.csv"
        if not file.is_file():
            raise SpecError(
                f"{experiment.name} has no table in {file.parent}; run it, or write the table "
                f"of its runs by `ablate report SPEC --output {file}`"
            )
        with file.open(encoding="utf-8", newline="") as lines:
            tables.append((experiment, {line["row"]: line for line in csv_rows(lines)}))
    return tables


def _measured(tables: _Tables, path: str, part: str) -> MeasuredPart | None:
    """Return the row of a part that is chosen at ``path``; None if no experiment has it.

    Of all rows that have the part it is the one that changes the least.
    """
    for experiment, table in tables:
        rows = [
            row
            for row in experiment.rows
            if config.value_at(row.spec.model_dump(mode="json"), f"{path}.name") == part
        ]
        row = min(rows, key=lambda row: len(row.changes), default=None)
        if row is None or row.name not in table:
            continue
        line = table[row.name]
        metric = next((match[1] for match in map(_DIFFERENCE.fullmatch, line) if match), "")
        names = ("mean", "difference.estimate", "difference.low", "difference.high")
        texts = [line.get(f"{metric}.{name}") for name in names]
        mean, difference, low, high = (float(text) if text else None for text in texts)
        return MeasuredPart(
            experiment=experiment.name,
            row=row.name,
            metric=metric,
            mean=mean,
            n_seeds=int(line.get(f"{metric}.n") or 0),
            difference=difference,
            low=low,
            high=high,
            beside={at: value for at, value in row.changes.items() if at != path},
        )
    return None


def _listing(
    entry: Entry, at: tuple[str, PartField] | None, costs: Costs, tables: _Tables
) -> PartListing:
    path, slot = at or (None, None)
    choice, origin = _choice(entry), entry.origin
    cost = costs.of(entry, choice)
    plugin = {"plugins": origin.name} if origin and origin.source else {}
    choices = plugin | {str(path): choice, **(cost.companion if cost else {})}
    contract = next(base for base in entry.cls.__mro__ if "slot" in vars(base))
    home = ".".join(contract.__module__.split(".")[:3])  # the file or package of the slot
    about = inspect.getdoc(sys.modules[home]) or ""
    return PartListing(
        slot=entry.slot,
        slot_summary=about.partition("\n\n")[0].replace("\n", " "),
        path=path,
        is_default=slot is not None and slot.default == entry.name,
        name=entry.name,
        formula=entry.formula,
        summary=entry.doc.partition("\n")[0],
        text=entry.doc,
        options=_options(entry),
        source=entry.source,
        version=entry.version,
        cost=cost,
        measured=_measured(tables, path, entry.name) if path else None,
        example=_example(choices) if path else "",
        origin={"name": origin.name, "sha256": origin.sha256} if origin else None,
    )


def _paths(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, PartField]]:
    """Yield every path of a run's spec that chooses a part."""
    for key, info in model.model_fields.items():
        slot, below = slot_of(info), model_of(info)
        if slot:
            yield f"{above}{key}", slot
        elif below:
            yield from _paths(below, f"{above}{key}.")


def _options(entry: Entry) -> tuple[OptionListing, ...]:
    schema = entry.options.model_json_schema()
    required = schema.get("required", [])
    return tuple(
        OptionListing(
            name=name,
            type=_type_in_words(option, schema),
            default=option.get("default"),
            is_required=name in required,
            meaning=entry.option_docs.get(name, ""),
        )
        for name, option in schema.get("properties", {}).items()
    )


def _choice(entry: Entry) -> str | dict[str, Any]:
    """Return the shortest choice of a part: its name, and with it what must be given.

    An option with ``examples`` is given too, such as one of several of which a part needs any.
    """
    schema = entry.options.model_json_schema()
    given = {
        name: option["examples"][0] if "examples" in option else _example_of(option, name, schema)
        for name, option in schema.get("properties", {}).items()
        if "examples" in option or name in schema.get("required", [])
    }
    return {"name": entry.name, **given} if given else entry.name


def _example(choices: Mapping[str, Any]) -> str:
    """Return an experiment with these values, by their dotted paths."""
    experiment: dict[str, Any] = {}
    for path, choice in choices.items():
        *above, last = path.split(".")
        level = experiment
        for step in above:
            level = level.setdefault(step, {})
        level[last] = choice
    return dump(experiment, width=100)


def _example_of(option: Mapping[str, Any], name: str, schema: Mapping[str, Any]) -> Any:
    """Return one value that a JSON Schema allows."""
    option = _resolved(option, schema)
    if "enum" in option or "const" in option:
        return option.get("enum", [option.get("const")])[0]
    if "anyOf" in option:
        return _example_of(option["anyOf"][0], name, schema)
    if "prefixItems" in option:
        items = enumerate(option["prefixItems"], start=1)
        return [_example_of(item, f"{name}.{n}", schema) for n, item in items]
    if "items" in option:
        n_items = option.get("minItems", 1)
        names = [f"{name}.{n}" for n in range(1, n_items + 1)] if n_items > 1 else [name]
        return [_example_of(option["items"], each, schema) for each in names]
    if option.get("type") == "object":
        return {name: _example_of(_value_schema(option), name, schema)}
    bounds = [option[key] + 1 for key in ("minimum", "exclusiveMinimum") if key in option]
    plain = {"string": name, "boolean": True, "number": float(max(bounds, default=1))}
    return plain.get(option.get("type", "string"), max(bounds, default=1))


def _type_in_words(option: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return in words what a JSON Schema allows."""
    option = _resolved(option, schema)
    if "anyOf" in option:
        return " or ".join(_type_in_words(one, schema) for one in option["anyOf"])
    if "enum" in option or "const" in option:
        return " | ".join(str(value) for value in option.get("enum", [option.get("const")]))
    if "prefixItems" in option:
        return f"[{', '.join(_type_in_words(one, schema) for one in option['prefixItems'])}]"
    if "items" in option:
        return f"list of {_type_in_words(option['items'], schema)}"
    if option.get("type") == "object":
        return f"mapping of names to {_type_in_words(_value_schema(option), schema)}"
    signs = {
        "exclusiveMinimum": ">",
        "minimum": ">=",
        "exclusiveMaximum": "<",
        "maximum": "<=",
        "multipleOf": "a multiple of",
    }
    kinds = {"boolean": "true | false", "integer": "whole number"}
    kind = option.get("type", "any")
    limits = [f"{sign} {option[key]:g}" for key, sign in signs.items() if key in option]
    return " ".join([kinds.get(kind, kind), *([" and ".join(limits)] if limits else [])])


def _resolved(option: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in option:
        option = schema["$defs"][option["$ref"].rpartition("/")[2]]
    return option


def _value_schema(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a mapping's values, whatever the names may be."""
    patterns = mapping.get("patternProperties", {})
    return next(iter(patterns.values()), None) or mapping.get("additionalProperties") or {}
