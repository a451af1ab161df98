"""The table of parts: which class answers to which name in which slot."""

from ablate.registry.outside import PluginError, adopt, load_plugin, plugins, restored
from ablate.registry.table import (
    Choice,
    Entry,
    Fingerprinted,
    Frozen,
    Part,
    Plugin,
    RefusedError,
    build,
    choose,
    documented,
    lookup,
    refusals,
    register,
    slots,
    suggest,
)

__all__ = [
    "Choice",
    "Entry",
    "Fingerprinted",
    "Frozen",
    "Part",
    "Plugin",
    "PluginError",
    "RefusedError",
    "adopt",
    "build",
    "choose",
    "documented",
    "load_plugin",
    "lookup",
    "plugins",
    "refusals",
    "register",
    "restored",
    "slots",
    "suggest",
]
