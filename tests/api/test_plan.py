"""What a plan says of machines that this one is not."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ablate import api
from ablate.api.selection import select
from ablate.cli import plan as plan_command
from ablate.data.tokenizer import PAD
from ablate.errors import SpecError
from ablate.measuring import count_parameters
from ablate.model.assembly import assemble
from ablate.parts.embedding import Vocabulary
from ablate.report.plan import Power
from ablate.runner import devices, provenance
from ablate.runner.backends.local import Local
from ablate.runner.devices import Device, DeviceFacts
from ablate.runner.probe import probe_key
from ablate.store import Store
from ablate.training import engines
from tests.made_up_runs import BASE, EXPERIMENT, finish
from tests.report import made_up

pytestmark = pytest.mark.commands


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    return path


def test_runs_that_share_a_gpu_take_at_most_so_long(path: Path, tmp_path: Path) -> None:
    plan = api.plan(path, device="cpu", results=tmp_path)
    assert {row.runs_at_once for row in plan.rows} == {1}
    rows = [replace(r, seconds_per_run=60.0, runs_at_once=n) for n, r in enumerate(plan.rows, 1)]
    rows_alone = tuple(replace(row, runs_at_once=1) for row in rows)
    alone = replace(plan, n_worker_slots=2, rows=rows_alone)
    assert alone.remarks()[:2] == [
        "0 of 6 runs are done, 6 are missing; 2 at a time on cpu",
        "about 3:00 of training are left",
    ]
    assert replace(alone, rows=tuple(rows)).remarks()[:2] == [
        "0 of 6 runs are done, 6 are missing; 6 at a time on cpu",
        "at most 3:00 of training are left",
    ]
    done = [replace(r, runs=tuple(replace(run, is_done=True) for run in r.runs)) for r in rows]
    assert not any("are left" in line for line in replace(alone, rows=tuple(done)).remarks())


def test_no_run_ends_sooner_because_other_devices_are_free(path: Path, tmp_path: Path) -> None:
    plan = api.plan(path, device="cpu", results=tmp_path, seeds=[1])
    rows = tuple(replace(r, seconds_per_run=60.0 * n) for n, r in enumerate(plan.rows, 1))
    times = [replace(plan, n_worker_slots=n, rows=rows).seconds_left for n in (1, 2, 3, 8)]
    assert times == [360, 180, 180, 180]
    assert replace(plan, rows=rows).device_seconds == 360
    on_gpu = replace(plan, rows=rows, device="cuda:0").remarks()
    assert any(line.startswith("all runs together: 0.1 cuda hours, ") for line in on_gpu)
    on_two = tuple(replace(row, devices_per_run=2) for row in rows)
    of_pairs = replace(plan, n_worker_slots=3, rows=on_two)
    assert (of_pairs.seconds_left, of_pairs.device_seconds) == (360, 720)
    assert of_pairs.remarks()[0].endswith("3 are missing; 1 at a time on cpu")


def test_the_time_of_more_seeds_is_that_of_all_rows(path: Path, tmp_path: Path) -> None:
    plan = api.plan(path, device="cpu", results=tmp_path)
    rows = tuple(replace(r, seconds_per_run=60.0 * n) for n, r in enumerate(plan.rows, 1))
    power = Power(sd=1.0, df=4, n_seeds=2, detectable=2.5, seeds_for={1.0: 4, 0.5: None})
    of_rows = replace(plan, n_worker_slots=2, rows=rows, power=power)
    times = "1 BLEU takes 4 seeds (12:00), 0.5 BLEU takes over 1000 seeds"
    assert of_rows.remarks()[1].endswith(times)
    on_two = tuple(replace(row, devices_per_run=2) for row in rows)
    assert "4 seeds (24:00)" in replace(of_rows, rows=on_two).remarks()[1]
    unknown = (replace(rows[0], seconds_per_run=None), *rows[1:])
    assert "1 BLEU takes 4 seeds, " in replace(of_rows, rows=unknown).remarks()[1]


def test_the_time_of_more_seeds_has_none_of_rows_that_are_not_trained(
    path: Path, tmp_path: Path
) -> None:
    plan = api.plan(path, device="cpu", results=tmp_path)
    *trained, last = (replace(row, seconds_per_run=60.0) for row in plan.rows)
    decoding = replace(last, runs=tuple(replace(run, takes_weights=True) for run in last.runs))
    power = Power(sd=1.0, df=4, n_seeds=2, detectable=2.5, seeds_for={1.0: 4})
    of_rows = replace(plan, n_worker_slots=1, rows=(*trained, decoding), power=power)
    assert of_rows.remarks()[1].endswith("1 BLEU takes 4 seeds (8:00)")


BEAM = f"{BASE}variants: {{beam: {{decoding: beam}}}}\n"


def test_a_missing_run_takes_the_weights_of_any_that_is_done(path: Path, tmp_path: Path) -> None:
    path.write_text(BEAM, encoding="utf-8")
    store = Store(tmp_path / "results")
    finish(path, store.results, (), [1], ["baseline"])
    finish(path, store.results, (), [2], ["beam"])

    def n_to_train(*only: str) -> list[int]:
        plan = api.plan(path, device="cpu", results=store.results, only=only)
        return [row.n_to_train for row in plan.rows]

    baseline, _ = api.plan(path, device="cpu", results=store.results).rows
    (store.path(str(baseline.runs[1].hash)) / "record.json").unlink()
    assert n_to_train() == [1, 1], "the weights are gone"
    for run in store.headings():
        (store.path(run) / "model.safetensors").touch()
    assert n_to_train() == [0, 0]
    assert n_to_train("beam") == [0]


def test_runs_that_take_weights_cost_no_training(path: Path, tmp_path: Path) -> None:
    path.write_text(BEAM, encoding="utf-8")
    plan = api.plan(path, device="cpu", results=tmp_path)
    baseline, beam = plan.rows
    for seconds in (None, 60.0):  # whether the row has been probed or not
        rows = replace(baseline, seconds_per_run=60.0), replace(beam, seconds_per_run=seconds)
        assert replace(plan, rows=rows).device_seconds == 120
    assert plan.weight_mib == pytest.approx(2 * 4 * baseline.params / 2**20)
    assert any(line.startswith("2 of the runs differ from another") for line in plan.remarks())


def test_runs_whose_values_are_not_tuned_yet_take_weights_too(path: Path, tmp_path: Path) -> None:
    tune = "tune: {training.schedule.lr: [1e-3, 2e-3], seeds: [8]}\n"
    path.write_text(f"{BEAM}{tune}", encoding="utf-8")
    rows = api.plan(path, device="cpu", results=tmp_path).rows
    assert [(row.n_missing, row.n_to_train) for row in rows] == [(4, 4), (4, 0)]


def test_what_no_part_can_be_tuned_to_is_refused(path: Path, tmp_path: Path) -> None:
    tune = "tune: {model.position: [rotary, none], seeds: [8]}\n"
    path.write_text(f"{BASE}{tune}", encoding="utf-8")
    with pytest.raises(
        SpecError, match=r"small\.yaml:\d+:25: tune\.model\.position: rotary .* even"
    ):
        api.plan(path, device="cpu", results=tmp_path, overrides=["model.dims.d_k=3"])


@pytest.mark.parametrize("command", [api.plan, api.gate, api.bless])
def test_what_the_file_and_what_the_parts_refuse_come_together(
    tmp_path: Path, command: Callable[..., object]
) -> None:
    odd = "{model.position: rotary, model.dims.d_k: 3}"
    path = tmp_path / "pe.yaml"
    path.write_text(f"variants:\n  odd: {odd}\n  rms: {{model.norm: rsm}}\n", encoding="utf-8")
    reference = () if command is api.plan else (tmp_path / "pe.reference.yaml",)
    with pytest.raises(SpecError) as raised:
        command(path, *reference)
    of_odd, of_rms = re.findall(r"pe\.yaml:(\d):\d+: (.*)", str(raised.value))
    assert of_odd[0] == "2"
    assert "even" in of_odd[1]
    assert of_rms[0] == "3"
    assert "did you mean 'rms'?" in of_rms[1]


def test_runs_of_other_code_are_named(path: Path, tmp_path: Path) -> None:
    store = Store(tmp_path)
    planned = api.plan(path, device="cpu", results=tmp_path, only=["none"])
    present = {
        "versions": provenance.versions(),
        "hardware": provenance.hardware("cpu"),
        "git": {"commit": None, "is_clean": None, "code": provenance.code_digest()},
        "status": "done",
    }
    (row,) = planned.rows
    for run in row.runs:
        store.save({"hash": run.hash, **present})
    current = api.plan(path, device="cpu", results=tmp_path, only=["none"])
    assert (current.n_missing, current.stale) == (0, ())
    store.save({"hash": row.runs[0].hash, **present, "git": {"code": "other"}})
    other = api.plan(path, device="cpu", results=tmp_path, only=["none"])
    (remark,) = other.stale
    assert remark in other.remarks()
    assert remark == (
        "1 of 2 runs (none) were not made by this code on this machine: the code has changed "
        "since; `ablate run --fresh` trains them again"
    )


def probed(path: Path, *names: str) -> api.Plan:
    """Return the plan of an experiment after the probe of some rows, with 500 source tokens."""
    selection, store = select(path), Store(path.parent / "results")
    measured = {"n_src": 500, "n_tgt": 510, "train_peak_mib": 40.0, "runs_at_once": 1}
    measured |= {"batches_per_epoch": 100, "target_tokens_per_batch": 1000.0}
    measured |= {"train_target_tokens_per_second": 1000.0}
    for row in selection.experiment.rows:
        if row.name in names:
            device = devices.find("cpu")[0]
            engine = engines.resolve("auto", "cpu")
            precision = devices.resolve("auto", device)
            store.save_probe(probe_key(row.spec, device, precision, engine, ""), measured)
    return api.plan(path, device="cpu", results=store.results)


def test_a_warm_up_that_does_not_end_is_said(tmp_path: Path) -> None:
    path = tmp_path / "pe.yaml"
    path.write_text(EXPERIMENT, encoding="utf-8")
    schedule = "training.schedule={name: inverse_sqrt, lr: 1e-3, warmup: %d}"
    long, short = (
        api.plan(path, device="cpu", results=tmp_path, overrides=[schedule % n]) for n in (6, 5)
    )
    sentence = (
        "baseline, none and rms: the rate rises for 6 steps (training.schedule.warmup), and "
        "training ends after 6"
    )
    assert long.cautions == (sentence,)
    assert sentence in long.remarks()
    assert short.cautions == ()


def test_a_plan_for_a_cluster_counts_its_nodes(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    has_bf16 = devices.has_bf16(Device("cpu"))
    facts = DeviceFacts(provenance.hardware("cpu"), has_bf16=has_bf16, memory_mib=math.inf)
    slots = [Device("cpu", node=name, facts=facts) for name in ("a", "a", "b")]
    monkeypatch.setattr(sys.modules["ablate.api.plan"], "open_backend", lambda *_: Local(slots))
    plan = probed(path, "baseline")
    assert (plan.device, plan.n_worker_slots) == ("cpu (2 nodes)", 3)
    assert plan.seconds_left == pytest.approx((plan.device_seconds or 0.0) / 3)
    assert any(re.search(r"all runs together: [\d.]+ cpu hours", line) for line in plan.remarks())
    path.write_text(f"{EXPERIMENT}devices_per_run: 2\n", encoding="utf-8")
    slots.append(slots[0])  # of three on one node a run of two leaves one, and so does "b"
    plan = api.plan(path, results=path.parent)
    assert plan.remarks()[0].endswith("6 are missing; 1 at a time on cpu (2 nodes)")


@pytest.fixture
def large(path: Path) -> Path:
    """Return an experiment whose batches an engine splits, and draws dropout for each part."""
    text = EXPERIMENT.replace("batch_tokens: 512", "batch_tokens: 8000")
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_is_of_the_engine_that_is_asked_for(large: Path, tmp_path: Path) -> None:
    store = Store(tmp_path)
    eager = api.plan(large, device="cpu", results=tmp_path, engine="eager")
    for run in (run for row in eager.rows for run in row.runs):
        store.save({"hash": run.hash, "status": "done", "error": None})
    assert api.plan(large, device="cpu", results=tmp_path, engine="eager").n_missing == 0
    cores = api.plan(large, device="cpu", results=tmp_path, jobs=3, only=["none"])
    assert "2 are missing; 3 at a time on cpu" in cores.remarks()[0]
    with pytest.raises(SpecError, match="no engine 'fast'"):
        api.plan(large, device="cpu", results=tmp_path, engine="fast")
    adafactor = ["training.optimizer=adafactor"]
    with pytest.raises(SpecError, match="leave out --engine"):
        api.plan(large, device="cpu", engine="fully_sharded", overrides=adafactor)


def test_a_plan_has_as_many_runs_on_a_gpu_as_are_asked_for(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = DeviceFacts({"device": "cuda"}, has_bf16=False, memory_mib=80_000.0)
    gpus = [Device("cuda", index, "job 0", facts) for index in range(2)]
    monkeypatch.setattr(sys.modules["ablate.api.plan"], "open_backend", lambda *_: Local(gpus))
    plan = api.plan(large, results=tmp_path, jobs=4)
    assert {row.runs_at_once for row in plan.rows} == {4}
    assert "8 at a time" in plan.remarks()[0]


def test_rows_that_are_one_run_here_are_neither_planned_nor_made(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = "  twin: {training.precision: bf16}\n"
    large.write_text(large.read_text(encoding="utf-8") + twin, encoding="utf-8")
    monkeypatch.setattr(devices, "has_bf16", lambda _: True)
    reason = "the row 'twin' is the same run as the row 'baseline'"
    with pytest.raises(SpecError, match=reason):
        api.plan(large, device="cpu", results=tmp_path)
    with pytest.raises(SpecError, match=reason):
        api.run(large, api.RunOptions(device="cpu", results=tmp_path))
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def of_large_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan as if the vocabulary of the corpus would take long to learn."""
    monkeypatch.setattr(sys.modules["ablate.api.plan"], "vocabulary_at_hand", lambda _: None)


