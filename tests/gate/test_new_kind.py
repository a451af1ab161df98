"""A new kind of check is one class: everything else takes it as it is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from ablate.api.gate import LooseningError
from ablate.errors import SpecError
from ablate.gate.check import KINDS, Blessing, Check, Context, Result
from ablate.gate.evidence import Evidence, UnfitError
from ablate.gate.reference import read
from tests.gate.bench import BLEU, Bench

ASKED = "checks: {floor: {kind: floor, measure: test.test.bleu, lowest: 30}}\n"


class FloorBlessing(Blessing):
    """The least of the values."""

    value: float


@pytest.fixture(scope="module")
def kind() -> Iterator[type[Check]]:
    class Floor(Check):
        """No seed lies below a floor."""

        kind: Literal["floor"] = "floor"
        lowest: float
        blessed: FloorBlessing | None = None

        @property
        def loosening_terms(self) -> dict[str, Literal["higher", "lower"]]:
            return {**super().loosening_terms, "lowest": "lower"}

        def bless(self, evidence: Evidence, context: Context) -> FloorBlessing:
            value = min(evidence.values(self.row, self.measure, context.seeds))
            if value < self.lowest:
                raise UnfitError(f"{value:g} is below {self.lowest:g}")
            terms = self.terms(context.alpha)
            return FloorBlessing(seeds=context.seeds, derived="the least", terms=terms, value=value)

        def derive_again(self, alpha: float) -> Blessing:
            assert self.blessed is not None
            return self.blessed

        def allowed(self, context: Context) -> tuple[str, str]:
            assert self.blessed is not None
            return f"{self.blessed.value:g}", f"from {self.lowest:g} on"

        def result(self, evidence: Evidence, context: Context) -> Result:
            least = min(evidence.values(self.row, self.measure, context.seeds))
            low = f"{least:g} is below {self.lowest:g}"
            return Result(f"{least:g}", low if least < self.lowest else None)

    yield Floor
    del KINDS["floor"]


@pytest.fixture
def bench(kind: type[Check], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path)
    bench.reference.write_text(ASKED, encoding="utf-8")
    bench.store_runs(BLEU)
    return bench


def test_it_is_blessed_written_read_and_judged(bench: Bench, kind: type[Check]) -> None:
    assert bench.bless().reference.checks["floor"].blessed is not None
    assert isinstance(read(bench.reference).reference.checks["floor"], kind)
    assert bench.gate().passed
    bench.store_runs({"baseline": (40.0, 29.0, 41.0)})
    (verdict,) = bench.gate().verdicts
    assert verdict.failure == "29 is below 30"
    assert verdict.subject == "baseline: test.test.bleu"


def test_what_was_edited_and_what_is_loosened_are_reported(bench: Bench) -> None:
    bench.bless()
    bench.edit("lowest: 30", "lowest: 20")
    with pytest.raises(SpecError, match=r"checks\.floor\.lowest: was 30\.0 when the check was"):
        bench.gate()
    with pytest.raises(LooseningError, match=r"floor: lowest would fall from 30\.0 to 20\.0"):
        bench.bless()


def test_its_keys_are_checked_as_those_of_the_others_and_its_name_is_taken(bench: Bench) -> None:
    bench.edit("lowest", "lowset")
    with pytest.raises(SpecError, match=r"floor\.lowset: unknown option; did you mean 'lowest'"):
        bench.gate(is_stored=False)
    with pytest.raises(TypeError, match="two kinds of check are called 'floor'"):

        class Other(Check):
            kind: Literal["floor"] = "floor"
