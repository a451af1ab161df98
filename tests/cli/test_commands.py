"""The command line: exit statuses, what goes where, and that no input leads to a traceback."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import typer

from ablate.api.costs import Costs
from ablate.cli.guard import guarded
from ablate.registry import slots
from tests.cli.conftest import COMMAND, Ablate, environment

pytestmark = pytest.mark.commands


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["run", "missing.yaml"], r"missing\.yaml"),
        (["run", "pe.yaml", "--only", "nne"], "did you mean 'none'"),
        (["run", "pe.yaml", "--seeds", "1,x"], "seeds are whole numbers"),
        (["run", "pe.yaml", "--set", "training.stps=3"], "did you mean 'steps'"),
        (["run", "pe.yaml", "--device", "gpu"], "no device is called 'gpu'"),
        (["run", "pe.yaml", "--engine", "fast"], "no engine 'fast'; say auto, eager, data_paral"),
        (["run", "pe.yaml", "--device", "cuda:99"], "cuda:99"),
        (["run", "pe.yaml", "--jobs", "0"], "'--jobs': must be at least 1; it is '?0"),
        (["run", "pe.yaml", "--jobs", "x"], "'--jobs': needs a whole number; 'x' is a string"),
        (
            ["run", "pe.yaml", "--stall-after", "x"],
            "'--stall-after': needs a number; 'x' is a string",
        ),
        (["run", "pe.yaml", "--jbos", "1"], "jbos"),
        (["rnu", "pe.yaml"], "rnu"),
        (["run"], "SPEC|spec"),
        (["plan", "missing.yaml"], r"missing\.yaml"),
        (["plan", "pe.yaml", "--engine", "fast"], "no engine 'fast'; say auto, eager"),
        (["plan", "pe.yaml", "--slurm-time", "90"], "--slurm-time is an option of --backend slurm"),
        (["report", "pe.yaml"], "holds no run of pe"),
        (["report", "pe.yaml", "--format", "pdf"], "no format is called 'pdf'; known: .*terminal"),
        (["parts", "--json", "--format", "markdown"], "exclude each other"),
        (["report", "pe.yaml", "--json", "--format", "csv"], "exclude each other"),
        (["compare", "pe.yaml", "pe.yaml", "--json", "--format", "csv"], "exclude each other"),
        (["parts", "positon"], "no slot or part is called 'positon'; did you mean 'position'"),
        (["parts", "rope"], "did you mean 'rotary'"),
        (["parts", "position", "sinusodal"], "did you mean 'sinusoidal'"),
        (["corpora", "show", "syntetic"], "did you mean 'synthetic'"),
        (["corpora", "show", "synthetic", "--set", "sied=1"], "1:8: corpus.sied: unknown option"),
        (["corpora", "show", "files", "--set", "src=en"], "needs 'tgt' and 'train'"),
        (["translate", "abc"], "no run 'abc'"),
        (["init", "pe"], "exists already"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_ends_with_2_and_a_sentence(
    ablate: Ablate, words: list[str], reason: str
) -> None:
    done = ablate(*words)
    assert done.returncode == 2, done.stderr
    if "--json" in words:
        assert re.search(reason, json.loads(done.stdout)["errors"][0]["message"])
    else:
        assert done.stdout == ""
    assert re.search(reason, done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", [["--json"], ["--plugin", "parts.py"]], ids=" ".join)
def test_options_of_the_list_of_corpora_are_not_dropped(ablate: Ablate, option: list[str]) -> None:
    done = ablate("corpora", *option, "show", "synthetic")
    assert done.returncode == 2, done.stderr
    assert option[0] in done.stderr
    assert "give it after 'show'" in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["run", "--help"], ["corpora", "show", "-h"]])
def test_help_goes_to_standard_output(ablate: Ablate, words: list[str]) -> None:
    done = ablate(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage" in done.stdout
    assert "\x1b[" not in done.stdout
    assert all(f"─ {name} ─" in done.stdout for name in ("Ray", "Slurm")) == (words[0] == "run")


@pytest.mark.parametrize("command", ["init", "parts", "compare"])
def test_an_argument_that_may_be_left_out_has_one_pair_of_brackets(
    ablate: Ablate, command: str
) -> None:
    usage = ablate(command, "--help").stdout.partition("Usage:")[2].partition("\n")[0]
    assert re.search(r" \[(NAME|SPEC)\]\s*$", usage), usage


def test_parts_are_listed_with_their_sources_and_by_name(
    ablate: Ablate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Costs, "of", lambda *_: None)  # to count takes a while
    text = ablate("parts").stdout
    for slot, table in slots().items():
        for name, entry in table.items():
            assert re.search(rf"^{name}\*? .*{re.escape(entry.source)}", text, re.MULTILINE), slot
    named = json.loads(ablate("parts", "none", "--json").stdout)
    with_none = [(slot, "none") for slot, table in slots().items() if "none" in table]
    assert {(part["slot"], part["name"]) for part in named} == set(with_none)


def test_a_slot_is_listed_for_programs_and_as_a_page(ablate: Ablate) -> None:
    text = ablate("parts", "mask", "--json").stdout
    assert ablate("parts", "mask", "--format", "json").stdout == text
    listed = json.loads(text)
    assert [part["name"] for part in listed] == ["causal", *sorted({*slots()["mask"]} - {"causal"})]
    assert {part["path"] for part in listed} == {"model.mask"}
    page = ablate("parts", "mask", "--format", "markdown").stdout
    assert page.startswith("# Parts\n")
    assert "### mask: causal\n" in page


def test_a_part_is_shown_with_its_options(ablate: Ablate) -> None:
    shown = ablate("parts", "position", "sinusoidal").stdout
    assert shown.startswith("position: sinusoidal  model.position  the default\n")
    assert "exponent: paper | literal_2i | t2t; default paper" in shown
    assert "model:\n      position: sinusoidal\n" in shown
    assert all(line == line.rstrip() for line in shown.splitlines())
    assert ablate("parts", "sinusoidal").stdout == shown


def test_corpora_are_listed_and_shown(ablate: Ablate) -> None:
    assert "synthetic" in ablate("corpora").stdout
    output = ablate("corpora", "show", "synthetic", "--set", "size=400")
    assert output.returncode == 0, output.stderr
    assert re.search(r"train +400 ", output.stdout)
    assert "test_novel" in output.stdout


@pytest.mark.e2e
def test_a_terminal_shows_why_there_is_no_output_yet(folder: Path, cache: Path) -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "runs", "list"]
    done = subprocess.run(
        command, cwd=folder, env=environment(cache), stderr=theirs, stdout=subprocess.PIPE
    )
    os.close(theirs)
    written = b""
    with suppress(OSError):  # at the end
        while True:
            written += os.read(ours, 10**6)
    os.close(ours)
    shown = written.decode()
    assert done.returncode == 0
    assert re.findall(r"loading PyTorch|reading runs", shown)[:1] == ["loading PyTorch"]
    assert "reading runs" in shown
    assert shown.endswith("\x1b[1A\x1b[2K"), "the line is cleared"


@pytest.mark.e2e
def test_a_closed_pipe_is_no_error(ablate: Ablate, folder: Path, cache: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "parts", "position", "--json"],
        cwd=folder,
        env=environment(cache),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    stderr = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), stderr) == (0, "")


@pytest.mark.parametrize(("name", "status"), [("gate", 141), ("run", 141), ("parts", 0)])
def test_a_closed_pipe_hides_no_judgement(
    name: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def command() -> int:
        raise BrokenPipeError

    command.__name__ = name
    monkeypatch.setattr("os.dup2", lambda *_: None)  # standard output stays the test's
    with pytest.raises(typer.Exit) as ended:
        guarded(command)()
    assert ended.value.exit_code == status


@pytest.mark.parametrize(
    ("name", "fresh", "hint"),
    [
        ("run", False, "; the same command continues where this one stopped"),
        ("fetch", False, "; the same command continues where this one stopped"),
        ("run", True, "; the same command begins anew; without --fresh it continues the runs"),
        ("plan", False, ""),
    ],
)
def test_an_interruption_says_what_the_next_call_does(
    name: str, fresh: bool, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(*, fresh: bool) -> None:
        raise KeyboardInterrupt

    command.__name__ = name
    with pytest.raises(typer.Exit) as ended:
        guarded(command)(fresh=fresh)
    assert ended.value.exit_code == 130
    error = capsys.readouterr().err.rstrip()
    assert error.startswith(f"interrupted{hint}")
    assert bool(hint) == (error != "interrupted")


def test_a_new_experiment_is_valid(ablate: Ablate) -> None:
    assert ablate("init", "mine").stdout == "mine.yaml\n"
    planned = json.loads(ablate("plan", "mine.yaml", "--json").stdout)
    assert [row["name"] for row in planned["rows"]] == ["baseline", "learned", "none"]


def test_a_plan_trains_nothing(ablate: Ablate, folder: Path) -> None:
    done = ablate("plan", "pe.yaml")
    assert done.returncode == 0, done.stderr
    assert "0 of 4 runs are done, 4 are missing" in done.stdout
    assert "unknown until" in done.stdout
    assert not (folder / "results").exists()
