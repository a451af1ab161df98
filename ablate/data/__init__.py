"""Corpora, tokenizers, batches; importing this package registers every corpus and tokenizer."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, prefix=f"{__name__}."):
    importlib.import_module(_module.name)
