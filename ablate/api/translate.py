"""``ablate translate``: translate text with a trained run, or with several together."""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_model
from torch import Tensor, nn

from ablate import decoding
from ablate.api.corpora import text_of_runs
from ablate.api.runs import show_run
from ablate.config import RunSpec
from ablate.config.identity import plugins_of
from ablate.config.merge import merge_schema
from ablate.config.messages import validated
from ablate.config.tree import parse, source_of
from ablate.data.sentences import Ragged
from ablate.data.tokenizer import BOS, PAD, TokenizerPair
from ablate.decoding import Search
from ablate.errors import ChangedPluginWarning, DataError, SpecError, StoreError
from ablate.measuring.attention import AttentionMap, Similarity, similarities
from ablate.model import Decodable, Ensemble, Transformer, assemble
from ablate.parts.attention import Attention
from ablate.registry import Choice, RefusedError, build, lookup
from ablate.runner import devices
from ablate.runner.check import bounded
from ablate.store import Store, verify
from ablate.training.engines import capturer_for, resolve
from ablate.wording import and_list

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

    Its ``record``, ``spec``, ``tokenizers`` and ``model``, in evaluation mode, are attributes. For
    a GPU, TF32 is switched off in this process, as it was when the run decoded its tests.

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
        if self._device.type == "cuda":
            devices.multiply_in_single_precision()
        members = [_load(name, Store(Path(results)), self._device) for name in names]
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
        """Yield the ``n_best`` best translations of every line, in order; a text is one line.

        At a prompt the user waits for each, so lines are not batched. Of a line that is longer than
        the model allows, tokens beyond are not translated; ``warn`` is called with a sentence.
        """
        rest, n_lines = iter([lines] if isinstance(lines, str) else lines), 0
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
    translator = Translator(run, device=device, results=results, n_best=n_best)
    return list(translator.translate(lines, warn=warnings.warn))


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
    folder = store.path(record["hash"])
    if (Path(run) / "record.json").is_file():  # the folder is named, or one that it replaced
        beside = Path(run).resolve().parent / record["hash"]
        folder = beside if beside.is_dir() else Path(run)
    spec = _spec(record, folder)
    _warn_of_changed_plugins(record, spec, folder)
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


def _spec(record: dict[str, Any], folder: Path) -> RunSpec:
    if "spec" not in record:
        raise StoreError(f"{folder}: its record has no spec; `ablate run` makes the run again")
    try:
        return RunSpec.model_validate(record["spec"])
    except ValidationError as error:
        tree = parse(source_of("record", json.dumps(record["spec"]).encode()), [])
        assert tree is not None
        mistake = validated(RunSpec, tree, merge_schema())[1][0]
        plugins = [plugin["name"] for plugin in record.get("plugins", [])]
        hints = [
            f"give --plugin {shlex.quote(name)}" if name.endswith(".py") else f"install {name}"
            for name in plugins
        ]
        hint = f"; {and_list(hints)}, with which it was trained" if hints else ""
        raise StoreError(f"{folder}: {mistake.path}: {mistake.reason}{hint}") from error


def _warn_of_changed_plugins(record: dict[str, Any], spec: RunSpec, folder: Path) -> None:
    present = {plugin.sha256 for plugin in plugins_of(spec).values()}
    for plugin in record.get("plugins", ()):
        name, digest = plugin["name"], plugin["sha256"]
        if digest not in present:
            warnings.warn(
                f"{folder}: was trained with {name} {digest[:12]}, and that has changed: what its "
                "weights compute now is not what was measured",
                ChangedPluginWarning,
                stacklevel=5,
            )


def _with_n_best(decoding: Choice, n_best: int) -> Choice:
    """Return the search with as many translations of every line, whatever it was tested with."""
    if "n_best" not in decoding.options:
        if n_best == 1:
            return decoding
        raise SpecError(
            f"{decoding.name} search returns one translation; --n-best needs beam search"
        )
    return lookup("decoding", decoding.name).choose({**decoding.options, "n_best": n_best})


