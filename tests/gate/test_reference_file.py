"""Reference files: read strictly, every mistake at its place; written so that they read back."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ablate.errors import SpecError
from ablate.gate.check import PublishedNumber
from ablate.gate.checks.exact import Exact, ExactBlessing
from ablate.gate.checks.finding import FindingCheck
from ablate.gate.checks.statistical import Statistical
from ablate.gate.reference import Provenance, Reference, as_yaml, read

WHOLE = Reference(
    source="our own runs: 7 seeds",
    checks={
        "losses": Exact(
            steps=20,
            blessed=ExactBlessing(
                seeds=(1,),
                values=(tuple((7.0 - step / 3).hex() for step in range(20)),),
                derived="bit for bit: no more",
                terms={"kind": "exact", "steps": 20, "rtol_other_machine": 3e-4},
            ),
        ),
        "bleu": Statistical(
            measure="test.test.bleu",
            min_effect=1.5,
            published=PublishedNumber(value=41.02, source="Wu et al. 2021", note="lower-cased"),
        ),
        "none": FindingCheck(row="none", measure="test.test.bleu", claim="worse", margin=3.0),
    },
    blessed=Provenance(
        experiment="pe",
        date="2026-11-21T00:00:00+00:00",
        machine={"device": "cpu", "threads": 1},
        versions={"torch": "2.13", "python": "3.11.7"},
        commits=("9839b24aa1bb22cc33dd",),
        is_clean=True,
        signatures={"bleu": "nrefs:1|case:mixed"},
        runs={"baseline": {"1": "1234567890123456", "2": "12e4567890123456", "3": "no"}},
        checks=("losses", "bleu", "none"),
    ),
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "reference.yaml"


def test_what_is_written_reads_back_the_same(file: Path) -> None:
    file.write_text(as_yaml(WHOLE), encoding="utf-8")
    assert read(file).reference == WHOLE


def test_what_is_not_known_is_left_out_and_reads_back(file: Path) -> None:
    assert WHOLE.blessed is not None
    installed = WHOLE.blessed.model_copy(update={"commits": (), "is_clean": None})
    reference = WHOLE.model_copy(update={"blessed": installed})
    file.write_text(as_yaml(reference), encoding="utf-8")
    assert read(file).reference == reference
    assert "is_clean" not in file.read_text(encoding="utf-8")


def test_it_reads_the_same_for_other_readers_of_yaml() -> None:
    content = yaml.safe_load(as_yaml(WHOLE))
    assert content["blessed"]["runs"]["baseline"]["2"] == "12e4567890123456"
    assert float.fromhex(content["checks"]["losses"]["blessed"]["values"][0][1]) == 7.0 - 1 / 3


def test_a_check_is_read_from_top_to_bottom() -> None:
    lines = as_yaml(WHOLE).splitlines()
    keys = [line.split(":")[0] for line in lines if line and line[0] not in " #"]
    assert keys == ["schema", "source", "alpha", "checks", "blessed"]
    bleu = lines.index("  bleu:")
    assert lines[bleu + 1 : bleu + 3] == ["    kind: statistical", "    row: baseline"]


@pytest.mark.parametrize(
    ("content", "sentences"),
    [
        ("", [":1:1: a reference is a mapping"]),
        ("source: x", [":1:1: needs 'checks'"]),
        ("checks: {}", [":1:9: checks: needs 'checks'"]),
        ("checks: {a: {kind: exact}\n", ["the closing '}' is missing"]),
        ("checks: {a: {kind: exat}}", [":1:20: checks.a: there is no kind 'exat'; did you mean"]),
        ("checks: {a: {row: b}}", [":1:13: checks.a: needs 'kind'"]),
        (
            "checks: {a: {kind: exact, sedes: 3}}\nsorce: x\nalpha: 0.5",
            [
                ":1:27: checks.a.sedes: unknown option; did you mean 'seeds'?",
                ":2:1: sorce: unknown option; did you mean 'source'?",
                ":3:8: alpha: must be at most 0.1; it is 0.5",
            ],
        ),
        (
            "checks: {a: {kind: exact, measure: dev.nll, steps: 5}}",
            ["'steps' is for the measure train_loss; dev.nll has one number"],
        ),
        ("checks: {a: {kind: statistical}}", ["checks.a: needs 'measure'"]),
        ("checks: {a: {kind: statistical, measure: dev.nll}}", ["checks.a: needs 'min_effect'"]),
        (
            "checks: {a: {kind: statistical, measure: train.steps, min_effect: 1}}",
            ["whether more of 'train.steps' is better is not known; say better: higher"],
        ),
        (
            "checks: {a: {kind: statistical, measure: speed.x, min_effect: 1}, "
            "b: {kind: paired, measure: memory.x, min_effect: 1, better: lower}}",
            [
                "checks.a: all seeds of a row share one measurement of 'speed.x', which",
                "checks.b: all seeds of a row share one measurement of 'memory.x', which",
            ],
        ),
        (
            "checks: {a: {kind: finding, measure: dev.nll, claim: wose, margin: 1}}",
            ["claim: needs 'worse', 'better' or 'near'; it is 'wose'; did you mean 'worse'?"],
        ),
        (
            "checks: {a: {kind: finding, measure: dev.nll, claim: worse, margin: 1}}",
            ["compares the row 'baseline' with itself"],
        ),
        (
            "checks: {a: {kind: finding, row: b, measure: dev.nll, claim: near, margin: 0}}",
            ["no two rows are nearer than 0"],
        ),
        (
            "checks: {a: {kind: finding, row: b, measure: dev.nll, claim: worse, margin: -1, "
            "confidence: 0.7, seeds: 1}}",
            [
                "checks.a.margin: must be at least 0",
                "checks.a.confidence: must be at least 0.8; it is 0.7",
                "checks.a.seeds: must be at least 2; it is 1",
            ],
        ),
        (
            "checks: {a: {kind: paired, measure: dev.nll, min_effect: 0, power: 0.4}}",
            [
                "checks.a.min_effect: must be greater than 0",
                "checks.a.power: must be at least 0.5; it is 0.4",
            ],
        ),
        (
            "checks: {a: {kind: exact, blessed: {seeds: [1], values: [[7.0z]], derived: x, "
            "terms: {}}}}",
            ["invalid hexadecimal floating-point string"],
        ),
        (
            "checks: {a: {kind: exact, blessed: {seeds: [1, 2], values: [[0x1p0]], derived: x, "
            "terms: {}}}}",
            ["has 2 seeds but values of 1"],
        ),
        ("checks: {a: {kind: exact}}\nchecks: {}", ["is given twice; first in line 1"]),
        (
            "schema: 3\nchecks: {a: {kind: exact}}",
            [":1:9: schema: this version of ablate reads schema 2; it is 3"],
        ),
    ],
)
def test_mistakes_are_reported_at_their_place(
    file: Path, content: str, sentences: list[str]
) -> None:
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SpecError) as raised:
        read(file)
    message = str(raised.value)
    assert str(file) in message
    for sentence in sentences:
        assert sentence in message
    assert message.count(f"{file}:") == len(sentences)


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(SpecError, match=r"reference\.yaml cannot be read: No such file.*--bless"):
        read(file)


def test_of_bleu_a_loss_of_1_5_is_caught_unless_another_is_asked_for() -> None:
    for terms, expected in (
        ({"measure": "test.test.bleu"}, 1.5),
        ({"measure": "test.test.bleu_lc_tok"}, 1.5),
        ({"measure": "test.test.bleu", "min_effect": 2.0}, 2.0),
    ):
        assert Statistical.model_validate(terms).min_effect == expected


def test_terms_hold_what_is_asked_for_and_nothing_else() -> None:
    assert WHOLE.checks["bleu"].terms(0.005) == {
        "kind": "statistical",
        "row": "baseline",
        "measure": "test.test.bleu",
        "seeds": 3,
        "min_effect": 1.5,
        "power": 0.9,
        "alpha": 0.005,
    }
