"""How fast is training beside an eager ``nn.Transformer``? Answered by `first_hour`.

The race of `benchmarks/training_speed.py`, which warms up until everything is captured, with the
one contender that needs no environment of its own.
"""

from __future__ import annotations

import sys
from functools import partial

from gpu.script import Item, Result, Setting, answer, run_benchmark


def against_plain(preset: str, setting: Setting) -> Result:
    """Compare a loop written by hand with ours, in turns."""
    n_steps = setting.pick(20, 1)
    arguments = ["--only", "plain", "--preset", preset, "--steps", str(n_steps)]
    arguments += ["--repeats", str(setting.pick(2, 1))]  # each starts four processes
    measured = run_benchmark("training_speed.py", arguments, setting)
    lines = []
    for entry in measured["contenders"]:
        rate = entry["median_target_tokens_per_second"]
        of_ours = (entry["ours_over_it"] or {}).get("median", float("nan"))
        lines.append(
            f"{entry['name']} failed: {(entry['error'] or '').splitlines()[-1:]}"
            if rate is None
            else f"{entry['name']} {rate / 1e3:,.1f}k tokens/s (ours is {of_ours:.2f}x)"
        )
    return Result("; ".join(lines), measured)


ITEMS: dict[str, Item] = {p: partial(against_plain, p) for p in ("tiny", "d256")}

if __name__ == "__main__":
    sys.exit(answer(ITEMS))
