"""Ranks for tests: forks of this process, which all make the same steps."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from ablate.processes import die_with_parent
from ablate.training.ranks import Ranks, process_group

_MOST_S = 60.0


def in_ranks(n: int, work: Callable[[Ranks], Any]) -> list[Any]:
    """Return what ``work`` returns in each of ``n`` ranks.

    Raises:
        AssertionError: if one of them has failed.
    """
    context = multiprocessing.get_context("fork")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipes = [context.Pipe(duplex=False) for _ in range(n)]
    processes = [
        context.Process(target=_be, args=(rank, n, port, pipes[rank][1], work)) for rank in range(n)
    ]
    for process in processes:
        process.start()
    try:
        for receiving, sending in pipes:
            sending.close()
            assert receiving.poll(_MOST_S), "the ranks wait for each other"
        return [pickle.loads(receiving.recv_bytes()) for receiving, _ in pipes]
    except EOFError:
        raise AssertionError("a rank has failed; it has printed why") from None
    finally:
        for process in processes:
            process.kill()
            process.join()


def _be(
    rank: int, n: int, port: int, sending: Connection, work: Callable[[Ranks], Any]
) -> NoReturn:
    gc.freeze()  # as ranks do
    die_with_parent()
    torch.set_num_threads(1)
    try:
        store = TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
        with process_group(torch.device("cpu"), store, rank, n) as ranks:
            sending.send_bytes(pickle.dumps(work(ranks)))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
