"""Every format of a table; importing this package enters all of them into `FORMATS`."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__, prefix=f"{__name__}."):
    importlib.import_module(_module.name)
