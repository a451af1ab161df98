"""The JSON Schema agrees with `load`, which refuses values in sentences of its own."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from ablate import config
from ablate.config.json_schema import schema
from ablate.config.merge import MergeSchema, merge_schema
from ablate.config.tree import parse, source_of
from ablate.registry import slots

EXPERIMENTS = sorted((Path(__file__).parents[2] / "experiments").rglob("*.yaml"))
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 8, -1, 0.5, 1.5, -0.5, "", "abc", "none", "learned", "epoch"),
    *([], [1], [0.5, 0.9], [0.5, 1.5], ["a"], [1, 1], {}, {"name": "none"}, {"nam": 1}),
)
FEW_VALUES: tuple[Any, ...] = ("abc", {}, 1.5, -1)
OF_PYDANTIC = re.compile(
    r"[Ii]nput should|should (be|have|match)|[Ff]ield required|Value error|Extra inputs"
)
FILES = {"src": "en", "tgt": "de", "train": "t", "dev": "d", "tests": {"test": "x"}}


@functools.cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(schema())


def is_loaded(document: Any, folder: Path) -> bool:
    path = folder / "experiment.yaml"
    path.write_text(json.dumps(document))
    refusal = ""
    try:
        config.load(path)
    except config.MistakesError as error:
        refusal = str(error)
    assert not OF_PYDANTIC.search(refusal)
    return not refusal


def disagreements(documents: Iterator[Any], folder: Path) -> list[str]:
    return [
        f"{'accepted' if loads else 'refused'} by load only: {json.dumps(document)}"
        for document in documents
        if (loads := is_loaded(document, folder)) != validator().is_valid(document)
    ]


def nested(path: str, value: Any) -> Any:
    for step in reversed(path.split(".")):
        value = {step: value}
    return value


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(validator().schema)


@pytest.mark.parametrize("section", ["variants", "grid", "leave_one_out", "contexts"])
def test_null_removes_a_section_that_may_be_inherited(section: str) -> None:
    assert validator().is_valid({"extends": "a.yaml", section: None})
    assert not validator().is_valid({section: None})


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_shipped_experiments_are_valid(path: Path) -> None:
    root = parse(source_of(path.name, path.read_bytes()), [])
    assert root is not None
    validator().validate(json.loads(json.dumps(root.plain())))
    validator().validate(yaml.safe_load(path.read_text(encoding="utf-8")))  # by YAML 1.1
    config.load(path)


@pytest.mark.parametrize("text", "5e-3 65e6 1.0E5 1.5e3 +2e1 fast e5 5e 0x5e3 1_0e3 5".split())
def test_a_number_that_yaml_1_1_takes_for_a_string_is_valid(text: str) -> None:
    is_number = text in ("5e-3", "65e6", "1.0E5", "1.5e3", "+2e1")
    schedule = {"schedule": {"name": "constant", "lr": text}}
    assert validator().is_valid({"training": schedule}) is is_number
    assert validator().is_valid({"variants": {"a": {"training.schedule.lr": text}}}) is is_number


@pytest.mark.parametrize("value", ["my_parts.py", ["a.py", "b.py"]])
def test_plugins_are_paths(value: Any) -> None:
    assert validator().is_valid({"plugins": value})
    assert not validator().is_valid({"plugins": {"a.py": value}})


def leaves(schema: MergeSchema, path: str = "") -> Iterator[str]:
    """Yield the path of every mapping and value of a run, the parts' options apart."""
    for key, child in schema.children.items():
        below = f"{path}.{key}" if path else key
        yield below
        yield from leaves(child, below)


@pytest.mark.full
@pytest.mark.parametrize("path", [*leaves(merge_schema())])
def test_they_agree_on_every_value(path: str, tmp_path: Path) -> None:
    def documents() -> Iterator[Any]:
        for value in VALUES:
            document = nested(path, value)
            if path.startswith("model.dims"):  # their multiple is beyond a schema
                dims = document["model"]["dims"]
                if isinstance(dims, dict):
                    document["model"]["dims"] = {"d_k": 4, "d_v": 4, **dims}
            yield document

    assert not disagreements(documents(), tmp_path)


@functools.cache
def first_parts() -> dict[tuple[str, str], tuple[str, str]]:
    """Return the first part that has an option of each name, type and default."""
    return {
        (option, repr(field)): (slot, name)
        for slot, parts in reversed(slots().items())
        for name in reversed(parts)
        for option, field in parts[name].options.model_fields.items()
    }


@pytest.mark.full
@pytest.mark.parametrize(
    ("slot", "name"), [(slot, name) for slot, parts in slots().items() for name in parts]
)
def test_they_agree_on_every_option(slot: str, name: str, tmp_path: Path) -> None:
    paths = [*leaves(merge_schema()), "metrics"]
    path = next(path for path in paths if path.split(".")[-1].rstrip("s") == slot.rstrip("s"))
    options = slots()[slot][name].options.model_fields
    is_own = name in ("files", "table")
    needed = {k: v for k, v in FILES.items() if k in options} if is_own else {}
    needed |= {"model": "weights.ckpt"} if name == "comet" else {}

    def documents() -> Iterator[Any]:
        yield nested(path, name) if not needed else nested(path, {"name": name, **needed})
        yield nested(path, {"name": name, **needed, "surely_unknown": 1})
        for option, field in options.items():
            is_first = first_parts()[option, repr(field)] == (slot, name)
            for value in VALUES if is_first else FEW_VALUES:
                yield nested(path, {"name": name, **needed, option: value})

    assert not disagreements(documents(), tmp_path)


