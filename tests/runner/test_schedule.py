"""The schedule, with fake workers."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partialmethod
from unittest.mock import Mock

import pytest

from ablate.errors import DetachedError, StoreError
from ablate.runner.backends.local import Local
from ablate.runner.devices import Device
from ablate.runner.pool import Pool
from ablate.runner.probe import (
    FEWEST_ROUNDS,
    n_rounds_of,
)
from ablate.runner.provenance import hardware, versions
from ablate.runner.schedule import Limits, Record, missing, outcome_text, schedule
from ablate.runner.task import Heartbeat, ProgressListener, Task, TaskGroup
from ablate.store import Store
from tests.runner.conftest import FEW_ROUNDS, MEASURED, FakeWorkers, MakeTask

pytestmark = pytest.mark.e2e
CPU = Device("cpu")


def test_rows_are_probed_by_turns_then_every_seed_is_trained(
    fake: FakeWorkers, task: MakeTask
) -> None:
    tasks = [task("done a", key=f"a{seed}", probe="a", spec={"seed": seed}) for seed in (1, 2)] + [
        task("done b")
    ]
    fake.run(tasks)
    assert fake.journal() == [
        "probe done a 1",
        "probe done b 1",
        "probe done b 1",
        "probe done a 1",
        "train done a 1",
        "train done a 2",
        "train done b 1",
    ]
    probes = [fake.store.load_probe(key) or {} for key in ("a", "done-b")]
    assert [n_rounds_of(probe) for probe in probes] == [FEWEST_ROUNDS] * 2
    assert probes[0]["session"] == probes[1]["session"] != ""
    assert "training" in fake.diary.signs
    assert "no message" not in fake.diary.signs


def test_a_call_waits_for_one_that_measures_and_takes_its_speeds(
    fake: FakeWorkers, task: MakeTask
) -> None:
    notes: list[str] = []
    with ExitStack() as other_call, ThreadPoolExecutor(1) as thread:
        thread.submit(
            other_call.enter_context, fake.store.lock_probe("base", lambda: None)
        ).result()

        def finish(text: str) -> None:
            notes.append(text)
            for row in ("base", "done-new"):
                fake.store.save_probe(row, {**MEASURED, "session": "other"})
            other_call.close()

        fake.diary.note = finish  # type: ignore[method-assign]
        _done(fake.store, "base")
        fake.run([task("done base", key="base", probe="base"), task("done new")])
    assert notes == ["another call measures speed and memory: waiting for it"]
    assert fake.journal() == ["train done new 1"]
    assert (fake.store.load("base") or {})["speed"]["session"] == "other"


def test_nothing_is_measured_unless_wanted(fake: FakeWorkers, task: MakeTask) -> None:
    limits = Limits(probes=False)
    schedule([task("done")], Local([CPU], fake.command), fake.store, fake.diary, limits)
    assert not [line for line in fake.journal() if line.startswith("probe")]
    assert fake.trained()


def _done(store: Store, key: str, **keys: object) -> None:
    """Keep the record of a run that this machine has made."""
    machine = {"hardware": hardware("cpu"), "versions": versions()}
    store.save({"hash": key, "status": "done", "error": None, "test": {}, **machine, **keys})


def test_a_new_row_takes_turns_with_a_baseline_that_is_done(
    fake: FakeWorkers, task: MakeTask
) -> None:
    fake.store.save_probe("base", MEASURED)
    fake.store.save_probe("old", MEASURED)
    _done(fake.store, "base")
    _done(fake.store, "old")
    tasks = [task("done base", key="base", probe="base"), task("done old", key="old", probe="old")]
    fake.run([*tasks, task("done new")])
    assert [line for line in fake.journal() if "old" in line] == []
    assert fake.trained() == ["train done new 1"]
    session = (fake.store.load_probe("done-new") or {})["session"]
    speed = (fake.store.load("base") or {})["speed"]
    assert speed["session"] == session
    assert n_rounds_of(speed) == FEWEST_ROUNDS
    fake.run([tasks[0], task("done new")])
    assert len(fake.journal()) == 2 * FEWEST_ROUNDS + 1  # nothing is missing any more


def test_what_another_machine_has_made_is_not_measured_on_this_one(
    fake: FakeWorkers, task: MakeTask
) -> None:
    _done(fake.store, "base", hardware={"cpu": "another", "threads": 1})
    fake.run([task("done base", key="base", probe="base"), task("done new")])
    assert "probe done base 1" not in fake.journal()
    assert (fake.store.load("base") or {}).get("speed") is None


def test_what_is_measured_here_stays_out_of_the_records_of_another_machine(
    fake: FakeWorkers, task: MakeTask
) -> None:
    _done(
        fake.store, "there", hardware={"cpu": "another", "threads": 1}, speed={"session": "there"}
    )
    _done(fake.store, "here")
    tasks = [task("done base", key=key, probe="base") for key in ("there", "here", "missing")]
    fake.run(tasks)
    assert "probe done base 1" in fake.journal()
    assert (fake.store.load("there") or {})["speed"] == {"session": "there"}
    assert n_rounds_of((fake.store.load("here") or {})["speed"]) == FEWEST_ROUNDS


def test_a_speed_that_was_measured_before_a_kill_reaches_its_record(
    fake: FakeWorkers, task: MakeTask
) -> None:
    fake.store.save_probe("base", {**MEASURED, "session": "before the kill"})
    _done(fake.store, "base")
    fake.run([task("done base", key="base", probe="base")])
    assert not fake.journal()
    assert (fake.store.load("base") or {})["speed"]["session"] == "before the kill"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["granted a"], ["3"]),
        (["granted a", "granted b"], ["2", "3"]),  # b waits until it has more than one
        (["done", "granted a"], ["3"]),  # when the other one has ended
    ],
)
def test_unused_cores_are_for_the_runs_at_work(
    fake: FakeWorkers, names: list[str], expected: list[str], task: MakeTask
) -> None:
    tasks = [task(name, probe="measured") for name in names]
    fake.store.save_probe("measured", MEASURED)
    fake.run(tasks, n_slots=3)
    granted = [(fake.store.load(task.key) or {})["error"] for task in tasks]
    assert [number for number in granted if number is not None] == expected


def test_what_has_finished_is_not_repeated_and_what_failed_is(
    fake: FakeWorkers, task: MakeTask
) -> None:
    tasks = [task(status) for status in ("done", "diverged", "oom", "failed")]
    fake.run(tasks)
    before = len(fake.journal())
    fake.run(tasks)
    again = ["train oom 1", "train failed 1", "train oom 1 1/2", "train oom 1 1/4"]
    assert fake.journal()[before:] == again


def test_a_run_of_another_experiment_is_shared(fake: FakeWorkers, task: MakeTask) -> None:
    fake.run([task("done", key="same"), task("done", key="same")])
    assert fake.trained() == ["train done 1"]
    assert missing([task("done too", key="same", experiment="other")], fake.store) == []


@pytest.mark.parametrize("name", ["", "log.txt", "snapshots"])
def test_no_run_begins_if_a_link_leads_out_of_its_folder(
    fake: FakeWorkers, task: MakeTask, name: str
) -> None:
    outside, link = fake.store.results / "outside", fake.store.path("done") / name
    outside.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with pytest.raises(StoreError, match=f"{link}: is a link"):
        fake.run([task("diverged"), task("done")])
    assert fake.journal() == []
    assert not any(outside.iterdir())


def test_fresh_repeats_everything(fake: FakeWorkers, task: MakeTask) -> None:
    fake.run([task("done")])
    fake.run([task("done", fresh=True)])
    once = [*["probe done 1"] * FEWEST_ROUNDS, "train done 1"]
    assert fake.journal() == once * 2


@pytest.mark.parametrize(
    ("variant", "end"),
    [
        ("dies", "oom: killed by signal 9 (out of memory?)"),
        ("crashes", "failed: the worker ended with exit status 1: the last words"),
        ("lies", "failed: the worker left no record"),
    ],
)
def test_a_worker_that_dies_is_one_failed_row_and_the_others_go_on(
    fake: FakeWorkers, task: MakeTask, variant: str, end: str
) -> None:
    fake.run([task(variant), task("done")])
    record = fake.store.load(variant)
    assert record is not None
    assert f"{record['status']}: {record['error']}" == fake.diary.endings[variant] == end
    assert record["spec"] == {"seed": 1}
    assert fake.status("done") == "done"


def test_the_record_that_a_worker_has_written_of_a_failure_is_kept(
    fake: FakeWorkers, task: MakeTask
) -> None:
    """It has what was known by then; one that the schedule writes has the request alone."""
    fake.run([task("failed")], limits=Limits(probes=False))
    record = fake.store.load("failed") or {}
    assert (record["error"], record["test"]) == ("a reason", {})


def test_a_run_that_was_finished_before_its_worker_died_stays(
    fake: FakeWorkers, task: MakeTask
) -> None:
    fake.run([task("finishes")])
    assert fake.status("finishes") == "done"
    trained = (fake.store.results / "journal").read_text(encoding="utf-8").count("train finishes")
    assert trained == 1


def test_a_worker_that_dies_leaves_no_old_success_behind(fake: FakeWorkers, task: MakeTask) -> None:
    fake.run([task("done", key="k")])
    fake.run([task("crashes", key="k", fresh=True)])
    assert fake.status("k") == "failed"


@pytest.mark.parametrize("variant", ["hangs", "hangs stubbornly"])
def test_an_interruption_ends_every_worker_and_the_next_call_continues(
    fake: FakeWorkers, task: MakeTask, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers: list[int] = []

    def interrupt(heartbeat: Heartbeat) -> None:
        if heartbeat.phase.startswith("ready"):
            workers.append(int(heartbeat.phase.split()[1]))
        if len(workers) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    fake.diary.on_sign = interrupt
    monkeypatch.setattr(Pool, "__init__", partialmethod(Pool.__init__, grace_s=0.5))
    with pytest.raises(KeyboardInterrupt):
        fake.run([task(variant, key="1"), task(variant, key="2")], n_slots=2)
    for process in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    assert fake.store.load("1") is fake.store.load("2") is None
    fake.diary.on_sign = lambda _: None
    fake.run([task("done", key="1"), task("done", key="2")], n_slots=2)
    assert fake.status("2") == "done"


@pytest.mark.parametrize(
    ("isolation", "n_slots", "n_at_once"), [("none", 2, 2), ("none", 3, 2), ("device", 2, 1)]
)
def test_how_many_runs_are_at_work_at_once_is_told(
    isolation: str, n_slots: int, n_at_once: int, fake: FakeWorkers, task: MakeTask
) -> None:
    tasks = [task(name, isolation=isolation) for name in ("done a", "done b")]
    for each in tasks:
        fake.store.save_probe(each.probe, {**MEASURED, "session": "x"})
    listener = Mock(spec=ProgressListener)
    schedule(tasks, Local([CPU] * n_slots, fake.command), fake.store, listener, FEW_ROUNDS)
    words = [each.args[1] for each in listener.expect.call_args_list]
    assert words == [f"training 2 runs, {n_at_once} at a time"]


def test_what_runs_are_executed_again_for_is_told(fake: FakeWorkers, task: MakeTask) -> None:
    tasks = [
        task("uncaptured", engine="cuda_graph"),
        task("held"),
        task("done", trained_alike=("held",)),
    ]
    listener = Mock(spec=ProgressListener)
    limits = replace(FEW_ROUNDS, probes=False)
    schedule(tasks[:1], Local([CPU], fake.command), fake.store, listener, limits)
    schedule(tasks[1:], Local([CPU], fake.command), fake.store, listener, limits)
    words = [each.args[1] for each in listener.expect.call_args_list]
    whats = ["training", "repeating", "training", "waiting for", "decoding"]
    assert words == [f"{what} 1 run, 1 at a time" for what in whats]
    endings = [(each.args[1], each.kwargs["is_good"]) for each in listener.ended.call_args_list]
    assert endings == [
        ("failed: no capture; once more, in a fresh process with the eager engine", False),
        ("done, BLEU ", True),
        ("another call is at work on it: after the others", True),
        ("done, BLEU ", True),
        ("done, BLEU ", True),
    ]


def test_how_a_run_ended_has_its_scores_or_its_error() -> None:
    done = {"status": "done", "test": {"news": {"bleu": 34.567}, "old": {"bleu": 0.0}}}
    assert outcome_text(done) == "done, BLEU news 34.57, old 0.00"
    assert outcome_text({"status": "oom", "error": "no room"}) == "oom: no room"


def test_how_a_run_ended_may_be_said_by_who_exports_it(fake: FakeWorkers, task: MakeTask) -> None:
    def describe(task: Task, record: Record) -> str:
        return f"{task.variant} is exported, {record['status']}"

    backend, tasks = Local([CPU], fake.command), [task("done"), task("diverged")]
    schedule(tasks, backend, fake.store, fake.diary, FEW_ROUNDS, describe)
    assert fake.diary.endings == {
        "done": "done is exported, done",
        "diverged": "diverged is exported, diverged",
    }


def test_a_worker_does_not_hear_our_ctrl_c(fake: FakeWorkers, task: MakeTask) -> None:
    def interrupt(heartbeat: Heartbeat) -> None:
        if heartbeat.phase.startswith("ready"):
            worker = int(heartbeat.phase.split()[1])
            os.kill(worker, signal.SIGINT)
            time.sleep(0.2)
            os.kill(worker, signal.SIGTERM)

    fake.diary.on_sign = interrupt
    fake.run([task("hangs")])
    assert fake.diary.endings["hangs"] == "failed: killed by signal 15"


def test_a_worker_sees_its_device_alone_and_one_thread(
    fake: FakeWorkers, task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    names = ["CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"]
    for device, visible in ((Device("cuda", 1), "7"), (CPU, "")):
        job = task("environment", key=str(device), spec={"seed": 1, "names": names})
        schedule([job], Local([device], fake.command), fake.store, fake.diary, FEW_ROUNDS)
        record = fake.store.load(str(device))
        assert record is not None
        assert json.loads(record["error"]) == dict(zip(names, (visible, "1"), strict=True))


def test_runs_that_share_a_process_all_end(fake: FakeWorkers, task: MakeTask) -> None:
    tasks = [task(f"done {number}") for number in range(5)]
    fake.run(tasks, limits=replace(FEW_ROUNDS, runs_per_process=2))
    assert [fake.status(task.key) for task in tasks] == ["done"] * 5
    assert set(fake.diary.endings.values()) == {"done, BLEU "}
    log = (fake.store.path("done-1") / "log.txt").read_text(encoding="utf-8")
    assert log == f"It shared a process, see {fake.store.path('done-0') / 'log.txt'}\n"


@pytest.mark.parametrize("variant", ["shy", "greedy"])
def test_a_run_that_fails_in_company_is_repeated_alone(
    fake: FakeWorkers, task: MakeTask, variant: str
) -> None:
    tasks = [task("done"), task(variant), task("diverged"), task("done too")]
    fake.run(tasks, limits=replace(FEW_ROUNDS, runs_per_process=4))
    assert [fake.status(task.key) for task in tasks] == ["done", "done", "diverged", "done"]
    again = {  # signal 9 does not say whose memory it was
        "shy": ["train shy 1", "train diverged 1", "train done too 1"],
        "greedy": ["train diverged 1", "train done too 1", "train greedy 1"],
    }
    assert fake.trained()[4:] == again[variant]


def test_runs_begin_as_their_row_was_probed(fake: FakeWorkers, task: MakeTask) -> None:
    tasks = [task("large", key=f"l{seed}", spec={"seed": seed}) for seed in (1, 2)] + [task("done")]
    fake.run(tasks)
    assert fake.journal() == [
        "probe large 1",
        "probe done 1",
        "probe large 1 1/2",
        *["probe done 1", "probe large 1 1/2"],
        *["train done 1", "train large 1 1/2", "train large 2 1/2"],
    ]
    assert (fake.store.load_probe("large") or {})["micro_batch_factor"] == 2
    more = [task("large", key="l3", spec={"seed": 3})]
    fake.run(more)
    assert fake.trained()[-1] == "train large 3 1/2"


def test_runs_in_jobs_that_are_left_alone_begin_as_their_row_was_probed(
    task: MakeTask, store: Store
) -> None:
    """A job repeats nothing; with another engine it would be another run than is followed."""
    submitted: dict[str, tuple[int, str]] = {}

    class Leaving(Local):
        def detach(self, work: Sequence[Sequence[TaskGroup]]) -> None:
            tasks = [each for groups in work for group in groups for each in group]
            submitted.update({each.key: (each.micro_batch_factor, each.engine) for each in tasks})
            raise DetachedError("submitted")

    store.save_probe("large", {**MEASURED, "micro_batch_factor": 2})
    eager = {"engine": "eager", "engine_note": "not cuda_graph: no capture"}
    store.save_probe("uncaptured", {**MEASURED, **eager})
    names = ("large", "uncaptured")
    tasks = [task(name, engine="cuda_graph", eager_key=f"eager {name}") for name in names]
    with pytest.raises(DetachedError):
        schedule(tasks, Leaving([CPU]), store, ProgressListener(), Limits(probes=False))
    assert submitted == {"large": (2, "cuda_graph"), "uncaptured": (1, "cuda_graph")}


def test_an_engine_that_fails_gives_way_to_the_eager_one_in_a_fresh_process(
    fake: FakeWorkers, task: MakeTask
) -> None:
    tasks = [task(name, engine="cuda_graph") for name in ("done", "uncaptured", "done too")]
    fake.run(tasks, limits=replace(FEW_ROUNDS, runs_per_process=3))
    assert fake.trained()[3:] == ["train uncaptured 1 eager", "train done too 1"]
    assert [fake.status(task.key) for task in tasks] == ["done"] * 3


@pytest.mark.parametrize("name", ["uncaptured", "uncompiled"])  # in training, in the probe
def test_a_run_whose_engine_failed_is_kept_as_the_run_that_was_made(
    fake: FakeWorkers, name: str, task: MakeTask
) -> None:
    """The eager engine may draw other random numbers, and then its run has another hash."""
    job = task(name, engine="cuda_graph", eager_key="eager")
    for _ in range(2):  # the second time there is nothing to do
        fake.run([job])
        assert fake.trained()[-1] == f"train {name} 1 eager"
    assert len(fake.trained()) == 1 + (name == "uncaptured")
    assert (fake.status(name), fake.status("eager")) == ("failed", "done")
    outcome = fake.store.load_outcome(name) or {}
    assert (outcome["hash"], outcome["is_fallback"]) == ("eager", True)
    assert outcome["engine_note"] == "not cuda_graph: no capture"
    fake.run([replace(job, fresh=True)])
    again = [*fake.trained()][1 + (name == "uncaptured") :]
    assert again == [*[f"train {name} 1"] * (name == "uncaptured"), f"train {name} 1 eager"]


def test_a_run_that_another_call_has_finished_meanwhile_is_not_given_up(
    fake: FakeWorkers, task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = task("uncompiled", engine="compile", eager_key="eager")
    ended = fake.diary.ended

    def finish_elsewhere(task: Task, outcome: str, *, is_good: bool) -> None:
        ended(task, outcome, is_good=is_good)
        _done(fake.store, job.key)

    monkeypatch.setattr(fake.diary, "ended", finish_elsewhere)
    fake.run([job])
    assert fake.trained() == ["train uncompiled 1"]  # which finds it finished
    assert (fake.status(job.key), fake.store.load("eager")) == ("done", None)


def test_a_run_that_was_made_eagerly_before_stands_in_for_one_whose_engine_fails(
    fake: FakeWorkers, task: MakeTask
) -> None:
    fake.store.save(
        {"hash": "eager", "status": "done", "error": None, "test": {}, "engine_note": ""}
    )
    fake.run([task("uncaptured", engine="cuda_graph", eager_key="eager")])
    outcome = fake.store.load_outcome("uncaptured") or {}
    assert (outcome["hash"], outcome["engine_note"]) == ("eager", "not cuda_graph: no capture")
