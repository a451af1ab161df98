"""What holds for every test.

PyTorch is imported by the processes that run tests, not by the one that distributes them.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fake_cuda import CudaMachine

# A shell that starts a job in the background lets it ignore Ctrl-C, and so its children: those
# that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


_BY_NAME = ("chaos", "ddp", "exports", "ray", "slurm")
"""Marks of tests that no whole selection runs, `pytest -m ""` included, unless it names them."""

gc.set_threshold(10**5)  # to look for garbage more often takes long among so many imports
os.environ["ABLATE_PROBE_SECONDS"] = "0"  # speeds beside other tests are worth no more rounds
os.environ.setdefault("ABLATE_CACHE", str(Path(__file__).parents[1] / ".pytest_cache" / "ablate"))
os.environ["ABLATE_NO_FIGURES"] = "1"  # slower than tiny runs; they have tests of their own


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Use all cores for whole selections, and this process for what is asked for by name."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return None if is_whole and not config.option.keyword else 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that no core waits for it in the end.

    Leave out what needs CUDA where there is none, since each such test has a twin on the CPU, and
    what has to be asked for.
    """
    import torch

    torch.set_num_threads(1)  # the tests are run side by side, and their models are small
    items.sort(key=lambda item: item.get_closest_marker("e2e") is None)
    selected: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if _is_left_out(item, config) else selected).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = selected


def _is_left_out(item: pytest.Item, config: pytest.Config) -> bool:
    import torch

    if _needs_gpu(item) and not torch.cuda.is_available():
        return True
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    unnamed = [mark for mark in _BY_NAME if mark not in config.option.markexpr]
    return is_whole and any(item.get_closest_marker(mark) for mark in unnamed)


@pytest.fixture(autouse=True)
def _on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the machine's GPUs from tests that are not about them, and from their processes."""
    import torch

    if torch.cuda.is_available() and not _needs_gpu(request.node):
        hide_gpus(monkeypatch)


@pytest.fixture
def in_double() -> Iterator[None]:
    """Make the default type float64, so that tables of positions are not rounded."""
    import torch

    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def machine() -> Iterator[CudaMachine]:
    """A simulated GPU."""
    from tests.fake_cuda import CudaMachine

    with CudaMachine() as machine:
        yield machine


def hide_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have PyTorch say that there are no GPUs, here and in processes that are started."""
    import torch

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def _needs_gpu(item: pytest.Item) -> bool:
    return item.get_closest_marker("gpu") is not None
