"""The costs of parts that come with the package.

python -m tests.costs          # rewrites ablate/api/costs.json
"""

from __future__ import annotations

import json

from ablate.api.costs import FILE, Costs
from ablate.api.parts import _choice
from ablate.registry import slots


def counted() -> str:
    """Return the counts of the models that `ablate parts` compares, as the file has them."""
    costs = Costs({})
    entries = [entry for of_slot in slots().values() for entry in of_slot.values()]
    for entry in entries:
        if entry.origin is None:
            costs.of(entry, _choice(entry))
    lines = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in costs.counts.items())
    return "{\n" + ",\n".join(sorted(lines)) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(counted(), encoding="utf-8")
