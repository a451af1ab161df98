"""What the scripts of all questions share: items one by one, in a process that computes as runs do.

A script calls `answer` with its items. It is started by `first_hour`, which reads the lines that
begin with its mark: first the names of all items and the provenance, then what came of each. After
an item that fails the process ends, since a failed capture leaves CUDA in a state that nothing can
be learned from; `first_hour` starts another one for the rest.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from records import origin

from ablate.processes import die_with_parent
from ablate.runner import devices
from gpu.first_hour import MARK


@dataclass(frozen=True)
class Setting:
    """Under which an item is answered.

    Attributes:
        device: what it computes on, the only one of its kind that the process sees.
        reduced: whether to do a hundredth of the work.
        output: folder of the answers.
    """

    device: torch.device
    reduced: bool
    output: Path

    @property
    def is_cuda(self) -> bool:
        """Return whether the device is a GPU."""
        return self.device.type == "cuda"

    @property
    def precision(self) -> str:
        """Return what ``precision: auto`` means on it."""
        place = devices.find("cuda:0" if self.is_cuda else "cpu")[0]
        return devices.resolve("auto", place)

    def pick(self, whole: Any, reduced: Any) -> Any:
        """Return the one or the other."""
        return reduced if self.reduced else whole


@dataclass(frozen=True)
class Result:
    """What came of an item.

    Attributes:
        line: in one line, for a person.
        figures: all of it; units are in the names.
    """

    line: str
    figures: Mapping[str, Any]


Item = Callable[[Setting], Result]


class WrongError(Exception):
    """Something was computed that should have come out otherwise."""


def answer(items: Mapping[str, Item], *, in_fresh_processes: bool = False) -> int:
    """Answer the items that are asked for; return the exit status.

    Args:
        items: by name, in order.
        in_fresh_processes: whether each must have a process of its own, for its memory; a dry run
            has them share one, since to start it takes longer than the item.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--reduced", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--skip", action="append", default=[])
    options = parser.parse_args()
    place = devices.find(options.device)[0]
    _be_like_a_run(place.environment())
    die_with_parent()
    device = torch.device(place.kind)
    torch.set_num_threads(1)
    if place.kind == "cuda":
        devices.compute_deterministically()
    setting = Setting(device, options.reduced, options.output)
    _tell({"expected": list(items), "origin": origin(place.kind) | {"command": _command()}})
    for name, item in items.items():
        if name in options.skip:
            continue
        if not _one(name, item, setting):
            return 1
        if in_fresh_processes and not options.reduced:
            return 0
    return 0


def _one(name: str, item: Item, setting: Setting) -> bool:
    """Answer one item; return whether the process may go on."""
    gc.collect()  # else graphs of an earlier item may end while this one uses their stream
    _tell({"begins": name})
    began = time.perf_counter()
    try:
        result = item(setting)
    except Exception as error:
        traceback.print_exc()
        first = str(error).strip().partition("\n")[0]
        why = first if isinstance(error, WrongError) else f"{type(error).__name__}: {first}"
        _tell({"item": name, "error": why, "seconds": _since(began)})
        return False
    figures = dict(result.figures)
    _tell({"item": name, "line": result.line, "result": figures, "seconds": _since(began)})
    return True


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 2)


def _tell(message: Mapping[str, Any]) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


def _command() -> str:
    name = Path(sys.argv[0]).stem
    words = [word for word in sys.argv[1:] if word == "--reduced"]
    device = sys.argv[sys.argv.index("--device") + 1]
    return " ".join(
        ["python -m benchmarks.gpu.first_hour --only", name, "--device", device, *words]
    )


def _be_like_a_run(environment: Mapping[str, str]) -> None:
    """Begin again with what a run has in its environment, unless it is there.

    What the outer world calls the chosen GPU is then cuda:0.
    """
    if any(os.environ.get(name) != value for name, value in environment.items()):
        words = ["cuda:0" if word.startswith("cuda:") else word for word in sys.argv[1:]]
        command = [sys.executable, "-m", f"gpu.{Path(sys.argv[0]).stem}", *words]
        os.execve(sys.executable, command, {**os.environ, **environment})
