"""``ablate translate``: translate text with a trained run, or with several together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_model

from ablate import decoding
from ablate.api.corpora import text_of_runs
from ablate.api.runs import show_run
from ablate.config import RunSpec
from ablate.config.merge import merge_schema
from ablate.config.messages import validated
from ablate.config.source import parse, source_of
from ablate.data.ragged import Ragged
from ablate.data.tokenizer import PAD, TokenizerPair
from ablate.decoding import Search
from ablate.errors import DataError, SpecError, StoreError
from ablate.model import Decodable, Ensemble, Transformer, assemble
from ablate.registry import Choice, RefusedError, build, lookup
from ablate.runner import devices
from ablate.runner.check import bounded
from ablate.store import Store, verify
from ablate.training.engines import capturer_for, resolve

_BATCH = 256
"""Lines translated together, unless the user waits for each."""


@dataclass(frozen=True)
class Translation:
    """One translation of a line."""

    text: str  # without special tokens
    score: float  # the value that the search ranks by; 0 for an empty line


@dataclass(frozen=True)
class _TrainedRun:
    """The stored files of a run, loaded."""

    record: dict[str, Any]
    spec: RunSpec
    tokenizers: TokenizerPair
    model: Transformer


class Translator:
    """A trained run, or an ensemble of several, ready to translate.

    Args:
        run: ``experiment:row:seed``, the first characters of its hash, or its folder; of several,
            the probabilities are averaged at every token, and all else is that of the first.
        device: ``cpu``, ``cuda`` or ``cuda:0``.
        results: the folder of results.
        n_best: translations of every line.

    Its ``record``, ``spec``, ``tokenizers`` and ``model``, in evaluation mode, are attributes.

    Raises:
        SpecError: if the search cannot return so many, or the runs' tokenizers differ.
        StoreError: if there is no such run, or it left no model.
        DeviceError: if the machine lacks the device.
    """

    def __init__(
        self,
        run: str | Sequence[str],
        *,
        device: str = "cpu",
        results: Path | str = "results",
        n_best: int = 1,
    ) -> None:
        names = [run] if isinstance(run, str) else list(run)
        self._device = torch.device(str(devices.find(device)[0]))
        members, errors = [], []
        for name in names:
            try:
                members.append(_load(name, Store(Path(results)), self._device))
            except StoreError as error:
                errors.append(error)
        if errors:
            raise StoreError("\n".join(map(str, errors))) from errors[0]
        first = members[0]
        for name, member in zip(names, members, strict=True):
            if member.tokenizers.fingerprint != first.tokenizers.fingerprint:
                raise SpecError(
                    f"{name} has another tokenizer than {names[0]}: an ensemble averages the "
                    "probabilities of the same tokens; name runs of one corpus and tokenizer"
                )
        self.record, self.spec = first.record, first.spec
        self.tokenizers, self.model = first.tokenizers, first.model
        models = [member.model for member in members]
        self._model: Decodable = Ensemble(models).eval() if len(models) > 1 else self.model
        self._n_best = n_best
        engine = resolve("auto", self._device.type)
        is_captured = all(capturer_for(engine, model, self._device) for model in models[1:])
        self._capturer = capturer_for(engine, first.model, self._device) if is_captured else None
        self._search = build(Search, _with_n_best(self.spec.decoding, n_best), at="decoding")

    def training_sources(self) -> Sequence[str]:
        """Return the source side of the training text, whose translations a teacher makes."""
        return text_of_runs(self.spec.corpus, [self.record]).train.src

    def translate(
        self,
        lines: Iterable[str],
        *,
        is_prompt: bool = False,
        warn: Callable[[str], None] = lambda _: None,
    ) -> Iterator[list[Translation]]:
        """Yield the ``n_best`` best translations of every line, in order.

        At a prompt the user waits for each, so lines are not batched. Of a line that is longer than
        the model allows, tokens beyond are not translated; ``warn`` is called with a sentence.
        """
        rest, n_lines = iter(lines), 0
        max_len, decode = self._model.max_len, self.tokenizers.decode_tgt
        while batch := [line.strip() for line in islice(rest, 1 if is_prompt else _BATCH)]:
            sources = Ragged.of(self.tokenizers.encode_src(batch))
            for number, length in enumerate(sources.lengths, start=n_lines + 1):
                if length > max_len:
                    warn(
                        f"line {number} has {length - 1:,} tokens; only the first {max_len - 1:,} "
                        f"are translated, because model.dims.max_len is {max_len}"
                    )
            n_best = decoding.translate(
                self._model,
                self._search,
                sources.cut(max_len),
                self.spec.training.batch_tokens,
                self._device,
                self._capturer,
            )
            for line, hypotheses in zip(batch, n_best, strict=True):
                best = [Translation(decode(each.tokens), each.score) for each in hypotheses]
                yield best if line else [Translation("", 0.0)] * self._n_best
            n_lines += len(batch)

    @contextmanager
    def eagerly(self) -> Iterator[None]:
        """Search without captured graphs while the block lasts, so that hooks are called."""
        capturer, self._capturer = self._capturer, None
        try:
            yield
        finally:
            self._capturer = capturer


def translate(
    run: str | Sequence[str],
    lines: Iterable[str],
    *,
    device: str = "cpu",
    results: Path | str = "results",
    n_best: int = 1,
) -> list[list[Translation]]:
    """Return the ``n_best`` best translations of every line, as `Translator` makes them."""
    return list(Translator(run, device=device, results=results, n_best=n_best).translate(lines))


def decoded(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the text of ``lines`` in UTF-8 of a file; DataError at the first that is not valid."""
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name}, line {number}, byte {error.start + 1}: is not valid UTF-8; convert the "
                "text, as with `iconv -f LATIN1 -t UTF-8`"
            ) from error


