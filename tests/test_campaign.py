"""Measurements that take many calls: what is done is kept between them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from ablate import config
from ablate.cli.app import app

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import campaign  # noqa: E402

STUDY = """\
corpus: {name: synthetic, size: 400}
tokenizer: word
model:
  dims: {d_model: 16, n_heads: 2, max_len: 64}
  n_layers: 1
  feed_forward: {name: relu, d_ff: 16}
training: {steps: 4, batch_tokens: 256, schedule: {name: constant, lr: 1e-3}}
decoding: greedy
seeds: [1, 2]
"""


@pytest.mark.parametrize("study", campaign.STUDIES)
def test_studies_are_experiments(study: str) -> None:
    assert config.load(campaign.EXPERIMENTS / f"{study}.yaml").rows


@pytest.mark.parametrize(
    ("statuses", "expected"), [((0, 0), 0), ((0, 1), 1), ((0, None), 1), ((1, 0), 1)]
)
def test_the_last_study_may_end_when_the_time_is_over(
    statuses: tuple[int | None, ...], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []

    def go_on(study: str, _kept: Path, _results: Path, end: float) -> int | None:
        begun.append(study)
        if len(begun) == len(statuses):
            monkeypatch.setattr(time, "monotonic", lambda: end)
        return statuses[len(begun) - 1]

    studies = [*campaign.STUDIES][: len(statuses)]
    monkeypatch.setattr(campaign, "go_on", go_on)
    monkeypatch.setattr(campaign, "restore", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["campaign.py", *studies, "--minutes", "60"])
    assert campaign.main() == expected
    assert begun == studies


def test_no_study_begins_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(campaign, "go_on", lambda study, *_: begun.append(study))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["campaign.py", "atlas", "--minutes", "0"])
    assert campaign.main() == 1
    assert begun == []


RUN = """\
import signal, sys, time
count, end = [], time.monotonic() + 5
signal.signal(signal.SIGINT, lambda *_: count.append(1))
print("ready", flush=True)
while not count and time.monotonic() < end:
    time.sleep(0.01)
time.sleep(0.2)
print(len(count), flush=True)
"""
"""Counts its interrupts, of which `ablate run` takes the second for an order to hurry."""

CAMPAIGN = f"""\
import sys, campaign
campaign.ablate = lambda *words: [sys.executable, "-c", {RUN!r} if words[0] == "run" else ""]
campaign.restore = lambda *_: None
sys.argv = ["campaign.py", "atlas"]
campaign.main()
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("number", "is_to_group"),
    [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False)],
)
def test_a_run_is_interrupted_once(number: signal.Signals, is_to_group: bool) -> None:
    """A terminal sends Ctrl-C to the whole group of processes, `kill` to the campaign alone."""
    process = subprocess.Popen(
        [sys.executable, "-c", CAMPAIGN],
        env={**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        process_group=0,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (os.killpg if is_to_group else os.kill)(process.pid, number)
        assert process.stdout.read() == "1\n"


SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def ablate_in_this_process(command: list[str], *, check: bool) -> None:
    """Do what a command of ablate does; to import PyTorch for each would take long."""
    outcome = CliRunner().invoke(app, command[command.index("ablate.cli") + 1 :])
    assert not check or outcome.exit_code == 0, outcome.output


@pytest.mark.e2e
def test_what_is_done_is_kept_and_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(STUDY)
    monkeypatch.setattr(campaign, "_POLL_S", 0.05)
    in_part = SimpleNamespace(Popen=subprocess.Popen, run=ablate_in_this_process)
    monkeypatch.setattr(campaign, "subprocess", in_part)
    monkeypatch.setattr(campaign, "EXPERIMENTS", tmp_path)
    monkeypatch.setattr(campaign, "STUDIES", {"small": ("--no-probe", "--no-figures")})
    kept, far = tmp_path / "kept", time.monotonic() + 600

    with monkeypatch.context() as patch:
        ablate = campaign.ablate
        patch.setattr(campaign, "ablate", lambda *w: SLEEP if w[0] == "run" else ablate(*w))
        assert campaign.go_on("small", kept, tmp_path / "first", end=0.0) is None  # no time at all
    assert campaign.go_on("small", kept, tmp_path / "first", far) == 0
    archive = campaign.archive_of("small", kept)
    with tarfile.open(archive) as tar:
        assert len(tar.getnames()) == 2
    content = archive.read_bytes()

    capfd.readouterr()
    campaign.restore("small", kept, tmp_path / "second")
    assert campaign.go_on("small", kept, tmp_path / "second", far) == 0
    assert "started" not in capfd.readouterr().err
    assert archive.read_bytes() == content
