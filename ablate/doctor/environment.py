"""Python and its libraries, corpora, the cache, room on disk, file locks."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import ValidationError

import ablate
import ablate.data
import ablate.parts
from ablate.data.cache import cache_folder
from ablate.data.corpus import Corpus
from ablate.doctor.results import CheckResult, Target, broken, ok, warning
from ablate.registry import build, slots
from ablate.runner.backends.local import python_path
from ablate.store import process_lock

_DISTRIBUTION = "ablate-transformer"
_NOTABLE = ("torch", "numpy", "pydantic", "tokenizers", "sacrebleu")

_GIB = 2**30
_LOW_GIB = 5.0  # a base model takes 0.25 GiB, and so does each of its last checkpoints
_TOO_LOW_GIB = 0.25
_IS_LOCKED = 3
_LOCK_LIMIT_S = 30
_TRY_LOCK = f"""\
import filelock, sys
try:
    filelock.FileLock(sys.argv[1], timeout=0).acquire()
except filelock.Timeout:
    sys.exit({_IS_LOCKED})
"""


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


def corpora(_: Target) -> CheckResult:
    """Check which corpora need no download."""
    folder = os.environ.get("ABLATE_CORPORA")
    if folder and not Path(folder).is_dir():
        return broken(
            f"ABLATE_CORPORA is {folder}, and there is no such folder, so that no corpus but "
            "synthetic can be read; correct it, or unset it"
        )
    present: list[str] = []
    absent: list[str] = []
    for name, entry in sorted(slots()["corpus"].items()):
        try:
            choice = entry.choose({})
        except ValidationError:
            continue  # such as `files`, which is nothing without its options
        is_available = build(Corpus, choice, at="corpus").is_available()
        (present if is_available else absent).append(name)
    figures = {"available": ", ".join(present), "to_fetch": ", ".join(absent)}
    to_fetch = f"; to be downloaded: {', '.join(absent)} (ablate corpora fetch)" if absent else ""
    return ok(f"available: {figures['available']}{to_fetch}", **figures)


def cache(_: Target) -> CheckResult:
    """Check that the user's cache can be written."""
    folder = cache_folder("encodings").parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        return warning(
            f"{folder} cannot be written ({error.strerror or error}), so that every run encodes "
            "its corpus anew; set ABLATE_CACHE to a folder of yours"
        )
    n_bytes = 0
    for root, _folders, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # a run may remove it meanwhile
                n_bytes += (Path(root) / name).lstat().st_size
    n_mib = n_bytes / 2**20
    n_encoded = sum(entry.is_dir() for entry in folder.glob("encodings/*"))
    return ok(
        f"{folder} can be written; it has {n_encoded} encoded corpora and {n_mib:,.0f} MiB in all",
        encoded_corpora=n_encoded,
        size_mib=round(n_mib, 1),
    )


def disk(target: Target) -> CheckResult:
    """Check the room for results and for the cache."""
    folders = {"results": target.results, "cache": cache_folder("encodings").parent}
    free = {
        name: shutil.disk_usage(_nearest_existing(folder)).free / _GIB
        for name, folder in folders.items()
    }
    figures = {f"{name}_free_gib": round(gib, 1) for name, gib in free.items()}
    text = ", ".join(f"{gib:,.1f} GiB for {name} ({folders[name]})" for name, gib in free.items())
    least = min(free.values())
    if least < _TOO_LOW_GIB:
        return broken(f"free: {text}; make room, or move them: --results, ABLATE_CACHE", **figures)
    if least < _LOW_GIB:
        return warning(f"free: {text}; large models and corpora may not fit", **figures)
    return ok(f"free: {text}", **figures)


def locks(target: Target) -> CheckResult:
    """Check that a lock in the folder of results holds against another process."""
    folder = _nearest_existing(target.results)
    try:
        with (
            tempfile.TemporaryDirectory(dir=folder, prefix=".doctor.") as own,
            process_lock(Path(own) / "lock").acquire(timeout=0) as lock,
        ):
            other = subprocess.run(
                [sys.executable, "-P", "-c", _TRY_LOCK, lock.lock_file],
                env={**os.environ, "PYTHONPATH": python_path()},
                capture_output=True,
                timeout=_LOCK_LIMIT_S,
            )
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = getattr(error, "strerror", None) or error
        return broken(
            f"{folder}: no file could be written and locked: {reason}; name another folder with "
            "--results"
        )
    if other.returncode == _IS_LOCKED:
        return ok(f"a lock in {folder} holds against other processes")
    return broken(
        f"a lock in {folder} does not hold against other processes, so that two of them would "
        "make the same run; name a folder on a local disk with --results"
    )


def _nearest_existing(folder: Path) -> Path:
    absolute = folder.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.is_dir())
