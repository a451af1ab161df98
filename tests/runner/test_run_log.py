"""The log of a run: what it did, and when."""

from __future__ import annotations

import errno
import io
import re
import sys

import pytest

from ablate.runner.worker import Reporter
from tests.runner.conftest import MakeTask, training_at


def test_phases_are_dated_and_progress_comes_every_half_minute(
    task: MakeTask, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = [0.0]
    log = Reporter(task("none"), lambda _: None, lambda: seconds[0])
    log("reading the corpus")
    log("training")
    for step in range(1, 101):
        seconds[0] += 1.0
        log("training", training_at(step).progress)
    log("translating test")
    log.line("ended")
    lines = capsys.readouterr().out.splitlines()
    date = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00"
    assert all(re.match(rf"{date}  pe none seed 1: ", line) for line in lines)
    texts = [line.partition(" seed 1: ")[2] for line in lines]
    assert re.fullmatch(r"none begins in process \d+ on \S+, cpu, fp32, engine eager", texts[0])
    figures = "loss 3.210  12,346 tok/s  0:30 left"
    assert texts[1:] == [
        "reading the corpus",
        "training",
        f"training  step  30/100  {figures}",
        f"training  step  60/100  {figures}",
        f"training  step  90/100  {figures}",
        f"training  step 100/100  {figures}",
        "translating test",
        "ended",
    ]


def test_a_full_disk_stops_no_run(task: MakeTask, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    Reporter(task("none"), lambda _: None).line("ended")
