"""The catalogue of parts: complete, correct, and the same in all formats."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ablate import api, config
from ablate.api.costs import BASE, FILE, VOCABULARY, Cost
from ablate.api.parts import OptionListing, PartListing
from ablate.cli import catalogue
from ablate.config import ModelSpec
from ablate.data.batches import Batch
from ablate.measuring.counts import FlopCounter
from ablate.model import Transformer
from ablate.parts.dims import Dims, StackInfo
from ablate.parts.position import Position
from ablate.registry import register, slots
from ablate.runner.check import check
from tests import costs
from tests.registrations import temporary_registrations

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "parts.md"
MEASURED = re.findall(r"--measured (\w+)", PAGE.read_text(encoding="utf-8").partition("\n## ")[0])
COMPUTED = set(slots()) - {"corpus", "tokenizer", "decoding", "metric"}
ALL = [(slot, name) for slot, table in slots().items() for name in table]
D, V, LAYERS, NORMS = 512, 37_000, 6, 30

Listed = dict[tuple[str, str], PartListing]


@pytest.fixture(scope="module")
def all_parts() -> tuple[PartListing, ...]:
    """All parts of this package, with their costs counted once."""
    parts = api.parts(measured=MEASURED, results=ROOT / "results")
    return tuple(part for part in parts if part.origin is None)


@pytest.fixture(scope="module")
def listed(all_parts: tuple[PartListing, ...]) -> Listed:
    return {(part.slot, part.name): part for part in all_parts}


def test_every_part_is_listed_once_and_of_each_slot_the_default_first(
    all_parts: tuple[PartListing, ...],
) -> None:
    assert sorted((part.slot, part.name) for part in all_parts) == sorted(ALL)
    for slot in slots():
        first, *others = [part for part in all_parts if part.slot == slot]
        assert first.is_default
        assert not any(part.is_default for part in others)
        assert [part.name for part in others] == sorted(part.name for part in others)


def test_every_part_has_summary_source_and_formula(listed: Listed) -> None:
    for key, part in listed.items():
        assert part.summary.endswith((".", ":")), key
        assert part.source, key
        assert part.slot_summary.endswith("."), key
        assert part.path, key
    for key, part in listed.items():
        if part.slot in COMPUTED:
            assert part.formula, key
            assert "\n" not in part.formula, key


def test_every_option_has_a_meaning_and_a_type(listed: Listed) -> None:
    undocumented = [
        f"{part.slot} {part.name}: {option.name}"
        for part in listed.values()
        for option in part.options
        if not (option.meaning and option.type) or "any" in option.type.split()
    ]
    assert undocumented == []


def test_options_are_listed_with_their_ranges_and_defaults(listed: Listed) -> None:
    base, layout = (
        next(o for o in listed["position", "sinusoidal"].options if o.name == name)
        for name in ("base", "layout")
    )
    assert (base.type, base.default, base.is_required) == ("number > 0", 10_000.0, False)
    assert layout.type == "interleaved | halves | padded_halves"
    betas = next(o for o in listed["optimizer", "adam"].options if o.name == "betas")
    assert betas.type == "[number >= 0 and < 1, number >= 0 and < 1]"
    n_buckets = next(o for o in listed["position", "t5"].options if o.name == "n_buckets")
    assert n_buckets.type == "whole number >= 4 and a multiple of 2"
    train = next(o for o in listed["corpus", "files"].options if o.name == "train")
    assert (train.type, train.is_required) == ("[string, string]", True)


def test_the_description_of_an_inherited_option_is_that_of_the_base(listed: Listed) -> None:
    part = listed["sharing", "cycle"]
    assert "Args:" not in part.text
    assert [option.meaning for option in part.options] == ["distinct blocks."]


def test_the_base_model_is_that_of_the_paper(listed: Listed) -> None:
    model = ModelSpec.model_validate(BASE)
    assert (model.dims.d_model, model.dims.n_heads, model.n_layers) == (512, 8, 6)
    assert model.feed_forward.options["d_ff"] == 2048
    assert (VOCABULARY.n_src, VOCABULARY.n_tgt, VOCABULARY.is_joint) == (V, V, True)
    attention, feed_forward, norm = 4 * (D * D + D), 2 * D * 2048 + 2048 + D, 2 * D
    params = V * D + LAYERS * (3 * attention + 2 * feed_forward + 5 * norm)
    multiplications = LAYERS * (
        3 * (4 * D * D + 2 * 32 * D) + 2 * (2 * D * 2048)  # 32 tokens on either side
    )
    flops = 3 * 2 * (multiplications + D * V)
    defaults = [part.cost for part in listed.values() if part.is_default and part.cost]
    assert len(defaults) == len([s for s in slots() if s in ModelSpec.model_fields])
    assert {(cost.params, cost.params_added) for cost in defaults} == {(params, 0)}
    assert {
        (cost.flops_per_target_token, cost.flops_per_target_token_added) for cost in defaults
    } == {(flops, 0.0)}


@pytest.mark.parametrize(
    ("slot", "name", "params", "flops"),
    [
        ("position", "learned", 2 * 256 * D, 0),
        ("residual", "rezero", NORMS, 0),  # and without norms, as what it is compared with
        ("sharing", "block", -5 * 7_356_416, 0),
        # every head's keys and values but one, and their products
        ("attention", "multi_query", -18 * 2 * (7 * 64 * D + 7 * 64), -18 * 6 * 2 * 7 * 64 * D),
        # three matrices of width 1365 for two of 2048, one bias of width 1365 more
        ("feed_forward", "swiglu", 12 * 170, -12 * 6 * D),
        ("initialisation", "torch", 0, 0),
    ],
)
def test_what_parts_add_by_hand(
    slot: str, name: str, params: int, flops: int, listed: Listed
) -> None:
    cost = listed[slot, name].cost
    assert cost is not None
    assert (cost.params_added, cost.flops_per_target_token_added) == (params, flops)


def test_only_parts_of_the_model_cost_parameters(listed: Listed) -> None:
    for part in listed.values():
        assert (part.cost is not None) == (part.slot in ModelSpec.model_fields), part.name


def test_a_part_that_the_default_refuses_is_counted_with_a_companion(listed: Listed) -> None:
    cost = listed["residual", "rezero"].cost
    assert cost is not None
    assert cost.companion == {"model.norm": "none"}
    without_norms = listed["norm", "none"].cost
    assert without_norms is not None
    assert cost.params - cost.params_added == without_norms.params
    companions = {key: part.cost.companion for key, part in listed.items() if part.cost}
    assert not companions["position", "learned"]


def test_the_costs_that_come_with_the_package_are_those_of_its_parts() -> None:
    assert FILE.read_text("utf-8") == costs.counted(), "python -m tests.costs writes them anew"


def test_only_the_models_of_plugins_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    n_counted: list[int] = []
    count = FlopCounter.count

    def counting(self: FlopCounter, model: Transformer, batch: Batch) -> float:
        n_counted.append(1)
        return count(self, model, batch)

    monkeypatch.setattr(FlopCounter, "count", counting)
    assert all(part.cost for part in api.parts("mask"))
    assert n_counted == []
    with temporary_registrations():

        @register("mine", source="this test, 2026", is_contract=True)
        class Mine(Position):
            """A part of a plugin."""

        [part] = api.parts("position", "mine")
        assert part.cost is not None
    assert n_counted == [1]


def test_a_part_that_is_refused_with_every_companion_is_listed_without_a_cost() -> None:
    with temporary_registrations():

        @register("refusing", source="this test, 2026", is_contract=True)
        class Refusing(Position):
            """Always refuses."""

            def __init__(self, dims: Dims, stack_info: StackInfo) -> None:
                super().__init__(dims, stack_info)
                raise ValueError("always")

        [part] = api.parts("position", "refusing")
        assert part.cost is None
        assert "refusing" in printed(catalogue.overview, [part], width=100)


@pytest.mark.parametrize(("slot", "name"), ALL, ids=" ".join)
def test_the_example_of_a_part_is_accepted(
    slot: str, name: str, listed: Listed, tmp_path: Path
) -> None:
    part = listed[slot, name]
    for option in slots()[slot][name].file_paths:
        for side in (1, 2):
            lines = "".join(f"line {n} of side {side}\n" for n in range(1_100))
            (tmp_path / f"{option}.{side}").write_text(lines, encoding="utf-8")
    rows = ("split", "src", "tgt"), ("train", "a", "A"), ("dev", "b", "B"), ("test", "c", "C")
    (tmp_path / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    example = part.example.replace("train: train\n", "train: train.tsv\n")
    (tmp_path / "example.yaml").write_text(example, encoding="utf-8")
    experiment = config.load(tmp_path / "example.yaml")
    check(experiment)
    if slot == "metric":
        assert [choice.name for choice in experiment.metrics] == [name]
        return
    chosen: Any = experiment.rows[0].spec
    for step in (part.path or "").split("."):
        chosen = getattr(chosen, step)
    assert chosen.name == name


def test_the_page_is_up_to_date(all_parts: tuple[PartListing, ...]) -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == catalogue.markdown(all_parts), (
        "docs/parts.md does not match the parts; in the repository's root run\n"
        f"  {catalogue.command(all_parts)}\n"
        "and review the changes"
    )


def test_the_page_is_valid_markdown(all_parts: tuple[PartListing, ...]) -> None:
    page = catalogue.markdown(all_parts)
    headings = set(re.findall(r"^### (\w+): (\w+)$", page, re.MULTILINE))
    assert headings == set(ALL)
    anchors = {f"{slot}-{name}" for slot, name in headings}
    assert set(re.findall(r"\]\(#([\w-]+)\)", page)) == anchors
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(widths) == 1, table


def printed(
    show: Callable[[Console, Any], None], what: object, width: int, *, is_terminal: bool = True
) -> str:
    text = io.StringIO()
    console = Console(
        file=text,
        width=width,
        force_terminal=is_terminal,
        color_system=None,
        highlight=False,
        markup=False,
        emoji=False,
    )
    show(console, what)
    return text.getvalue()


def test_a_terminal_of_100_columns_is_wide_enough(all_parts: tuple[PartListing, ...]) -> None:
    text = printed(catalogue.overview, all_parts, width=100)
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    flat = " ".join(re.sub(r"[*\n]", " ", text).split())
    for part in all_parts:
        assert f" {part.name} " in flat
        assert part.name not in ("rotary",) or "Su et al. 2021, arXiv:2104.09864" in flat


@pytest.mark.parametrize("slot", sorted(slots()))
def test_a_slot_shows_every_option_with_its_meaning(slot: str, listed: Listed) -> None:
    of_slot = [part for part in listed.values() if part.slot == slot]
    text = printed(catalogue.overview, of_slot, width=100)
    assert "* marks a slot's default." in text
    assert max(map(len, text.splitlines())) <= 100
    narrow = re.sub(r"\s", "", text)
    for part in of_slot:
        for option in part.options:
            assert re.sub(r"[\s`]", "", option.meaning) in narrow, option


def test_a_pipe_gets_one_line_for_every_part(all_parts: tuple[PartListing, ...]) -> None:
    lines = printed(catalogue.overview, all_parts, width=1000, is_terminal=False).splitlines()
    for part in all_parts:
        mark = "*" if part.is_default else ""
        of_part = [line for line in lines if line.startswith(f"{part.name}{mark} ")]
        assert any(part.source in line and part.formula in line for line in of_part), part.name


def test_one_part_is_shown_in_full(listed: Listed) -> None:
    part = listed["residual", "rezero"]
    text = printed(catalogue.details, part, width=100)
    for word in (part.formula, part.source, "No norm;", "Raises:", "norm: none", "+30 parameters"):
        assert word in text


def test_json_has_the_keys_that_programs_read(all_parts: tuple[PartListing, ...]) -> None:
    plain = json.loads(json.dumps([part.to_json() for part in all_parts]))
    keys = """slot slot_summary path is_default name formula summary text options source version
        cost measured example origin"""
    assert {tuple(part) for part in plain} == {tuple(keys.split())}
    options = [option for part in plain for option in part["options"]]
    assert {tuple(option) for option in options} == {tuple(OptionListing.__dataclass_fields__)}
    assert [*OptionListing.__dataclass_fields__] == "name type default is_required meaning".split()
    costs = [part["cost"] for part in plain if part["cost"]]
    assert {tuple(cost) for cost in costs} == {tuple(Cost.__dataclass_fields__)}
    assert [*Cost.__dataclass_fields__] == (
        "params params_added flops_per_target_token flops_per_target_token_added companion".split()
    )