class LoadedRun:
    """A trained run; arguments, attributes and errors are those of `Translator`."""

    def __init__(self, run: str, *, device: str = "cpu", results: Path | str = "results") -> None:
        translator = Translator(run, device=device, results=results)
        self.record, self.spec = translator.record, translator.spec
        self.model, self.tokenizers = translator.model, translator.tokenizers
        self._translator = translator

    def translate(self, lines: str | Sequence[str]) -> list[str]:
        """Return the translation of every line, by the search that the run was tested with.

        Of a line that is longer than the model allows, the first tokens are translated, with a
        warning.
        """
        return [best[0].text for best in self._translator.translate(lines, warn=warnings.warn)]

    def attention(self, source: str, target: str | None = None) -> list[AttentionMap]:
        """Return the attention weights of all sub-layers for one sentence.

        The decoder is fed the target, by default the model's own translation. SpecError if a
        sentence is longer than the model allows.
        """
        text = self.translate(source)[0] if target is None else target
        src, tgt = self.tokenizers.encode_src([source])[0], self.tokenizers.encode_tgt([text])[0]
        if max(len(src), len(tgt)) > self.model.max_len:
            raise SpecError(f"a sentence is longer than the model's {self.model.max_len} tokens")
        tgt_in = [BOS, *tgt[:-1]]
        keys, queries = self.tokenizers.src_pieces(src), self.tokenizers.tgt_pieces(tgt_in)
        tokens = {"encoder": (keys, keys), "decoder": (queries, queries), "cross": (queries, keys)}
        return [
            AttentionMap(name, weights, *tokens[name.partition(".")[0]])
            for name, weights in self._weights(src, tgt_in).items()
        ]

    def attention_parts(self) -> dict[str, str]:
        """Return the name of every attention's part, by sub-layer."""
        parts = {}
        for name, _ in self._attentions():
            kind = name.partition(".")[0]
            stack = self.spec.model.stack("encoder" if kind == "encoder" else "decoder")
            chosen = stack.cross_attention if kind == "cross" else stack.attention
            parts[name] = (chosen or stack.attention).name
        return parts

    @contextmanager
    def without_heads(self, heads: Mapping[str, Collection[int]]) -> Iterator[None]:
        """Take 0 for the outputs of some attention heads while the block lasts.

        So heads, numbers from 0 by sub-layer as in ``{"encoder.0": [1, 3]}``, are pruned after
        training. A block that several layers share loses its heads in all of them. SpecError if
        there is no such sub-layer or head.
        """
        attentions = dict(self._attentions())
        for name, numbers in heads.items():
            if name not in attentions:
                raise SpecError(f"no sub-layer is called {name!r}; known: {', '.join(attentions)}")
            n_heads = attentions[name].n_heads
            if unknown := [number for number in numbers if not 0 <= number < n_heads]:
                raise SpecError(f"{name} has no head {unknown[0]}; it has 0 to {n_heads - 1}")
        with self._translator.eagerly(), ExitStack() as stack:
            for name, numbers in heads.items():
                hook = partial(_zero_heads, sorted(numbers))
                dropout = attentions[name].head_dropout
                stack.callback(dropout.register_forward_hook(hook).remove)
            yield

    def position_similarity(self) -> list[Similarity]:
        """Return the similarity of positions by distance, of encodings that ignore the content."""
        return similarities(self.model, self.spec.model.dims)

    def _weights(self, src: Sequence[int], tgt: Sequence[int]) -> dict[str, NDArray[np.float32]]:
        """Return the weights that enter every attention's dropout, by sub-layer, (H, T, S)."""
        calls: dict[nn.Module, list[NDArray[np.float32]]] = {}

        def keep(dropout: nn.Module, args: tuple[Tensor, ...]) -> None:
            calls.setdefault(dropout, []).append(args[0][0].float().cpu().numpy())

        device, named = next(self.model.parameters()).device, self._attentions()
        with ExitStack() as stack, torch.no_grad():
            for dropout in {attention.dropout for _, attention in named}:
                stack.callback(dropout.register_forward_pre_hook(keep).remove)
            self.model(torch.tensor([src], device=device), torch.tensor([tgt], device=device))
        # A block that several layers share is called once for each of them, in their order
        return {name: calls[each.dropout].pop(0) for name, each in named if calls.get(each.dropout)}

    def _attentions(self) -> list[tuple[str, Attention]]:
        encoder, decoder = self.model.encoder, self.model.decoder
        own = [
            (f"{side}.{layer}", stack.blocks[block].attention)
            for side, stack in (("encoder", encoder), ("decoder", decoder))
            for layer, block in enumerate(stack.order)
        ]
        cross = [
            (f"cross.{layer}", decoder.blocks[block].cross_attention)
            for layer, block in enumerate(decoder.order)
        ]
        return [(name, each) for name, each in (*own, *cross) if each is not None]


def _zero_heads(numbers: list[int], _: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> Tensor:
    """Return the outputs of heads ``y`` (B, H, T, V) with 0 for some of them."""
    y = y.clone()
    y[:, numbers] = 0
    return y


def load_run(run: str, *, device: str = "cpu", results: Path | str = "results") -> LoadedRun:
    """Return a trained run, which translates and shows attention; arguments as for `LoadedRun`."""
    return LoadedRun(run, device=device, results=results)
