"""What one run is, as frozen data.

Every model fills in what is not said and brings itself into one canonical form, so that two
spellings of one run are one value. What is said of a stack is said on top of what both share.
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

from ablate.parts.dims import Dims, Dropout, Side
from ablate.registry import Choice, Frozen, lookup

SIDES: tuple[Side, Side] = ("encoder", "decoder")


@dataclass(frozen=True)
class PartField:
    """Marks a field as the choice of a part; reads ``learned`` as ``{name: learned}``.

    Attributes:
        name: the registry's slot.
        default: the part that is meant where none is named.
    """

    name: str
    default: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_before_validator_function(self.check, handler(source))

    def check(self, value: object) -> Choice:
        """Return the choice, with every option filled in.

        Raises:
            ValueError: if there is no such part, or its options are wrong.
        """
        given = normalize(value)
        if not isinstance(given, Mapping):
            raise PydanticCustomError("choice_type", "needs a name or a mapping with a name")
        options = {key: tupled(option) for key, option in given.items() if key != "name"}
        name = given.get("name", self.default)
        if not isinstance(name, str):
            raise PydanticCustomError("choice_name", "needs the name of a part")
        try:
            entry = lookup(self.name, name)
        except ValueError as error:
            raise PydanticCustomError("unknown_part", "{reason}", {"reason": str(error)}) from error
        return entry.choose(options)


@dataclass(frozen=True)
class PerSide:
    """Marks a field whose one number stands for both stacks."""


class OneOf(Frozen):
    """A mapping in which exactly one of a few keys is said.

    Attributes:
        rivals: those keys, with the value of the first where none is said.
    """

    rivals: ClassVar[tuple[str, ...]]
    unsaid: ClassVar[int]

    @model_validator(mode="before")
    @classmethod
    def _only_one(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        _refuse_null(given, cls.rivals)
        said = [key for key in given if key in cls.rivals]
        if len(said) > 1:
            raise PydanticCustomError(
                "rivals",
                "'{first}' and '{second}' exclude each other; keep one",
                {"first": said[0], "second": said[1]},
            )
        return given if said else {**given, cls.rivals[0]: cls.unsaid}

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_none(handler(self), self.rivals)


class Layers(Frozen):
    """Layers in each stack, where they differ."""

    encoder: PositiveInt
    decoder: PositiveInt


N_LAYERS = 6
DIMS = {"d_model": 512, "n_heads": 8, "max_len": 256}
"""The base model of Vaswani et al. 2017, table 3."""


def _layers(given: object) -> object:
    if isinstance(given, Mapping):
        layers = Layers.model_validate({**dict.fromkeys(SIDES, N_LAYERS), **given})
        return layers.encoder if layers.encoder == layers.decoder else layers
    return given


def _dims(given: object) -> object:
    _refuse_null(given, Dims.model_fields)
    return {**DIMS, **given} if isinstance(given, Mapping) else given


PositionChoice = Annotated[Choice, PartField("position", "sinusoidal")]
AttentionChoice = Annotated[Choice, PartField("attention", "full")]
MaskChoice = Annotated[Choice, PartField("mask", "causal")]
SharingChoice = Annotated[Choice, PartField("sharing", "none")]
ScalingChoice = Annotated[Choice, PartField("scaling", "sqrt_dk")]
NormChoice = Annotated[Choice, PartField("norm", "layer")]
ResidualChoice = Annotated[Choice, PartField("residual", "post")]
FeedForwardChoice = Annotated[Choice, PartField("feed_forward", "relu")]


class StackDifference(Frozen):
    """What one stack has of its own; None is what both share."""

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
    def _no_null(cls, given: object) -> object:
        _refuse_null(given, cls.model_fields)
        return given

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_none(handler(self), type(self).model_fields)

    def said(self) -> dict[str, Any]:
        """Return what is not None, by name."""
        return _without_none(dict(self), type(self).model_fields)


class DecoderDifference(StackDifference):
    """What the decoder has of its own; its cross-attention is like its attention unless said."""

    cross_attention: AttentionChoice | None = None


class StackSpec(Frozen):
    """One stack, whole."""

    n_layers: PositiveInt
    position: PositionChoice
    mask: MaskChoice
    attention: AttentionChoice
    cross_attention: AttentionChoice | None = None
    scaling: ScalingChoice
    norm: NormChoice
    residual: ResidualChoice
    feed_forward: FeedForwardChoice
    sharing: SharingChoice
    dropout: Dropout


class ModelSpec(Frozen):
    """One Transformer.

    In canonical form the shared choices are those of the encoder, ``encoder`` is None, and
    ``decoder`` holds what differs, if anything does.

    Attributes:
        dims: sizes that parts share.
        n_layers: in each stack.
        encoder: what only the encoder has.
        decoder: what only the decoder has.
    """

    dims: Annotated[Dims, BeforeValidator(_dims)]
    n_layers: Annotated[PositiveInt | Layers, BeforeValidator(_layers), PerSide()]
    position: PositionChoice
    mask: MaskChoice
    attention: AttentionChoice
    scaling: ScalingChoice
    norm: NormChoice
    residual: ResidualChoice
    feed_forward: FeedForwardChoice
    sharing: SharingChoice
    embedding: Annotated[Choice, PartField("embedding", "tied")]
    initialisation: Annotated[Choice, PartField("initialisation", "xavier")]
    dropout: Dropout
    encoder: StackDifference | None = None
    decoder: DecoderDifference | None = None

    def stack(self, side: Side) -> StackSpec:
        """Return one stack, whole, with what it shares and what it has of its own."""
        own = getattr(self, side)
        shared = {key: getattr(self, key) for key in StackDifference.model_fields}
        said = {**shared, **(own.said() if own else {})}
        if side == "decoder":
            said.setdefault("cross_attention", said["attention"])
        layers = self.n_layers
        n_layers = layers if isinstance(layers, int) else getattr(layers, side)
        return StackSpec(n_layers=n_layers, **said)

    @model_validator(mode="wrap")
    @classmethod
    def _canonical(cls, given: object, handler: ModelWrapValidatorHandler[ModelSpec]) -> ModelSpec:
        model = handler(_unfolded(given))
        encoder, decoder = model.stack("encoder"), model.stack("decoder")
        shared = {key: getattr(encoder, key) for key in StackDifference.model_fields}
        differs = {key: getattr(decoder, key) for key in shared}
        differs = {key: value for key, value in differs.items() if value != shared[key]}
        if decoder.cross_attention != decoder.attention:
            differs["cross_attention"] = decoder.cross_attention
        own = DecoderDifference(**differs) if differs else None
        return model.model_copy(update={**shared, "encoder": None, "decoder": own})

    @model_serializer(mode="wrap")
    def _said(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_none(handler(self), SIDES)


class Average(OneOf):
    """What the tested weights are the mean of.

    Attributes:
        last: so many snapshots, the last ones.
        best: so many snapshots, those with the best dev NLL.
        ema: of all steps; the share of a step falls by this factor with every later one.
    """

    rivals = ("last", "best", "ema")
    unsaid = 1

    last: PositiveInt | None = None
    best: PositiveInt | None = None
    ema: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None


class TrainingSpec(OneOf):
    """How a model is trained.

    Attributes:
        steps: optimizer steps; or say ``epochs``, or ``target_tokens``.
        epochs: passes over the training text.
        target_tokens: that were trained on, padding not counted.
        batch_tokens: target tokens of one batch, padding counted, at most.
        accumulate: batches per step.
        loss_per: what the summed loss of a step is divided by before its gradient is taken.
        clip: largest norm of the gradient of all parameters.
        average: of the snapshots that every evaluation takes.
        evaluate_every: steps between evaluations on dev, or once every epoch.
        patience: evaluations without a better one before training stops early.
        diverged_above: a loss of so many times ln V, or of the first loss, ends the run.
        precision: of training; ``auto`` is bf16 where the device multiplies in it.
    """

    rivals = ("steps", "epochs", "target_tokens")
    unsaid = 100_000

    steps: PositiveInt | None = None
    epochs: PositiveInt | None = None
    target_tokens: PositiveInt | None = None
    batch_tokens: PositiveInt = 4096
    accumulate: PositiveInt = 1
    objective: Annotated[Choice, PartField("objective", "label_smoothing")]
    optimizer: Annotated[Choice, PartField("optimizer", "adam")]
    schedule: Annotated[Choice, PartField("schedule", "noam")]
    loss_per: Literal["token", "sentence"] = "token"
    clip: PositiveFloat | None = None
    average: Average
    evaluate_every: PositiveInt | Literal["epoch"] = "epoch"
    patience: PositiveInt | None = None
    diverged_above: PositiveFloat = 2.0
    precision: Literal["auto", "fp32", "bf16"] = "auto"

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: object) -> object:
        return _complete(given, "objective", "optimizer", "schedule", "average")


class RunSpec(Frozen):
    """Everything that determines one run, complete in itself."""

    corpus: Annotated[Choice, PartField("corpus", "synthetic")]
    tokenizer: Annotated[Choice, PartField("tokenizer", "bpe")]
    model: ModelSpec
    training: TrainingSpec
    decoding: Annotated[Choice, PartField("decoding", "beam")]
    seed: NonNegativeInt = 1

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: object) -> object:
        return _complete(given, "corpus", "tokenizer", "model", "training", "decoding")


def normalize(value: object) -> object:
    """Return a choice as the mapping it stands for; what is not a choice as it is."""
    if isinstance(value, Choice):
        return {"name": value.name, **value.options}
    return {"name": value} if isinstance(value, str) else value


def tupled(value: Any) -> Any:
    """Return ``value`` with every list in it as a tuple, which strict fields ask for."""
    if isinstance(value, Mapping):
        return {key: tupled(item) for key, item in value.items()}
    return tuple(tupled(item) for item in value) if isinstance(value, list | tuple) else value


def slot_of(info: FieldInfo) -> PartField | None:
    """Return which slot a field is the choice of."""
    kinds = [*info.metadata, *(m for arg in get_args(info.annotation) for m in get_args(arg)[1:])]
    return next((kind for kind in kinds if isinstance(kind, PartField)), None)


def _unfolded(given: object) -> object:
    """Return a model in which what a stack says of its own stands on top of what both share."""
    if not isinstance(given, Mapping):
        return given
    _refuse_null(given, SIDES)
    slots = {key: slot_of(info) for key, info in ModelSpec.model_fields.items()}
    named = [key for key, slot in slots.items() if slot]
    whole = dict(_complete(given, "dims", "n_layers", "dropout", *named))
    for side in SIDES:
        own = whole.get(side)
        if not isinstance(own, Mapping):
            continue
        full = {
            key: _merge_choice(slots.get(key), whole.get(key), value) for key, value in own.items()
        }
        if "cross_attention" in own:
            attention = full.get("attention", whole["attention"])
            full["cross_attention"] = _merge_choice(
                slots["attention"], attention, own["cross_attention"]
            )
        whole[side] = full
    return whole


def _merge_choice(slot: PartField | None, shared: object, own: object) -> object:
    """Return ``own`` with what it leaves to ``shared``: the options of a part of the same name."""
    shared, own = normalize(shared), normalize(own)
    if not (isinstance(shared, Mapping) and isinstance(own, Mapping)):
        return own
    name = shared.get("name", slot.default if slot else None)
    return {**shared, **own} if own.get("name", name) == name else own


def _refuse_null(given: object, keys: Iterable[str]) -> None:
    for key in keys:
        if isinstance(given, Mapping) and key in given and given[key] is None:
            raise PydanticCustomError("null", "needs a value, or to be left out", {"key": key})


def _without_none(data: dict[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None or key not in keys}


def _complete(given: Any, *keys: str) -> Any:
    return {**{key: {} for key in keys}, **given} if isinstance(given, Mapping) else given
