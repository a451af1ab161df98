"""What the last check refuses before anything runs, and where it says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn
from typer.testing import CliRunner

from ablate.cli.app import app
from ablate.config import Experiment, ModelSpec, load
from ablate.errors import SpecError
from ablate.model import Transformer, assemble
from ablate.parts.embedding import Vocabulary
from ablate.parts.objective import Objective
from ablate.registry import build, choose, slots
from ablate.runner import check as checks
from ablate.runner import devices
from ablate.runner.check import check, check_distinct
from ablate.runner.devices import Device
from tests.runner.conftest import SMALL

SMOOTHED = sorted(
    name for name, entry in slots()["objective"].items() if "epsilon" in entry.options.model_fields
)


def _load(folder: Path, text: str) -> Experiment:
    file = folder / "study.yaml"
    file.write_text(text, encoding="utf-8")
    return load(file)


def _check(folder: Path, objective: str, *, masks: bool) -> None:
    text = (
        "tokenizer: word\n"
        "model:\n  dims: {d_model: 16, n_heads: 2, max_len: 32}\n"
        f"  n_layers: 1\n  embedding: {{name: tied, mask_unwritten: {str(masks).lower()}}}\n"
        f"training:\n  objective: {objective}\n"
    )
    check(_load(folder, text))


@pytest.mark.parametrize(
    "objective",
    [
        *(f"{{name: {name}, epsilon: 0.2}}" for name in SMOOTHED),
        "label_smoothing",
        "r_drop",
        "{name: label_smoothing, form: others}",
        "{name: label_smoothing, form: annotated}",
    ],
)
def test_smoothing_over_masked_tokens_is_refused(objective: str, tmp_path: Path) -> None:
    _check(tmp_path, objective, masks=False)
    reason = r"study\.yaml:7:14: training\.objective: smooths over tokens .* form: unmasked}"
    with pytest.raises(SpecError, match=reason):
        _check(tmp_path, objective, masks=True)


@pytest.mark.parametrize(
    "objective",
    [
        *(f"{{name: {name}, epsilon: 0}}" for name in SMOOTHED),
        *sorted(set(slots()["objective"]) - {"label_smoothing", "r_drop"}),
        "{name: label_smoothing, form: unmasked}",
    ],
)
def test_objectives_that_leave_out_masked_tokens_are_accepted(
    objective: str, tmp_path: Path
) -> None:
    _check(tmp_path, objective, masks=True)


def test_smoothing_over_what_is_not_masked_is_refused_where_nothing_is(tmp_path: Path) -> None:
    _check(tmp_path, "{name: label_smoothing, form: unmasked, epsilon: 0}", masks=False)
    with pytest.raises(SpecError, match=r":7:14: .* it masks none, .*mask_unwritten: true, or"):
        _check(tmp_path, "{name: label_smoothing, form: unmasked}", masks=False)


@pytest.mark.parametrize("attention", sorted(slots()["attention"]))
def test_coverage_takes_shares_of_attention(attention: str, tmp_path: Path) -> None:
    model = f"{{decoder: {{cross_attention: {attention}}}}}"
    text = f"decoding: {{name: beam, coverage: 0.2}}\nmodel: {model}\n"
    experiment = _load(tmp_path, text)
    if attention not in ("differential", "talking_heads"):
        check(experiment)
        return
    with pytest.raises(SpecError, match=rf":1:11: decoding: .* {attention} has negative weights"):
        check(experiment)


@pytest.mark.parametrize("name", SMOOTHED)
def test_an_objective_with_an_epsilon_says_that_it_smooths(name: str) -> None:
    smoothed, plain = (build(Objective, choose(Objective, name, epsilon=e), 0) for e in (0.1, 0.0))
    assert (smoothed.smoothing, plain.smoothing) == ("all", "none")


@pytest.mark.parametrize(
    ("variant", "at", "reason"),
    [
        (
            "{training.precision: bf16}",
            ":8:30: variants.same.training.precision",
            "the row 'same' is the same run as the row 'baseline': cpu trains 'auto' in bf16",
        ),
        (
            "{training.teacher: again.txt}",
            ":8:28: variants.same.training.teacher",
            "the row 'same' is the same run as the row 'baseline': their files have one content",
        ),
    ],
)
def test_rows_that_are_one_run_on_a_device_are_refused(
    variant: str, at: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("once", "again"):
        (tmp_path / f"{name}.txt").write_text("the same\n", encoding="utf-8")
    text = (
        "tokenizer: word\n"
        "model: {dims: {d_model: 16, n_heads: 2, max_len: 32}, n_layers: 1}\n"
        "training:\n  precision: auto\n  teacher: once.txt\n"
        "variants:\n  other: {training.precision: fp32}\n"
        f"  same: {variant}\n"
    )
    monkeypatch.setattr(devices, "has_bf16", lambda _: True)
    with pytest.raises(SpecError) as refusal:
        check_distinct(_load(tmp_path, text), Device("cpu"))
    assert f"study.yaml{at}: {reason}; remove one" in str(refusal.value)
    assert "'other'" not in str(refusal.value)


def test_each_distinct_model_is_assembled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "model: {dims: {d_model: 16, n_heads: 2, max_len: 32}, n_layers: 1}\n"
        "grid: {model.norm: [layer, rms], training.clip: [1, 2, 3], model.n_layers: [1, 2]}\n"
    )
    models: list[ModelSpec] = []

    def counted(model: ModelSpec, vocabulary: Vocabulary, pad: int) -> Transformer:
        models.append(model)
        return assemble(model, vocabulary, pad)

    monkeypatch.setattr("ablate.runner.check.assemble", counted)
    experiment = _load(tmp_path, text)
    check(experiment)
    assert (len(experiment.rows), len(models), len(set(models))) == (13, 4, 4)


def test_every_row_with_a_refused_model_is_named(tmp_path: Path) -> None:
    head = "model: {dims: {d_model: 15, n_heads: 3, max_len: 32}}\nvariants:\n"
    rows = [f"  v{n}: {{model.position: rotary, training.clip: {n}}}\n" for n in (1, 2, 3)]
    with pytest.raises(SpecError, match="d_k") as refusal:
        check(_load(tmp_path, head + "".join(rows)))
    assert [f"variants.v{n}" in str(refusal.value) for n in (1, 2, 3)] == [True] * 3


LAYERS = "1,000,000,000 layers exceed the bound of 100,000"
HUGE: list[tuple[str, object, str]] = [
    ("model.dims.d_model", 10**10, "no model can be built with 10,000,000,000: "),
    ("model.dims.d_k", 10**13, f"a model with {10**13:,} exceeds the 2^47 bytes"),
    ("model.dims.max_len", 10**17, f"{10**17:,} exceeds the 2^47 bytes"),
    ("tokenizer.vocab_size", 10**18, f"{10**18:,} exceeds the 2^47 bytes"),
    ("model.feed_forward.d_ff", 2**63, f"{2**63:,} exceeds the 2^47 bytes"),
    ("model.n_layers", 10**9, LAYERS),
    ("model.n_layers", {"encoder": 1, "decoder": 10**9}, LAYERS),
]
"""Sizes, and how each is refused."""


def _spec(folder: Path, path: str, value: object) -> Path:
    tokenizer = {"name": "bpe", "vocab_size": 300}
    base = json.dumps({**SMALL, "tokenizer": tokenizer, "seeds": [1]}, indent=1)
    file = folder / "huge.yaml"
    changed = json.dumps({path: value})
    file.write_text(f'{base.removesuffix("}")}, "variants": {{\n  "big": {changed}}}}}')
    return file


@pytest.mark.parametrize(("path", "size", "reason"), HUGE)
def test_a_size_that_no_machine_can_hold_is_refused(
    path: str, size: object, reason: str, tmp_path: Path
) -> None:
    file = _spec(tmp_path, path, size)
    n_lines = len(file.read_text().splitlines())
    arguments = ["plan", str(file), "--device", "cpu", "--results", str(tmp_path / "results")]
    printed = CliRunner().invoke(app, arguments)
    assert printed.exit_code == 2
    column = len(f'  "big": {{"{path}": ') + 1
    assert f"huge.yaml:{n_lines}:{column}: variants.big.{path}: {reason}" in printed.stderr
    assert not printed.stdout


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
