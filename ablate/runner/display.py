"""What is shown while runs go on: a live table in a terminal, plain lines or events elsewhere."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO, cast

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ablate.console import EventStream
from ablate.runner import provenance
from ablate.runner.devices import Device
from ablate.runner.task import STARTING, WAITING, Heartbeat, ProgressListener, Silence, Task
from ablate.training import Progress
from ablate.wording import counted, format_duration

_LINE_EVERY_S = 15.0
_LINE_EVERY_SHARE = 0.1
_SILENT_AT_MOST_S = 120.0
_WIDE = 110  # columns of a terminal that has room for everything
_NARROW = 80  # columns below which there is no bar and no speed


@dataclass
class Running:
    """A task at work; times are those of the display's timer."""

    task: Task
    device: Device
    since: float
    last_heartbeat_at: float
    phase_since: float
    heartbeat: Heartbeat = field(default_factory=lambda: Heartbeat("", STARTING))
    progress: Progress | None = None  # of its training, which may be over; None before
    is_stalled: bool = False
    began: str = field(default_factory=provenance.now)  # in UTC

    @property
    def share(self) -> float:
        """How much of the training is done, 0 to 1."""
        progress = self.heartbeat.progress
        return 0.0 if progress is None else progress.step / progress.n_steps


class Display(ProgressListener):
    """Counts and times tasks, and prints how they end; others show more of them."""

    def __init__(self, console: Console, timer: Callable[[], float] = time.monotonic) -> None:
        self.console = console
        self.timer = timer
        self.stage = STARTING  # what is being done, in words
        self._n_at_once = 1
        self.n_tasks = self.n_ended = 0  # of this stage
        self.running: dict[str, Running] = {}
        self.failures: list[tuple[Task, str]] = []  # with the reasons
        self._seconds: list[float] = []  # of each task that has ended here
        self._lock = threading.RLock()

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def expect(self, tasks: Sequence[Task], what: str, n_at_once: int) -> None:
        self.n_tasks, self.n_ended, self._n_at_once = len(tasks), 0, n_at_once
        self._seconds.clear()
        self.stage = what or self.stage
        if tasks and what:
            self._say(what)

    def started(self, task: Task, device: Device) -> None:
        now = self.timer()
        self.running[task.key] = Running(task, device, now, now, now)

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        running, now = self.running[task.key], self.timer()
        if running.is_stalled:
            silent_for = format_duration(now - running.last_heartbeat_at)
            self._say(f"{label(task)}: goes on after {silent_for} without news")
        if heartbeat.phase != running.heartbeat.phase:
            running.phase_since = now
        running.heartbeat, running.last_heartbeat_at = heartbeat, now
        running.progress, running.is_stalled = heartbeat.progress or running.progress, False

    def stalled(self, task: Task, silence: Silence) -> None:
        with self._lock:
            running = self.running[task.key]
            running.is_stalled = True
            running.last_heartbeat_at = self.timer() - silence.seconds
            silent_for, rest = map(format_duration, (silence.seconds, silence.seconds_left))
            text = f"no news for {silent_for}; its process is killed after another {rest}"
            text = f"{label(task)}: {running.heartbeat.phase}, {text}; see {task.log}"
            self._say(text, "red")

    def ended(self, task: Task, outcome: str, *, is_good: bool) -> None:
        with self._lock:
            self.n_ended += 1
            running = self.running.pop(task.key)
            seconds = self.timer() - running.since
            if running.heartbeat.phase != WAITING:  # else another call has made it, or makes it
                self._seconds.append(seconds)
            if not is_good:
                self.failures.append((task, outcome))
            if task.round == 0 or not is_good:
                text = f"{label(task)}: {outcome} ({format_duration(seconds)})"
                self._say(text if is_good else f"{text}; see {task.log}", "" if is_good else "red")

    def _say(self, text: str, style: str = "") -> None:
        """Print a line about tasks."""
        self.note(text, style)

    def note(self, text: str, style: str = "") -> None:
        """Print a line that stays."""
        self.console.print(Text(text, style=style), soft_wrap=True)

    def _seconds_left(self) -> float | None:
        """Estimate when all tasks are done, if waiting ones take as long as the others."""
        now = self.timer()
        estimates = [
            (running.since, running.heartbeat.progress.seconds_left)
            for running in list(self.running.values())
            if running.heartbeat.progress is not None
        ]
        rest = [seconds for _, seconds in estimates]
        per_run = self._seconds or [now - since + seconds for since, seconds in estimates]
        n_waiting = self.n_tasks - self.n_ended - len(rest)
        if not per_run:
            return None
        work = sum(rest) + n_waiting * sum(per_run) / len(per_run)
        return max([work / self._n_at_once, *rest])