def test_sizes_are_those_with_the_vocabulary_of_a_small_text(path: Path, tmp_path: Path) -> None:
    match = "match: {on: params, via: model.dims.d_model, multiple_of: 2, tolerance: 9%}\n"
    path.write_text(f"{BASE}variants: {{deep: {{model.n_layers: 2}}}}\n{match}", "utf-8")
    baseline, deep = api.plan(path, device="cpu", results=tmp_path).rows
    assert deep.chosen == {"model.dims.d_model": "matched"}
    assert 0 < abs(deep.params_delta) <= 0.09
    assert baseline.is_vocabulary_known
    assert deep.is_vocabulary_known


@pytest.mark.usefixtures("of_large_text")
def test_a_vocabulary_that_a_run_has_found_serves_all_rows(path: Path, tmp_path: Path) -> None:
    before = api.plan(path, device="cpu", results=tmp_path)
    assert not any(row.is_vocabulary_known for row in before.rows)
    selection = finish(path, tmp_path, only=["rms"])  # and the baseline
    after = api.plan(path, device="cpu", results=tmp_path)
    assert all(row.is_vocabulary_known for row in after.rows)
    found = made_up.record("baseline", 1)["tokenizer"]
    vocabulary = Vocabulary(found["n_src"], found["n_tgt"], is_joint=True)
    model = assemble(selection.experiment.rows[0].spec.model, vocabulary, PAD)
    assert after.rows[0].params == count_parameters(model)["total"]


