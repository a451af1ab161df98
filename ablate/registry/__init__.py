"""The table of parts: the class behind each name in each slot."""

from ablate.registry.lookup import build, choosable, choose, label, lookup, slots
from ablate.registry.plugins import adopt, digest_of_code, load_plugin, plugins
from ablate.registry.table import (
    EXTENSIBLE,
    AddedOption,
    Choice,
    Entry,
    FilePaths,
    Fingerprinted,
    Frozen,
    Part,
    Plugin,
    PluginError,
    RefusedError,
    argument_docs,
    contract_of,
    refusals,
    register,
)

__all__ = [
    "EXTENSIBLE",
    "AddedOption",
    "Choice",
    "Entry",
    "FilePaths",
    "Fingerprinted",
    "Frozen",
    "Part",
    "Plugin",
    "PluginError",
    "RefusedError",
    "adopt",
    "argument_docs",
    "build",
    "choosable",
    "choose",
    "contract_of",
    "digest_of_code",
    "label",
    "load_plugin",
    "lookup",
    "plugins",
    "refusals",
    "register",
    "slots",
]
