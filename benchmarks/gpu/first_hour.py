"""Measure on a GPU all that is worth knowing about it, the most informative questions first.

Run it in the root of the repository:

    python -m benchmarks.gpu.first_hour [--device cuda|cpu] [--minutes 60] [--only QUESTION]
        [--resume] [--reduced] [--output results/benchmarks/gpu]

Each question is a script of this folder and answers item by item. An item that fails, crashes or
hangs is recorded with its error, and the rest continues in a fresh process. A question gets its
share of the time that is left, so that all of them together take ``--minutes`` at most, and the
later ones get the time that it does not use. Every answer is one JSON file with its provenance,
written anew after each item, and ``summary.json`` has a line for each item. Ends with 1 if an item
failed.

``--device cpu --reduced`` is the dry run: all items at a hundredth of the work. ``--resume`` skips
the items that are answered already on that kind of device.

Only the standard library is imported here, so that missing libraries are named at once.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "benchmarks" / "gpu"
SCRIPTS = "gpu"
"""The package of the scripts: this folder, as they import each other."""

MARK = "@@ "
"""Begins a line that is for this program; all others are for people."""

NEEDED = (
    *("torch", "numpy", "filelock", "packaging", "pydantic", "yaml", "rich", "platformdirs"),
    *("tokenizers", "sacrebleu", "safetensors", "scipy"),
)
_HALF = 0.5  # of the time that a question has left: only the last item may take more
_MIN_ITEM_S = 30.0
_N_LINES = 12
_EXIT_S = 10.0


@dataclass(frozen=True)
class Question:
    """One script.

    Attributes:
        name: of the script, and of the file with its answer.
        minutes: about the time that it takes; its share of all.
        what: the question.
    """

    name: str
    minutes: float
    what: str


QUESTIONS = (
    Question("capture_rules", 3, "Does PyTorch keep the rules that our captures rely on?"),
    Question("parts", 5, "Does every part, captured, compute what it computes eagerly?"),
    Question("steps", 9, "How long does a step take, by engine, size and precision?"),
    Question("side_by_side", 6, "What do 1, 2, 4 and 8 runs in one process come to?"),
    Question("decoding", 4, "How fast is decoding, captured and eager, and is it the same?"),
    Question("memory", 4, "What do captures take of the memory, and what do probes measure?"),
    Question("training_speed", 6, "How fast is training beside an eager nn.Transformer?"),
    Question("step_profile", 4, "Where does the time of a step go, and how far is the floor?"),
    Question("pieces", 3, "What would pieces of a step cost if they were computed otherwise?"),
    Question("multi30k", 16, "Does Transformer-Tiny come to its BLEU on Multi30k, and how soon?"),
)


@dataclass
class Answer:
    """The answer to a question so far.

    Attributes:
        file: written after each item.
        settings: those with which items of an earlier call are valid too.
        origin: provenance, from the process that measured.
        items: ``result`` and ``line``, or ``error``, of each; with ``seconds``.
        expected: the names of all items, once a process has listed them.
        fault: why items are missing.
    """

    file: Path
    settings: dict[str, Any]
    origin: dict[str, Any] = field(default_factory=dict)
    items: dict[str, dict[str, Any]] = field(default_factory=dict)
    expected: list[str] = field(default_factory=list)
    fault: str | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether every item has ended, well or badly."""
        return bool(self.expected) and set(self.expected) <= self.items.keys()

    @property
    def failed(self) -> list[str]:
        """Return the names of the items that failed."""
        return [name for name, item in self.items.items() if "error" in item]

    def load_earlier(self) -> None:
        """Load the items of an earlier call with the same settings that did not fail."""
        try:
            earlier = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return
        if earlier.get("settings") != self.settings:
            return
        self.expected, self.origin = earlier["expected"], earlier["origin"]
        self.items = {n: item for n, item in earlier["items"].items() if "error" not in item}

    def write(self, question: Question) -> None:
        """Write the file, as a whole."""
        content = {
            "question": question.what,
            "settings": self.settings,
            "is_complete": self.is_complete,
            "fault": self.fault,
            "origin": self.origin,
            "expected": self.expected,
            "items": self.items,
        }
        _write(self.file, content)


def main() -> int:
    """Ask all questions; return the exit status."""
    options = _options()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        _say(
            f"cannot begin: {', '.join(missing)} cannot be imported by {sys.executable}; "
            "benchmarks/gpu/README.md says how to bring them to a machine without a network"
        )
        return 2
    began = time.monotonic()
    questions = [q for q in QUESTIONS if options.only is None or q.name in options.only]
    answers: dict[str, Answer] = {}
    rows: list[dict[str, Any]] = []
    for number, question in enumerate(questions):
        left_s = 60 * options.minutes - (time.monotonic() - began)
        share = question.minutes / sum(q.minutes for q in questions[number:])
        settings = {"device": options.device.partition(":")[0], "reduced": options.reduced}
        answer = Answer(options.output / f"{question.name}.json", settings)
        if options.resume:
            answer.load_earlier()
        before = time.monotonic()
        _say(f"\n=== {question.name}: {question.what} ({left_s * share:.0f} s)")
        _ask(question, answer, options, time.monotonic() + left_s * share)
        answers[question.name] = answer
        seconds = time.monotonic() - before
        rows.append({"question": question.name, "seconds": round(seconds, 1), **_outcome(answer)})
        _write(options.output / "summary.json", _summary(options, rows, began))
    _print_summary(rows, time.monotonic() - began)
    return int(any(not a.is_complete or a.failed for a in answers.values()))


