"""The last check before anything runs: every row is assembled on PyTorch's meta device.

The checks of an experiment raise a `SpecError` with all refusals, each where the file says it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from ablate import config
from ablate.config import Experiment, Row, RunSpec
from ablate.config.identity import plugin_parts
from ablate.config.inheritance import SIDES
from ablate.contracts import ContractError, watched
from ablate.data.corpus import refusals_of
from ablate.data.parallel import why_unreadable
from ablate.data.prepare import too_small_vocabulary, unfit_teacher
from ablate.data.tokenizer import PAD, Tokenizer
from ablate.decoding.search import Search
from ablate.errors import AblateError, DataError, first_line_with_type
from ablate.model import Transformer, assemble
from ablate.parts.objective import Objective
from ablate.parts.optimizer import Optimizer
from ablate.parts.schedule import Schedule
from ablate.record import leaves
from ablate.registry import RefusedError, build, lookup
from ablate.runner.devices import Device, resolve
from ablate.training.engines import FullySharded
from ablate.training.engines.factory import batch_dependence, shard_blocker

MAX_BYTES = 2**47
"""The addresses that a process has on x86-64: 128 TiB."""

MAX_TENSORS = 100_000
"""Five times the parameters and buffers of 1,000 layers; every step of training visits each."""

_N_DEVICES = "devices_per_run"
_MANY_LAYERS = 1_000
_MIN_OVERFLOW = 2**30  # the product of two smaller sizes and 4 bytes fits in 64 bits
_EXCEEDS_BYTES = (
    "exceeds the 2^47 bytes (128 TiB) that a process can address; choose a smaller number"
)
_EXCEED_TENSORS = (
    f"exceed the bound of {MAX_TENSORS:,}, five times the parameters and buffers of 1,000 layers; "
    "choose fewer layers or experts"
)


def check(experiment: Experiment) -> None:
    """Check the corpus, and build every part of every row on PyTorch's meta device."""
    baseline = experiment.rows[0]
    refusals = [(baseline.name, r.path, r.reason) for r in refusals_of(baseline.spec.corpus)]
    if not refusals:
        specs = {row.spec.tokenizer.model_dump_json(): row for row in experiment.rows[::-1]}
        reasons = ((row.name, too_small_vocabulary(row.spec)) for row in specs.values())
        refusals = [(row, "tokenizer.vocab_size", reason) for row, reason in reasons if reason]
        of_teachers = ((row.name, unfit_teacher(row.spec)) for row in experiment.rows)
        refusals += [(row, "training.teacher", reason) for row, reason in of_teachers if reason]
    of_models: dict[Hashable, RefusedError | None] = {}
    refusals += [
        (row.name, refusal.path, refusal.reason)
        for row in experiment.rows
        for refusal in _refusals(row.spec, of_models)
    ]
    if refusals:
        raise config.mistakes_error(experiment, refusals)


def refused_rows(rows: Iterable[Row]) -> set[str]:
    """Return the names of the rows whose vocabulary or parts `check` refuses."""
    of_models: dict[Hashable, RefusedError | None] = {}
    return {
        row.name
        for row in rows
        if too_small_vocabulary(row.spec) or any(_refusals(row.spec, of_models))
    }


def check_devices(experiment: Experiment, worker_slots: Sequence[Device]) -> None:
    """Check that one machine has as many worker slots as a run has devices."""
    baseline = experiment.rows[0]
    n = baseline.spec.devices_per_run  # of all rows
    n_most = max(Counter(device.node for device in worker_slots).values())
    if n > n_most:
        kind = worker_slots[0].kind
        way_out = f"--jobs {n}, or fewer devices" if kind == "cpu" else "fewer devices"
        reason = f"a run asks for {n} devices ({kind}), and {n_most} can be had; say {way_out}"
        raise config.mistakes_error(experiment, [(baseline.name, _N_DEVICES, reason)])


