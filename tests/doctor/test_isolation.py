"""Checks in processes of their own: whatever these do, there is a result."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from ablate.doctor.isolation import run_in_process
from ablate.doctor.results import CheckResult, Target, ok

pytestmark = pytest.mark.e2e


def _of(code: str, target: Target, limit_s: float = 30.0, **environment: str) -> CheckResult:
    return run_in_process("speed", target, limit_s, environment, [sys.executable, "-c", code])


def test_a_result_comes_back_whole(target: Target) -> None:
    expected = ok("3 of 3", n=3, name="x")
    code = f"print('noise'); print({expected.to_line()!r})"
    assert _of(code, target) == expected


def test_a_process_is_given_the_check_the_target_and_the_environment(target: Target) -> None:
    code = (
        "import json, os, sys\n"
        "target = json.loads(sys.argv[2])\n"
        'sentence = f\'{sys.argv[1]} {target["device"]} {os.environ["MARK"]}\'\n'
        "print(json.dumps({'outcome': 'ok', 'sentence': sentence}))"
    )
    assert _of(code, target, MARK="yes").sentence == "speed cpu yes"


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import os; os.kill(os.getpid(), 11)", "its process was killed by SIGSEGV"),
        ("import os; os.kill(os.getpid(), 9)", "its process was killed by SIGKILL (out of memory"),
        ("raise RuntimeError('CUDA error: bad')", "failed: RuntimeError: CUDA error: bad"),
        ("import sys; sys.exit(3)", "failed"),
        ("print('all is well')", "gave no result but 'all is well'"),
        ("print('[1]')", "gave no result but"),
        ("", "gave no result but ''"),
    ],
)
def test_a_process_that_fails_is_a_broken_check(code: str, sentence: str, target: Target) -> None:
    result = _of(code, target)
    assert result.outcome == "broken"
    assert result.sentence.startswith(sentence)


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
    while _is_running(int(file.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(int(file.read_text()))


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or ") Z " not in status.read_text()