def _ask(question: Question, answer: Answer, options: argparse.Namespace, deadline: float) -> None:
    """Start one process after another, until all items are answered or the time is over."""
    while not answer.is_complete and time.monotonic() < deadline:
        n_before = len(answer.items)
        with _Process(question, options, list(answer.items)) as process:
            _listen(process, question, answer, deadline)
        if len(answer.items) == n_before and not answer.is_complete:
            if time.monotonic() < deadline:
                answer.fault = f"its process gave no answer: {process.exit_reason()}"
            break
    if not answer.is_complete and answer.fault is None:
        n_left = len(set(answer.expected) - answer.items.keys())
        answer.fault = f"out of time with {n_left} items left; say --resume, or more --minutes"
    answer.write(question)


def _listen(process: _Process, question: Question, answer: Answer, deadline: float) -> None:
    """Record the messages of a process, until it ends or an item takes too long."""
    current: str | None = None
    began = time.monotonic()
    while True:
        left_s = deadline - time.monotonic()
        is_last = len(answer.expected) - len(answer.items) == 1
        limit_s = left_s if is_last else max(_MIN_ITEM_S, _HALF * left_s)
        message = process.next(min(limit_s - (time.monotonic() - began), left_s))
        if message is None:
            break
        if "expected" in message:
            answer.expected, answer.origin = message["expected"], message["origin"]
            began = time.monotonic()
        elif "begins" in message:
            current, began = message["begins"], time.monotonic()
        else:
            name, current = message.pop("item"), None
            answer.items[name] = message
            _say(f"    {name}: {message.get('line') or message.get('error')}")
            answer.write(question)
    if current is not None and time.monotonic() < deadline:
        seconds = round(time.monotonic() - began, 1)
        answer.items[current] = {"error": process.exit_reason(), "seconds": seconds}
        _say(f"    {current}: {process.exit_reason()}")
        answer.write(question)


class _Process:
    """A process that answers the open items of a question.

    Args:
        question: names the script.
        options: of the command line.
        skipped: items that are answered already.
    """

    def __init__(
        self, question: Question, options: argparse.Namespace, skipped: Sequence[str]
    ) -> None:
        command = [sys.executable, "-m", f"{SCRIPTS}.{question.name}", "--device", options.device]
        command += ["--output", str(options.output), *(["--reduced"] * options.reduced)]
        command += [f"--skip={name}" for name in skipped]
        paths = [ROOT, ROOT / "benchmarks", *filter(None, [os.environ.get("PYTHONPATH")])]
        self._messages: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._lines: deque[str] = deque(maxlen=_N_LINES)
        self._why_killed = ""
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # so that its children are killed with it
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._reader.join(_EXIT_S)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    def next(self, limit_s: float) -> dict[str, Any] | None:
        """Return the next message; None if the process ends, or is killed after ``limit_s``."""
        try:
            message = self._messages.get(timeout=max(0.0, limit_s))
        except queue.Empty:
            self._why_killed = f"gave no answer in time and was killed after {limit_s:.0f} s"
            self._kill()
            return None
        if message is None:
            with suppress(subprocess.TimeoutExpired):  # it has closed its output, and ends
                self._process.wait(_EXIT_S)
        return message

    def exit_reason(self) -> str:
        """Return how the process ended, and its last line."""
        self._reader.join(_EXIT_S)
        status = self._process.wait()
        how = f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"
        last = f": {self._lines[-1].strip()}" if self._lines else ""
        return f"{self._why_killed or how}{last}"

    def _read(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            if line.startswith(MARK):
                self._messages.put(json.loads(line.removeprefix(MARK)))
            elif line.strip():
                self._lines.append(line)
                sys.stdout.write(f"    | {line}")
                sys.stdout.flush()
        self._messages.put(None)

    def _kill(self) -> None:
        """Kill the process and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _outcome(answer: Answer) -> dict[str, Any]:
    n_ok = len(answer.items) - len(answer.failed)
    lines = {name: item.get("line") or item.get("error") for name, item in answer.items.items()}
    return {
        "is_complete": answer.is_complete,
        "answered": n_ok,
        "failed": answer.failed,
        "fault": answer.fault,
        "lines": lines,
    }


def _summary(
    options: argparse.Namespace, rows: Sequence[dict[str, Any]], began: float
) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks.gpu.first_hour", *sys.argv[1:]]),
        "device": options.device,
        "reduced": options.reduced,
        "minutes": round((time.monotonic() - began) / 60, 2),
        "questions": list(rows),
    }


def _print_summary(rows: Sequence[dict[str, Any]], seconds: float) -> None:
    _say(f"\n{'question':<16}{'seconds':>9}{'answered':>10}{'failed':>8}")
    for row in rows:
        fault = f"  {row['fault']}" if row["fault"] else ""
        columns = f"{row['seconds']:>9.1f}{row['answered']:>10}{len(row['failed']):>8}{fault}"
        _say(f"{row['question']:<16}{columns}")
    _say(f"{seconds / 60:.1f} minutes")


def _write(file: Path, content: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    new = file.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    new.replace(file)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.first_hour", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all questions together")
    parser.add_argument("--only", action="append", choices=[q.name for q in QUESTIONS])
    parser.add_argument("--resume", action="store_true", help="skip what is answered already")
    parser.add_argument("--reduced", action="store_true", help="a hundredth of the work")
    parser.add_argument("--output", type=Path, help="folder of the answers")
    options = parser.parse_args()
    if options.output is None:
        is_gpu = options.device.startswith("cuda") and not options.reduced
        options.output = RESULTS if is_gpu else RESULTS / "dry_run"
    options.output = options.output.absolute()
    return options


if __name__ == "__main__":
    sys.exit(main())
