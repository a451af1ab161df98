"""Every kind of check; importing this package enters all that its modules hold into `KINDS`."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, prefix=f"{__name__}."):
    importlib.import_module(_module.name)
