"""What the package brings along, and what the package index shows of it."""

from __future__ import annotations

import re
import runpy
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import ablate

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def readme(monkeypatch: pytest.MonkeyPatch) -> str:
    """The README as the hook of the build makes it, without the build system."""
    interface = ModuleType("hatchling.metadata.plugin.interface")
    interface.MetadataHookInterface = object  # type: ignore[attr-defined]
    for name in ("hatchling", "hatchling.metadata", "hatchling.metadata.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))["ReadmeHook"]
    metadata = dict(PROJECT)
    hook.update(SimpleNamespace(root=str(ROOT)), metadata)
    assert metadata["readme"]["content-type"] == "text/markdown"
    text = metadata["readme"]["text"]
    assert isinstance(text, str)
    return text


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
