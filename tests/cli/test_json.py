"""``--json``: every command has it, refusals are documents, and a program needs nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator, ValidationError
from typer.testing import CliRunner

from ablate import api
from ablate.api.documents import DOCUMENTS
from ablate.cli.app import app
from ablate.errors import SpecError
from tests.documents import assert_described
from tests.made_up_runs import EXPERIMENT, finished
from tests.registrations import temporary_registrations

ROOT = Path(__file__).parents[2]
WITHOUT = {"schema", "translate", "corpora fetch", "runs show"}
"""Commands that print no document of their own, or nothing else."""


def commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        if not hasattr(command, "commands") or command.invoke_without_command:
            yield f"{before}{name}", command


def called(*words: str) -> tuple[int, Any]:
    """Return the exit status and what was printed, which its schema describes to the last key."""
    done = CliRunner().invoke(app, [*words, "--json"])
    printed = json.loads(done.stdout)
    name = " ".join(words[:2]) if " ".join(words[:2]) in DOCUMENTS else words[0]
    assert_described(printed, "errors" if "errors" in printed and done.exit_code else name)
    return done.exit_code, printed


def test_every_command_has_the_option() -> None:
    having = {
        name: any("--json" in option.opts for option in command.params)
        for name, command in commands(typer.main.get_command(app))
    }
    assert {name for name, has_it in having.items() if not has_it} == WITHOUT
    others = {"gate --bless", "errors", "detached", "events", "runs show"}
    others |= {f"contexts {name}" for name in ("run", "report", "plan", "gate --bless")}
    assert set(DOCUMENTS) == {name for name, has_it in having.items() if has_it} | others


def test_a_schema_is_valid_and_strict() -> None:
    for name in DOCUMENTS:
        schema = api.schema(name)
        Draft202012Validator.check_schema(schema)
        assert schema["title"] == f"ablate {name}"
    definitions = {"$defs": api.schema("run")["$defs"]}
    validator = Draft202012Validator({"$ref": "#/$defs/DifferenceContent", **definitions})
    unknown = dict.fromkeys(("estimate", "se", "df", "interval", "single", "sentences", "p"))
    unknown |= {"median_unbiased": None}
    with pytest.raises(ValidationError, match="'verdict' is a required property"):
        validator.validate(unknown | {"n": 0, "won": 0, "method": None})
    with pytest.raises(SpecError, match="no document is called 'runs lst'; did you mean 'runs"):
        api.schema("runs lst")


def test_all_mistakes_of_an_experiment_are_listed(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("modle: {}\nmodel: {norm: rmss}\n", encoding="utf-8")
    for command in ("plan", "run", "report", "gate"):
        status, printed = called(command, str(file))
        assert (status, printed["schema"]) == (2, 1)
        first, second = printed["errors"]
        assert (first["path"], first["suggestion"]) == ("modle", "model")
        assert Path(second.pop("file")).resolve() == file.resolve()
        assert second == {
            "line": 2,
            "column": 15,
            "path": "model.norm",
            "message": second["message"],
            "suggestion": "rms",
        }
        assert second["message"].startswith("no norm is called 'rmss'; did you mean 'rms'?")


def test_an_error_without_a_place_has_its_message(tmp_path: Path) -> None:
    archive = tmp_path / "x.tar.gz"
    archive.write_bytes(b"no archive")
    status, printed = called("runs", "restore", str(archive), "--results", str(tmp_path / "r"))
    (error,) = printed["errors"]
    assert status != 0
    assert "cannot be unpacked" in error.pop("message")
    assert error == dict.fromkeys(("file", "line", "column", "path", "suggestion"))


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("plan", "pe", "--fast"), "No such option: --fast"),
        (("plan",), "Missing argument 'SPEC'."),
        (("run", "pe", "--jobs", "two"), "'--jobs': needs a whole number; 'two' is a string"),
    ],
)
def test_a_mistake_in_the_options_is_a_document(words: tuple[str, ...], reason: str) -> None:
    status, printed = called(*words)
    assert status == 2
    assert reason in printed["errors"][0]["message"]


def test_what_a_command_prints_is_one_document(tmp_path: Path) -> None:
    file, results = finished(tmp_path), ["--results", str(tmp_path / "results")]
    status, table = called("report", str(file), *results)
    assert (status, table["schema"], table["rows"][0]["name"]) == (0, 1, "baseline")
    status, made = called("init", str(tmp_path / "new"))
    assert (status, made) == (0, {"schema": 1, "path": str(tmp_path / "new.yaml")})
    status, garbage = called("runs", "gc", str(file), *results)
    assert garbage == {"schema": 1, "runs": [], "is_removed": False}
    _, listed = called("runs", "list", *results)
    (run,) = (each["run"] for each in listed if (each["row"], each["seed"]) == ("none", 1))
    _, removed = called("runs", "remove", run, *results)
    assert [run["row"] for run in removed["runs"]] == ["none"]
    archive = str(tmp_path / "x.tar.xz")
    _, archived = called("runs", "archive", str(file), "--output", archive, *results)
    assert (len(archived["runs"]), archived["output"]) == (6, archive)
    assert archived["runs"][0]["status"] == "done"
    _, restored = called("runs", "restore", archive, "--results", str(tmp_path / "other"))
    assert len(restored["archives"][0]["new"]) == 6
    _, corpora = called("corpora")
    assert "multi30k" in {corpus["name"] for corpus in corpora}
    _, shown = called("corpora", "show", "synthetic", "--set", "size=300")
    assert shown["splits"][0]["n_pairs"] == 300
    part = tmp_path / "my_norm.py"
    assert called("init", str(part.with_suffix("")), "--part", "norm")[0] == 0
    with temporary_registrations():
        status, checked = called("check", str(part))
    assert status == 0
    assert {(each["slot"], each["is_kept"]) for each in checked["findings"]} == {("norm", True)}
    _, compared = called("compare", str(file), str(file), *results)
    assert compared["schema"] == 1
    _, planned = called("plan", str(file), *results, "--device", "cpu")
    assert (planned["schema"], planned["n_missing"]) == (1, 0)
    assert called("status", *results) == (0, [])
    _, parts = called("parts", "norm")
    assert "rms" in {part["name"] for part in parts}
    assert called("corpora", "check", str(file))[0] == 0
    done = CliRunner().invoke(app, ["runs", "show", run, *results])
    assert_described(json.loads(done.stdout), "runs show")


def test_any_experiment_can_go_on_until_its_rows_are_decided(tmp_path: Path) -> None:
    file = tmp_path / "pe.yaml"
    file.write_text(EXPERIMENT, encoding="utf-8")
    for most, looks in (("3", [3]), ("7", [3, 5, 7]), ("12", [3, 5, 8, 12])):
        assert called("plan", str(file), "--until-decided", most)[1]["looks"] == looks
    refused = called("plan", str(file), "--until-decided", "12", "--seeds", "1")
    assert refused[0] == 2
    assert "exclude each other" in refused[1]["errors"][0]["message"]


@pytest.mark.e2e
def test_progress_is_an_event_a_line(tmp_path: Path) -> None:
    (tmp_path / "pe.yaml").write_text(EXPERIMENT, encoding="utf-8")
    command = [sys.executable, "-m", "ablate.cli", "run", "pe.yaml", "--no-probe", "--no-figures"]
    command += ["--device", "cpu", "--seeds", "1", "--only", "none", "--progress", "json"]
    done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    events = list(map(json.loads, done.stderr.splitlines()))
    for event in events:
        assert_described(event, "events")
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1]) == ("tasks", "remark")
    assert kinds.count("started") == kinds.count("ended") == 1
    (ended,) = (event for event in events if event["event"] == "ended")
    assert (ended["row"], ended["seed"], ended["is_good"]) == ("none", 1, True)
    results = tmp_path / "results"
    inspected = called(
        "inspect", ended["run"], "--results", str(results), "--output", str(tmp_path / "figures")
    )
    assert inspected[0] == 0
    assert {Path(file).suffix for file in inspected[1]["files"]} == {".svg", ".png", ".csv"}


@pytest.mark.e2e
def test_the_example_needs_nothing_but_json(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("steps: 6", "steps: 60")
    file = tmp_path / "pe.yaml"
    file.write_text(text, encoding="utf-8")

    def example(*options: str) -> tuple[int, str]:
        command = [sys.executable, str(ROOT / "examples" / "verdicts.py"), "pe.yaml", *options]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stdout

    status, printed = example("--no-probe", "--no-figures", "--device", "cpu")
    assert status in (0, 1), printed
    assert printed.startswith("6 runs are to be made\nBy BLEU on test, ")
    assert "\nnone: " in printed
    assert "\nrms: " in printed
    status, printed = example("--only", "nun")
    assert status == 2
    assert printed.endswith("\nno row is called 'nun'; known: baseline, none, rms\n")
    file.write_text(text.replace("norm: rms", "norm: rmss"), encoding="utf-8")
    status, printed = example()
    assert status == 2
    assert printed.startswith("pe.yaml:13: variants.rms.model.norm -> rms: no norm is called")
