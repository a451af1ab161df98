"""Run the code of a plugin; register all of its parts, or none if it fails.

A plugin is a file, or a distribution that names its modules as entry points of the group
``ablate.parts``. Its code determines results as much as that of this package, so it is hashed.
"""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from ablate.hashing import sha256, sha256_of_file
from ablate.registry.table import EXTENSIBLE, TABLE, Entry, Plugin, PluginError

_GROUP = "ablate.parts"

PLUGINS: dict[str, Plugin] = {}
"""The plugins that have been loaded, by their hash."""

Snapshot = tuple[dict[str, dict[str, Entry]], dict[str, Plugin]]


def load_installed() -> None:
    """Import the entry points of the group ``ablate.parts`` of all installed distributions.

    Raises:
        PluginError: if that fails, or registers a name that is taken.
    """
    points = {(_owner(point), point.value): point for point in entry_points(group=_GROUP)}
    for owner, value in sorted(points):
        point = points[owner, value]
        try:
            package, root = _root(point.module)
        except (ImportError, ValueError) as error:
            raise PluginError(f"{owner}, entry point {point.name!r}: {error}") from error
        run_plugin(Plugin(owner, digest_of_code(root), package), root, point.load)


def digest_of_code(root: Path) -> str:
    """Return the SHA-256 of a Python file, or of all those in a folder with their names, in hex."""
    if root.is_file():
        return sha256_of_file(root)
    files = sorted(root.rglob("*.py"))
    return sha256(
        f"{file.relative_to(root).as_posix()} {sha256_of_file(file)}\n".encode() for file in files
    )


def run_plugin(plugin: Plugin, root: Path, run: Callable[[], object]) -> None:
    """Call ``run`` and mark the parts that it registers as those of ``plugin``.

    What it prints goes to standard error, since standard output is for results.

    Args:
        plugin: the code that ``run`` runs.
        root: its file or folder.
        run: registers parts.

    Raises:
        PluginError: if ``run`` fails or a part is not of the plugin; no part is registered then.
    """
    before = snapshot()
    old_table, _ = before
    try:
        with redirect_stdout(sys.stderr):
            run()
        new = [
            entry
            for slot, table in TABLE.items()
            for name, entry in table.items()
            if entry.origin is None and name not in old_table.get(slot, {})
        ]
        for entry in new:
            _check_module(entry, plugin)
            TABLE[entry.slot][entry.name] = replace(entry, origin=plugin)
        if plugin.source and not new and not _extends(plugin):
            raise PluginError(f"{plugin.name}: registers no part; decorate a class with @register")
    except (Exception, SystemExit) as error:
        restore(before, plugin)
        if isinstance(error, PluginError):
            raise
        raise PluginError(_message(plugin, root, error)) from error
    PLUGINS[plugin.sha256] = plugin


def _extends(plugin: Plugin) -> bool:
    """Return whether a plugin defines something that is no part, such as a format of tables."""
    classes: list[type] = []
    for contract in EXTENSIBLE:
        classes += contract.__subclasses__()
    return any(cls.__module__ == plugin.module for cls in classes)


def snapshot() -> Snapshot:
    """Return copies of the table and of the loaded plugins."""
    return {slot: dict(table) for slot, table in TABLE.items()}, dict(PLUGINS)


def restore(before: Snapshot, failed: Plugin | None = None) -> None:
    """Bring the table, the loaded plugins and the imported modules back to a snapshot.

    Args:
        before: the snapshot.
        failed: a plugin that is not loaded, but may have imported modules.
    """
    table, loaded = before
    removed = [plugin for key, plugin in PLUGINS.items() if key not in loaded]
    for plugin in [*removed, failed] if failed else removed:
        for name in [*sys.modules]:
            if name == plugin.module or name.startswith(f"{plugin.module}."):
                del sys.modules[name]
    TABLE.clear()
    TABLE.update(table)
    PLUGINS.clear()
    PLUGINS.update(loaded)


def _owner(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.module


def _root(module: str) -> tuple[str, Path]:
    """Return the outermost package of a module, and its folder; or the module, and its file."""
    names = module.split(".")
    for depth in range(1, len(names) + 1):
        name = ".".join(names[:depth])
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"no module named {name!r}")
        if spec.origin is not None:  # a namespace that several distributions share has none
            file = Path(spec.origin)
            return name, file.parent if spec.submodule_search_locations else file
    raise ModuleNotFoundError(f"{module!r} has no file")


def _check_module(entry: Entry, plugin: Plugin) -> None:
    """Raise a PluginError if the hash of the plugin does not cover the class of the part."""
    module = entry.cls.__module__
    if module != plugin.module and not module.startswith(f"{plugin.module}."):
        raise PluginError(
            f"{plugin.name}: {entry.slot} {entry.name!r} is defined in the module {module}, which "
            "the hash of the plugin does not cover; define it in the plugin itself"
        )


def _message(plugin: Plugin, root: Path, error: BaseException) -> str:
    """Return the reason of an error, after the line of the plugin that it comes from."""
    lines = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(root)
    ]
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_relative_to(root):
        lines.append((error.filename or "", error.lineno))
    file, line = lines[-1] if lines else (str(root), 1)
    location = f"{plugin.name}:{line}" if plugin.source else f"{plugin.name}: {file}:{line}"
    reason = error.msg if isinstance(error, SyntaxError) else str(error)
    raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    is_ours = isinstance(error, SyntaxError) or raised_in.parent == Path(__file__).parent
    return f"{location}: {reason}" if is_ours else f"{location}: {type(error).__name__}: {reason}"