class PlainDisplay(Display):
    """Lines for a file or a pipe: a run's start, its progress, its end.

    Progress is printed every tenth of a run, and by a thread at least every two minutes.
    """

    def __init__(
        self,
        console: Console,
        timer: Callable[[], float] = time.monotonic,
        silent_at_most_s: float = _SILENT_AT_MOST_S,
    ) -> None:
        super().__init__(console, timer)
        self._silent_at_most_s = silent_at_most_s
        self._last_line: dict[str, tuple[float, float]] = {}  # share and time of each task
        self._began = self._last_note = timer()
        self._is_over = threading.Event()
        self._reminder = threading.Thread(target=self._remind, daemon=True)

    def __enter__(self) -> Display:
        self._reminder.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._reminder.join()

    def started(self, task: Task, device: Device) -> None:
        with self._lock:
            super().started(task, device)
            self._last_line[task.key] = 0.0, self.timer()
            if task.round == 0:
                self.note(f"{label(task)}: started on {device}")

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        with self._lock:
            super().heartbeat(task, heartbeat)
            share, now = self.running[task.key].share, self.timer()
            last_share, last_time = self._last_line[task.key]
            is_later = now - last_time >= _LINE_EVERY_S
            if heartbeat.progress and is_later and share - last_share >= _LINE_EVERY_SHARE:
                self._print_progress(task.key)
            self.remind()

    def note(self, text: str, style: str = "") -> None:
        self._last_note = self.timer()
        super().note(text, style)

    def remind(self) -> float:
        """Print a line for each task without one for too long; return when the next is due."""
        with self._lock:
            for key in self.running:
                if self.timer() - self._last_line[key][1] >= self._silent_at_most_s:
                    self._print_progress(key)
            if self.timer() - self._last_note >= self._silent_at_most_s:  # as with short tasks
                at_work = list(self.running.values())
                elapsed = format_duration(self.timer() - self._began)
                n_done = f"{self.n_ended} of {counted(self.n_tasks, 'task')} done"
                n_at_work = f"{len(at_work)} at work"
                self.note(f"{_describe_round(at_work)}{n_done}, {n_at_work} ({elapsed})")
            of_tasks = [self._last_line[key][1] for key in self.running]
            return min([self._last_note, *of_tasks]) + self._silent_at_most_s

    def _print_progress(self, key: str) -> None:
        """Print how far a task is, or for how long it has been in its phase."""
        running, now = self.running[key], self.timer()
        progress, silent_for = running.heartbeat.progress, now - running.last_heartbeat_at
        words = [f"{running.heartbeat.phase} for {format_duration(now - running.phase_since)}"]
        if progress is not None:
            words = [*filter(None, progress_texts(progress))]
            if silent_for >= self._silent_at_most_s:
                words.append(f"no news for {format_duration(silent_for)}")
        self._last_line[key] = running.share, now
        self.note(f"{label(running.task)}: {'  '.join(words)}")

    def _remind(self) -> None:
        with suppress(OSError):  # the reader of a pipe has ended
            while not self._is_over.wait(max(0.0, self.remind() - self.timer())):
                pass