def check_distinct(experiment: Experiment, device: Device) -> None:
    """Check that no row is compared with itself, by what 'auto' is or by equal teachers."""
    auto = resolve("auto", device)
    rows: dict[str, Row] = {}
    refusals = []
    for row in experiment.rows:
        precision = row.spec.training.precision
        try:
            name = config.identity(row.spec, "", auto if precision == "auto" else precision)
        except DataError:
            check(experiment)  # it says where in the file a teacher is that cannot be read
            raise
        twin = rows.setdefault(name, row)
        if twin is row or row.pending or twin.pending:
            continue
        is_resolved = twin.spec.training.precision != precision
        at = "training.precision" if is_resolved else "training.teacher"
        why = f"{device} trains 'auto' in {auto}" if is_resolved else "their files have one content"
        reason = f"the row {row.name!r} is the same run as the row {twin.name!r}: {why}; remove one"
        refusals.append((row.name, at, reason))
    if refusals:
        raise config.mistakes_error(experiment, refusals)


def check_engine(experiment: Experiment, engine: str) -> None:
    """Check that all rows can be trained with the requested engine."""
    if engine != FullySharded.name:
        return
    text = f"{engine} splits every weight over the devices"
    refusals = [
        (row.name, "training.optimizer", f"{text}: {reason}; choose adam, or leave out --engine")
        for row in experiment.rows
        if (reason := shard_blocker(row.spec.training))
    ]
    if refusals:
        raise config.mistakes_error(experiment, refusals)


def blueprint(run: RunSpec) -> Transformer:
    """Assemble a run's model on the meta device, with as many ids as its tokenizer may give.

    With parts of plugins it also computes logits, because their code may break a contract there.
    """
    tokenizer = build(Tokenizer, run.tokenizer, at="tokenizer")
    parts = plugin_parts(run)
    try:
        with watched([*parts.values()]), bounded(run), torch.device("meta"):
            model = assemble(run.model, tokenizer.nominal_vocabulary(), PAD)
            if parts:
                ids = torch.ones(2, min(3, model.max_len), dtype=torch.long)
                model(ids, ids)
            return model
    except ContractError as error:
        paths = [path for path, entry in parts.items() if entry is error.entry]
        raise RefusedError(paths[0] if paths else "model", str(error)) from error


@contextmanager
def bounded(run: RunSpec) -> Iterator[None]:
    """Stop an assembly on the meta device at a bound, with the path of the largest size."""
    chosen = leaves(run.model_dump(include={"model", "tokenizer"}))
    whole = ((path, value) for path, value in chosen if type(value) is int)  # True is none
    path, size = max(whole, key=lambda each: each[1])
    if size > MAX_BYTES:
        raise RefusedError(path, f"{size:,} {_EXCEEDS_BYTES}")
    n_layers = max(run.model.stack(side).n_layers for side in SIDES)
    if n_layers > MAX_TENSORS:
        raise RefusedError("model.n_layers", f"{n_layers:,} layers {_EXCEED_TENSORS}")
    count = _counter(path, size, "model.n_layers" if n_layers > _MANY_LAYERS else "model")
    hooks = [
        register_module_parameter_registration_hook(count),
        register_module_buffer_registration_hook(count),
    ]
    try:
        yield
    except AblateError:
        raise
    except Exception as error:
        if size < _MIN_OVERFLOW:
            raise
        reason = f"no model can be built with {size:,}: {first_line_with_type(error)}"
        raise RefusedError(path, f"{reason}; choose a smaller number") from error
    finally:
        for hook in hooks:
            hook.remove()


def _counter(
    path: str, size: int, path_of_many: str
) -> Callable[[nn.Module, str, Tensor | None], None]:
    n_bytes = n_tensors = 0

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal n_bytes, n_tensors
        if tensor is None:
            return
        n_bytes += tensor.numel() * tensor.element_size()
        n_tensors += 1
        if n_bytes > MAX_BYTES:
            raise RefusedError(path, f"a model with {size:,} {_EXCEEDS_BYTES}")
        if n_tensors > MAX_TENSORS:
            at = path if size > MAX_TENSORS else path_of_many
            raise RefusedError(at, f"the parameters and buffers of this model {_EXCEED_TENSORS}")

    return count


