"""The specification of one run, as frozen data in one canonical form.

Two spellings of one run are equal. The choices of one stack add to those that both stacks share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import (
    BeforeValidator,
    Field,
    GetCoreSchemaHandler,
    ModelWrapValidatorHandler,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError, core_schema

from ablate.config.inheritance import SIDES, Steps, paths_in_model
from ablate.parts.dims import Dims, Dropout, Side
from ablate.registry import AddedOption, Choice, FilePaths, Frozen, lookup, tupled


@dataclass(frozen=True)
class PartField:
    """Marks a field as the choice of a part of a slot; reads ``learned`` as ``{name: learned}``.

    A choice without a name is of the part ``default``.
    """

    name: str
    default: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))

    def check(self, value: object) -> Choice:
        """Return the choice, with every option filled in; an error of pydantic's if it is wrong."""
        choice = as_mapping(value)
        if not isinstance(choice, Mapping):
            raise PydanticCustomError("choice_type", "needs a name or a mapping with a name")
        options = {key: tupled(option) for key, option in choice.items() if key != "name"}
        name = choice.get("name", self.default)
        if not isinstance(name, str):
            raise PydanticCustomError("choice_name", "needs the name of a part")
        try:
            entry = lookup(self.name, name)
        except ValueError as error:
            raise PydanticCustomError("unknown_part", "{reason}", {"reason": str(error)}) from error
        return entry.choose(options)


@dataclass(frozen=True)
class PerSide:
    """Marks a field in which one number stands for both stacks."""


