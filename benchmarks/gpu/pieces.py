"""What would pieces of a step cost if they were computed otherwise? Answered by `first_hour`.

The pieces that we compute otherwise than PyTorch on a GPU, or could: the loss over the vocabulary,
attention by one fused kernel, sums rounded to bf16 in matrix products, stacks that are compiled
before they are captured. Times are of replays; a kernel that does not give the same numbers twice
cannot be used by runs, which must be repeatable.

B batch, T tokens, H heads, K d_k, N target tokens, V vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ablate.cuda_graphs import GraphCapturer
from ablate.data.tokenizer import PAD
from ablate.errors import EngineError
from ablate.parts.objective.likelihood import LabelSmoothing
from ablate.training.engines import cuda_graph
from ablate.training.gradient import forward_backward, forward_hidden
from gpu.script import Item, Result, Setting, WrongError, answer
from gpu.work import (
    N_WARM_PASSES,
    Work,
    captured,
    median_ms,
    pass_over,
    relative_difference,
    seconds_of,
    size,
)

_N_REPLAYS = 30
_EPSILON = 0.1
_LOSS_TOLERANCE = 2**-7  # of gradients that are rounded to bf16
_SHAPES = {"tiny": (300, 14, 4, 32), "base": (230, 27, 8, 64), "long": (48, 128, 8, 64)}
"""B, T, H, K of the batches of `steps`, and of long sentences."""
_BACKENDS = SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH
"""Those that take a mask."""


def loss(n_ids: int, setting: Setting) -> Result:
    """Compare the loss and its gradient with PyTorch's, from logits in bf16."""
    n_rows, n_ids = setting.pick(4096, 64), setting.pick(n_ids, 100)
    logits = torch.randn(n_rows, n_ids, device=setting.device).bfloat16().requires_grad_()
    targets = torch.randint(1, n_ids, (n_rows,), device=setting.device)

    def by_pytorch() -> Tensor:
        of_all = F.cross_entropy(
            logits.float(), targets, reduction="sum", ignore_index=PAD, label_smoothing=_EPSILON
        )
        return torch.autograd.grad(of_all, logits)[0]

    def by_us() -> Tensor:
        of_all = LabelSmoothing(PAD, epsilon=_EPSILON).loss(logits, targets)
        return torch.autograd.grad(of_all, logits)[0]

    difference = relative_difference([by_us().float()], [by_pytorch().float()])
    if not difference < _LOSS_TOLERANCE:
        raise WrongError(f"the gradient differs from PyTorch's by {difference:.1e}")
    times = {"ours_ms": _replay_ms(by_us, setting), "pytorch_ms": _replay_ms(by_pytorch, setting)}
    line = f"{times['ours_ms']:.3f} ms, PyTorch's {times['pytorch_ms']:.3f}"
    return Result(line, {**times, "relative_difference": difference})


