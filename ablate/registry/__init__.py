"""The table of parts: the class behind each name in each slot."""

from ablate.registry.loading import digest_of_code
from ablate.registry.lookup import build, choose, label, lookup, slots
from ablate.registry.plugins import adopt, load_plugin, plugins, temporary_registrations
from ablate.registry.table import (
    Choice,
    Entry,
    Fingerprinted,
    Frozen,
    Part,
    Plugin,
    PluginError,
    RefusedError,
    argument_docs,
    refusals,
    register,
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
    "argument_docs",
    "build",
    "choose",
    "digest_of_code",
    "label",
    "load_plugin",
    "lookup",
    "plugins",
    "refusals",
    "register",
    "slots",
    "suggest",
    "temporary_registrations",
]