@pytest.mark.usefixtures("of_large_text")
def test_a_row_with_another_tokenizer_is_held_against_the_baseline_with_its_own(
    tmp_path: Path,
) -> None:
    path = tmp_path / "vocabularies.yaml"
    variants = (
        "  large: {tokenizer.vocab_size: 20000}\n"
        "  apart: {tokenizer.joint: false, model.embedding: separate}\n"
    )
    path.write_text(f"extends: ablate:presets/laptop\nvariants:\n{variants}", encoding="utf-8")
    baseline, *others = api.plan(path, device="cpu", results=tmp_path).rows
    assert [row.params - baseline.params for row in others] == [64 * 10_000, 2 * 64 * 10_000]
    for row in others:
        assert row.params_delta == row.params / baseline.params - 1


def test_a_large_text_that_is_not_encoded_yet_is_announced(path: Path) -> None:
    plan = probed(path)
    assert plan.text_mib == 0  # of the user's own
    assert not any("of text" in line for line in plan.remarks())
    line = "100 MiB of text are to be read and encoded first, which takes about 0:45 on two cores"
    assert line in replace(plan, text_mib=100.0).remarks()


@pytest.mark.usefixtures("of_large_text")
def test_own_text_counts_once_for_all_rows_that_read_it_alike(tmp_path: Path) -> None:
    names = [f"{split}.{side}" for split in ("train", "dev", "news") for side in ("en", "de")]
    for name in names:
        lines = [f"{name} a{n:02} b{n:02}\n" for n in range(50)]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    train, dev, news = ([str(tmp_path / name) for name in names[at : at + 2]] for at in (0, 2, 4))
    corpus = (
        f"{{name: files, src: en, tgt: de, train: {train}, dev: {dev}, tests: {{news: {news}}}}}"
    )
    text = EXPERIMENT.replace("{name: synthetic, size: 1000}", corpus)
    path = tmp_path / "own.yaml"
    path.write_text(f"{text}  long: {{model.dims.max_len: 128}}\n", encoding="utf-8")
    plan = api.plan(path, device="cpu", results=tmp_path / "results")
    of_all = sum(50 * len(f"{name} a00 b00\n") for name in names)
    assert plan.text_mib == pytest.approx(2 * of_all / 2**20)
    tune = "tune: {training.schedule.lr: [1e-3, 2e-3], seeds: [8]}\n"
    path.write_text(f"{path.read_text(encoding='utf-8')}{tune}", encoding="utf-8")
    assert api.plan(path, device="cpu", results=tmp_path / "results").text_mib == plan.text_mib


