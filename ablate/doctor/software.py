"""Python and the libraries, against the ranges that the package declares."""

from __future__ import annotations

import operator
import platform
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path

import ablate
from ablate.doctor.results import CheckResult, Target, broken, not_applicable, ok

_DISTRIBUTION = "ablate-transformer"
_COMPARE = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_NOTABLE = ("torch", "numpy", "pydantic", "tokenizers", "sacrebleu")


@dataclass(frozen=True)
class Requirements:
    """The versions that the package requires.

    Attributes:
        python: a range of versions, such as ``>=3.11``.
        libraries: the same for each library, by name.
        source: where it is written.
    """

    python: str
    libraries: dict[str, str]
    source: str


def python(_: Target) -> CheckResult:
    """Check the version of Python."""
    required = _requirements()
    if required is None:
        return _nothing_to_compare()
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
    if required is None:
        return _nothing_to_compare()
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


def allows(version_range: str, installed: str) -> bool:
    """Return whether a range such as ``>=2.9,<3`` contains a version.

    Only release numbers count: 2.11.0a0+git is 2.11.0.

    Raises:
        ValueError: if the range or the version cannot be read.
    """
    for condition in filter(None, re.split(r"\s*,\s*", version_range.strip())):
        match = re.fullmatch(r"(>=|<=|==|!=|>|<)\s*(\d+(?:\.\d+)*)", condition)
        if match is None:
            raise ValueError(f"{condition!r} is no condition such as >=2.9")
        limit, number = _release(match[2]), _release(installed)
        n = max(len(limit), len(number))
        if not _COMPARE[match[1]](_padded(number, n), _padded(limit, n)):
            return False
    return True


def parse_requirement(text: str) -> tuple[str, str]:
    """Return the name and the range of a requirement without extras or markers.

    Raises:
        ValueError: if it is another kind of requirement.
    """
    match = re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*([<>=!0-9., ]*)", text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no requirement such as torch>=2.9")
    return match[1], match[2].strip()


def _requirements() -> Requirements | None:
    """Return the requirements of the checkout, or else of the installed distribution."""
    file = Path(ablate.__file__).parents[1] / "pyproject.toml"
    if file.is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
        if project.get("name") == _DISTRIBUTION:
            ranges = _ranges(project["dependencies"])
            return Requirements(project["requires-python"], ranges, "pyproject.toml")
    try:
        python = metadata(_DISTRIBUTION)["Requires-Python"] or ""
    except PackageNotFoundError:
        return None
    texts = [text for text in requires(_DISTRIBUTION) or () if "extra ==" not in text]
    return Requirements(python, _ranges(texts), f"{_DISTRIBUTION} as installed")


def _ranges(requirements: Sequence[str]) -> dict[str, str]:
    return dict(parse_requirement(text) for text in requirements)


def _nothing_to_compare() -> CheckResult:
    return not_applicable(
        f"there is neither a pyproject.toml nor an installed {_DISTRIBUTION} to compare with"
    )


def _release(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", text)
    if match is None:
        raise ValueError(f"{text!r} is no version")
    return tuple(map(int, match[0].split(".")))


def _padded(numbers: tuple[int, ...], n: int) -> tuple[int, ...]:
    return numbers + (0,) * (n - len(numbers))