class LiveDisplay(Display):
    """A table at the bottom of the terminal: a line for each running task, and the total."""

    def __enter__(self) -> Display:
        self._live = Live(
            console=self.console,
            get_renderable=self._render,
            refresh_per_second=4,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def _render(self) -> RenderableType:
        at_work = list(self.running.values())  # the main thread changes it meanwhile
        names = [_name(running, self.console.width // 2) for running in at_work]
        width = max(map(cell_len, names), default=0)
        lines = [
            Text(f"{set_cell_size(name, width)}  {self._describe(running)}", no_wrap=True)
            for name, running in zip(names, at_work, strict=True)
        ]
        left = self._seconds_left()
        total = Table.grid(padding=(0, 2))
        total.add_row(
            ProgressBar(
                total=max(1, self.n_tasks),
                completed=self.n_ended,
                width=24 if self.console.width >= _NARROW else 12,
            ),
            f"{_describe_round(at_work)}{self.n_ended} of {self.n_tasks}"
            if self.n_tasks
            else self.stage,
            "" if left is None else f"{format_duration(left)} left",
        )
        return Group(*lines, total)

    def _describe(self, running: Running) -> str:
        if running.is_stalled:
            silent_for = format_duration(self.timer() - running.last_heartbeat_at)
            return f"{running.heartbeat.phase}, no news for {silent_for}"
        progress, width = running.heartbeat.progress, self.console.width
        if progress is None:
            return running.heartbeat.phase
        step, loss, dev_nll, speed, left = progress_texts(progress)
        texts = [f"{left:>10}", step, loss]  # what may be cut off comes last
        if width < _NARROW:
            return "  ".join(texts)
        room, more = (12, [dev_nll]) if width >= _WIDE else (5, [])
        bar = "━" * round(running.share * room)
        return "  ".join([f"{bar:╌<{room}}", *texts, *more, speed])


class EventDisplay(Display):
    """An event for every call, in place of its line; of heartbeats in a phase, one a second."""

    def __init__(self, stream: EventStream, timer: Callable[[], float] = time.monotonic) -> None:
        super().__init__(Console(file=cast(TextIO, stream)), timer)
        self._stream = stream
        self._next: dict[str, float] = {}  # when the next heartbeat of each task is due

    def expect(self, tasks: Sequence[Task], what: str, n_at_once: int) -> None:
        super().expect(tasks, what, n_at_once)
        self._stream.emit("tasks", text=what, n_tasks=len(tasks), n_at_once=n_at_once)

    def started(self, task: Task, device: Device) -> None:
        super().started(task, device)
        self._emit("started", task, device=str(device))

    def heartbeat(self, task: Task, heartbeat: Heartbeat) -> None:
        running = self.running[task.key]
        is_due = self.timer() >= self._next.get(task.key, 0.0)
        is_new = is_due or running.is_stalled or heartbeat.phase != running.heartbeat.phase
        super().heartbeat(task, heartbeat)
        if is_new:
            self._next[task.key] = self.timer() + 1.0
            progress = {} if heartbeat.progress is None else asdict(heartbeat.progress)
            self._emit("progress", task, phase=heartbeat.phase, **progress)

    def stalled(self, task: Task, silence: Silence) -> None:
        super().stalled(task, silence)
        phase = self.running[task.key].heartbeat.phase
        self._emit("stalled", task, phase=phase, **asdict(silence), log=str(task.log))

    def ended(self, task: Task, outcome: str, *, is_good: bool) -> None:
        seconds = self.timer() - self.running[task.key].since
        super().ended(task, outcome, is_good=is_good)
        fields = {"text": outcome, "is_good": is_good, "seconds": seconds}
        self._emit("ended", task, **fields, n_ended=self.n_ended, n_tasks=self.n_tasks)

    def _say(self, text: str, style: str = "") -> None:
        return

    def _emit(self, event: str, task: Task, **fields: Any) -> None:
        names = {"experiment": task.experiment, "row": task.variant, "seed": task.seed}
        self._stream.emit(event, action=task.action, **names, run=task.key, **fields)


def display(console: Console) -> Display:
    """Return the display that suits a console: for an event stream, for a terminal, or plain."""
    if isinstance(console.file, EventStream):
        return EventDisplay(console.file)
    is_live = console.is_terminal and not console.is_dumb_terminal
    return LiveDisplay(console) if is_live else PlainDisplay(console)


def label(task: Task) -> str:
    """Return the name of a task in lines."""
    suffix = "(probe)" if task.action == "probe" else f"seed {task.seed}"
    return f"{task.experiment} {task.variant} {suffix}"


def progress_texts(progress: Progress) -> list[str]:
    """Return step, loss, dev NLL (empty before there is one), speed and time left of a training."""
    dev_nll = "" if progress.dev_nll is None else f"dev nll {progress.dev_nll:.3f}"
    return [
        f"step {progress.step:>{len(str(progress.n_steps))}}/{progress.n_steps}",
        f"loss {progress.loss:.3f}",
        dev_nll,
        f"{progress.tokens_per_second:,.0f} tok/s",
        f"{format_duration(progress.seconds_left)} left",
    ]


def _name(running: Running, room: int) -> str:
    """Return the name of a task in the live table; that of its row is cut to the room there is."""
    task, device = running.task, running.device
    what = "probe" if task.action == "probe" else f"seed {task.seed}"
    place = f" on {device}" if device.node or device.index is not None else ""
    row = Text(task.variant)
    row.truncate(max(1, room - cell_len(f" {what}{place}")), overflow="ellipsis")
    return f"{row} {what}{place}"


def _describe_round(at_work: Sequence[Running]) -> str:
    """Return the number of the round of probes, and of all rounds once that is known."""
    task = at_work[0].task if at_work else None
    if task is None or task.action != "probe":
        return ""
    of_all = f" of {task.n_rounds}" if task.n_rounds else ""
    return f"round {task.round + 1}{of_all}, row "
