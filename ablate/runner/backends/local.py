"""The backend of this machine: worker processes are its children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ablate.processes import kill_tree, request_stacks, signal_blocked
from ablate.runner import devices
from ablate.runner.backends.contract import Backend, BackendRequest
from ablate.runner.devices import Device
from ablate.runner.pool import Pool
from ablate.runner.task import Message, ProcessExited, ProgressListener, TaskGroup, parse_message

WORKER = (sys.executable, "-P", "-m", "ablate.runner")


class Local(Backend):
    """Runs workers on this machine."""

    def __init__(
        self,
        worker_slots: Sequence[Device],
        command: Sequence[str] = WORKER,
        stall_after: float | None = None,
    ) -> None:
        self.worker_slots = worker_slots
        self._command, self._stall_after = command, stall_after

    def pool(self, listener: ProgressListener) -> Pool:
        return Pool(self.worker_slots, listener, self._start, stall_after=self._stall_after)

    def _start(self, device: Device, group: TaskGroup) -> LocalProcess:
        return LocalProcess(device, group[0].log, self._command)


def open_backend(request: BackendRequest) -> Local:
    """Return the backend of this machine."""
    slots = devices.worker_slots(devices.find(request.device), request.jobs)
    return Local(slots, stall_after=request.stall_after)


def python_path() -> str:
    """Return the PYTHONPATH of a process that imports the same code as this one."""
    return os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)


class LocalProcess:
    """A child process on this machine, in our process group but with SIGINT (Ctrl-C) blocked."""

    is_waiting = False

    def __init__(self, device: Device, log: Path, command: Sequence[str] = WORKER) -> None:
        environment = {**os.environ, **device.environment(), "PYTHONPATH": python_path()}
        with signal_blocked(signal.SIGINT), log.open("ab") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environment,
                text=True,
                encoding="utf-8",
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None, "it is a pipe"
        assert stdout is not None, "it is a pipe"
        self._stdin, self._stdout = stdin, stdout

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def begin(self, group: TaskGroup) -> None:
        """Send the tasks; the pipe stays open, so that EOF means that this process has ended."""
        self._send("".join(task.to_line() for task in group) + "\n")

    def grant(self, n_cores: int) -> None:
        self._send(f"{n_cores}\n")

    def messages(self) -> Iterator[Message]:
        for line in self._stdout:
            with suppress(ValueError):  # a library has printed it
                yield parse_message(line)
        yield ProcessExited(self._process.wait())

    def print_stacks(self) -> None:
        request_stacks(self._process.pid)

    def abort(self) -> None:
        self.kill()

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self, timeout: float) -> bool:
        try:
            self._process.wait(timeout=timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        if self.is_running:  # else its number may be another's
            kill_tree(self._process.pid)

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._stdin.close()
        self._stdout.close()

    def _send(self, text: str) -> None:
        with suppress(BrokenPipeError):
            self._stdin.write(text)
            self._stdin.flush()
