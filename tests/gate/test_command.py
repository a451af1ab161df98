"""``ablate gate``: what it trains, what it refuses, what it says, and how it ends."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from ablate import api
from ablate.api import Blessed, Gated, RunOptions, completion
from ablate.api.gate import LooseningError
from ablate.api.gate_runs import GateRuns, StaleRecordError
from ablate.api.selection import Records, RunLookup, Selection, stored
from ablate.cli.app import app
from ablate.cli.gate import default_reference
from ablate.errors import DetachedError, SpecError, StoreError
from ablate.gate.bless import BlessingError
from ablate.gate.checks.exact import Exact
from ablate.gate.reference import Reference, read
from ablate.printable import SCHEMA
from ablate.runner.backends.contract import BackendRequest
from ablate.runner.backends.local import Local
from ablate.runner.devices import Device
from ablate.runner.task import TaskGroup
from tests import made_up_runs
from tests.documents import assert_described
from tests.gate.bench import BLEU, EXPERIMENT, LOSSES, NEW, Bench


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    bench = Bench(tmp_path)
    bench.store_runs(BLEU)
    bench.store_runs(NEW, first=6)
    return bench


def failures(gated: Gated) -> dict[str, str]:
    return {v.check: v.failure for v in gated.verdicts if v.failure is not None}


def test_what_was_blessed_holds(bench: Bench) -> None:
    bench.bless()
    gated = bench.gate()
    assert failures(gated) == {}
    assert (gated.exit_status, gated.remarks) == (0, ())
    assert [v.remarks for v in gated.verdicts] == [(), ("published: 41 (Nobody 2026)",), ()]


@pytest.mark.parametrize(
    ("bleu", "first", "losses", "failed"),
    [
        ({"baseline": (39.4, 39.6, 39.5)}, 6, LOSSES, ["bleu"]),
        ({"baseline": BLEU["baseline"]}, 1, (LOSSES[0], 6.9), ["losses"]),
        ({"baseline": NEW["baseline"], "none": (39.0, 39.3, 39.1)}, 6, LOSSES, ["none"]),
    ],
)
def test_a_gate_fails_for_the_number_that_left(
    bench: Bench,
    bleu: Mapping[str, Sequence[float]],
    first: int,
    losses: Sequence[float],
    failed: list[str],
) -> None:
    bench.bless()
    bench.store_runs(bleu, losses, first=first)
    gated = bench.gate()
    assert list(failures(gated)) == failed
    assert gated.exit_status == 1


def test_runs_that_were_not_executed_as_was_asked_for_are_reported(bench: Bench) -> None:
    bench.bless()
    changes: dict[str, Any] = {"engine": "eager", "engine_note": "not cuda_graph: no capture"}
    bench.store_runs({"baseline": NEW["baseline"]}, first=6, **changes)
    remark = "baseline, seeds 6, 7, 8: eager engine, not cuda_graph: no capture"
    assert bench.gate().remarks == (remark,)


def test_a_run_whose_engine_failed_blesses_nothing_unless_that_is_asked_for(bench: Bench) -> None:
    changes: dict[str, Any] = {"engine": "eager", "engine_note": "not compile: no luck"}
    bench.store_runs({"baseline": BLEU["baseline"][:1]}, is_fallback=True, **changes)
    before = bench.reference.read_text(encoding="utf-8")
    reason = "baseline with seed 1 was trained with the eager engine, not compile: no luck; say"
    with pytest.raises(BlessingError, match=reason):
        bench.bless(engine="compile")
    assert bench.reference.read_text(encoding="utf-8") == before
    assert bench.bless(engine="eager").remarks == ()


def test_mistakes_of_the_reference_are_reported_at_their_place(bench: Bench) -> None:
    with pytest.raises(
        SpecError, match=r"reference\.yaml:2:11: checks\.losses: has not been bless"
    ):
        bench.gate()
    bench.bless()
    bench.edit("row: none", "row: nnoe")
    bench.edit("min_effect: 1.5", "min_effect: 2.5")
    with pytest.raises(SpecError) as raised:
        bench.gate()
    message = str(raised.value)
    assert "no row is called 'nnoe'; did you mean 'none'?" in message
    assert "checks.bleu.min_effect: was 1.5 when the check was blessed" in message


def test_too_few_seeds_are_refused(bench: Bench) -> None:
    bench.bless()
    with pytest.raises(SpecError, match=r"'bleu' needs 3 seeds or more .* 2 seeds \(6, 7\)"):
        bench.gate(seeds=[6, 7])
    with pytest.raises(SpecError, match="distinct"):
        bench.gate(seeds=[1, 1, 2])


def test_a_run_that_failed_is_a_verdict_with_its_reason(bench: Bench) -> None:
    assert_described({"schema": SCHEMA, **bench.bless().to_json()}, "gate --bless")
    files = bench.store.results.glob("runs/*/record.json")
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    record = next(r for r in records if (r["variant"], r["seed"]) == ("baseline", 7))
    bench.store.save({**record, "status": "diverged", "error": "the loss became NaN"})
    gated = bench.gate()
    assert gated.exit_status == 1
    assert set(failures(gated)) == {"bleu", "none"}
    reason = "baseline with seed 7 diverged: the loss became NaN"
    assert set(failures(gated).values()) == {reason}
    assert_described({"schema": SCHEMA, **gated.to_json()}, "gate")


def test_where_nothing_may_be_trained_what_is_missing_is_named(bench: Bench) -> None:
    bench.bless()
    with pytest.raises(StoreError, match=r"holds no run of baseline with seed 9"):
        bench.gate(seeds=[6, 7, 8, 9])


def test_runs_of_other_code_are_not_judged_unasked(bench: Bench) -> None:
    bench.bless()
    bench.store_runs(BLEU, git={"commit": "9839b24aa1bb", "is_clean": True, "code": "of others"})
    with pytest.raises(
        StaleRecordError,
        match=r"holds \d run.*: the code has changed since; say --fresh to replace",
    ):
        bench.gate(is_stored=False, device="cpu")


def test_a_run_that_other_code_began_is_not_judged_in_the_call_that_ends_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.bless()
    began = {"commit": "9839b24aa1bb", "is_clean": True, "code": "of others"}

    def complete(selection: Selection, _: RunOptions) -> tuple[Records, bool]:
        bench.store_runs({row: values[:1] for row, values in NEW.items()}, first=9, git=began)
        return stored(selection, RunLookup(bench.store)), True

    monkeypatch.setattr(import_module("ablate.api.gate_runs"), "complete", complete)
    with pytest.raises(StaleRecordError, match=r"holds \d runs? .*the code has changed since"):
        bench.gate(is_stored=False, device="cpu", seeds=[6, 7, 8, 9])


def test_stored_runs_of_other_code_bless_and_are_judged_with_a_remark(bench: Bench) -> None:
    bench.bless()
    remarks = bench.gate().remarks
    bench.store_runs(BLEU, git={"commit": "9839b24aa1bb", "is_clean": True, "code": "of others"})
    assert not any("were not made by this code" in each for each in remarks)
    (of_gate,) = set(bench.gate().remarks) - set(remarks)
    (of_blessing,) = bench.bless().remarks
    for remark in (of_gate, of_blessing):
        assert "were not made by this code on this machine: the code has changed since" in remark


WIDE = {"baseline": (40.0, 41.0, 42.0, 40.5, 41.5)}


def test_what_can_be_blessed_is_and_what_cannot_says_the_smallest_effect(bench: Bench) -> None:
    bench.store_runs(WIDE)
    blessed = bench.bless()
    assert blessed.exit_status == 1
    (reason,) = blessed.refused
    assert reason.startswith("bleu cannot be blessed: 5 seeds with a std of 0.791 cannot promise")
    assert reason.endswith("or min_effect: 3.8")
    written = read(bench.reference).reference.checks
    assert [name for name, check in written.items() if check.blessed] == ["losses", "none"]
    with pytest.raises(SpecError, match=r"checks\.bleu: has not been blessed"):
        bench.gate()
    bench.edit("min_effect: 1.5", "min_effect: 3.8")
    assert bench.bless().exit_status == 0
    assert bench.gate().passed


def test_a_check_that_was_blessed_is_never_left_unblessed(bench: Bench) -> None:
    bench.bless()
    before = bench.reference.read_text(encoding="utf-8")
    bench.store_runs(WIDE)
    with pytest.raises(BlessingError, match=r"bleu cannot be blessed: 5 seeds with a std"):
        bench.bless(widen=True)
    assert bench.reference.read_text(encoding="utf-8") == before


def test_a_reference_is_not_loosened_silently(bench: Bench) -> None:
    bench.bless()
    before = bench.reference.read_text(encoding="utf-8")
    bench.store_runs({"baseline": (40.6, 41.1, 41.0, 40.8, 41.3)})
    with pytest.raises(LooseningError, match=r"bleu: the tolerance below would widen from"):
        bench.bless()
    assert bench.reference.read_text(encoding="utf-8") == before
    blessed = bench.bless(widen=True)
    assert [text.partition(" would")[0] for text in blessed.loosened] == [
        "bleu: the tolerance below",
        "bleu: the tolerance above",
    ]
    assert blessed.moved == ("bleu: 41.000 before, 40.960 now", "none: -12.900 before, -12.860 now")
    assert bench.gate().passed


# the command


@pytest.fixture
def ablate(bench: Bench, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app(["gate", str(bench.spec), "--reference", str(bench.reference), *words])
        content = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, content.out, content.err

    return run


Ablate = Callable[..., tuple[int, str, str]]
BLESS = ("--bless", "--stored", "--seeds", "1,2,3,4,5")


def test_the_command_blesses_passes_and_fails(bench: Bench, ablate: Ablate, tmp_path: Path) -> None:
    status, out, err = ablate(*BLESS)
    assert (status, err) == (0, "")
    assert out.endswith("reference.yaml is blessed: losses, bleu, none\n")
    status, out, err = ablate("--stored")
    assert (status, err) == (0, "")
    assert out.count("passed") == 4
    assert out.endswith("the gate passed: 3 checks\n")
    assert "\x1b" not in out
    assert "were not made by this code" not in out
    bench.store_runs({"baseline": (39.4, 39.6, 39.5)}, first=6)
    status, out, err = ablate("--stored", "--junit", str(tmp_path / "gate.xml"))
    assert (status, err) == (1, "")
    assert "FAILED bleu: test.test.bleu of baseline is 39.50, the mean of seeds 6, 7, 8" in out
    assert out.endswith("the gate failed: 1 of 3 checks (bleu)\n")
    assert ElementTree.parse(tmp_path / "gate.xml").getroot().get("failures") == "1"
    status, out, err = ablate("--stored", "--junit", str(tmp_path / "gate.xml"), "--seeds", "99")
    assert (status, out) == (2, "")
    assert not (tmp_path / "gate.xml").exists(), "verdicts of an earlier gate"


@pytest.mark.parametrize(
    ("spec", "reference"),
    [
        ("elsewhere/pe.yaml", "pe"),
        ("experiments/mine/small/pe.yaml", "mine-small-pe"),
        ("experiments/old/experiments/small/pe.yaml", "small-pe"),
        ("multi30k/pe", "multi30k-pe"),
    ],
)
def test_experiments_in_different_folders_have_references_of_their_own(
    spec: str, reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if spec.endswith(".yaml"):
        (tmp_path / spec).parent.mkdir(parents=True)
        (tmp_path / spec).write_text(EXPERIMENT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert default_reference(Path(spec)) == Path(f"{reference}.reference.yaml")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--stored", "--fresh"), "exclude each other"),
        (("--widen",), "--widen is for --bless"),
        ((*BLESS, "--junit", "x.xml"), "exclude each other"),
        (("--seeds", "1,x"), "seeds are whole numbers"),
        (("--set", "training.stps=3"), "did you mean 'steps'"),
        (("--stored",), r"has not been blessed; bless the reference \(--bless\)"),
        (("--device", "gpu"), "has not been blessed|no device"),
        (("--plugin", "missing.py"), r"missing\.py"),
        (("--no-probe", "--probe-seconds", "2"), "exclude each other"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_ends_with_2_and_a_sentence(
    ablate: Ablate, words: tuple[str, ...], reason: str
) -> None:
    status, out, err = ablate(*words)
    assert (status, out) == (2, "")
    assert re.search(reason, err)
    assert "Traceback" not in err


def test_runs_are_made_by_the_backend_that_is_asked_for(
    bench: Bench, ablate: Ablate, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[str, Mapping[str, str]]] = []

    def open_backend(name: str, request: BackendRequest) -> Local:
        opened.append((name, request.options))
        return Local([Device("cpu")])

    monkeypatch.setattr(completion, "open_backend", open_backend)
    where = ("--backend", "ray", "--address", "10.0.0.1:6379")
    bench.store_runs(BLEU)
    assert ablate("--bless", "--seeds", "1,2,3,4,5", *where)[0] == 0
    bench.store_runs(NEW, first=6)
    assert ablate("--seeds", "6,7,8", *where)[0] == 0
    assert opened == [("ray", {"address": "10.0.0.1:6379"})] * 2
    assert ablate("--seeds", "6,7,8", "--stored", *where)[0] == 0
    assert len(opened) == 2, "what is stored needs no cluster"


@pytest.mark.e2e
def test_a_gate_trains_what_is_missing_and_sees_a_warm_up_one_step_late(
    bench: Bench, ablate: Ablate, tmp_path: Path
) -> None:
    bench.reference.write_text("checks: {losses: {kind: exact}}\n", encoding="utf-8")
    words = ("--results", str(tmp_path / "trained"), "--device", "cpu", "--no-probe")
    status, _, err = ablate(*words, "--bless", "--seeds", "4")
    assert (status, "training 1 run" in err) == (0, True), err
    status, out, err = ablate(*words, "--stored")
    assert (status, err) == (0, "")
    assert "20 numbers, seed 4  bit for bit  the same  passed" in re.sub(" {3,}", "  ", out)
    status, out, err = ablate(*words, "--set", "training.schedule.warmup=11")
    assert (status, "training 1 run" in err) == (1, True), err
    assert re.search(r"FAILED losses: train_loss of step 2 of baseline with seed 4 is [\d.]+ ", out)
    assert "bit for bit was asked" in out
    assert "baseline is not the run that was blessed" in out


def test_contexts_that_were_blessed_are_reported_though_the_next_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, reference = tmp_path / "pe.yaml", Reference.model_construct(checks={})
    contexts = "contexts: {a: {}, b: {model.norm: rms}}\n"
    spec.write_text(f"{EXPERIMENT}{contexts}", encoding="utf-8")

    def bless(path: Path, target: Path, *_: object, **__: object) -> Blessed:
        if str(path).endswith("#b"):
            raise LooseningError(f"{target} would be loosened")
        return Blessed(target, reference, ("bleu: 30 before",), (), (), (), ())

    monkeypatch.setattr(Blessed, "to_json", lambda _: {"blessed": ["bleu"]})
    monkeypatch.setattr("ablate.api.bless", bless)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["gate", str(spec), "--bless"])
    assert result.exit_code == 2
    assert result.stdout == "bleu: 30 before\npe-a.reference.yaml is blessed: bleu\n"


@pytest.mark.parametrize("asked", [("--seeds", "6,7,8"), ("--seeds", "1,2,3,4,5", "--bless")])
def test_a_call_that_leaves_submits_the_runs_of_every_context(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]
) -> None:
    class Leaving(Local):
        def __init__(self) -> None:
            super().__init__([Device("cpu")])
            self.submitted = ""

        def detach(self, work: Sequence[Sequence[TaskGroup]]) -> None:
            self.submitted += work[-1][0][0].experiment[-1]
            raise DetachedError(self.submitted)

    bench.bless()
    for name in "ab":
        target = bench.reference.with_name(f"reference-{name}.yaml")
        target.write_bytes(bench.reference.read_bytes())
    bench.spec.write_text(f"{EXPERIMENT}contexts: {{a: {{}}, b: {{model.norm: rms}}}}\n")
    monkeypatch.setattr(completion, "open_backend", lambda *_: Leaving())
    words = ["gate", str(bench.spec), "--reference", str(bench.reference), "--no-probe", *asked]
    result = CliRunner().invoke(app, [*words, "--results", "others", "--json"])
    assert result.exit_code == 0, result.output
    assert result.stderr.splitlines()[-1] == "ab"
    assert json.loads(result.stdout) == {"schema": 1, "detached": "ab"}


def test_nothing_is_trained_unless_each_context_has_its_reference(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.bless()
    bench.reference.rename(bench.reference.with_name("reference-a.yaml"))
    bench.spec.write_text(f"{EXPERIMENT}contexts: {{a: {{}}, b: {{model.norm: rms}}}}\n")
    monkeypatch.setattr(GateRuns, "train", lambda *_: pytest.fail("a was trained"))
    with pytest.raises(SpecError, match=r"reference-b\.yaml"):
        bench.gate(is_stored=False)


def test_a_context_takes_the_checks_of_all_and_not_what_blessed_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers from before there were contexts are of none of them."""
    bench.bless()
    templates: list[Path] = []
    bless_one = api.bless

    def bless(path: Path, target: Path, options: RunOptions, **choices: Any) -> Blessed:
        templates.append(choices["template"])
        choices["template"] = bench.reference
        return bless_one(path, target, options, **choices)

    monkeypatch.setattr("ablate.api.bless", bless)
    bench.spec.write_text(f"{EXPERIMENT}contexts: {{a: {{}}, b: {{model.norm: rms}}}}\n")
    file, bench.spec = bench.spec, Path(f"{bench.spec}#a")
    worse = {row: [1.5 * value - 25 for value in values] for row, values in BLEU.items()}
    bench.store_runs(worse)
    words = ["gate", f"{file}#a", "--bless", "--stored", "--seeds", "1,2,3,4,5"]
    result = CliRunner().invoke(app, [*words, "--results", str(bench.store.results)])
    assert "bleu is new" in result.stdout, result.output
    assert templates == [Path("tiny.reference.yaml")]
    assert set(read(Path("tiny-a.reference.yaml")).reference.checks) == {"losses", "bleu", "none"}


def test_bleu_is_that_of_the_table(bench: Bench) -> None:
    """In the tokens that the experiment names, though the records have it in others."""
    asked = "checks: {bleu: {kind: exact, measure: test.test.bleu, seeds: 2}}"
    bench.reference.write_text(asked, encoding="utf-8")
    text = f"{made_up_runs.EXPERIMENT}metrics: {{name: bleu, tokenize: char}}\n"
    bench.spec.write_text(text, encoding="utf-8")
    made_up_runs.finish(bench.spec, bench.store.results, has_files=True)
    results = api.report(bench.spec, results=bench.store.results).table.results
    blessed = bench.bless([1, 2]).reference
    assert results is not None
    assert blessed.blessed is not None
    assert "tok:char" in blessed.blessed.signatures["bleu"]
    check = blessed.checks["bleu"]
    assert isinstance(check, Exact)
    assert check.blessed is not None
    values = results.summaries[0].metrics["test.test.bleu"].values
    assert check.blessed.values == tuple((values[seed].hex(),) for seed in (1, 2))
    assert bench.gate().passed
