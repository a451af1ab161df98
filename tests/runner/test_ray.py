"""Ray: two nodes on one machine, of which one is lost; the numbers are the local ones.

pytest -m ray tests/runner/test_ray.py   # about a minute and a half
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ablate import api
from ablate.errors import AblateError
from ablate.processes import descendants
from ablate.runner.backends import relay
from ablate.runner.backends.contract import BackendRequest, ClusterError
from ablate.runner.backends.registry import open_backend
from ablate.runner.backends.relay import NodeFacts
from ablate.runner.probe import n_rounds_of
from ablate.runner.sessions import RunningTask
from ablate.store import Store
from ablate.version import __version__
from tests.runner.conftest import EXPERIMENT, numbers_of

ray = pytest.importorskip("ray", reason="needs ray: pip install '.[ray]'")
cluster_utils = pytest.importorskip("ray.cluster_utils")
ray_backend = pytest.importorskip("ablate.runner.backends.ray")

pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("default"),  # Ray's own
]

ROOT = Path(__file__).parents[2]
STEPS, LOST_AT = 100, 10
OVERRIDES = (
    f"training.steps={STEPS}",
    "training.evaluate_every=10",
    "corpus.size=2000",
    "decoding=greedy",
)
ROWS = ("baseline", "none")
ON_TWO_DEVICES = """\
devices_per_run: 2
corpus: {name: synthetic, size: 300}
tokenizer: word
model:
  dims: {d_model: 16, n_heads: 2, max_len: 32}
  n_layers: 1
  feed_forward: {name: relu, d_ff: 16}
training: {steps: 12, batch_tokens: 512, schedule: {name: constant, lr: 0.01}}
decoding: greedy
seeds: [1]
variants:
  none: {model.position: none}
"""
MEMORY = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Use a cache of our own, in the nodes too, which are started later."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("ABLATE_CACHE", str(folder))
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield folder


@contextmanager
def _cluster(num_cpus: int) -> Iterator[Any]:
    """Start a cluster with two nodes of so many cores, beside a head that does nothing."""
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, **MEMORY}, shutdown_at_exit=True
    )
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=num_cpus, object_store_memory=MEMORY["object_store_memory"])
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def cluster(cache: Path) -> Iterator[Any]:
    with _cluster(num_cpus=1) as cluster:
        yield cluster


@pytest.fixture(params=[True, False], ids=["shared folder", "bundles"])
def is_shared(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether nodes find the folder of results."""
    if not request.param:
        describe = relay.describe_node
        monkeypatch.setattr(
            ray_backend, "describe_node", lambda kind, _: describe(kind, Path("/nowhere"))
        )
    return request.param


def _run(results: Path, **options: Any) -> Store:
    """Make the reduced experiment; return where it is."""
    chosen = api.RunOptions(
        seeds=(1,), overrides=OVERRIDES, device="cpu", results=results, figures=False, **options
    )
    outcome = api.run(ROOT / "experiments" / "pe.yaml", chosen, only=ROWS)
    assert outcome.exit_status == 0
    return Store(results)


