"""Parts from a Python file that is not installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from ablate.hashing import sha256
from ablate.registry.lookup import slots
from ablate.registry.registration import PLUGINS, restore, run_plugin, snapshot
from ablate.registry.table import Plugin, PluginError

NO_PLUGINS = "ABLATE_NO_PLUGINS"
"""The environment variable that, if it is not empty, keeps files from being run as plugins."""


def load_plugin(file: Path | str) -> Plugin:
    """Run a Python file that registers parts, in this process, unless its content has been run.

    A plugin is one file: its hash, which enters the identity of every run that uses one of its
    parts, does not cover what it imports.

    Args:
        file: its folder is not searched for modules.

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
        start = error.start if isinstance(error, UnicodeDecodeError) else 0
        line = content.count(b"\n", 0, start) + 1
        raise PluginError(f"{name}:{line}: cannot be read as Python: {error}") from error
    if not source:  # which `adopt` would take for that of a distribution
        raise PluginError(f"{name}: registers no part; decorate a class with @register")
    digest = sha256([content])
    plugin = Plugin(name, digest, f"ablate_plugin_{digest[:16]}", source)
    adopt(plugin)
    return plugin


def adopt(plugin: Plugin) -> None:
    """Load a plugin that another process has loaded, even if its file has changed since.

    Raises:
        PluginError: as `load_plugin` does, or if another version of the distribution is installed.
    """
    slots()
    if plugin.sha256 in PLUGINS:
        return
    if not plugin.source:
        raise PluginError(f"{plugin.name} has changed since the run was requested; call again")
    file = Path(plugin.name).absolute()

    def run() -> None:
        module = sys.modules[plugin.module] = ModuleType(plugin.module)
        module.__file__ = str(file)
        exec(compile(plugin.source, str(file), "exec"), module.__dict__)

    run_plugin(plugin, file, run)


def plugins() -> tuple[Plugin, ...]:
    """Return all plugins that have been loaded, files and distributions, in order."""
    slots()
    return tuple(PLUGINS.values())


@contextmanager
def without_plugins() -> Iterator[None]:
    """Keep files from being run as plugins, in this process and in those that it starts."""
    before = os.environ.get(NO_PLUGINS, "")
    os.environ[NO_PLUGINS] = "1"
    try:
        yield
    finally:
        os.environ[NO_PLUGINS] = before


@contextmanager
def temporary_registrations() -> Iterator[None]:
    """Remove on leaving the parts that were registered, and the plugins loaded, within."""
    slots()
    before = snapshot()
    try:
        yield
    finally:
        restore(before)