def test_flops_are_those_of_all_passes_of_a_step(path: Path, tmp_path: Path) -> None:
    variants = "  curved: {training.optimizer: {name: sophia, every: 4}}\n"
    path.write_text(f"{BASE}variants:\n{variants}", encoding="utf-8")
    baseline, curved = api.plan(path, device="cpu", results=tmp_path).rows
    more = curved.flops_per_target_token / baseline.flops_per_target_token
    assert more == pytest.approx(1 + 1 / 3)  # the fourth step has a third and one more


@pytest.mark.usefixtures("of_large_text")
def test_totals_are_known_as_soon_as_one_row_has_been_probed(path: Path) -> None:
    before, plan = probed(path), probed(path, "rms")
    assert before.seconds_left is None
    assert "all runs together: 4 MiB of disk for weights" in " ".join(before.remarks())
    assert not any(row.is_vocabulary_known for row in before.rows)
    assert all(row.is_vocabulary_known for row in plan.rows)
    assert plan.rows[0].params < before.rows[0].params
    assert plan.rows[1].params_delta == 0
    times = [row.seconds_per_run for row in plan.rows]
    assert None not in times
    assert [row.is_time_estimated for row in plan.rows] == [True, True, False]
    assert "? for memory or time: unknown until `ablate run` has probed the row" in plan.remarks()
    assert not any("memory and time" in line for line in plan.remarks())
    number, time, unknown = "~ before a number: ", "~ before a time: ", "? for memory or time: "
    for planned, said in (
        (before, [unknown, number]),
        (plan, [time, unknown]),
        (probed(path, "baseline", "none", "rms"), []),
    ):
        marks = re.findall(
            r"^(?:~ before a \w+|\? for memory or time): ", "\n".join(planned.remarks()), re.M
        )
        assert marks == said
    total = sum(2 * (seconds or 0) for seconds in times)
    assert plan.device_seconds == pytest.approx(total)
    text = " ".join(plan.remarks())
    assert f"all runs together: {total / 3600:.3g} cpu hours, " in text
    assert plan.to_json()["device_seconds"] == pytest.approx(total)


