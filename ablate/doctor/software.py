"""Python and the libraries, against the ranges that the package declares."""

from __future__ import annotations

import platform
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

import ablate
from ablate.doctor.results import CheckResult, Target, broken, ok

_DISTRIBUTION = "ablate-transformer"
_NOTABLE = ("torch", "numpy", "pydantic", "tokenizers", "sacrebleu")


@dataclass(frozen=True)
class Requirements:
    """The versions that the package requires.

    Attributes:
        python: a range of versions, such as ``>=3.11``.
        libraries: the same for each library, by name.
        source: where it is written.
    """

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
    """Return whether a range contains a version.

    Only release numbers count: 2.11.0a0+git is 2.11.0, and a Python 3.15.0a1+ is 3.15.0.

    Raises:
        ValueError: if the version cannot be read.
    """
    return version_range.contains(Version(installed.rstrip("+")).base_version)


def ranges(texts: Sequence[str]) -> dict[str, SpecifierSet]:
    """Return the range of each library of a list of requirements, without those of extras.

    A requirement of other machines, such as ``x; sys_platform == 'win32'``, is left out too.

    Raises:
        ValueError: if a requirement cannot be read.
    """
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
