"""Python and the libraries, against the ranges that the package declares."""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import ablate
from ablate.doctor.results import CheckResult, Target, broken, ok

_DISTRIBUTION = "ablate-transformer"
_NOTABLE = ("torch", "numpy", "pydantic", "tokenizers", "sacrebleu")


class Requirements(NamedTuple):
    """The versions that the package requires, and where that is written."""

    python: SpecifierSet
    libraries: dict[str, SpecifierSet]
    source: str


def python(_: Target) -> CheckResult:
    """Check the version of Python."""
    required = _requirements()
    installed = platform.python_version()
    if allows(required.python, installed):
        return ok(f"Python {installed}, {required.python} is asked for", version=installed)
    return broken(
        f"Python {installed} is outside {required.python}; make a virtual environment with another",
        version=installed,
    )


def libraries(_: Target) -> CheckResult:
    """Check that every library is installed, in a version that the package allows."""
    required = _requirements()
    versions: dict[str, str] = {}
    faults, remedies = [], []
    for name, version_range in required.libraries.items():
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            faults.append(f"{name} is missing")
        else:
            if allows(version_range, versions[name]):
                continue
            faults.append(f"{name} {versions[name]} is outside {version_range}")
        remedies.append(f"'{name}{version_range}'")
    if faults:
        return broken(f"{'; '.join(faults)}: pip install {' '.join(remedies)}", **versions)
    notable = ", ".join(f"{name} {versions[name]}" for name in _NOTABLE if name in versions)
    return ok(f"all {len(versions)} are in the ranges of {required.source}: {notable}", **versions)


def allows(version_range: SpecifierSet, installed: str) -> bool:
    """Return whether a range contains a version by its release numbers: 2.11.0a0+git is 2.11.0."""
    return version_range.contains(Version(installed.rstrip("+")).base_version)


def ranges(texts: Sequence[str]) -> dict[str, SpecifierSet]:
    """Return the range of each library that is required, without those of extras and elsewhere."""
    requirements = map(Requirement, texts)
    return {
        each.name: each.specifier
        for each in requirements
        if each.marker is None or each.marker.evaluate()
    }


def _requirements() -> Requirements:
    """Return the requirements of the checkout, or else of the installed distribution."""
    file = Path(ablate.__file__).parents[1] / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == _DISTRIBUTION:
            python = SpecifierSet(project["requires-python"])
            return Requirements(python, ranges(project["dependencies"]), "pyproject.toml")
    python = SpecifierSet(metadata(_DISTRIBUTION)["Requires-Python"] or "")
    installed = ranges(requires(_DISTRIBUTION) or ())
    return Requirements(python, installed, f"{_DISTRIBUTION} as installed")
