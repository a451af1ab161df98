"""Reference files: read strictly, every mistake at its place; written so that they read back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ablate.errors import SpecError
from ablate.gate.check import PublishedNumber, direction
from ablate.gate.checks.exact import Exact, ExactBlessing
from ablate.gate.checks.finding import Finding
from ablate.gate.checks.statistical import Statistical
from ablate.gate.provenance import Provenance
from ablate.gate.reference import Reference
from ablate.gate.reference_file import read, text, write

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
        "none": Finding(row="none", measure="test.test.bleu", claim="worse", margin=3.0),
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
    write(file, WHOLE)
    assert read(file).reference == WHOLE


def test_what_is_not_known_is_left_out_and_reads_back(file: Path) -> None:
    assert WHOLE.blessed is not None
    installed = WHOLE.blessed.model_copy(update={"commits": (), "is_clean": None})
    reference = WHOLE.model_copy(update={"blessed": installed})
    write(file, reference)
    assert read(file).reference == reference
    assert "is_clean" not in file.read_text(encoding="utf-8")


def test_it_reads_the_same_for_other_readers_of_yaml() -> None:
    content = yaml.safe_load(text(WHOLE))
    assert content["blessed"]["runs"]["baseline"]["2"] == "12e4567890123456"
    assert float.fromhex(content["checks"]["losses"]["blessed"]["values"][0][1]) == 7.0 - 1 / 3


def test_a_check_is_read_from_top_to_bottom() -> None:
    lines = text(WHOLE).splitlines()
    keys = [line.split(":")[0] for line in lines if line and line[0] not in " #"]
    assert keys == ["schema", "source", "alpha", "checks", "blessed"]
    bleu = lines.index("  bleu:")
    assert lines[bleu + 1 : bleu + 3] == ["    kind: statistical", "    row: baseline"]


@pytest.mark.parametrize(
    ("content", "sentences"),
    [
        ("", [":1:1: a reference is a mapping"]),
        ("- 1", [":1:1: a reference is a mapping"]),
        ("source: x", [":1:1: needs 'checks'"]),
        ("checks: {}", [":1:9: checks: needs 'checks'"]),
        ("checks: {a: {kind: exact}\n", ["the closing '}' is missing"]),
        ("checks: {a: {kind: exat}}", [":1:20: checks.a: there is no kind 'exat'; did you mean"]),
        ("checks: {a: {row: b}}", [":1:13: checks.a: needs 'kind'"]),
        ("checks: {a: 3}", ["checks.a: needs 'kind'"]),
        (
            "checks: {a: {kind: exact, sedes: 3}}\nsorce: x\nalpha: 0.5",
            [
                ":1:27: checks.a.sedes: unknown option; did you mean 'seeds'?",
                ":2:1: sorce: unknown option; did you mean 'source'?",
                ":3:8: alpha: must be at most 0.1; it is 0.5",
            ],
        ),
        ("checks: {a: {kind: exact, steps: 101}}", ["steps: must be at most 100; it is 101"]),
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
            "b: {kind: paired, measure: memory.x, min_effect: 1, better: lower}, "
            "c: {kind: finding, row: d, measure: speed.x, claim: worse, margin: 1}}",
            [
                "checks.a: all seeds of a row share one measurement of 'speed.x', which",
                "checks.b: all seeds of a row share one measurement of 'memory.x', which",
                "checks.c: all seeds of a row share one measurement of 'speed.x', which",
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
            "checks: {a: {kind: exact, blessed: {seeds: [1], values: [[7.0z]], derived: x, "
            "terms: {}}}}",
            ["'7.0z' is no hexadecimal number"],
        ),
        (
            "checks: {a: {kind: exact, blessed: {seeds: [1, 2], values: [[0x1p0]], derived: x, "
            "terms: {}}}}",
            ["has 2 seeds but values of 1"],
        ),
        ("checks: {a: {kind: exact}}\nchecks: {}", ["is given twice; first in line 1"]),
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
    with pytest.raises(SpecError, match=r"reference\.yaml cannot be read: No such file"):
        read(file)


@pytest.mark.parametrize(
    ("measure", "better"),
    [
        ("test.test2016.bleu", "higher"),
        ("test.test2016.bleu_lc_tok", "higher"),
        ("test.test_long.exact_match", "higher"),
        ("dev.nll", "lower"),
        ("test.test.perplexity", "lower"),
        ("train.seconds", "lower"),
        ("params.total", "lower"),
        ("train.steps", None),
    ],
)
def test_which_way_is_better_is_known_of_most_measures(measure: str, better: Any) -> None:
    assert direction(measure) == better


def test_terms_hold_what_is_asked_for_and_nothing_else() -> None:
    assert WHOLE.checks["losses"].terms(0.005) == {
        "kind": "exact",
        "row": "baseline",
        "measure": "train_loss",
        "seeds": 1,
        "steps": 20,
        "rtol_other_machine": 3e-4,
    }
    assert WHOLE.checks["bleu"].terms(0.005) == {
        "kind": "statistical",
        "row": "baseline",
        "measure": "test.test.bleu",
        "seeds": 3,
        "min_effect": 1.5,
        "power": 0.9,
        "alpha": 0.005,
    }
    assert WHOLE.rows == ("baseline", "none")


# files of the first schema, as they were written then

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("name", ["first_schema_means.yaml", "first_schema_findings.yaml"])
def test_a_file_of_the_first_schema_is_read_with_the_same_content(name: str, file: Path) -> None:
    reference = read(DATA / name).reference
    assert list(reference.flaws()) == [], "what it blessed follows from its values and terms"
    write(file, reference)
    assert read(file).reference == reference
    old, new = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in (DATA / name, file))
    assert new.pop("schema") == 2
    renamed = {
        "loss": "min_effect",
        "false_alarm": "alpha",
        "elsewhere": "rtol_other_machine",
        "by": "margin",
        "spread": "std",
    }

    def in_new_words(content: Any) -> Any:
        if isinstance(content, dict):
            return {renamed.get(key, key): in_new_words(value) for key, value in content.items()}
        return content

    assert in_new_words(old) == new


def test_a_file_by_hand_may_use_the_keys_of_either_schema(file: Path) -> None:
    checks = "checks: {{a: {{kind: statistical, measure: dev.nll, {}: 0.5}}}}"
    file.write_text(checks.format("loss"), encoding="utf-8")
    old = read(file).reference
    file.write_text(checks.format("min_effect"), encoding="utf-8")
    assert read(file).reference == old


def test_names_are_no_keys(file: Path) -> None:
    file.write_text("checks: {loss: {kind: exact}, by: {kind: exact}}", encoding="utf-8")
    assert list(read(file).reference.checks) == ["loss", "by"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "schema: 2\nchecks: {a: {kind: exact, elsewhere: 0.1}}",
            r":2:27: checks\.a\.elsewhere: unknown option",
        ),
        (
            "checks: {a: {kind: exact, elsewhere: 0.1, rtol_other_machine: 0.1}}",
            r":1:43: checks\.a\.rtol_other_machine: is given twice",
        ),
        (
            "schema: 3\nchecks: {a: {kind: exact}}",
            r":1:9: schema: this version of ablate reads schema 2; it is 3",
        ),
    ],
)
def test_a_schema_has_its_own_keys(file: Path, content: str, sentence: str) -> None:
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match=sentence):
        read(file)
