"""Parts from outside this package: from a file, or from an installed distribution.

A distribution names its modules that register parts as entry points of the group ``ablate.parts``.
What is outside determines results as much as what is inside, so its content is hashed.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from ablate.errors import SpecError
from ablate.registry.table import TABLE, Entry, Plugin, slots

_GROUP = "ablate.parts"
_PLUGINS: dict[str, Plugin] = {}
"""What has been loaded, by its hash."""


class PluginError(SpecError):
    """Parts from outside could not be loaded; none of them is in the table."""


def load_plugin(file: Path | str) -> Plugin:
    """Run a Python file that registers parts, in this process, unless its content has been run.

    A plugin is one file: its hash, which enters the identity of every run that uses one of its
    parts, does not cover what it imports.

    Args:
        file: its folder is not searched for modules.

    Raises:
        PluginError: if it cannot be read, fails, registers nothing, or a name that is taken.
    """
    name = os.fspath(file)
    try:
        content = Path(file).read_bytes()
        source = importlib.util.decode_source(content)
    except OSError as error:
        raise PluginError(f"{name}: cannot be read: {error.strerror or error}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        line = content.count(b"\n", 0, start) + 1
        raise PluginError(f"{name}:{line}: cannot be read as Python: {error}") from error
    digest = hashlib.sha256(content).hexdigest()
    plugin = Plugin(name, digest, f"ablate_plugin_{digest[:16]}", source)
    adopt(plugin)
    return plugin


def adopt(plugin: Plugin) -> None:
    """Load what another process has loaded: that very content, whatever has become of the file.

    Raises:
        PluginError: as `load_plugin` does, or if what is installed is not the same.
    """
    slots()
    if plugin.sha256 in _PLUGINS:
        return
    if not plugin.source:
        raise PluginError(f"{plugin.name} has changed since it was asked for; ask again")
    file = Path(plugin.name).absolute()

    def run() -> None:
        module = sys.modules[plugin.module] = ModuleType(plugin.module)
        module.__file__ = str(file)
        exec(compile(plugin.source, str(file), "exec"), module.__dict__)

    _bring_in(plugin, file, run)


def plugins() -> tuple[Plugin, ...]:
    """Return what has been loaded from outside, in order."""
    slots()
    return tuple(_PLUGINS.values())


@contextmanager
def restored() -> Iterator[None]:
    """Take back on leaving what was registered and loaded inside."""
    slots()
    before = _state()
    try:
        yield
    finally:
        _restore(before)


def load_installed() -> None:
    """Import what installed distributions name in the group of entry points ``ablate.parts``.

    Raises:
        PluginError: if that fails, or registers a name that is taken.
    """
    found = {(_owner(point), point.value): point for point in entry_points(group=_GROUP)}
    for owner, value in sorted(found):
        point = found[owner, value]
        try:
            package, root = _root(point.module)
        except (ImportError, ValueError) as error:
            raise PluginError(f"{owner}, entry point {point.name!r}: {error}") from error
        plugin = Plugin(owner, digest_of_code(root), package)
        _bring_in(plugin, root, point.load)


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.module


def digest_of_code(root: Path) -> str:
    """Return the SHA-256 of a Python file, or of all those in a folder with their names, in hex."""
    if root.is_file():
        return hashlib.sha256(root.read_bytes()).hexdigest()
    whole = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        whole.update(f"{file.relative_to(root).as_posix()} {content}\n".encode())
    return whole.hexdigest()


def _root(module: str) -> tuple[str, Path]:
    """Return the outermost package of a module, and its folder; or the module, and its file."""
    steps = module.split(".")
    for depth in range(1, len(steps) + 1):
        name = ".".join(steps[:depth])
        found = importlib.util.find_spec(name)
        if found is None:
            raise ModuleNotFoundError(f"no module named {name!r}")
        if found.origin is not None:  # a namespace that several distributions share has none
            file = Path(found.origin)
            return name, file.parent if found.submodule_search_locations else file
    raise ModuleNotFoundError(f"{module!r} has no file")


def _bring_in(plugin: Plugin, root: Path, run: Callable[[], object]) -> None:
    """Enter what ``run`` registers as parts of ``plugin``; all of it, or nothing if it fails."""
    before = _state()
    known = before[0]
    try:
        run()
        new = [
            entry
            for slot, table in TABLE.items()
            for name, entry in table.items()
            if entry.origin is None and name not in known.get(slot, {})
        ]
        for entry in new:
            TABLE[entry.slot][entry.name] = replace(_own(entry, plugin), origin=plugin)
        if plugin.source and not new:
            raise PluginError(f"{plugin.name}: registers no part; decorate a class with @register")
    except (Exception, SystemExit) as error:
        _restore(before, plugin)
        if isinstance(error, PluginError):
            raise
        raise PluginError(_explained(plugin, root, error)) from error
    _PLUGINS[plugin.sha256] = plugin


def _own(entry: Entry, plugin: Plugin) -> Entry:
    """Return the entry if the hash of the plugin covers its class."""
    home = entry.cls.__module__
    if home == plugin.module or home.startswith(f"{plugin.module}."):
        return entry
    raise PluginError(
        f"{plugin.name}: {entry.slot} {entry.name!r} is defined in the module {home}, which the "
        "hash of the plugin does not cover; define it in the plugin itself"
    )


def _explained(plugin: Plugin, root: Path, error: BaseException) -> str:
    """Return what went wrong, with the line of the plugin where it did."""
    at = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(root)
    ]
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_relative_to(root):
        at.append((error.filename or "", error.lineno))
    file, line = at[-1] if at else (str(root), 1)
    place = f"{plugin.name}:{line}" if plugin.source else f"{plugin.name}: {file}:{line}"
    reason = error.msg if isinstance(error, SyntaxError) else str(error)
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    is_plain = isinstance(error, SyntaxError) or raised_in.parent == Path(__file__).parent
    return f"{place}: {reason}" if is_plain else f"{place}: {type(error).__name__}: {reason}"


_State = tuple[dict[str, dict[str, Entry]], dict[str, Plugin]]


def _state() -> _State:
    return {slot: dict(table) for slot, table in TABLE.items()}, dict(_PLUGINS)


def _restore(before: _State, failed: Plugin | None = None) -> None:
    """Bring tables and imported modules back to what they were."""
    table, loaded = before
    gone = [plugin for key, plugin in _PLUGINS.items() if key not in loaded]
    for plugin in [*gone, failed] if failed else gone:
        for name in [*sys.modules]:
            if name == plugin.module or name.startswith(f"{plugin.module}."):
                del sys.modules[name]
    TABLE.clear()
    TABLE.update(table)
    _PLUGINS.clear()
    _PLUGINS.update(loaded)
