"""The backend of a Ray cluster: an actor for each worker slot, which runs a worker on its node.

Ray places actors and detects lost nodes. Scheduling and retries are those of a single machine
(`ablate.runner.schedule`, `ablate.runner.pool`).
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import ray
from ray.exceptions import ActorDiedError, RayActorError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ablate.errors import StoreError, first_line
from ablate.runner.backends.contract import Backend, BackendRequest, ClusterError
from ablate.runner.backends.relay import NodeFacts, Relay, describe_node, software_difference
from ablate.runner.devices import Device, DeviceError, n_cores
from ablate.runner.pool import Pool
from ablate.runner.run_files import inputs_of, store_outputs
from ablate.runner.task import (
    Message,
    ProcessExited,
    ProgressListener,
    Task,
    TaskFinished,
    TaskGroup,
)
from ablate.store import writable
from ablate.wording import counted

_DESCRIBE_TIMEOUT_S = 120.0
_OBJECT_STORE_BYTES = 80 * 2**20  # of a cluster of our own; Ray takes no less than 75 MiB
_REMOTE: Any = ray.remote  # its stubs lack concurrency_groups
_RELAY = _REMOTE(concurrency_groups={"receive": 1})(Relay)
_CONNECT_TIMEOUT_S = 10.0
_PROCESSES_MIB = 700.0
"""Of an actor and its worker, beside what a run adds: each has PyTorch imported, which took 350 MiB
with PyTorch 2.13 on Linux."""
_GPU_SHARE_TO_DESCRIBE = 0.001  # of a GPU, for the task that describes its node


@dataclass(frozen=True)
class _Node:
    """A node of the cluster."""

    id: str  # Ray's id of it
    name: str  # of its host, with a number where several nodes share one
    resources: Mapping[str, float] = field(compare=False)  # that Ray schedules there, by name

    @property
    def affinity(self) -> NodeAffinitySchedulingStrategy:
        return NodeAffinitySchedulingStrategy(self.id, soft=False)


class RayBackend(Backend):
    """Runs workers on those nodes of a cluster that have its most common hardware."""

    def __init__(self, request: BackendRequest) -> None:
        self._stall_after = request.stall_after
        alive = _nodes()
        kind = _kind(request.device, alive)
        n_jobs = request.jobs or math.inf
        n_slots = {
            node: int(node.resources.get("GPU", 0))
            if kind == "cuda"
            else int(min(n_jobs, node.resources.get("CPU", 0)))
            for node in alive
        }
        results = request.results.absolute()
        facts = _describe_nodes([node for node in alive if n_slots[node]], kind, results)
        counts: Counter[tuple[str, str]] = Counter()
        for node in facts:
            counts[facts[node].device.names] += n_slots[node]
        chosen = counts.most_common(1)[0][0]
        self._nodes = {node.name: node for node in facts if facts[node].device.names == chosen}
        self._facts = {name: facts[node] for name, node in self._nodes.items()}
        others = [
            f"{node.name} ({facts[node].device.names[0]})"
            for node in facts
            if node.name not in self._nodes
        ]
        if others:
            self.remarks = [
                f"{counted(len(others), 'node')} of other hardware left out, because speeds can "
                f"only be compared on one kind: {', '.join(others)}"
            ]
        self.worker_slots = [
            Device(kind, index if kind == "cuda" else None, name, self._facts[name].device)
            for name, node in self._nodes.items()
            for index in range(n_slots[node])
        ]

    def pool(self, listener: ProgressListener) -> Pool:
        return Pool(self.worker_slots, listener, self._start, stall_after=self._stall_after)

    def close(self) -> None:
        ray.shutdown()

    def _start(self, device: Device, group: TaskGroup) -> RayProcess:
        """Start a worker on the node of a device, with the resources that the group needs."""
        node = self._nodes[device.node]
        n, is_cuda = group[0].n_devices, device.kind == "cuda"
        needed_mib = _PROCESSES_MIB + sum(task.memory_mib for task in group)  # as measured
        memory = None
        if not is_cuda and needed_mib < math.inf:
            memory = int(min(needed_mib * 2**20, node.resources.get("memory", math.inf)))
        relay_options = {
            "is_shared": self._facts[node.name].shares_results,
            "serves_one_group": memory is not None or n > 1,
        }
        relay = _RELAY.options(
            num_cpus=n,
            num_gpus=n if is_cuda else 0,
            memory=memory,
            max_restarts=0,
            scheduling_strategy=node.affinity,
        ).remote(
            Device("cuda", 0, others=tuple(range(1, n))) if is_cuda else Device("cpu"),
            Path.cwd(),
            **relay_options,
        )
        return RayProcess(relay, node, **relay_options)


def open_backend(request: BackendRequest) -> RayBackend:
    """Connect to a cluster, or start one on this machine."""
    address = request.options.get("address", "local")
    own: dict[str, Any] = {
        "num_cpus": n_cores(),
        "object_store_memory": _OBJECT_STORE_BYTES,
        "include_dashboard": False,
    }
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon and port.isdecimal():  # Ray would wait for minutes for a port that is closed
            socket.create_connection((host, int(port)), _CONNECT_TIMEOUT_S).close()
        handler = signal.getsignal(signal.SIGTERM)  # which Ray would replace
        try:
            ray.init(
                address,
                logging_level=logging.ERROR,
                log_to_driver=False,
                **(own if address == "local" else {}),
            )
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
    except Exception as error:  # Ray has no type for a node that takes too long to start
        raise ClusterError(
            f"--address {address}: there is no Ray cluster to connect to: {first_line(error)}; "
            "`ray start --head` starts one, and --address local one on this machine alone"
        ) from error
    try:
        return RayBackend(request)
    except BaseException:
        ray.shutdown()
        raise


class RayProcess:
    """A `WorkerProcess` on a node."""

    def __init__(self, relay: Any, node: _Node, *, is_shared: bool, serves_one_group: bool) -> None:
        self._relay, self._node = relay, node
        self._is_shared, self._serves_one_group = is_shared, serves_one_group
        self._tasks: dict[str, Task] = {}
        self._ended = threading.Event()
        self._ready = relay.__ray_ready__.remote()

    @property
    def is_running(self) -> bool:
        return not self._ended.is_set() and not (self._serves_one_group and self._tasks)

    @property
    def is_waiting(self) -> bool:
        is_ready, _ = ray.wait([self._ready], timeout=0)
        return not is_ready

    def begin(self, group: TaskGroup) -> None:
        self._tasks = {task.key: task for task in group}
        self._relay.begin.remote(group, {} if self._is_shared else inputs_of(group))

    def grant(self, n_cores: int) -> None:
        self._relay.grant.remote(n_cores)

    def messages(self) -> Iterator[Message]:
        try:
            while not self._ended.is_set():
                receive = self._relay.receive.options(concurrency_group="receive")
                for relayed in ray.get(receive.remote()):
                    if relayed.is_last:
                        self._ended.set()
                    message = relayed.message
                    try:
                        for key, bundle in relayed.bundles.items():
                            store_outputs(self._tasks[key], bundle)
                    except (StoreError, OSError) as error:
                        if isinstance(message, TaskFinished):
                            message = TaskFinished(message.key, "other", str(error))
                    yield message
        except (RayError, ConnectionError) as error:
            self._ended.set()
            yield self._exited(error)
        self.kill()

    def print_stacks(self) -> None:
        self._relay.print_stacks.remote()

    def abort(self) -> None:
        self._relay.abort.remote()

    def terminate(self) -> None:
        self._relay.terminate.remote()

    def wait(self, timeout: float) -> bool:
        return self._ended.wait(timeout)

    def kill(self) -> None:
        ray.kill(self._relay)

    def close(self) -> None:
        return

    def _exited(self, error: Exception) -> ProcessExited:
        """Return how a process ended; an unreachable node still holds the lock of its run."""
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        if isinstance(error, ActorDiedError) and self._node.id in alive:
            return ProcessExited(-signal.SIGKILL)
        reason = "" if isinstance(error, RayActorError) else f": {_last_line(error)}"
        return ProcessExited(1, f"the node {self._node.name} does not answer any more{reason}")


def _nodes() -> list[_Node]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    hosts = Counter(node["NodeManagerHostname"] for node in alive)
    nodes_alive: list[_Node] = []
    numbers: Counter[str] = Counter()
    for node in sorted(alive, key=lambda node: (node["NodeManagerHostname"], node["NodeID"])):
        host = node["NodeManagerHostname"]
        numbers[host] += 1
        name = f"{host}#{numbers[host]}" if hosts[host] > 1 else host
        nodes_alive.append(_Node(node["NodeID"], name, node["Resources"]))
    return nodes_alive


def _kind(device: str, alive: Sequence[_Node]) -> Literal["cpu", "cuda"]:
    """Return the kind of device that ``--device`` means in a cluster."""
    has_gpus = any(node.resources.get("GPU", 0) >= 1 for node in alive)
    if device == "auto":
        return "cuda" if has_gpus else "cpu"
    if device == "cpu":
        return "cpu"
    if device != "cuda":
        raise DeviceError(f"--device {device}: Ray chooses devices; use auto, cpu or cuda")
    if not has_gpus:
        raise DeviceError("--device cuda was asked for, but no node of the cluster has a GPU")
    return "cuda"


def _describe_nodes(
    alive: Sequence[_Node], kind: Literal["cpu", "cuda"], results: Path
) -> dict[_Node, NodeFacts]:
    if not alive:
        raise ClusterError("no node of the cluster has a free device or core to offer")
    describe = ray.remote(max_calls=1)(describe_node)
    share = _GPU_SHARE_TO_DESCRIBE if kind == "cuda" else 0
    facts: dict[_Node, NodeFacts] = {}
    marker = results / f".shared-{uuid4().hex}"  # a node on which it exists shares the folder
    with writable(results):
        results.mkdir(parents=True, exist_ok=True)
        marker.touch()
    try:
        pending = {
            node: describe.options(
                num_cpus=0, num_gpus=share, scheduling_strategy=node.affinity
            ).remote(kind, marker)
            for node in alive
        }
        for node, answer in pending.items():
            try:
                facts[node] = ray.get(answer, timeout=_DESCRIBE_TIMEOUT_S)
            except RayError as error:
                raise ClusterError(
                    f"the node {node.name} cannot describe its device: {_last_line(error)}; "
                    "install the same version of ablate on every node"
                ) from error
            reason = software_difference(facts[node])
            if reason is not None:
                raise ClusterError(
                    f"the node {node.name} has other software: {reason}; install the same "
                    "environment on every node"
                )
    finally:
        marker.unlink()
    return facts


def _last_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[-1]
