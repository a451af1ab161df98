"""Files that are changed while ``ablate run`` is at work, or between two calls."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import ablate as package
from ablate.api import completion
from ablate.runner.schedule import schedule
from tests.cli.conftest import COMMAND, EXPERIMENT, Ablate, environment, records_of

CORPUS = (
    "{name: files, src: en, tgt: de, train: [a, b], dev: [a, b], tests: {test: [a, b]}, "
    "accept: [test_in_train, test_in_dev, repeated_pairs]}"
)


@pytest.fixture
def corpus(ablate: Ablate, folder: Path) -> Path:
    """A corpus of files, of which an experiment is made; return the source side."""
    text = EXPERIMENT.replace("{name: synthetic, size: 1000}", CORPUS).replace("[1, 2]", "[1]")
    (folder / "pe.yaml").write_text(text, encoding="utf-8")
    lines = [" ".join("abcdefgh"[i % 4 : i % 4 + 3]) + "\n" for i in range(200)]
    (folder / "b").write_text("".join(lines).upper(), encoding="utf-8")
    (folder / "a").write_text("".join(lines), encoding="utf-8")
    return folder / "a"


def _change(corpus: Path) -> None:
    corpus.write_text(corpus.read_text(encoding="utf-8").replace("a b", "b a"), encoding="utf-8")


def _while_scheduling(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    def schedule_after(*arguments: object) -> None:
        change()
        schedule(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(completion, "schedule", schedule_after)


@pytest.mark.e2e
def test_no_run_has_two_corpora(
    ablate: Ablate, corpus: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["run", "pe.yaml", "--no-probe", "--no-figures", "--device", "cpu"]
    with monkeypatch.context() as patched:
        _while_scheduling(patched, lambda: _change(corpus))
        changed = ablate(*run)
    assert changed.returncode == 1
    last = changed.stderr.splitlines()[-1]
    assert "2 runs of 2" in last
    assert "the corpus files was changed" in last
    assert changed.stderr.count("its files have changed since, or differ on this machine") == 2
    assert "Traceback" not in changed.stderr
    assert {record["status"] for record in records_of(folder).values()} == {"failed"}
    again = ablate(*run)
    assert again.returncode == 0, again.stderr
    actual = [json.loads(f.read_bytes()) for f in folder.glob("results/runs/*/record.json")]
    done = [record["corpus"]["fingerprint"] for record in actual if record["status"] == "done"]
    assert len(done) == 2
    assert len(set(done)) == 1
    assert ablate("plan", "pe.yaml").stdout.count("1 of 1") == 2
    corpus.write_text(corpus.read_text(encoding="utf-8").replace("c d", "d c"), encoding="utf-8")
    assert ablate("plan", "pe.yaml").stdout.count("0 of 1") == 2, "a change between two calls"


@pytest.mark.e2e
def test_records_name_the_code_that_was_loaded(folder: Path, cache: Path, tmp_path: Path) -> None:
    source = tmp_path / "source" / "ablate"
    shutil.copytree(Path(package.__file__).parent, source)
    (folder / "pe.yaml").write_text(EXPERIMENT.replace("[1, 2]", "[1]"), encoding="utf-8")
    program = (
        "from ablate.api import completion\n"
        "from ablate.runner.schedule import schedule\n"
        "from ablate.runner.provenance import code_digest\n"
        "def schedule_after(*arguments):\n"
        f"    open({str(source / 'version.py')!r}, 'a').write('# changed')\n"
        "    schedule(*arguments)\n"
        "completion.schedule = schedule_after\n"
        "from ablate.cli import main\n"
        "main()\n"
    )
    words = ["run", "pe.yaml", "--no-probe", "--no-figures", "--device", "cpu", "--jobs", "1"]
    done = subprocess.run(
        [COMMAND[0], "-c", program, *words],
        cwd=folder,
        env=environment(cache) | {"PYTHONPATH": str(source.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "2 of 2 runs (baseline and none) were not made by this code" in done.stderr
    assert "the code has changed since" in done.stderr
