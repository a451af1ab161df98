"""A worker process on a machine of a cluster, driven from another machine."""

from __future__ import annotations

import queue
import shutil
import tempfile
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from ablate.data.cache import cache_folder
from ablate.runner.backends.bundles import Bundle, left_by, write
from ablate.runner.backends.local import LocalProcess
from ablate.runner.devices import Device
from ablate.runner.packing import TaskGroup
from ablate.runner.task import Message, ProcessExited, Task, TaskFinished


@dataclass(frozen=True)
class Parcel:
    """A message of a worker on its way to the driver.

    Attributes:
        message: the worker's.
        bundles: what tasks have left, by their keys, where the driver has another folder of
            results.
        is_last: whether the process has ended.
    """

    message: Message
    bundles: dict[str, Bundle] = field(default_factory=dict)
    is_last: bool = False


class Relay:
    """Starts a worker process on the machine it is on, and passes on what goes to it and comes.

    Its methods are called from afar: `begin`, `grant` and `terminate` in their order, `receive`
    beside them.

    Args:
        device: what the process sees.
        is_shared: whether the folder of results is here under the same path. If not, each group
            gets a folder of its own, which is gone when the group is over.
        serves_one_group: whether the process ends with its first group.
    """

    def __init__(self, device: Device, *, is_shared: bool, serves_one_group: bool) -> None:
        self._device = device
        self._is_shared, self._serves_one_group = is_shared, serves_one_group
        self._process: LocalProcess | None = None
        self._left: dict[str, Task] = {}
        self._folder = Path()
        self._parcels: queue.SimpleQueue[Parcel] = queue.SimpleQueue()

    def begin(self, group: TaskGroup, needed: Bundle) -> None:
        """Give the process a group, and what its tasks read of the store."""
        if not self._is_shared:
            group = self._moved(group)
            write(needed, self._folder)
        self._left = {task.key: task for task in group}
        for task in group:
            task.log.parent.mkdir(parents=True, exist_ok=True)
        if self._process is None:
            is_started = threading.Event()
            arguments = (group[0].log, is_started)
            threading.Thread(target=self._pass_on, args=arguments, daemon=True).start()
            is_started.wait()
        if self._process is not None:
            self._process.begin(group)

    def grant(self, n_cores: int) -> None:
        """Let the process keep so many cores busy."""
        if self._process is not None:
            self._process.grant(n_cores)

    def terminate(self) -> None:
        """Ask the process to save what it has and to stop."""
        if self._process is not None:
            self._process.terminate()

    def receive(self) -> list[Parcel]:
        """Wait for messages, and return those that have come."""
        parcels = [self._parcels.get()]
        while not self._parcels.empty():
            parcels.append(self._parcels.get())
        return parcels

    def _moved(self, group: TaskGroup) -> TaskGroup:
        """Return a group that is done in a new folder of this machine."""
        scratch = cache_folder("scratch")
        scratch.mkdir(parents=True, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(dir=scratch))
        return tuple(replace(task, results=self._folder) for task in group)

    def _pass_on(self, log: Path, is_started: threading.Event) -> None:
        """Start the process and pass on its messages; it dies with the thread that started it."""
        try:
            self._process = process = LocalProcess(self._device, log)
        except OSError as error:
            reason = f"no worker can be started: {error}"
            self._parcels.put(Parcel(ProcessExited(1, reason), is_last=True))
            return
        finally:
            is_started.set()
        for message in process.messages():
            is_over = isinstance(message, ProcessExited)
            is_last = is_over and (self._serves_one_group or not process.is_running)
            self._parcels.put(Parcel(message, self._bundles(message), is_last))
        process.close()

    def _bundles(self, message: Message) -> dict[str, Bundle]:
        """Return what the tasks have left of whose end a message tells."""
        if self._is_shared:
            return {}
        if isinstance(message, TaskFinished) and message.key in self._left:
            return {message.key: left_by(self._left.pop(message.key))}
        if isinstance(message, ProcessExited):
            left, self._left = self._left, {}
            bundles = {key: left_by(task) for key, task in left.items()}
            shutil.rmtree(self._folder, ignore_errors=True)
            return bundles
        return {}
