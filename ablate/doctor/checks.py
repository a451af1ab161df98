"""The list of all checks, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ablate.doctor import computing, folders, hardware, software
from ablate.doctor.results import CheckResult, Target

Kind = Literal["cpu", "cuda"]
_MINUTE_S = 60.0
_GPU: tuple[Kind, ...] = ("cuda",)
_ANY: tuple[Kind, ...] = ("cpu", "cuda")


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        name: in tables.
        examine: makes the check; an exception means ``broken``.
        limit_s: after how many seconds its process is killed; None for a check that computes
            nothing and needs no process of its own.
        kinds: of devices that it is made on; empty for a check of the machine.
    """

    name: str
    examine: Callable[[Target], CheckResult]
    limit_s: float | None = None
    kinds: tuple[Kind, ...] = ()


CHECKS = (
    Check("python", software.python),
    Check("libraries", software.libraries),
    Check("corpora", folders.corpora),
    Check("cache", folders.cache),
    Check("disk", folders.disk),
    Check("file locks", folders.locks),
    Check("cpu", hardware.cpu),
    Check("gpus", hardware.gpus, _MINUTE_S),
    Check("gpu memory", hardware.gpu, _MINUTE_S, _GPU),
    Check("bf16", computing.bf16, _MINUTE_S, _ANY),
    Check("graph capture", computing.capture, _MINUTE_S, _GPU),
    Check("engine as eager", computing.engines, _MINUTE_S, _ANY),
    Check("runs side by side", computing.side_by_side, _MINUTE_S, _ANY),
    Check("determinism", computing.determinism, _MINUTE_S, _ANY),
    Check("speed", computing.speed, _MINUTE_S, _ANY),
    Check("compile", computing.compiler, 2 * _MINUTE_S, _ANY),
)