@pytest.mark.parametrize(
    "section", ["variants", "grid", "leave_one_out", "seeds", "question", "extends"]
)
def test_they_agree_on_what_is_around_a_run(section: str, tmp_path: Path) -> None:
    (tmp_path / "abc").write_text("corpus: synthetic")
    (tmp_path / "a").write_text("corpus: synthetic")
    change, other = {"model.norm": "rms"}, {"model": {"residual": "pre"}}
    values = [
        *VALUES,
        *({"x": change}, {"x": change, "y": other}, {"x": {}}, {"baseline": change}),
        *(
            {name: change, "y": other}
            for name in ("", " x", "x ", "a\nb", "x\n", "<<", "a b", "日本")
        ),
        *({"x": {"corpus": "synthetic"}}, {"x": {"model.nrom": "rms"}}, {"x": {"model.norm": 3}}),
        *({"x": {"model.dims.n_heads": 2}}, {"x": {"model.position.base": 5}}),
        *({"x": {"model.decoder.norm": "rms"}}, {"x": {"model.encoder.cross_attention": "full"}}),
        *([change, other], [change], [change, {}], [1, 2], [3, -1], [True], "why", ["a", 3]),
        *({"model.norm": ["rms"]}, {"model.norm": []}, {"model.nrom": ["rms"]}),
        *({"model.dims.n_heads": [2, 4], "training.clip": [None, 1]}, {"corpus": ["synthetic"]}),
    ]
    # a file that is not there is beyond a schema
    documents = ({section: v} for v in values if not (section == "extends" and v in _NO_FILES))
    assert not disagreements(documents, tmp_path)


def test_they_agree_on_what_is_published_and_negligible(tmp_path: Path) -> None:
    row = {"params": 65e6, "bleu": 25.8, "bleu_lc_tok": 41, "ppl": 4.92}
    whole = {"source": "a paper", "note": "why", "rows": {"baseline": row}}

    def documents() -> Iterator[Any]:
        for value in (*VALUES, {"bleu": 1, "nll": 0.5}, *({"bleu": value} for value in VALUES)):
            yield {"negligible": value}
        for value in (None, whole, {k: v for k, v in whole.items() if k != "note"}, 3, [whole]):
            yield {"published": value}
        for value in (*VALUES, {"baseline": {}}, {"baseline": None}, {"baseline": 3}):
            yield {"published": {**whole, "rows": value}}
            yield {"published": {**whole, "note": value}}
            yield {"published": {**whole, "source": value}}
            yield {"published": {**whole, "surely_unknown": value}}
        for measure in (*row, "surely_unknown"):
            for value in (*VALUES, 99, 101, 1e9):
                yield {"published": {**whole, "rows": {"baseline": {measure: value}}}}

    assert not disagreements(documents(), tmp_path)


_NO_FILES = ("none", "learned", "epoch", "why")


@pytest.mark.parametrize("path", ["training.steps", "training.average.ema", "training.clip"])
def test_they_agree_on_null_at_a_dotted_path(path: str, tmp_path: Path) -> None:
    row = {path: None, "model.norm": "rms"}
    assert not disagreements(iter([{"variants": {"a": row}}, {"grid": {path: [None]}}]), tmp_path)


def test_they_agree_on_seeds_and_on_what_is_matched_and_tuned(tmp_path: Path) -> None:
    match = {"on": "params", "via": "model.feed_forward.d_ff"}
    tune = {"training.schedule.warmup": [10, 20]}
    texts = ("1%", "0.5 %", "99.9%", ".5%", "+05%", "1e-1%", "100%", "200%", "0%", "0.0%", "abc%")

    others: tuple[dict[str, Any], ...] = ({}, {"exclude": []}, {"rows": None})

    def documents() -> Iterator[Any]:
        for seed in (2**44 - 1, 2**44):
            yield {"seeds": [seed]}
            yield {"tune": {**tune, "seeds": [seed]}}
        for tolerance in (*texts, "%", "1 0%", "-1%", 0.5, 1, 0, None, True):
            yield {"match": {**match, "tolerance": tolerance}}
        for lists in ({"rows": ["a"]}, {"exclude": ["a"]}, {"rows": ["a"], "exclude": ["a"]}):
            for more in others:
                document = {"match": {**match, **lists, **more}}
                yield {**document, "variants": {"a": {"model.norm": "rms"}}}
        for axis in ([10], [10, 10], [], 10, [10, "a"]):
            yield {"tune": {"training.schedule.warmup": axis}}
            yield {"grid": {"training.schedule.warmup": axis}}

    assert not disagreements(documents(), tmp_path)


@pytest.mark.parametrize(
    "axis",
    [
        *({"decoding": ["greedy"]}, {"decoding.size": [2]}, {"tokenizer": ["word"]}),
        *({"tokenizer.vocab_size": [300]}, {"tokenizer.dropout": [0.1]}),
    ],
)
def test_they_agree_on_what_can_be_tuned(axis: dict[str, Any], tmp_path: Path) -> None:
    assert not disagreements(iter([{"tune": axis}]), tmp_path)


def test_unknown_keys_are_refused_by_both(tmp_path: Path) -> None:
    assert not disagreements(iter([{"corpsu": "synthetic"}, {"seed": 1}, [], 3]), tmp_path)


def test_options_are_described() -> None:
    schema = validator().schema
    assert isinstance(schema, Mapping)
    parts = schema["$defs"]["position"]["anyOf"]
    (sinusoidal,) = (
        p for p in parts if p.get("properties", {}).get("name") == {"const": "sinusoidal"}
    )
    base = sinusoidal["properties"]["base"]
    assert base["default"] == 10_000.0
    assert base["anyOf"][0]["exclusiveMinimum"] == 0
    assert "2 pi" in base["description"]
    for key, value in schema["properties"].items():
        assert "$ref" in value or value["description"], key
