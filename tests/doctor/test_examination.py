"""Examinations: which checks are made on what, in processes of their own, and the output."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from ablate import api
from ablate.cli.app import app
from ablate.doctor import CheckResult, Diagnosis, examine
from ablate.doctor.examination import Check, run_in_process
from ablate.doctor.results import Target, broken, not_applicable, ok, warning
from ablate.errors import AblateError
from tests.documents import assert_described
from tests.test_processes import is_alive

ECHO = (
    sys.executable,
    "-c",
    "import json, os, sys\n"
    "print('noise')\n"
    "words = sys.argv[1], sys.argv[4], os.environ['CUDA_VISIBLE_DEVICES']\n"
    "print(json.dumps({'outcome': 'ok', 'sentence': ' '.join(words)}))",
)


def _fine(_: Target) -> CheckResult:
    return ok("fine")


def _fails(_: Target) -> CheckResult:
    raise OSError("the disk is on fire")


def test_what_a_check_raises_is_a_broken_line_and_the_others_go_on(tmp_path: Path) -> None:
    gpu = Check("gpu", _fails, 30.0, ("cuda",))  # not made on a CPU
    diagnosis = examine("cpu", tmp_path, checks=(Check("a", _fails), Check("b", _fine), gpu))
    assert [(r.name, r.device, r.outcome) for r in diagnosis.results] == [
        ("a", "", "broken"),
        ("b", "", "ok"),
        ("gpu", "cpu", "not applicable"),
    ]
    assert diagnosis.results[0].sentence == "OSError: the disk is on fire"
    assert diagnosis.exit_status == 1


def test_each_device_is_checked_in_a_process_that_sees_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.cuda, "init", _fails)  # or the examination would find itself there
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    gpus = Check("gpus", lambda _: ok("three", gpus_by_cuda=3))
    checks = (gpus, Check("one", _fails, 30.0, ("cuda",)), Check("two", _fails, 30.0, ("cuda",)))
    diagnosis = examine("cuda:0,2", tmp_path, checks, ECHO)
    assert [(r.name, r.sentence) for r in diagnosis.results] == [
        ("gpus", "three"),
        ("one", "one cuda:0 0"),
        ("two", "two cuda:0 0"),
        ("one", "one cuda:2 2"),
        ("two", "two cuda:2 2"),
    ]


@pytest.mark.parametrize(
    ("gpus", "n_checked"),
    [
        (ok("two", gpus_by_cuda=2), 2),
        (warning("one slice of two", gpus_by_cuda=1), 1),
        (broken("no driver"), 0),
    ],
)
def test_only_devices_that_cuda_reaches_are_checked(
    gpus: CheckResult, n_checked: int, tmp_path: Path
) -> None:
    checks = (Check("gpus", lambda _: gpus), Check("one", _fails, 30.0, ("cuda",)))
    diagnosis = examine("auto", tmp_path, checks=checks, command=ECHO)
    assert len(diagnosis.results) == 1 + n_checked


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "auto:1", "cpu:3"])
def test_a_misspelt_device_is_a_wrong_input(name: str, tmp_path: Path) -> None:
    with pytest.raises(AblateError, match=f"no device is called '{name}'"):
        api.doctor(name, tmp_path)


RESULTS = (
    ok("all is well", n=3),
    warning("others are at work"),
    not_applicable("there is no GPU"),
    CheckResult("broken", "it [is] wrong", {}, "speed", "cuda:0", 1.5),
)


@pytest.fixture
def doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    def run(results: tuple[CheckResult, ...], *words: str) -> tuple[int, str]:
        def fake(**options: Any) -> Diagnosis:
            assert options == {"device": "auto", "results": Path("results")}
            return Diagnosis(results)

        monkeypatch.setattr(api, "doctor", fake)
        with pytest.raises(SystemExit) as ended:
            app(["doctor", *words])
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().out

    return run


def test_each_check_has_a_line_and_a_value(doctor: Callable[..., tuple[int, str]]) -> None:
    status, output = doctor(RESULTS)
    assert status == 1
    for result in RESULTS:
        assert any(result.outcome in x and result.sentence in x for x in output.splitlines())
    assert "This machine is not fit: 1 of 4 checks broken, with 1 warning." in output
    status, output = doctor(RESULTS, "--json")
    report = json.loads(output)
    assert (status, report["is_fit"]) == (1, False)
    assert report["checks"] == [asdict(result) for result in RESULTS]
    assert_described(report, "doctor")


def test_a_fit_machine_ends_with_0(doctor: Callable[..., tuple[int, str]]) -> None:
    both = tuple(CheckResult("ok", "fine", {}, "speed", f"cuda:{n}") for n in range(2))
    status, output = doctor(both)
    assert status == 0
    assert all(text in output for text in ("speed cuda:0", "speed cuda:1", "This machine is fit."))


def _of(code: str, target: Target, limit_s: float = 30.0) -> CheckResult:
    return run_in_process("speed", target, limit_s, {}, [sys.executable, "-c", code])


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import os; os.kill(os.getpid(), 11)", "its process was killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "its process was killed by SIGKILL (out of memory"),
        ("raise RuntimeError('CUDA error: bad')", "failed: RuntimeError: CUDA error: bad"),
        ("import sys; sys.exit(3)", "failed"),
        ("print('all is well')", "gave no result but 'all is well'"),
        ("print('[1]')", "gave no result but"),
    ],
)
def test_a_process_that_fails_is_a_broken_check(code: str, sentence: str, target: Target) -> None:
    result = _of(code, target)
    assert result.outcome == "broken"
    assert result.sentence.startswith(sentence)


@pytest.mark.e2e
def test_a_process_that_hangs_is_killed_with_what_it_has_started(
    target: Target, tmp_path: Path
) -> None:
    file = tmp_path / "child"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(file)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)"
    )
    result = _of(code, target, limit_s=2.0)
    assert result.outcome == "broken"
    assert "no answer within 2 s" in result.sentence
    deadline = time.monotonic() + 10
    while is_alive(int(file.read_text())):
        assert time.monotonic() < deadline
        time.sleep(0.05)