def attention(name: str, setting: Setting) -> Result:
    """Compare attention as our parts compute it with PyTorch's kernels, in bf16."""
    # With a warning alone PyTorch takes the version of a kernel that does not repeat its numbers
    torch.use_deterministic_algorithms(setting.is_cuda)
    b, t, h, k = setting.pick(_SHAPES[name], (4, 6, 2, 8))
    make = partial(torch.randn, b, t, h, k, device=setting.device, dtype=torch.bfloat16)
    inputs = [make().requires_grad_() for _ in range(3)]
    lengths = torch.randint(t // 2, t + 1, (b, 1, 1, 1), device=setting.device)
    mask = torch.arange(t, device=setting.device) < lengths  # (B, 1, 1, T)
    of_output = make().transpose(1, 2)

    def by_hand(q: Tensor, key: Tensor, v: Tensor) -> Tensor:
        scores = (q * k**-0.5) @ key.transpose(-1, -2)
        masked = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return masked.softmax(dim=-1, dtype=torch.float32).to(v.dtype) @ v

    def fused(backend: SDPBackend, q: Tensor, key: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel([backend]):
            return F.scaled_dot_product_attention(q, key, v, mask)

    def gradients(attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> list[Tensor]:
        q, key, v = (x.transpose(1, 2) for x in inputs)
        return list(torch.autograd.grad(attend(q, key, v), inputs, of_output))

    expected = gradients(by_hand)
    figures: dict[str, Any] = {"by_hand_ms": _replay_ms(lambda: gradients(by_hand)[0], setting)}
    for backend in _BACKENDS:
        attend, of_backend = partial(fused, backend), backend.name.lower()
        try:
            first, second = gradients(attend), gradients(attend)
            figures[f"{of_backend}_difference"] = relative_difference(first, expected)
            figures[f"{of_backend}_repeats"] = all(map(torch.equal, first, second))
            work = partial(_first, partial(gradients, attend))
            figures[f"{of_backend}_ms"] = _replay_ms(work, setting)
        except EngineError as error:  # the process can measure nothing more
            figures[f"{of_backend}_error"] = str(error)
            break
        except RuntimeError as error:
            figures[f"{of_backend}_error"] = str(error).strip().partition("\n")[0]
    times = {key: value for key, value in figures.items() if key.endswith("_ms")}
    return Result(", ".join(f"{key[:-3]} {ms:.3f} ms" for key, ms in times.items()), figures)


def reductions(setting: Setting) -> Result:
    """Time a product of bf16 matrices with sums in fp32, as runs have it, and rounded to bf16."""
    n_rows = setting.pick(8192, 64)
    a, b = (torch.randn(n_rows, n_rows, device=setting.device).bfloat16() for _ in range(2))
    options, figures = torch.backends.cuda.matmul, dict[str, Any]()
    before = options.allow_bf16_reduced_precision_reduction
    try:
        for name, is_allowed in (("whole", False), ("rounded", True)):
            options.allow_bf16_reduced_precision_reduction = is_allowed
            figures[f"{name}_ms"] = median_ms(lambda: a @ b, setting.device, _N_REPLAYS)
    finally:
        options.allow_bf16_reduced_precision_reduction = before
    return Result(f"{figures['whole_ms']:.3f} ms, {figures['rounded_ms']:.3f} rounded", figures)


def compiled(setting: Setting) -> Result:
    """Time steps of the base size that are captured as they are, and with compiled stacks."""
    times: dict[str, float] = {}
    for name, forward in (
        ("captured", forward_hidden),
        ("compiled", torch.compile(forward_hidden, dynamic=True)),
    ):
        cuda_graph.forward_backward = partial(forward_backward, forward_hidden=forward)  # type: ignore[attr-defined]
        work = Work(size("base", setting), setting)
        batches = work.some(setting.pick(8, 2))
        with work.engine("cuda_graph", setting.precision) as engine:
            one_pass = pass_over(engine, batches)
            warm = [seconds_of(one_pass, setting.device)[1] for _ in range(N_WARM_PASSES)]
            times[f"{name}_step_ms"] = median_ms(one_pass, setting.device, 5) / len(batches)
            times[f"{name}_warm_up_seconds"] = sum(warm)
    line = f"{times['captured_step_ms']:.2f} ms a step, {times['compiled_step_ms']:.2f} compiled"
    return Result(line, times)


def _replay_ms(work: Callable[[], Tensor], setting: Setting) -> float:
    replay = captured(GraphCapturer(setting.device), work)
    return median_ms(replay, setting.device, _N_REPLAYS)


def _first(work: Callable[[], list[Tensor]]) -> Tensor:
    return work()[0]


def items() -> dict[str, Item]:
    """Return all items; without that of compilation on a CPU, where it takes a minute."""
    of_all: dict[str, Item] = {
        "loss of 10,000": partial(loss, 10_000),
        "loss of 37,000": partial(loss, 37_000),
        **{f"attention {name}": partial(attention, name) for name in _SHAPES},
        "reductions": reductions,
    }
    return of_all if "cpu" in sys.argv else {**of_all, "compiled": compiled}


if __name__ == "__main__":
    sys.exit(answer(items(), in_fresh_processes=True))
