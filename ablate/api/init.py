"""``ablate init``: an experiment, a shipped study, or a part of your own, to start from."""

from __future__ import annotations

import keyword
import re
import shlex
from importlib import resources
from pathlib import Path

from ablate.config import shipped
from ablate.config.load import why_taken
from ablate.errors import SpecError
from ablate.registry import slots
from ablate.wording import no_such

_TEMPLATES = resources.files("ablate.templates")


def init(name: str | None = None, *, part: str | None = None, study: str | None = None) -> Path:
    """Write a commented experiment, a shipped study, or a part of a slot; return the file.

    Its name may have a folder and a suffix. It is by default ``my_<slot>`` for a part, and its own
    for a shipped study, as in ``pe``.

    Raises:
        SpecError: if the file exists, or cannot be written; if there is no such slot; if the name
            is that of another part of the slot, or cannot be the name of a class, or is empty.
    """
    if part is not None and study is not None:
        raise SpecError("--part and --from exclude each other; remove one")
    if part is not None:
        path = _with_suffix(name or f"my_{part}", ".py")
        _write(path, _part_file(part, path.stem))
    elif study is not None:
        text = _shipped(study)
        path = _with_suffix(name or study.rpartition("/")[2], ".yaml", ".yml")
        command = f"ablate run {shlex.quote(str(path))}"
        _write(path, f"# The shipped study {study}. Run it:  {command}\n{text}")
    elif name is None:
        raise SpecError("init needs the name of an experiment, --from STUDY, or --part SLOT")
    else:
        path = _with_suffix(name, ".yaml", ".yml")
        text = (_TEMPLATES / "experiment.yaml").read_text(encoding="utf-8")
        _write(path, text.replace("mine.yaml", shlex.quote(str(path))))
    return path


def _shipped(study: str) -> str:
    """Return the text of a shipped file, with parents that are found from any folder."""
    file = shipped.find(study)
    if file is None:
        raise SpecError(no_such("shipped study", study, shipped.names()))

    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    for number in (number for number, line in enumerate(lines) if line.startswith("extends:")):
        for parent in re.findall(r"[\w./-]+\.yaml", lines[number]):
            path = (file.parent / parent).resolve().relative_to(shipped.FOLDER.resolve())
            name = f"{shipped.PREFIX}{path.with_suffix('').as_posix()}"
            lines[number] = lines[number].replace(parent, name)
    return "".join(lines)


def _part_file(slot: str, name: str) -> str:
    """Return the text of a module with one part, under another name."""
    files = sorted(file.name for file in _TEMPLATES.iterdir() if file.name.endswith(".py"))
    names = [file.removesuffix(".py") for file in files if not file.startswith("_")]
    if slot not in names:
        raise SpecError(no_such("slot with a part to start from", slot, names))
    old, new = ("".join(map(str.capitalize, n.split("_"))) for n in (f"my_{slot}", name))
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(new):  # as None is
        raise SpecError(f"{name!r} cannot be the name of a part; write it as in my_{slot}")
    if name in slots()[slot]:
        raise SpecError(f"there is a {slot} {name!r} already; choose another name")
    text = (_TEMPLATES / f"{slot}.py").read_text(encoding="utf-8")
    return text.replace(f"my_{slot}", name).replace(old, new)


def _with_suffix(name: str, *suffixes: str) -> Path:
    path = Path(name if name.endswith(suffixes) else f"{name}{suffixes[0]}")
    if path.name in suffixes:
        raise SpecError(f"{name!r} does not end in the name of a file; write it as in mine")
    return path


def _write(path: Path, text: str) -> None:
    if path.suffix != ".py" and (reason := why_taken(path)):
        raise SpecError(f"{path}: {reason}; choose another name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise SpecError(f"{path} exists already; choose another name") from error
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}") from error
