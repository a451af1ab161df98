"""Sizes beyond what a machine can hold are refused where the file chooses them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

from ablate.cli.app import app
from ablate.config import load
from ablate.errors import SpecError
from ablate.runner import check as checks
from ablate.runner.check import check
from tests.runner.conftest import SMALL

HUGE = {
    "model.dims.d_model": 10**10,
    "model.dims.max_len": 10**17,
    "tokenizer.vocab_size": 10**18,
    "model.feed_forward.d_ff": 2**63,
    "model.n_layers": 10**9,
}
BOUND = {
    "model.dims.d_model": f"no model can be built with {10**10:,}: ",
    "model.dims.max_len": f"{10**17:,} exceeds the 2^47 bytes",
    "tokenizer.vocab_size": f"{10**18:,} exceeds the 2^47 bytes",
    "model.feed_forward.d_ff": f"{2**63:,} exceeds the 2^47 bytes",
    "model.n_layers": f"{10**9:,} layers exceed the bound of 100,000",
}


def _spec(folder: Path, path: str, value: object) -> Path:
    tokenizer = {"name": "bpe", "vocab_size": 300}
    base = json.dumps({**SMALL, "tokenizer": tokenizer, "seeds": [1]}, indent=1)
    file = folder / "huge.yaml"
    changed = json.dumps({path: value})
    file.write_text(f'{base.removesuffix("}")}, "variants": {{\n  "big": {changed}}}}}')
    return file


@pytest.mark.parametrize("path", sorted(HUGE))
@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_size_that_no_machine_can_hold_is_refused(
    command: str, path: str, tmp_path: Path
) -> None:
    file = _spec(tmp_path, path, HUGE[path])
    n_lines = len(file.read_text().splitlines())
    arguments = [command, str(file), "--device", "cpu", "--results", str(tmp_path / "results")]
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 2
    column = len(f'  "big": {{"{path}": ') + 1
    assert f"huge.yaml:{n_lines}:{column}: variants.big.{path}: {BOUND[path]}" in printed.stderr
    assert not printed.stdout


@pytest.mark.parametrize("path", sorted(HUGE))
def test_a_size_of_the_baseline_is_refused_once(path: str, tmp_path: Path) -> None:
    file = _spec(tmp_path, "model.position", "learned")
    with pytest.raises(SpecError, match=rf"--set:1:\d+: {path}: ") as refused:
        check(load(file, [f"{path}={HUGE[path]}"]))
    assert str(refused.value).count(f" {path}: ") == 1


@pytest.mark.parametrize(
    "change",
    [
        {"model.dims.n_heads": 2**62, "model.dims.d_model": 2**62},
        {"model.dims.d_k": 10**13},
        {"model.dims.d_model": 10**7},
        {"model.n_layers": {"encoder": 1, "decoder": 10**9}},
        {"model.feed_forward": {"name": "shared_experts", "n_shared": 2**63}},
        {"model.position": {"name": "sinusoidal", "first": 2**63}},
        {"model.position": {"name": "shifted", "max_shift": 2**63}},
    ],
    ids=lambda change: ",".join(change),
)
def test_sizes_of_every_kind_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    file = _spec(tmp_path, "model.position", "learned")
    spec = json.loads(file.read_text())
    spec["variants"] = {"big": change}
    file.write_text(json.dumps(spec))
    with pytest.raises(SpecError, match=r"huge\.yaml:1:\d+: variants\.big\.model.* exceed"):
        check(load(file))


def test_a_model_of_too_many_tensors_is_refused_while_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAX_TENSORS", 400)
    check(load(_spec(tmp_path, "model.position", "learned")))
    with pytest.raises(SpecError, match=r"variants\.big\.model: .* exceed the bound"):
        check(load(_spec(tmp_path, "model.n_layers", 40)))


def test_no_hook_stays_after_a_check(tmp_path: Path) -> None:
    with pytest.raises(SpecError):
        check(load(_spec(tmp_path, "model.dims.d_model", 10**10)))
    hooks = nn.modules.module
    assert not hooks._global_parameter_registration_hooks
    assert not hooks._global_buffer_registration_hooks


def test_any_error_of_an_assembly_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(checks, "assemble", fail)
    reason = r": model: cannot be built: ZeroDivisionError: division by zero"
    with pytest.raises(SpecError, match=reason):
        check(load(_spec(tmp_path, "model.position", "learned")))