def test_an_estimated_time_is_that_of_the_rows_own_training(path: Path) -> None:
    changes = ("steps: 1000", "epochs: 2", "target_tokens: 70500", "batch_tokens: 1024")
    variants = [f"  {at}: {{model.norm: rms, training.{c}}}\n" for at, c in enumerate(changes)]
    variants.append("  wide: {model.feed_forward.d_ff: 160}\n")
    path.write_text(f"{BASE}variants:\n{''.join(variants)}", encoding="utf-8")
    plan = probed(path, "baseline")
    baseline, *_, wide = (row.flops_per_target_token for row in plan.rows)
    assert wide > 1.1 * baseline
    assert [row.seconds_per_run for row in plan.rows] == pytest.approx(
        [6, 1000, 200, 71, 12, 6 * wide / baseline]
    )


def test_a_plan_is_readable_in_a_terminal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(f"{EXPERIMENT}  t2t: {{model.position.exponent: t2t}}\n", encoding="utf-8")
    plan = probed(path, "rms")
    for width in (80, 200):
        console = Console(width=width, highlight=False, markup=False)
        monkeypatch.setattr(plan_command, "console_of_output", lambda console=console: console)
        with console.capture() as captured:
            plan_command.print_plan(plan)
        lines = captured.get().splitlines()
        assert max(map(len, lines)) <= width
        for row in plan.rows:
            line = next(line for line in lines if line.startswith(row.name))
            delta = f" ({row.params_delta:+.1%})" if row.params_delta else ""
            costs = r"40 +0:06" if row.name == "rms" else r"\? +~0:0\d"
            assert f"{row.params:,}{delta} " in line
            assert re.search(f" {costs} +0 of 2", line)
            assert "…" not in line
        starts = (line[:36].strip() if width == 80 else line for line in lines)
        assert "exponent=t2t" in "".join(starts)
