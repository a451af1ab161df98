"""Versions against what the package declares."""

from __future__ import annotations

import platform
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import ablate
from ablate.doctor import environment
from ablate.doctor.environment import Requirements, allows, ranges
from ablate.doctor.results import Target

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("version_range", "present", "is_allowed"),
    [
        (">=2.9", "2.9.0", True),
        (">=2.9", "2.13.0+cpu", True),
        (">=2.9", "2.8.1", False),
        (">=2.9", "2.11.0a0+git1234", True),
        (">=2.9, <3", "3.0.0", False),
        (">=3.15", "3.15.0a1+", True),
        ("", "0.1", True),
    ],
)
def test_a_range_holds_versions(version_range: str, present: str, is_allowed: bool) -> None:
    assert allows(SpecifierSet(version_range), present) is is_allowed


def test_this_environment_is_as_declared_unless_python_is_old(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    assert environment.python(target).outcome == "ok"
    result = environment.libraries(target)
    assert result.outcome == "ok"
    assert result.figures["torch"] == metadata.version("torch")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert len(result.figures) == len(project["dependencies"])
    monkeypatch.setattr(platform, "python_version", lambda: "3.10.4")
    result = environment.python(target)
    assert result.outcome == "broken"
    assert "3.10.4 is outside >=3.11" in result.sentence


def test_missing_and_old_libraries_are_broken_together(
    monkeypatch: pytest.MonkeyPatch, target: Target
) -> None:
    libraries = ranges(["no-such-thing>=1", "numpy>=99"])
    required = Requirements(SpecifierSet(">=3.11"), libraries, "a file")
    monkeypatch.setattr(environment, "_requirements", lambda: required)
    result = environment.libraries(target)
    assert result.outcome == "broken"
    assert "no-such-thing is missing; numpy" in result.sentence
    assert result.sentence.endswith("pip install 'no-such-thing>=1' 'numpy>=99'")


def test_an_installed_package_declares_for_itself(
    monkeypatch: pytest.MonkeyPatch, target: Target, tmp_path: Path
) -> None:
    monkeypatch.setattr(ablate, "__file__", str(tmp_path / "ablate" / "__init__.py"))
    monkeypatch.setattr(environment, "metadata", lambda _: {"Requires-Python": ">=3.11"})
    texts = ["numpy>=1.26", "ruff>=99; extra == 'dev'", "pywin32>=1; sys_platform == 'none'"]
    monkeypatch.setattr(environment, "requires", lambda _: texts)
    result = environment.libraries(target)
    assert (result.outcome, set(result.figures)) == ("ok", {"numpy"})
    assert "as installed" in result.sentence