class OneOf(Frozen):
    """A mapping with one of a few alternative keys; the first has a default if none is given."""

    alternatives: ClassVar[tuple[str, ...]]
    default: ClassVar[int]

    @model_validator(mode="before")
    @classmethod
    def _only_one(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        refuse_null(data, cls.alternatives)
        present = [key for key in data if key in cls.alternatives]
        if len(present) > 1:
            raise PydanticCustomError(
                "alternatives",
                "'{first}' and '{second}' exclude each other; keep one",
                {"first": present[0], "second": present[1]},
            )
        return data if present else {**data, cls.alternatives[0]: cls.default}

    @model_serializer(mode="wrap")
    def _without_others(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_none(handler(self), self.alternatives)


class Layers(Frozen):
    """Layers in each stack, where they differ."""

    encoder: PositiveInt
    decoder: PositiveInt


N_LAYERS = 6
DIMS = {"d_model": 512, "n_heads": 8, "max_len": 256}
"""The base model of Vaswani et al. 2017, table 3."""


def _layers(data: object) -> object:
    if isinstance(data, Mapping):
        layers = Layers.model_validate({**dict.fromkeys(SIDES, N_LAYERS), **data})
        return layers.encoder if layers.encoder == layers.decoder else layers
    return data


def _dims(data: object) -> object:
    refuse_null(data, Dims.model_fields)
    return {**DIMS, **data} if isinstance(data, Mapping) else data


PositionChoice = Annotated[Choice, PartField("position", "sinusoidal")]
AttentionChoice = Annotated[Choice, PartField("attention", "full")]
MaskChoice = Annotated[Choice, PartField("mask", "causal")]
SharingChoice = Annotated[Choice, PartField("sharing", "none")]
ScalingChoice = Annotated[Choice, PartField("scaling", "sqrt_dk")]
NormChoice = Annotated[Choice, PartField("norm", "layer")]
ResidualChoice = Annotated[Choice, PartField("residual", "post")]
FeedForwardChoice = Annotated[Choice, PartField("feed_forward", "relu")]


class StackChoices(Frozen):
    """The choices that both stacks make."""

    position: PositionChoice
    mask: MaskChoice
    attention: AttentionChoice
    scaling: ScalingChoice
    norm: NormChoice
    residual: ResidualChoice
    feed_forward: FeedForwardChoice
    sharing: SharingChoice
    dropout: Dropout


class StackDifference(Frozen):
    """The choices of one stack alone; None is inherited."""

    position: PositionChoice | None = None
    mask: MaskChoice | None = None
    attention: AttentionChoice | None = None
    scaling: ScalingChoice | None = None
    norm: NormChoice | None = None
    residual: ResidualChoice | None = None
    feed_forward: FeedForwardChoice | None = None
    sharing: SharingChoice | None = None
    dropout: Dropout | None = None

    @model_validator(mode="before")
    @classmethod
    def _no_null(cls, data: object) -> object:
        refuse_null(data, cls.model_fields)
        return data

    @model_serializer(mode="wrap")
    def _without_inherited(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_none(handler(self), type(self).model_fields)


class DecoderDifference(StackDifference):
    """The choices of the decoder alone."""

    cross_attention: AttentionChoice | None = None


class StackSpec(StackChoices):
    """One stack with all its choices, inherited ones included."""

    n_layers: PositiveInt
    cross_attention: AttentionChoice | None = None


class ModelSpec(StackChoices):
    """One Transformer.

    In canonical form the shared choices are those of the encoder, ``encoder`` is None, and
    ``decoder`` holds what differs, if anything does.

    Attributes:
        dims: sizes that parts share.
        n_layers: in each stack.
        encoder: choices of the encoder alone.
        decoder: choices of the decoder alone.
    """

    dims: Annotated[Dims, BeforeValidator(_dims)]
    n_layers: Annotated[PositiveInt | Layers, BeforeValidator(_layers), PerSide()]
    embedding: Annotated[Choice, PartField("embedding", "tied")]
    initialisation: Annotated[Choice, PartField("initialisation", "xavier")]
    encoder: StackDifference | None = None
    decoder: DecoderDifference | None = None

    def stack(self, side: Side) -> StackSpec:
        """Return one stack with all its choices, inherited ones included."""
        keys = (StackDifference if side == "encoder" else DecoderDifference).model_fields
        layers, own = self.n_layers, dict(self)
        n_layers = layers if isinstance(layers, int) else getattr(layers, side)
        choices: dict[str, Any] = {}
        for key in keys:
            values = (_follow(own, path) for path in paths_in_model(side, key))
            choices[key] = next(value for value in values if value is not None)
        return StackSpec.model_construct(n_layers=n_layers, **choices)  # validated as our fields

    @model_validator(mode="wrap")
    @classmethod
    def _canonical(cls, data: object, handler: ModelWrapValidatorHandler[ModelSpec]) -> ModelSpec:
        model = handler(_with_inherited_options(data))
        encoder, decoder = model.stack("encoder"), model.stack("decoder")
        shared = {key: getattr(encoder, key) for key in StackDifference.model_fields}
        differs = {key: v for key in shared if (v := getattr(decoder, key)) != shared[key]}
        if decoder.cross_attention != decoder.attention:
            differs["cross_attention"] = decoder.cross_attention
        own = DecoderDifference(**differs) if differs else None
        return model.model_copy(update={**shared, "encoder": None, "decoder": own})

    @model_serializer(mode="wrap")
    def _without_empty(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_none(handler(self), SIDES)


class Average(OneOf):
    """How the tested weights are averaged.

    Attributes:
        last: over this many snapshots, the last ones.
        best: over this many snapshots, those with the best dev NLL.
        ema: over all steps; the share of a step falls by this factor with every later one.
    """

    alternatives = ("last", "best", "ema")
    default = 1

    last: PositiveInt | None = None
    best: PositiveInt | None = None
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None


BatchBy = Literal["target", "source", "bucket"]


class TrainingSpec(OneOf):
    """How a model is trained.

    Attributes:
        steps: optimizer steps; alternatively ``epochs`` or ``target_tokens``.
        epochs: passes over the training text, rounded down to whole steps, but at least one.
        target_tokens: target tokens of all batches, without padding, rounded up to whole steps.
        batch_tokens: target tokens of one batch, with padding, at most.
        batch_by: what the pairs of a batch have in common: nearly the lengths of their ``target``
            sides, with the least padding; those of their ``source`` sides, and among these of
            their targets (fairseq's order); or a ``bucket``: neither side is longer than its bound,
            8, 12, 16, 20, 24, 32, 40, 56 or the next, and in it pairs are drawn at random.
        accumulate: batches per step.
        loss_per: the divisor of a step's summed loss before its gradient is taken.
        decay: what the weight decay of the optimizer acts on: ``all`` parameters, or the
            ``matrices`` of the stacks, which spares norms, biases, tables and the output layer.
        teacher: a file of translations of the training text, line by line, to be trained on in
            place of its targets (Kim & Rush 2016, arXiv:1606.07947, sec. 3.2: sequence-level
            distillation, with a teacher's beam search). The tokenizers stay those of the corpus.
        clip: largest norm of the gradient of all parameters.
        average: of the snapshots that every evaluation takes.
        evaluate_every: steps between evaluations on dev, or once every epoch.
        patience: evaluations without a better one before training stops early.
        diverged_above: the run ends at a loss of this many times ln V, or the first loss.
        precision: of training; ``auto`` is bf16 where the device multiplies in it.
    """

    alternatives = ("steps", "epochs", "target_tokens")
    default = 100_000

    steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    target_tokens: PositiveInt | None = None
    batch_tokens: PositiveInt = 4096
    batch_by: Annotated[BatchBy, AddedOption("target")] = "target"
    accumulate: PositiveInt = 1
    objective: Annotated[Choice, PartField("objective", "label_smoothing")]
    optimizer: Annotated[Choice, PartField("optimizer", "adam")]
    schedule: Annotated[Choice, PartField("schedule", "noam")]
    loss_per: Literal["token", "sentence"] = "token"
    decay: Annotated[Literal["all", "matrices"], AddedOption("all")] = "all"
    teacher: Annotated[str | None, AddedOption(None), FilePaths()] = None
    clip: PositiveFloat | None = None
    average: Average
    evaluate_every: PositiveInt | Literal["epoch"] = "epoch"
    patience: PositiveInt | None = None
    diverged_above: PositiveFloat = 2.0
    precision: Literal["auto", "fp32", "bf16"] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: object) -> object:
        return _complete(data, "objective", "optimizer", "schedule", "average")


class RunSpec(Frozen):
    """Everything that determines one run, complete in itself.

    Attributes:
        devices_per_run: devices that train the run together, each a part of every batch. Their
            number is part of the run's identity, since each draws dropout of its own.
    """

    corpus: Annotated[Choice, PartField("corpus", "synthetic")]
    tokenizer: Annotated[Choice, PartField("tokenizer", "bpe")]
    model: ModelSpec
    training: TrainingSpec
    decoding: Annotated[Choice, PartField("decoding", "beam")]
    seed: NonNegativeInt = 1
    devices_per_run: Annotated[PositiveInt, AddedOption(1)] = 1

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: object) -> object:
        return _complete(data, "corpus", "tokenizer", "model", "training", "decoding")


def as_mapping(value: object) -> object:
    """Return a choice as a mapping; any other value as it is."""
    if isinstance(value, Choice):
        return {"name": value.name, **value.options}
    return {"name": value} if isinstance(value, str) else value


def slot_of(info: FieldInfo) -> PartField | None:
    """Return the slot whose parts a field chooses from; None if it is no choice."""
    kinds = [*info.metadata, *(m for arg in get_args(info.annotation) for m in get_args(arg)[1:])]
    return next((kind for kind in kinds if isinstance(kind, PartField)), None)


def _with_inherited_options(data: object) -> object:
    """Return a model in which the choices of a stack have the options that they inherit."""
    if not isinstance(data, Mapping):
        return data
    refuse_null(data, SIDES)
    named = [key for key, info in ModelSpec.model_fields.items() if slot_of(info)]
    model = dict(_complete(data, "dims", "n_layers", "dropout", *named))
    for side in SIDES:
        if isinstance(own := model.get(side), Mapping):
            model[side] = {key: _with_options(model, side, key) for key in own}
    return model


def _with_options(model: Mapping[str, Any], side: Side, key: str) -> object:
    """Return a choice of a stack with the options that it leaves out, if the part is the same."""
    info = DecoderDifference.model_fields.get(key)
    slot = slot_of(info) if info else None
    paths = paths_in_model(side, key)
    value: object = None
    for path in reversed(paths):
        own = as_mapping(_follow(model, path))
        if own is None and path != paths[0]:
            continue
        if isinstance(value, Mapping) and isinstance(own, Mapping):
            name = value.get("name", slot.default if slot else None)
            own = {**value, **own} if own.get("name", name) == name else own
        value = own
    return value


def _follow(node: Any, path: Steps) -> Any:
    """Return the value at ``path``; None if there is none."""
    for step in path:
        node = node.get(step) if isinstance(node, Mapping) else getattr(node, str(step), None)
    return node


def refuse_null(data: object, keys: Iterable[str]) -> None:
    """Refuse a mapping in which one of ``keys`` is null."""
    for key in keys:
        if isinstance(data, Mapping) and key in data and data[key] is None:
            raise PydanticCustomError("null", "needs a value, or to be left out", {"key": key})


def _without_none(data: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None or key not in keys}


def _complete(data: Any, *keys: str) -> Any:
    return {**{key: {} for key in keys}, **data} if isinstance(data, Mapping) else data
