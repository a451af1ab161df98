"""The experiments and presets that come with the package, found by name from any folder."""

from __future__ import annotations

from pathlib import Path

PREFIX = "ablate:"
"""In ``extends``: what follows is the name of a shipped file, as in ``ablate:presets/tiny``."""

_INSTALLED = Path(__file__).parents[1] / "experiments"
FOLDER = _INSTALLED if _INSTALLED.is_dir() else _INSTALLED.parents[1] / "experiments"
"""Where they are: in an installed package, or in a checkout."""


def names() -> list[str]:
    """Return the names of all shipped files: ``pe``, ``multi30k/pe``, ``presets/tiny``."""
    files = FOLDER.rglob("*.yaml")
    return sorted(path.relative_to(FOLDER).with_suffix("").as_posix() for path in files)


def find(name: str) -> Path | None:
    """Return the shipped file of a name, with or without `PREFIX`; None if there is none."""
    plain = name.removeprefix(PREFIX)
    return FOLDER / f"{plain}.yaml" if plain in names() else None


def name_in(path: Path) -> str | None:
    """Return the longest name of a shipped file that a path ends in; None if it ends in none."""
    end = f"/{path.as_posix().removesuffix('.yaml')}"
    return max((name for name in names() if end.endswith(f"/{name}")), key=len, default=None)


def resolve(path: Path) -> Path:
    """Return ``path`` if that exists, else the shipped file of that name, else ``path``."""
    return path if path.exists() else find(path.as_posix()) or path


def as_given(path: Path) -> str:
    """Return the name of a shipped file that `resolve` has found; any other path as it is.

    A context, as in ``size.yaml#wide``, stays at its end.
    """
    if not path.is_relative_to(FOLDER):
        return str(path)
    return path.relative_to(FOLDER).as_posix().replace(".yaml", "")
