"""The first hour with a GPU: if a question fails, the others are still answered and written."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu import first_hour
from gpu.script import Setting

from ablate.registry import slots
from tests.tiny import MODEL_SLOTS

pytestmark = pytest.mark.e2e

HEAD = """\
import json, os, sys

def tell(**message):
    print("@@ " + json.dumps(message), flush=True)

names = {names}
skipped = [word.removeprefix("--skip=") for word in sys.argv if word.startswith("--skip=")]
tell(expected=names, origin={{"machine": "made up"}})
for name in names:
    if name in skipped:
        continue
    tell(begins=name)
    with open({journal!r}, "a") as journal:
        journal.write(name + "\\n")
    if name.startswith("good"):
        print("a line for people")
        tell(item=name, line=name + " is done", result={{"n": 1}}, seconds=0.1)
    elif name == "wrong":
        tell(item=name, error="it was wrong", seconds=0.1)
        sys.exit(1)
    elif name == "crash":
        print("the last line", flush=True)
        os.kill(os.getpid(), 11)
"""

Ask = Callable[..., int]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    (scripts / "__init__.py").touch()
    monkeypatch.setattr(first_hour, "SCRIPTS", "scripts")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(questions: dict[str, list[str]], *words: str) -> int:
        instances = []
        for name, names in questions.items():
            journal = str(tmp_path / "journal")
            text = HEAD.format(names=names, journal=journal) if names else "import nothing_at_all"
            (scripts / f"{name}.py").write_text(text, encoding="utf-8")
            instances.append(first_hour.Question(name, 1, "What is it?"))
        monkeypatch.setattr(first_hour, "QUESTIONS", tuple(instances))
        output = ["--output", str(tmp_path / "answers")]
        monkeypatch.setattr(sys, "argv", ["first_hour", "--device", "cpu", *output, *words])
        return first_hour.main()

    return run


def _answer(folder: Path, name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "answers" / f"{name}.json").read_text("utf-8"))
    return content


def _journal(folder: Path) -> list[str]:
    return (folder / "journal").read_text("utf-8").split()


def test_after_a_failure_or_a_crash_the_rest_goes_on_in_a_fresh_process(
    ask: Ask, tmp_path: Path
) -> None:
    questions = {"one": ["good", "wrong", "crash", "good2"], "two": ["good3"], "three": []}
    assert ask(questions) == 1
    items = _answer(tmp_path, "one")["items"]
    assert items["wrong"]["error"] == "it was wrong"
    assert items["crash"]["error"] == "killed by SIGSEGV: the last line"
    assert "result" in items["good2"]
    assert _answer(tmp_path, "one")["is_complete"]
    assert _answer(tmp_path, "two")["is_complete"]
    assert "No module named 'nothing_at_all'" in _answer(tmp_path, "three")["fault"]
    assert _journal(tmp_path) == ["good", "wrong", "crash", "good2", "good3"]


def test_what_is_answered_is_not_asked_again(ask: Ask, tmp_path: Path) -> None:
    questions = {"one": ["good", "wrong", "good2"], "two": ["good3"]}
    ask(questions)
    ask(questions, "--resume")
    assert _journal(tmp_path) == ["good", "wrong", "good2", "good3", "wrong"]
    ask(questions)
    assert _journal(tmp_path)[5:] == ["good", "wrong", "good2", "good3"]
    ask({"one": ["good"]}, "--reduced")
    ask({"one": ["good"]}, "--resume")  # what a dry run has answered is no answer
    assert _journal(tmp_path)[9:] == ["good", "good"]
    assert _answer(tmp_path, "one")["settings"]["reduced"] is False


def items_of(question: str) -> Mapping[str, Callable[[Setting], Any]]:
    module: Any = importlib.import_module(f"gpu.{question}")
    return module.items() if hasattr(module, "items") else module.ITEMS


def test_every_question_has_a_script_and_the_script_has_items() -> None:
    for question in first_hour.QUESTIONS:
        assert items_of(question.name)


def test_every_registered_part_is_asked_about() -> None:
    items = items_of("parts").keys()
    for slot in (*MODEL_SLOTS, "objective", "optimizer"):
        assert {f"{slot}: {name}" for name in slots()[slot]} <= items


@pytest.mark.parametrize("question", ["capture_rules", "pieces"])
def test_a_cpu_can_be_asked_too(
    question: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a capture does there is the work itself; what a rule expects of it holds."""
    monkeypatch.setattr(sys, "argv", ["x.py", "--device", "cpu"])
    setting = Setting(torch.device("cpu"), True, tmp_path)
    for name, item in items_of(question).items():
        assert item(setting).line, name


def test_runs_are_trained_for_the_last_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ABLATE_CORPORA", raising=False)
    setting = Setting(torch.device("cpu"), True, tmp_path)
    figures = items_of("multi30k")["tiny"](setting).figures
    assert [run["variant"] for run in figures["runs"]] == ["baseline"]
    assert figures["is_new"]
