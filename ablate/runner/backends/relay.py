"""What runs on a node of a cluster, controlled from another machine (the driver)."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from ablate.data.cache import cache_folder
from ablate.errors import StoreError
from ablate.runner.backends.local import LocalProcess
from ablate.runner.devices import Device, DeviceFacts
from ablate.runner.provenance import code_digest, facts_of, versions
from ablate.runner.run_files import Bundle, outputs_of, write
from ablate.runner.task import Message, ProcessExited, Task, TaskFinished, TaskGroup
from ablate.writing import remove_tree


@dataclass(frozen=True)
class NodeFacts:
    """Hardware and software of the machine that a process runs on."""

    versions: Mapping[str, str]  # of all libraries that numbers may depend on
    code: str  # the digest of this package
    device: DeviceFacts  # on which it would execute runs
    shares_results: bool  # whether the folder of results of the calling process is visible there


def describe_node(kind: Literal["cpu", "cuda"], marker: Path) -> NodeFacts:
    """Describe this machine."""
    device = Device(kind, 0 if kind == "cuda" else None)
    return NodeFacts(versions(), code_digest(), facts_of(device), marker.exists())


def software_difference(node: NodeFacts) -> str | None:
    """Return how a node's software differs from this machine's, in words; None if it does not."""
    ours = versions()
    for name in {**ours, **node.versions}:
        if node.versions.get(name) != ours.get(name):
            return f"it has {name} {node.versions.get(name)}, this machine {ours.get(name)}"
    if node.code != code_digest():
        return f"its code of ablate {ours['ablate']} differs from this machine's"
    return None


@dataclass(frozen=True)
class RelayedMessage:
    """A message of a worker for the driver."""

    message: Message  # the worker's
    # the outputs of tasks that have ended, by their keys; empty if the folder of results is shared
    bundles: dict[str, Bundle] = field(default_factory=dict)
    is_last: bool = False  # whether the process has ended


class Relay:
    """A Ray actor that starts a worker process on its node and forwards messages both ways.

    The driver calls all methods but `receive` one at a time, and `receive` concurrently. Without
    the driver's folder of results (``is_shared``), each group gets a temporary one. The worker's
    working directory is that of the driver (``cwd``) if the node has it.
    """

    def __init__(
        self, device: Device, cwd: Path, *, is_shared: bool, serves_one_group: bool
    ) -> None:
        with suppress(OSError):
            os.chdir(cwd)  # paths of files in a spec are relative to it
        self._device = device
        self._is_shared, self._serves_one_group = is_shared, serves_one_group
        self._process: LocalProcess | None = None
        self._unfinished: dict[str, Task] = {}
        self._folder = Path()
        self._outbox: queue.SimpleQueue[RelayedMessage] = queue.SimpleQueue()

    def begin(self, group: TaskGroup, needed: Bundle) -> None:
        """Send the process a group; if its files cannot be written, the node is lost."""
        try:
            group = self._prepared(group, needed)
        except (OSError, StoreError) as error:
            reason = f"files of runs cannot be written there: {error}"
            self._outbox.put(RelayedMessage(ProcessExited(1, reason), is_last=True))
            return
        self._unfinished = {task.key: task for task in group}
        if self._process is None:
            is_started = threading.Event()
            arguments = (group[0].log, is_started)
            threading.Thread(target=self._forward_messages, args=arguments, daemon=True).start()
            is_started.wait()
        if self._process is not None:
            self._process.begin(group)

    def grant(self, n_cores: int) -> None:
        if self._process is not None:
            self._process.grant(n_cores)

    def print_stacks(self) -> None:
        if self._process is not None:
            self._process.print_stacks()

    def abort(self) -> None:
        """Kill the process; its exit is a message like others, with the outputs of its tasks."""
        if self._process is not None:
            self._process.abort()

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def receive(self) -> list[RelayedMessage]:
        """Wait for a message; return all that have arrived."""
        messages = [self._outbox.get()]
        while not self._outbox.empty():
            messages.append(self._outbox.get())
        return messages

    def _prepared(self, group: TaskGroup, needed: Bundle) -> TaskGroup:
        """Return the group with its folder of results: if not the driver's, a new temporary one."""
        if not self._is_shared:
            scratch = cache_folder("scratch")
            scratch.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(dir=scratch))
            try:
                write(needed, self._folder)
            except StoreError:
                remove_tree(self._folder, ignore_errors=True)
                raise
            group = tuple(replace(task, results=self._folder) for task in group)
        for task in group:
            task.log.parent.mkdir(parents=True, exist_ok=True)
        return group

    def _forward_messages(self, log: Path, is_started: threading.Event) -> None:
        """Start the process and forward its messages, in one thread: the process ends with it."""
        try:
            self._process = process = LocalProcess(self._device, log)
        except OSError as error:
            reason = f"no worker can be started: {error}"
            self._outbox.put(RelayedMessage(ProcessExited(1, reason), is_last=True))
            return
        finally:
            is_started.set()
        for message in process.messages():
            is_over = isinstance(message, ProcessExited)
            is_last = is_over and (self._serves_one_group or not process.is_running)
            self._outbox.put(RelayedMessage(message, self._outputs(message), is_last))
        process.close()

    def _outputs(self, message: Message) -> dict[str, Bundle]:
        if self._is_shared:
            return {}
        if isinstance(message, TaskFinished) and message.key in self._unfinished:
            return {message.key: outputs_of(self._unfinished.pop(message.key))}
        if isinstance(message, ProcessExited):
            unfinished, self._unfinished = self._unfinished, {}
            bundles = {key: outputs_of(task) for key, task in unfinished.items()}
            remove_tree(self._folder, ignore_errors=True)
            return bundles
        return {}
