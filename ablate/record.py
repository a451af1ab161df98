"""The record of one run: what ``record.json`` holds, typed, and checked where it is read.

A key whose value is not known yet, or never will be, is left out: a run that failed has no scores.
Keys that a reader does not know are kept, so that a record of a later version can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, NotRequired, Required

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

SCHEMA = 2
"""The version of the keys."""

Count = Annotated[int, Field(ge=1, lt=2**31)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
FileName = Annotated[str, Field(pattern=r"^[^/\x00]{1,200}$")]
Status = Literal["done", "diverged", "oom", "failed"]


class Hardware(TypedDict, total=False):
    """The machine and the device; ``cpu_kind`` is what libraries choose their kernels by."""

    device: Literal["cpu", "cuda"]
    device_name: str
    cpu: str
    cpu_kind: str
    threads: int
    memory_gib: float


class Git(TypedDict, total=False):
    """The commit, whether the package differed from it, and a digest of the package's code."""

    commit: str | None
    is_clean: bool | None
    code: str


class Corpus(TypedDict):
    """Name, languages, digest of the content, and how many pairs were trained on."""

    name: str
    src: str
    tgt: str
    fingerprint: NotRequired[str]
    notes: NotRequired[list[str]]
    n_train: NotRequired[int]


class Tokenizer(TypedDict):
    """Digest, and the sizes of both vocabularies."""

    fingerprint: str
    n_src: int
    n_tgt: int


class PartCount(TypedDict):
    """A part by name, and its own parameters."""

    part: str
    parameters: int


class Parameters(TypedDict):
    """Parameters in all, those of embeddings and output, and those of every part."""

    total: int
    embedding: int
    by_part: NotRequired[dict[str, PartCount]]


class Training(TypedDict, total=False):
    """What training did; losses in nats per target token, seconds of wall time."""

    steps: int
    epochs: int
    batches_per_epoch: int
    target_tokens: int
    seconds: float
    final_loss: float
    final_aux_loss: float
    best_dev_nll: float
    averaged_steps: list[int]
    stopped_early: bool


class Speed(TypedDict, total=False):
    """Medians over rounds, the values of the rounds, the probe's session, and how it computed.

    ``earlier`` has the rounds of earlier sessions, in which the row took turns with others.
    """

    train_target_tokens_per_second: Rate
    decode_sentences_per_second: Rate
    rounds: dict[str, list[Rate]]
    session: str
    earlier: dict[str, dict[str, list[Rate]]]
    micro_batch_factor: Count
    engine: str


class Memory(TypedDict, total=False):
    """Peaks, in MiB."""

    train_peak_mib: float
    decode_peak_mib: float


class Plugin(TypedDict):
    """A file or package that brought parts, and the digest of its content."""

    name: str
    sha256: str


class FileContent(TypedDict):
    """The size and the digest of a file that a run has left."""

    bytes: int
    sha256: str


class Spec(TypedDict, total=False):
    """The resolved spec, as far as it is read without the code that made it."""

    corpus: dict[str, Any]
    tokenizer: dict[str, Any]
    model: dict[str, Any]
    training: dict[str, Any]
    devices_per_run: Count


class Scores(TypedDict, total=False):
    """The scores of one test set: NLL in nats per token, BLEU, chrF, shares in percent."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float
    nll: float
    perplexity: float
    bits_per_character: float
    n_sentences: int
    sentences: FileName


class Record(TypedDict, total=False):
    """One run: what was asked for, on what, and what came of it.

    ``spec`` is the whole resolved spec; ``dev`` and each of ``test`` hold scores by name (NLL in
    nats per token, perplexity, BLEU, chrF, shares in percent) with the signatures of BLEU.
    ``engine_note`` says why ``engine`` is not the one that was asked for: a part rules that out,
    or, if ``is_fallback``, it failed. ``replaced_by``: the hash of the run that was made instead.
    ``weights_of``: the hash of the run whose weights this one took, since they differ in decoding
    alone.
    ``files``: what the run left beside its record, by name.
    """

    schema: int
    hash: Required[str]
    experiment: str
    variant: str
    seed: int
    status: Required[Status]
    error: str | None
    spec: Spec
    plugins: list[Plugin]
    hardware: Hardware
    versions: dict[str, str]
    git: Git
    engine: str
    engine_note: str | None
    is_fallback: bool
    replaced_by: str
    weights_of: str
    engine_seconds: float
    micro_batching: dict[str, Any] | None
    runs_per_process: int
    started: str
    finished: str
    timings: dict[str, float]
    corpus: Corpus
    tokenizer: Tokenizer
    params: Parameters
    flops: dict[str, float]
    train: Training
    speed: Speed
    memory: Memory
    dev: dict[str, float | str | None]
    test: dict[str, Scores]
    files: dict[str, FileContent]


class Probe(Speed, Memory, total=False):
    """What is measured of a row: see `ablate.runner.probe.probe_one`."""

    n_src: Count
    n_tgt: Count
    batches_per_epoch: Count
    target_tokens_per_batch: Rate
    runs_at_once: Rate
    engine_note: str | None


class Match(TypedDict):
    """The number by which a row takes as long as its baseline; None if there is none."""

    value: Required[int | None]


def speed_sessions(speed: Mapping[str, Any] | None) -> dict[str, dict[str, list[float]]]:
    """Return the rounds of every session by its name, the earliest first."""
    if not speed or not speed.get("rounds"):
        return {}
    return {**speed.get("earlier", {}), speed.get("session", ""): speed["rounds"]}


def _reader(kind: TypeAdapter[Any], what: str) -> Callable[[object], dict[str, Any]]:
    """Return a function that returns the content of a file if it is of a kind.

    Else it raises a `ValueError` with the first key that is missing or wrong.
    """

    def read(content: Any) -> dict[str, Any]:
        try:
            kind.validate_python(content, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            is_missing = first["type"] == "missing"
            reason = "is missing" if is_missing else f"cannot be {first['input']!r:.60}"
            if expected := first.get("ctx", {}).get("expected"):
                reason += f"; it can be {expected}"
            key = ".".join(map(str, first["loc"]))
            raise ValueError(f"is not {what}: {f'{key} {reason}'.strip()}") from error
        return content

    return read


read_record = _reader(TypeAdapter(Record), "a record")
read_probe = _reader(TypeAdapter(Probe), "the result of a probe")
read_match = _reader(TypeAdapter(Match), "the result of a match")


def leaves(value: object, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value at or below ``value`` that is no mapping, with its dotted path."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, inner in value.items():
        yield from leaves(inner, f"{path}.{key}" if path else key)


def numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    """Yield every number at or below ``value``, with its dotted path; booleans are none."""
    for name, leaf in leaves(value, path):
        if isinstance(leaf, int | float) and not isinstance(leaf, bool):
            yield name, float(leaf)


def scoring(signature: str) -> str:
    """Return what a metric's signature says of how a score was computed, its version aside.

    Scores of two ways of computing them are not compared.
    """
    return "|".join(part for part in signature.split("|") if not part.startswith("version:"))
