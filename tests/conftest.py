"""What holds for every test.

PyTorch is imported by the processes that run tests, not by the one that distributes them.
"""

from __future__ import annotations

import gc
import os
import signal

import pytest

# A shell that starts a job in the background lets it ignore Ctrl-C, and so its children: those
# that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


gc.set_threshold(10**5)  # to look for garbage more often takes long among so many imports
os.environ["ABLATE_PROBE_SECONDS"] = "0"  # speeds beside other tests are worth no more rounds
os.environ["ABLATE_NO_FIGURES"] = "1"  # slower than tiny runs; they have tests of their own


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Use all cores for whole selections, and this process for what is asked for by name."""
    is_whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    return None if is_whole and not config.option.keyword else 0


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that no core waits for it in the end.

    Leave out what needs CUDA where there is none; each such test has a twin on the CPU.
    """
    import torch

    torch.set_num_threads(1)  # the tests are run side by side, and their models are small
    items.sort(key=lambda item: item.get_closest_marker("e2e") is None)
    if torch.cuda.is_available():
        return
    config.hook.pytest_deselected(items=[item for item in items if _needs_gpu(item)])
    items[:] = [item for item in items if not _needs_gpu(item)]


@pytest.fixture(autouse=True)
def _on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the machine's GPUs from tests that are not about them, and from their processes."""
    import torch

    if torch.cuda.is_available() and not _needs_gpu(request.node):
        hide_gpus(monkeypatch)


def hide_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have PyTorch say that there are no GPUs, here and in processes that are started."""
    import torch

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)


def _needs_gpu(item: pytest.Item) -> bool:
    return item.get_closest_marker("gpu") is not None
