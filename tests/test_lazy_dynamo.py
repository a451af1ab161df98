"""A process that compiles nothing does not import the compiler, and one that does has it whole."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.e2e
def test_the_compiler_is_imported_by_what_compiles() -> None:
    code = (
        "import sys; from ablate import lazy_dynamo; lazy_dynamo.install(); import torch\n"
        "def is_loaded(): return 'torch._dynamo.eval_frame' in sys.modules\n"
        "weight = torch.nn.Parameter(torch.ones(3))\n"
        "optimizer = torch.optim.AdamW([weight], fused=True)\n"
        "weight.sum().backward(); optimizer.step(); optimizer.zero_grad()\n"
        "optimizer.load_state_dict(optimizer.state_dict())\n"
        "with torch.device('meta'): (torch.ones(2, 3) @ torch.ones(3, 2)).softmax(-1)\n"
        "assert not is_loaded()\n"
        "double = torch.compile(lambda x: 2 * x, backend='eager')\n"
        "assert double(torch.ones(3)).tolist() == [2.0, 2.0, 2.0] and is_loaded()\n"
        "import torch._dynamo.config\n"
        "assert torch._dynamo is sys.modules['torch._dynamo'] and torch._dynamo.__file__\n"
        "optimizer.step()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