def _load(run: str, store: Store, device: torch.device) -> _TrainedRun:
    record = show_run(run, results=store.results)
    folder = _folder_of(run, record["hash"], store)
    spec = _spec(record, folder)
    try:
        for name in ("tokenizer.json", "model.safetensors"):
            verify(folder / name, record)
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        tokenizers = TokenizerPair.from_json(text)
        with bounded(spec):
            model = assemble(spec.model, tokenizers.vocabulary, PAD)
        load_model(model, folder / "model.safetensors")
    except FileNotFoundError as error:
        reason = f"its status is {record['status']}, {record.get('error') or ''}".rstrip(", ")
        if record["status"] == "done":
            reason = (
                "it is done, but its weights are not here; archives hold them with `--content "
                "weights`, and `ablate run --fresh` trains it again"
            )
        raise StoreError(f"{folder}: this run left no model: {reason}") from error
    except (SafetensorError, ValueError, RuntimeError, RefusedError) as error:
        # of a record without digests
        raise StoreError(f"{folder}: its model cannot be read: {error}") from error
    return _TrainedRun(record, spec, tokenizers, model.to(device).eval())


def _folder_of(run: str, key: str, store: Store) -> Path:
    """Return the folder of the run ``key``, which was found by a name or a folder.

    The folder may also be that of a run that it replaced.
    """
    if not (Path(run) / "record.json").is_file():
        return store.path(key)
    beside = Path(run).resolve().parent / key
    return beside if beside.is_dir() else Path(run)


def _spec(record: dict[str, Any], folder: Path) -> RunSpec:
    if "spec" not in record:
        raise StoreError(f"{folder}: its record has no spec; `ablate run` makes the run again")
    try:
        return RunSpec.model_validate(record["spec"])
    except ValidationError as error:
        tree = parse(source_of("record", json.dumps(record["spec"]).encode()), [])
        assert tree is not None
        mistake = validated(RunSpec, tree, merge_schema())[1][0]
        plugins = "".join(f" --plugin {plugin['name']}" for plugin in record.get("plugins", []))
        hint = f"; it was trained with{plugins}" if plugins else ""
        raise StoreError(f"{folder}: {mistake.path}: {mistake.reason}{hint}") from error


def _with_n_best(decoding: Choice, n_best: int) -> Choice:
    """Return the search with as many translations of every line, whatever it was tested with."""
    if "n_best" not in decoding.options:
        if n_best == 1:
            return decoding
        raise SpecError(
            f"{decoding.name} search returns one translation; --n-best needs beam search"
        )
    return lookup("decoding", decoding.name).choose({**decoding.options, "n_best": n_best})
