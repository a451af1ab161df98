"""Parts from outside of this package: a Python file, or an installed distribution.

A distribution names its modules as entry points of the group ``ablate.parts``. The code of a plugin
determines results as much as that of this package, so it is hashed. All of its parts are
registered, or none if it fails.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from ablate.hashing import sha256, sha256_of_file
from ablate.registry.table import EXTENSIBLE, TABLE, Entry, Plugin, PluginError

NO_PLUGINS = "ABLATE_NO_PLUGINS"
"""The environment variable that, if it is not empty, keeps files from being run as plugins."""

_GROUP = "ablate.parts"
_PART_PACKAGES = ("ablate.parts", "ablate.data", "ablate.decoding")
"""The packages whose modules register parts; imported by name, as they import the registry."""

_LOADED: dict[str, Plugin] = {}
"""The plugins that have been loaded, by their hash."""

_Snapshot = tuple[dict[str, dict[str, Entry]], dict[str, Plugin]]


@functools.cache
def filled_table() -> Mapping[str, dict[str, Entry]]:
    """Return the table with the parts of this package and of every installed distribution."""
    for package in _PART_PACKAGES:
        importlib.import_module(package)
    load_installed()
    return TABLE


def load_plugin(file: Path | str) -> Plugin:
    """Run a Python file that registers parts, in this process, unless its content has been run.

    A plugin is one file: its hash, which enters the identity of every run that uses one of its
    parts, does not cover what it imports. Its folder is not searched for modules.

    Raises:
        PluginError: if it cannot be read, fails, registers nothing, or a name that is taken; or if
            `NO_PLUGINS` is set.
    """
    name = os.fspath(file)
    if os.environ.get(NO_PLUGINS):
        raise PluginError(
            f"{name}: is a program, and --no-plugins (${NO_PLUGINS}) keeps it from being run; "
            "read it, and leave that out if you trust it"
        )
    try:
        content = Path(file).read_bytes()
        source = importlib.util.decode_source(content)
    except OSError as error:
        raise PluginError(f"{name}: cannot be read: {error.strerror or error}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise PluginError(f"{name}: cannot be read as Python: {error}") from error
    if not source:  # which `adopt` would take for that of a distribution
        raise PluginError(f"{name}: registers no part; decorate a class with @register")
    digest = sha256([content])
    plugin = Plugin(name, digest, f"ablate_plugin_{digest[:16]}", source)
    adopt(plugin)
    return plugin


def adopt(plugin: Plugin) -> None:
    """Load a plugin that another process has loaded, even if its file has changed since."""
    filled_table()
    if plugin.sha256 in _LOADED:
        return
    if not plugin.source:
        raise PluginError(f"{plugin.name} has changed since the run was requested; call again")
    file = Path(plugin.name).absolute()

    def run() -> None:
        module = sys.modules[plugin.module] = ModuleType(plugin.module)
        module.__file__ = str(file)
        exec(compile(plugin.source, str(file), "exec"), module.__dict__)

    _run(plugin, file, run)


def load_installed() -> None:
    """Import the entry points of the group ``ablate.parts`` of all installed distributions."""
    points = {}
    for point in entry_points(group=_GROUP):
        owner = f"{point.dist.name} {point.dist.version}" if point.dist else point.module
        points[owner, point.value] = point
    for owner, value in sorted(points):
        point = points[owner, value]
        try:
            package, root = _package_of(point.module)
        except (ImportError, ValueError) as error:
            raise PluginError(f"{owner}, entry point {point.name!r}: {error}") from error
        _run(Plugin(owner, digest_of_code(root), package), root, point.load)


def plugins() -> tuple[Plugin, ...]:
    """Return all plugins that have been loaded, files and distributions, in order."""
    filled_table()
    return tuple(_LOADED.values())


def digest_of_code(root: Path) -> str:
    """Return the SHA-256 of a Python file, or of all those in a folder with their names, in hex."""
    if root.is_file():
        return sha256_of_file(root)
    files = sorted(root.rglob("*.py"))
    return sha256(
        f"{file.relative_to(root).as_posix()} {sha256_of_file(file)}\n".encode() for file in files
    )


@contextmanager
def without_plugins() -> Iterator[None]:
    """Keep files from being run as plugins, in this process and in those that it starts."""
    before = os.environ.get(NO_PLUGINS, "")
    os.environ[NO_PLUGINS] = "1"
    try:
        yield
    finally:
        os.environ[NO_PLUGINS] = before


def _run(plugin: Plugin, root: Path, run: Callable[[], object]) -> None:
    """Call ``run``, which runs the code in ``root``, and mark the parts that it registers."""
    before = _snapshot()
    old_table, _ = before
    try:
        with redirect_stdout(sys.stderr):  # standard output is for results
            run()
        new = [
            entry
            for slot, table in TABLE.items()
            for name, entry in table.items()
            if entry.origin is None and name not in old_table.get(slot, {})
        ]
        for entry in new:
            module = entry.cls.__module__
            if module != plugin.module and not module.startswith(f"{plugin.module}."):
                raise PluginError(
                    f"{plugin.name}: {entry.slot} {entry.name!r} is defined in the module "
                    f"{module}, which the hash of the plugin does not cover; define it in the "
                    "plugin itself"
                )
            TABLE[entry.slot][entry.name] = replace(entry, origin=plugin)
        others: list[type] = []  # of formats of tables, and of what else is no part
        for contract in EXTENSIBLE:
            others += contract.__subclasses__()
        is_idle = not new and all(cls.__module__ != plugin.module for cls in others)
        if plugin.source and is_idle:
            raise PluginError(f"{plugin.name}: registers no part; decorate a class with @register")
    except (Exception, SystemExit) as error:
        _restore(before, plugin)
        if isinstance(error, PluginError):
            raise
        raise PluginError(_message(plugin, root, error)) from error
    _LOADED[plugin.sha256] = plugin


def _snapshot() -> _Snapshot:
    return {slot: dict(table) for slot, table in TABLE.items()}, dict(_LOADED)


def _restore(before: _Snapshot, *failed: Plugin) -> None:
    """Bring back a snapshot, and forget the modules that later or failed plugins imported."""
    table, loaded = before
    removed = [plugin for key, plugin in _LOADED.items() if key not in loaded]
    for plugin in (*removed, *failed):
        for name in [*sys.modules]:
            if name == plugin.module or name.startswith(f"{plugin.module}."):
                del sys.modules[name]
    TABLE.clear()
    TABLE.update(table)
    _LOADED.clear()
    _LOADED.update(loaded)


def _package_of(module: str) -> tuple[str, Path]:
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


def _message(plugin: Plugin, root: Path, error: BaseException) -> str:
    """Return the reason of an error, after the line of the plugin that it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [(f.filename, f.lineno) for f in frames if Path(f.filename).is_relative_to(root)]
    if isinstance(error, SyntaxError) and Path(error.filename or "").is_relative_to(root):
        lines.append((error.filename or "", error.lineno))
    file, line = lines[-1] if lines else (str(root), 1)
    location = f"{plugin.name}:{line}" if plugin.source else f"{plugin.name}: {file}:{line}"
    if isinstance(error, SyntaxError):
        return f"{location}: {error.msg}"
    is_ours = Path(frames[-1].filename).parent == Path(__file__).parent
    return f"{location}: {error}" if is_ours else f"{location}: {type(error).__name__}: {error}"