@pytest.fixture(scope="module")
def local(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the numbers of the runs that this machine makes without Ray."""
    return numbers_of(_run(tmp_path_factory.mktemp("local"), probes=False).results)


@contextmanager
def _disturbed(results: Path, disturb: Callable[[RunningTask], Any]) -> Iterator[list[Any]]:
    """Call ``disturb`` once, with a run that is well on its way; yield what it returns."""
    done: list[Any] = []
    is_over = threading.Event()

    def watch() -> None:
        while not done and not is_over.wait(0.1):
            running = [run for session in api.status(results=results) for run in session.running]
            done.extend(disturb(run) for run in running[:1] if (run.step or 0) >= LOST_AT)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield done
    finally:
        is_over.set()
        watcher.join()


def _lose(cluster: Any, run: RunningTask) -> str:
    """Remove the node that a run is on; return the name of its device."""
    name = run.device.split()[0]
    (node,) = [each for each in ray_backend._nodes() if each.name == name]
    (worker,) = [each for each in cluster.worker_nodes if each.node_id == node.id]
    for started in worker.all_processes.values():
        for process in started:
            for pid in (*descendants(process.process.pid), process.process.pid):
                os.kill(pid, signal.SIGKILL)  # a machine that is gone ends nothing in order
    cluster.remove_node(worker, allow_graceful=False)
    return run.device


def test_a_row_of_another_decoding_takes_the_weights_that_its_node_is_sent(
    is_shared: bool, cluster: Any, cache: Path, tmp_path: Path
) -> None:
    file = tmp_path / "searches.yaml"
    file.write_text(f"{EXPERIMENT}variants: {{beam: {{decoding: beam}}}}\n", encoding="utf-8")
    on_ray = {"backend": "ray", "backend_options": {"address": cluster.address}}
    for name, options in (("ray", on_ray), ("local", {"device": "cpu"})):
        of_call = api.RunOptions(results=tmp_path / name, probes=False, figures=False, **options)
        assert api.run(file, of_call).exit_status == 0
    assert numbers_of(tmp_path / "ray") == numbers_of(tmp_path / "local")
    store = Store(tmp_path / "ray")
    records = {heading.row: store.load(run) or {} for run, heading in store.headings().items()}
    assert records["beam"]["weights_of"] == records["baseline"]["hash"]


def test_a_run_whose_node_is_lost_is_repeated_to_the_very_same_numbers(
    is_shared: bool,
    cluster: Any,
    local: dict[str, Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    options = {"backend": "ray", "backend_options": {"address": cluster.address}}
    with _disturbed(tmp_path, partial(_lose, cluster)) as lost:
        _run(tmp_path, probes=not is_shared, probe_seconds=0.0, **options)
    printed = capfd.readouterr().err
    assert len(lost) == 1
    node = lost[0].split()[0]
    assert f"the node {node} does not answer any more; once more, in another process" in printed
    assert f"started on {lost[0]}" in printed
    assert numbers_of(tmp_path) == local
    assert not list(tmp_path.glob(".shared*"))
    if not is_shared:
        probes = [json.loads(file.read_bytes()) for file in (tmp_path / "probes").glob("*.json")]
        assert [n_rounds_of(probe) for probe in probes] == [2, 2]
    assert _left_workers() == []


def test_a_run_on_two_devices_of_a_node_has_the_local_numbers(
    cache: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    spec = tmp_path / "ranks.yaml"
    spec.write_text(ON_TWO_DEVICES, encoding="utf-8")
    numbers = {}
    with _cluster(num_cpus=2) as cluster:
        places: dict[str, dict[str, Any]] = {
            "ray": {"backend": "ray", "backend_options": {"address": cluster.address}},
            "local": {"jobs": 2},
        }
        for name, options in places.items():
            chosen = api.RunOptions(
                device="cpu", results=tmp_path / name, figures=False, probes=False, **options
            )
            assert api.run(spec, chosen).exit_status == 0
            numbers[name] = numbers_of(tmp_path / name)
    of_ray = capfd.readouterr().err
    assert len(numbers["ray"]) == 2
    assert numbers["ray"] == numbers["local"]
    assert "training 2 runs, 2 at a time" in of_ray
    assert len(set(re.findall(r"started on (\S+) cpu", of_ray))) == 2, "a run on each node"
    assert _left_workers() == []


def _left_workers() -> list[str]:
    """Return the command lines of worker processes that are still there after a while."""
    deadline = time.monotonic() + 10
    while (left := _workers()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return list(left.values())


def _workers() -> dict[int, str]:
    """Return the command lines of the worker processes of this test, by their ids."""
    commands = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().decode().split("\0")
            cache = f"ABLATE_CACHE={os.environ['ABLATE_CACHE']}"
            if "ablate.runner" in words and cache.encode() in (folder / "environ").read_bytes():
                commands[int(folder.name)] = " ".join(words)
        except OSError:
            continue
    return commands


def test_the_nodes_of_a_call_have_one_kind_of_hardware(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.add_node(num_cpus=2, object_store_memory=MEMORY["object_store_memory"])
    described = ray_backend._describe_nodes

    def with_another(alive: Any, *rest: Any) -> dict[Any, NodeFacts]:
        known: dict[Any, NodeFacts] = described(alive, *rest)
        for node, facts in known.items():
            if node.resources["CPU"] == 2:
                hardware = {**facts.device.hardware, "device_name": "Abacus 9"}
                known[node] = replace(facts, device=replace(facts.device, hardware=hardware))
        return known

    monkeypatch.setattr(ray_backend, "_describe_nodes", with_another)
    request = BackendRequest("cpu", 1, tmp_path, {"address": cluster.address})
    with closing(open_backend("ray", request)) as backend:
        assert [str(device).split("#")[1][1:] for device in backend.worker_slots] == [" cpu"] * 2
        (remark,) = backend.remarks
    assert re.fullmatch(r"1 node of other hardware left out, .*#\d \(Abacus 9\)", remark)


def test_what_a_cluster_cannot_do_is_refused(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(device: str = "cpu", address: str = cluster.address) -> str:
        request = BackendRequest(device, None, tmp_path, {"address": address})
        with pytest.raises(AblateError) as caught:
            open_backend("ray", request)
        return str(caught.value)

    assert "no node of the cluster has a GPU" in refusal("cuda")
    assert "Ray chooses devices" in refusal("cuda:0,2")
    monkeypatch.setattr(relay, "versions", lambda: {"ablate": "0.0.1"})
    software = f"has other software: it has ablate {__version__}, this machine 0.0.1"
    assert software in refusal()
    assert not ray.is_initialized()
    assert "there is no Ray cluster to connect to" in refusal(address="127.0.0.1:1")


def test_a_cluster_that_does_not_start_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(*_: object, **__: object) -> None:
        raise Exception("The current node timed out during startup.")  # as Ray does

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(ClusterError, match="timed out during startup"):
        open_backend("ray", BackendRequest("cpu", 1, tmp_path))
