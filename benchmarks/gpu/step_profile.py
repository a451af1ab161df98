"""Where does the time of a step go, and how far is the floor? Answered by `first_hour`.

What `benchmarks/step_profile.py` measures, kernel by kernel.
"""

from __future__ import annotations

import sys
from functools import partial

from gpu.script import Item, Result, Setting, answer, run_benchmark


def profiled(preset: str, setting: Setting) -> Result:
    """Profile a preset."""
    arguments = ["--preset", preset, "--steps", str(setting.pick(8, 1))]
    arguments += ["--repeats", str(setting.pick(5, 1))]
    measured = run_benchmark("step_profile.py", arguments, setting)
    top = [f"{kernel['name'][:40]} {kernel['share']:.0%}" for kernel in measured["top"][:3]]
    line = (
        f"{1e3 * measured['seconds_per_step']:.2f} ms a step, "
        f"{measured['times_the_floor']:.1f} times the floor; "
        f"most of it {', '.join(top) or 'in kernels that the profiler may not observe'}"
    )
    return Result(line, measured)


ITEMS: dict[str, Item] = {p: partial(profiled, p) for p in ("tiny", "d256")}

if __name__ == "__main__":
    sys.exit(answer(ITEMS))
