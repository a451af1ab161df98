"""The way of a new user: the wheel, a part of one's own, a run, a table in a paper."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.made_up_runs import BASE

ROOT = Path(__file__).parents[1]
EXPERIMENT = f"{BASE}plugins: my_norm.py\nvariants:\n  mine: {{model.norm: my_norm}}\n"
PAPER = r"""\documentclass[twocolumn]{article}
\usepackage{booktabs,tabularx}
\begin{document}
\input{table.tex}
\end{document}
"""


def call(*words: str | Path, cwd: Path) -> str:
    """Run a command; return what it prints."""
    ours = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # modules are compiled once, when imported
    outside = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**outside, "ABLATE_CACHE": str(cwd / "cache"), "ABLATE_PROBE_SECONDS": "0"},
        capture_output=True,
        text=True,
        errors="replace",
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def link_requirements(site: Path) -> None:
    """Link what the wheel requires, and what that requires, from this environment."""
    (installed,) = metadata.distributions(name="ablate-transformer", path=[str(site)])
    requirements, seen = [*(installed.requires or ())], set[str]()
    while requirements:
        requirement = Requirement(requirements.pop())
        is_wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not is_wanted or requirement.name in seen:
            continue
        seen.add(requirement.name)
        found = metadata.distribution(requirement.name)
        assert found.version in requirement.specifier, f"{found.version} is not {requirement}"
        requirements += found.requires or ()
        for name in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / name).exists():
                (site / name).symlink_to(str(found.locate_file(name)))


@pytest.mark.e2e
@pytest.mark.full
def test_from_the_wheel_to_a_paper(tmp_path: Path) -> None:
    """Beside the wheel there is what it requires, and no more; LaTeX, if any, compiles the table.

    Needs the package index, or pip's cache of it, for what builds the wheel.
    """
    call(
        sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT, cwd=tmp_path
    )
    (wheel,) = tmp_path.glob("*.whl")
    call(sys.executable, "-m", "venv", "--without-pip", "env", cwd=tmp_path)
    python, ablate = tmp_path / "env" / "bin" / "python", tmp_path / "env" / "bin" / "ablate"
    pip = (sys.executable, "-m", "pip", "--python", python)
    call(*pip, "install", "-q", "--no-compile", "--no-deps", wheel, cwd=tmp_path)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    link_requirements(site)
    assert call(ablate, "init", "--part", "norm", cwd=tmp_path) == "my_norm.py\n"
    assert "BROKEN" not in call(ablate, "check", "my_norm.py", cwd=tmp_path)
    (tmp_path / "mine.yaml").write_text(EXPERIMENT, encoding="utf-8")
    assert "my_norm" in call(ablate, "plan", "mine.yaml", "--device", "cpu", cwd=tmp_path)
    assert "my_norm" in call(
        ablate, "run", "mine.yaml", "--device", "cpu", "--no-probe", cwd=tmp_path
    )
    if (ROOT / ".git").exists():
        head = call("git", "rev-parse", "HEAD", cwd=ROOT).strip()
        (record, *_) = (tmp_path / "results" / "runs").glob("*/record.json")
        assert json.loads(record.read_text(encoding="utf-8"))["git"]["commit"] == head
    call(ablate, "report", "mine.yaml", "--output", "table.tex", cwd=tmp_path)
    (tmp_path / "paper.tex").write_text(PAPER, encoding="utf-8")
    if shutil.which("pdflatex"):
        log = call("pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper", cwd=tmp_path)
        assert "Overfull" not in log
        assert (tmp_path / "paper.pdf").stat().st_size > 10_000
