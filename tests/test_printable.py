"""No control character of a foreign text reaches a terminal, and no formula a spreadsheet."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click.testing
import pytest
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

import ablate
from ablate import api
from ablate.cli.app import app
from ablate.cli.output import echo, echo_data
from ablate.config import load
from ablate.console import Console
from ablate.errors import SpecError
from ablate.printable import CONTROL, json_text, printable, printable_content
from ablate.report import FORMATS
from ablate.store import Store, parse
from ablate.writing import csv_rows, csv_text
from tests.made_up_runs import EXPERIMENT, finished

pytestmark = pytest.mark.commands

EVIL = "\x1b[31mred\x1b]0;title\x07\x9b2J\x7f\u202ebackwards\u2066\x00\r"
SHOWN = r"\x1b[31mred\x1b]0;title\x07\x9b2J\x7f\u202ebackwards\u2066\x00\x0d"
STYLES = re.compile(r"\x1b\[[0-9;]*m|\r?\x1b\[(1A|2K)|\x1b\[\?25[lh]")
"""Colours, and what a progress bar sends: clear a line, one line up, hide and show the cursor."""


def test_control_characters_are_shown() -> None:
    assert printable(EVIL) == SHOWN
    assert printable("a\tb\nç\u200f 漢 🙂") == "a\tb\nç\u200f 漢 🙂"
    assert printable(SHOWN) == SHOWN
    assert printable("\udc80") == r"\udc80"
    assert printable_content({EVIL: [EVIL, 1, None]}) == {SHOWN: [SHOWN, 1, None]}


@pytest.mark.parametrize("character", CONTROL.findall(EVIL))
def test_a_stored_text_is_printable(character: str) -> None:
    check: Any = dict
    for are_escaped in (True, False)[: 1 + (character >= " ")]:  # below a space, JSON escapes all
        text = json.dumps({character: [character]}, ensure_ascii=are_escaped)
        assert parse(text.encode(), check) == {printable(character): [printable(character)]}


def test_json_with_control_characters_is_json() -> None:
    text = json_text({EVIL: EVIL, "x": float("inf")})
    assert not CONTROL.search(text)
    assert json.loads(text)[EVIL] == EVIL


def test_a_console_sends_its_own_styles_alone() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=200)
    grid = Table("a", EVIL)
    grid.add_row(Text(EVIL, style="bold"), EVIL)
    console.print(grid)
    console.print(EVIL, markup=False, highlight=False)
    _assert_safe(out.getvalue())
    without = SHOWN.replace(r"\x07", "").replace(r"\x0d", "")  # which Rich removes
    assert out.getvalue().endswith(f"{without}\n")
    assert "\x1b[1m" in out.getvalue()


def test_an_echo_sends_our_styles_alone(capsys: pytest.CaptureFixture[str]) -> None:
    echo(f"\x1b[1mbold\x1b[0m {EVIL}", is_styled=True)
    echo(f"\x1b[1mbold\x1b[0m {EVIL}", err=True)
    out, err = capsys.readouterr()
    assert out == f"\x1b[1mbold\x1b[0m {SHOWN}\n" or out == f"bold {SHOWN}\n"  # of a pipe
    assert err == rf"\x1b[1mbold\x1b[0m {SHOWN}" + "\n"


def test_everything_is_printed_through_what_escapes() -> None:
    """Programs of other processes, whose output is read as data, print by themselves."""
    package = Path(ablate.__file__).parent
    for path in package.rglob("*.py"):
        text, name = path.read_text(encoding="utf-8"), path.relative_to(package).as_posix()
        if not re.search(r"\b(echo|print|Console)\(", text):
            continue
        nodes = [*ast.walk(ast.parse(text))]
        calls = {ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)}
        printing = calls & {"typer.echo", "click.echo", "print"}
        assert not printing or name in ("cli/output.py", "runner/worker.py"), name
        imported = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
        assert "Console" not in calls or "ablate.console" in imported, name


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Return what invokes commands as in a terminal with colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "300")
    stream = click.testing._NamedTextIOWrapper
    monkeypatch.setattr(stream, "isatty", lambda _: True, raising=False)
    monkeypatch.setattr("ablate.cli.plan.waiting", lambda _: nullcontext())  # it moves the cursor
    return CliRunner()


def _assert_safe(text: str) -> None:
    assert "\x1b[31m" not in text
    unsafe = CONTROL.search(STYLES.sub("", text))
    assert unsafe is None, text[max(0, unsafe.start() - 50) : unsafe.end() + 50]


def _run(runner: CliRunner, *arguments: str | Path) -> str:
    printed = runner.invoke(app, [*map(str, arguments)], color=True)
    assert printed.exception is None or isinstance(printed.exception, SystemExit), printed.exception
    for text in (printed.stdout, printed.stderr):
        _assert_safe(text)
    return printed.stdout + printed.stderr


MALICE = [
    'question: "a \\e[31mb"\n',
    '"un\\e[31mknown": 1\n',
    'variants: {"r\\e[31mow": {model.norm: rms}}\n',
    'variants: {row: {"model.\\e[31mnorm": rms}}\n',
    'variants: {row: {model.norm: "r\\e[31mms"}}\n',
    'variants: {row: {model.feed_forward: {name: relu, "\\e[31m": 1}}}\n',
    'extends: "\\e[31m.yaml"\n',
    'grid: {model.norm: [rms, "\\x9b1m"]}\n',
    "question: a \u202e b\n",
    "question: ok\n# a comment \x1b[31m\n",
    "question: ok\n# a comment \x9b1m\n",
    'question: "\\ud800"\n',
]


@pytest.mark.parametrize("text", MALICE, ids=ascii)
@pytest.mark.parametrize("command", ["plan", "run", "report", "gate"])
def test_an_experiment_has_no_control_characters(
    command: str, text: str, tmp_path: Path, on_terminal: CliRunner
) -> None:
    spec = tmp_path / "evil.yaml"
    spec.write_text(text, encoding="utf-8")
    printed = _run(on_terminal, command, spec, "--results", tmp_path / "results")
    assert re.search(r"evil\.yaml:\d+:\d+: .*(control character|not a text file)", printed)


@pytest.mark.parametrize("value", ["\x1b[31mx", "\x9bx", "\ufffe", "\u202ex", "\x00", "\udc80"])
def test_an_override_has_no_control_characters(
    value: str, tmp_path: Path, on_terminal: CliRunner
) -> None:
    spec = tmp_path / "fine.yaml"
    spec.write_text(EXPERIMENT, encoding="utf-8")
    with pytest.raises(SpecError, match=r"--set:1:10: .*contains the control character"):
        load(spec, [f"question={value}"])
    printed = _run(on_terminal, "plan", spec, "--set", f"question={value}")
    assert "contains the control character" in printed
    printed = _run(on_terminal, "plan", spec, "--set", f"{value}=1")
    assert "control character" in printed or "unknown option" in printed


def _poison(record: dict[str, Any], seed: int) -> dict[str, Any]:
    """Replace every text of a record that its reader does not compare with others."""
    record["hardware"] |= {"device_name": EVIL, "cpu": EVIL}
    record["versions"] |= {"torch": EVIL, EVIL: "1"}
    record["corpus"] |= {"notes": [EVIL]}
    record["test"]["test"]["bleu_signature"] = f"{EVIL} {seed}"
    record["engine_note"] = EVIL
    record["plugins"] = [{"name": EVIL, "sha256": "0"}]
    record["git"] = {"commit": EVIL, "is_clean": True}
    record |= {"experiment": f"pe{EVIL}", "variant": EVIL, "finished": EVIL}
    if seed == 2:
        record |= {"status": "failed", "error": EVIL}
    return record


@pytest.fixture
def poisoned(tmp_path: Path) -> tuple[Path, Path]:
    """Return an experiment and a folder of results in which a stranger has written."""
    text = EXPERIMENT.replace("  rms: {model.norm: rms}\n", "")
    spec, results = finished(tmp_path, text, has_files=True), tmp_path / "results"
    store = Store(results)
    for folder in (results / "runs").iterdir():
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        store.save(_poison(record, record["seed"]))
        assert "\\u001b[31m" in (folder / "record.json").read_text(encoding="utf-8")
        for file in folder.glob("hypotheses.*"):
            lines = file.read_text(encoding="utf-8").split("\n")[:-1]
            evil = EVIL.replace("\r", "")
            file.write_text("".join(f"{line} {evil}\n" for line in lines), encoding="utf-8")
    texts = dict.fromkeys(("host", "experiment", "began", "updated", "stage"), EVIL)
    session = {**texts, "pid": 1, "failures": [EVIL], "running": []}
    (results / "sessions").mkdir()
    (results / "sessions" / "a-1.json").write_text(json.dumps(session), encoding="utf-8")
    return spec, results


def test_a_stored_text_is_shown(poisoned: tuple[Path, Path], on_terminal: CliRunner) -> None:
    spec, results = poisoned
    listed = _run(on_terminal, "runs", "list", "--results", results)
    assert SHOWN in listed
    run = next((results / "runs").iterdir()).name
    shown = _run(on_terminal, "runs", "show", run, "--results", results)
    record = shown[shown.index("{") : shown.rindex("}") + 1]  # without what is shown meanwhile
    assert json.loads(record)["variant"] == SHOWN
    _run(on_terminal, "runs", "list", "--json", "--results", results)
    assert SHOWN in _run(on_terminal, "runs", "remove", run, "--results", results)
    _run(on_terminal, "runs", "gc", spec, "--results", results)
    status = (results / "sessions" / "a-1.json").read_bytes()
    assert SHOWN in _run(on_terminal, "status", "--results", results)
    (results / "sessions" / "a-1.json").write_bytes(status)
    _run(on_terminal, "status", "--json", "--results", results)
    for command in (["plan"], ["plan", "--json"], ["compare", spec]):
        _run(on_terminal, *command, spec, "--results", results)


@pytest.mark.parametrize(
    "forms",
    [sorted({*FORMATS} - {"html"}), pytest.param(["html"], marks=pytest.mark.figures)],
    ids=["texts", "page"],
)
def test_a_table_shows_stored_texts(
    forms: list[str], poisoned: tuple[Path, Path], on_terminal: CliRunner
) -> None:
    spec, results = poisoned
    for form in forms:
        printed = _run(on_terminal, "report", spec, "--results", results, "--format", form)
        assert r"\x9b2J" in printed or r"\u009b" in printed or form == "latex"
    assert r"\x9b2J" in _run(on_terminal, "report", spec, "--results", results)


def test_a_restored_archive_is_shown(
    poisoned: tuple[Path, Path], tmp_path: Path, on_terminal: CliRunner
) -> None:
    spec, results = poisoned
    archive, restored = tmp_path / "a.tar.gz", tmp_path / "restored"
    _run(on_terminal, "runs", "archive", spec, "--output", archive, "--results", results)
    _run(on_terminal, "runs", "restore", archive, "--results", restored)
    assert len(api.runs(restored)) == 4
    assert SHOWN in _run(on_terminal, "runs", "list", "--results", restored)


FORMULAS = "=1+1 +cmd -a @x '=1 ''@ = - ' 'a a=b -1 +.5e3 '-1".split()


def test_a_spreadsheet_gets_no_formula_and_a_reader_what_was_written() -> None:
    text = csv_text([{"row": name, "=x": -1.5} for name in FORMULAS])
    for cells in list(csv.reader(io.StringIO(text)))[1:]:
        assert not re.match(r"[=+@]|-[^\d]|-$", cells[0]) or cells[0] == "+.5e3"
        assert cells[1] == "-1.5"
    assert [line["row"] for line in csv_rows(io.StringIO(text))] == FORMULAS
    assert {line["=x"] for line in csv_rows(io.StringIO(text))} == {"-1.5"}


def test_a_csv_shows_control_characters() -> None:
    assert csv_text([{EVIL: EVIL}]) == f"{SHOWN}\n{SHOWN}\n"


def test_rows_that_look_like_formulas_are_read_back(tmp_path: Path) -> None:
    text = EXPERIMENT.replace("  none:", "  '=1+1':").replace("  rms:", "  '@rms':")
    spec, results = finished(tmp_path, text), tmp_path / "results"
    words = ["report", str(spec), "--results", str(results), "--format", "csv"]
    table = CliRunner().invoke(app, words).stdout
    assert [line[0] for line in csv.reader(io.StringIO(table))][2:] == ["'=1+1", "'@rms"]
    frame = ablate.study(spec, results=results).table()
    assert list(frame.index) == ["baseline", "=1+1", "@rms"]


def test_a_pipe_of_translations_is_data(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    echo_data("a\u202eb")
    assert out.getvalue() == "a\u202eb\n"
    monkeypatch.setattr(out, "isatty", lambda: True, raising=False)
    echo_data("a\u202eb")
    assert out.getvalue().endswith("a\\u202eb\n")