def _check_shares(run: RunSpec) -> None:
    """Check that every device of a run can compute its share of a batch by itself."""
    if run.devices_per_run == 1:
        return
    objective = build(Objective, run.training.objective, PAD, at="training.objective")
    reason = batch_dependence(blueprint(run), objective)
    if reason:
        raise RefusedError(_N_DEVICES, f"a batch cannot be split over devices: {reason}; say 1")


def _check_smoothing(run: RunSpec) -> None:
    """Build the objective, and check that it smooths over the tokens that the embedding leaves."""
    at = "training.objective"
    objective = build(Objective, run.training.objective, PAD, at=at)
    masks = run.model.embedding.options.get("mask_unwritten", False)  # a plugin's may lack it
    if masks and objective.smoothing == "all":
        raise RefusedError(
            at,
            "smooths over tokens whose log-probability is about -1e9 with "
            "model.embedding.mask_unwritten: true (padding, begin of sentence), so that the loss "
            "of every token would be larger by up to epsilon times 2e9 / V nats; choose {name: "
            "label_smoothing, form: unmasked}, set epsilon: 0, or set mask_unwritten: false",
        )
    if objective.smoothing == "unmasked" and not masks:
        raise RefusedError(
            at,
            "smooths over the tokens that the embedding does not mask, and it masks none, so that "
            "form: unmasked would be form: uniform; set model.embedding.mask_unwritten: true, or "
            "form: uniform",
        )


def _check_search(run: RunSpec) -> None:
    """Build the search, and check that it can use the decoder's attention to the source."""
    search = build(Search, run.decoding, at="decoding")
    decoder = run.model.stack("decoder")
    choice = decoder.cross_attention or decoder.attention
    attention = lookup("attention", choice.name).cls
    if search.needs_attention and getattr(attention, "has_negative_weights", False):
        raise RefusedError(
            "decoding",
            f"asks how much of its attention each source token got, and {choice.name} has negative "
            "weights; leave out coverage, or choose another attention for the decoder",
        )


def _refusals(
    run: RunSpec, of_models: dict[Hashable, RefusedError | None]
) -> Iterator[RefusedError]:
    """Yield what the parts of a run refuse; ``of_models`` caches what many rows share."""
    training = run.training
    if training.teacher is not None:
        reason = why_unreadable(Path(training.teacher))
        if reason is not None:
            yield RefusedError("training.teacher", f"{reason}: {training.teacher!r}")
    dims = run.model.dims
    model = (run.tokenizer, run.model, *plugin_parts(run).items())
    shares = (*model, training.objective, run.devices_per_run)
    optimizer, schedule = "training.optimizer", "training.schedule"
    attempts: list[tuple[str, Hashable, Callable[[], object]]] = [
        ("model", model, lambda: blueprint(run)),
        ("training.objective", None, lambda: _check_smoothing(run)),
        (optimizer, None, lambda: build(Optimizer, training.optimizer, at=optimizer)),
        (schedule, None, lambda: build(Schedule, training.schedule, dims, 1, at=schedule)),
        ("decoding", None, lambda: _check_search(run)),
        (_N_DEVICES, shares, lambda: _check_shares(run)),
    ]
    for path, key, attempt in attempts:
        refusal = of_models[key] if key in of_models else _refusal(path, attempt)
        if key is not None:
            of_models[key] = refusal
        if refusal is not None:
            yield refusal


def _refusal(path: str, attempt: Callable[[], object]) -> RefusedError | None:
    try:
        attempt()
    except RefusedError as refusal:
        return refusal
    except AblateError:
        raise
    except Exception as error:
        return RefusedError(path, f"cannot be built: {first_line_with_type(error)}")
    return None
