"""The frame of all scripts: items one by one, in a process with the environment of a run.

A script calls `answer` with its items. It is started by `first_hour`, which reads the lines that
begin with `MARK`: first the names of all items and the provenance, then the result of each. The
process ends after an item that fails, since a failed capture leaves CUDA in an undefined state;
`first_hour` starts another one for the rest.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from records import ROOT, origin, restart_with

from ablate.processes import die_with_parent
from ablate.runner import devices
from gpu.first_hour import MARK


@dataclass(frozen=True)
class Setting:
    """The device, the amount of work and the folder of an item.

    Attributes:
        device: the only one of its kind that the process sees.
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
        """Return the precision that ``auto`` means on the device."""
        return devices.resolve("auto", devices.find("cuda:0" if self.is_cuda else "cpu")[0])

    def pick(self, whole: Any, reduced: Any) -> Any:
        """Return the first, or the second where the work is reduced."""
        return reduced if self.reduced else whole


@dataclass(frozen=True)
class Result:
    """The result of an item.

    Attributes:
        line: a summary for people.
        figures: all numbers; units are in the names.
    """

    line: str
    figures: Mapping[str, Any]


Item = Callable[[Setting], Result]


class WrongError(Exception):
    """An item has computed something wrong."""


def answer(items: Mapping[str, Item], *, in_fresh_processes: bool = False) -> int:
    """Answer all items that are not skipped; return the exit status.

    Args:
        items: by name, in order.
        in_fresh_processes: whether each has a process of its own, for its memory; in a dry run
            they share one, which takes longer to start than an item takes.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--reduced", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--skip", action="append", default=[])
    options = parser.parse_args()
    device = devices.find(options.device)[0]
    words = ["cuda:0" if word.startswith("cuda:") else word for word in sys.argv[1:]]
    # then the chosen GPU is cuda:0, the only one that is visible
    restart_with(device.environment(), ["-m", f"gpu.{Path(sys.argv[0]).stem}", *words])
    die_with_parent()
    torch.set_num_threads(1)
    if device.kind == "cuda":
        devices.compute_deterministically()
    setting = Setting(torch.device(device.kind), options.reduced, options.output)
    _send({"expected": list(items), "origin": origin(device.kind) | {"command": _command()}})
    for name, item in items.items():
        if name in options.skip:
            continue
        if not _one(name, item, setting):
            return 1
        if in_fresh_processes and not options.reduced:
            return 0
    return 0


def run_benchmark(script: str, arguments: Sequence[str], setting: Setting) -> dict[str, Any]:
    """Run a benchmark and return the JSON that it writes.

    Args:
        script: in ``benchmarks/``.
        arguments: of its command line, beside the device and the output.
        setting: of the item.

    Raises:
        WrongError: if it writes none.
    """
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "output.json"
        command = [sys.executable, str(ROOT / "benchmarks" / script), *arguments]
        command += ["--device", setting.device.type, "--output", str(output)]
        command += ["--corpus", "synthetic"] if setting.reduced else []
        status = subprocess.run(command, cwd=ROOT, check=False).returncode
        if not output.exists():
            raise WrongError(f"{script} ended with status {status} and left nothing")
        content: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return content


def _one(name: str, item: Item, setting: Setting) -> bool:
    """Answer one item; return whether the process may go on."""
    gc.collect()  # else graphs of an earlier item may end while this one uses their stream
    _send({"begins": name})
    began = time.perf_counter()
    try:
        result = item(setting)
    except Exception as error:
        traceback.print_exc()
        first = str(error).strip().partition("\n")[0]
        reason = first if isinstance(error, WrongError) else f"{type(error).__name__}: {first}"
        _send({"item": name, "error": reason, "seconds": _since(began)})
        return False
    figures = dict(result.figures)
    _send({"item": name, "line": result.line, "result": figures, "seconds": _since(began)})
    return True


def _since(began: float) -> float:
    return round(time.perf_counter() - began, 2)


def _send(message: Mapping[str, Any]) -> None:
    sys.stdout.write(f"\n{MARK}{json.dumps(message)}\n")
    sys.stdout.flush()


def _command() -> str:
    name = Path(sys.argv[0]).stem
    words = [word for word in sys.argv[1:] if word == "--reduced"]
    device = sys.argv[sys.argv.index("--device") + 1]
    return " ".join(
        ["python -m benchmarks.gpu.first_hour --only", name, "--device", device, *words]
    )
