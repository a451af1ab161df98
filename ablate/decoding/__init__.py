"""Decoding: searches over a KV cache; importing this package registers all of them."""

import importlib
import pkgutil

from ablate.decoding.search import Search
from ablate.decoding.search_state import Hypothesis
from ablate.decoding.translate import batches_by_length, pad_sources, translate

for _module in pkgutil.iter_modules(__path__, prefix=f"{__name__}."):
    importlib.import_module(_module.name)

__all__ = ["Hypothesis", "Search", "batches_by_length", "pad_sources", "translate"]
