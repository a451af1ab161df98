"""What the package brings along, and what the package index shows of it."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any, Generic, TypeVar

import pytest

import ablate

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


T = TypeVar("T")


class Hook(Generic[T]):
    """What hooks of the build derive from, without the build system."""

    root = str(ROOT)


@pytest.fixture
def hooks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The hooks of the build, by name."""
    interfaces = {
        "metadata.plugin": "MetadataHookInterface",
        "builders.hooks.plugin": "BuildHookInterface",
    }
    for package, interface in interfaces.items():
        steps = f"hatchling.{package}.interface".split(".")
        for n in range(1, len(steps) + 1):
            name = ".".join(steps[:n])
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        setattr(sys.modules[name], interface, Hook)
    return runpy.run_path(str(ROOT / "hatch_build.py"))


@pytest.fixture
def readme(hooks: dict[str, Any]) -> str:
    """The README as the hook of the build makes it."""
    metadata = dict(PROJECT)
    hooks["ReadmeHook"]().update(metadata)
    assert metadata["readme"]["content-type"] == "text/markdown"
    text = metadata["readme"]["text"]
    assert isinstance(text, str)
    return text


def _committed(hook: Any, version: str) -> dict[str, Any] | None:
    """Return what a build adds about its commit."""
    build_data: dict[str, dict[str, str]] = {"force_include": {}}
    hook.initialize(version, build_data)
    contents = {
        target: json.loads(Path(file).read_text(encoding="utf-8"))
        for file, target in build_data["force_include"].items()
    }
    hook.finalize(version, build_data, "")
    assert contents.keys() <= {"ablate/commit.json"}
    return contents.get("ablate/commit.json")


def test_a_wheel_names_its_commit(hooks: dict[str, Any], tmp_path: Path) -> None:
    hook = hooks["CommitHook"]()
    hook.root = str(tmp_path)
    assert _committed(hook, "standard") is None
    (tmp_path / "ablate").mkdir()
    code = tmp_path / "ablate" / "version.py"
    code.write_text("1")
    git = ("git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org")
    for words in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "Begin")):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    assert _committed(hook, "standard") == {"commit": head.stdout.strip(), "is_clean": True}
    code.write_text("2")
    assert _committed(hook, "standard") == {"commit": head.stdout.strip(), "is_clean": False}
    assert _committed(hook, "editable") is None


def test_types_are_part_of_the_package() -> None:
    assert (Path(ablate.__file__).parent / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_pytorch_can_capture_what_it_computes_deterministically() -> None:
    """Before 2.9 a deterministic gather asks for a number, which no capture survives."""
    (required,) = (name for name in PROJECT["dependencies"] if name.startswith("torch"))
    assert required == "torch>=2.9"


def test_links_on_the_package_index_are_absolute_and_lead_to_files(readme: str) -> None:
    base = PROJECT["urls"]["Repository"]
    targets = re.findall(r"\]\(([^)#]+)", readme)
    own = [target for target in targets if target.startswith(f"{base}/blob/main/")]
    assert len(own) >= 3
    for target in targets:
        assert re.match(r"[a-z]+:", target), target
    for target in own:
        assert (ROOT / target.removeprefix(f"{base}/blob/main/")).exists(), target


def test_the_urls_of_the_project_lead_to_files() -> None:
    base = PROJECT["urls"]["Repository"]
    for name, url in PROJECT["urls"].items():
        assert url.startswith(base), name
        if "/blob/main/" in url:
            assert (ROOT / url.partition("/blob/main/")[2]).is_file(), name
