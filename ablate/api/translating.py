"""``ablate translate``: a trained run put to use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from safetensors.torch import load_model

from ablate.config import RunSpec
from ablate.data.batches import Ragged
from ablate.data.tokenizer import PAD, TokenizerPair
from ablate.decoding import Search, translate
from ablate.errors import SpecError, StoreError
from ablate.model import assemble
from ablate.registry import Choice, build, lookup
from ablate.runner import devices
from ablate.store import Store
from ablate.training.engines import resolve

_N_LINES = 256
"""Translated together, where nobody waits for the first."""


class Translator:
    """A trained run, ready to translate.

    Args:
        run: the first characters of its hash, or its folder.
        device: ``cpu``, ``cuda`` or ``cuda:0``.
        results: the folder of results.
        n_best: translations of every sentence.

    Raises:
        SpecError: if the run's search cannot return so many.
        StoreError: if there is no such run, or it left no model.
        DeviceError: if the machine lacks the device.
    """

    def __init__(
        self, run: str, *, device: str = "cpu", results: Path | str = "results", n_best: int = 1
    ) -> None:
        store = Store(Path(results))
        record = store.find(run)
        folder = Path(run) if Path(run).is_dir() else store.path(record["hash"])
        self._spec = _spec(record, folder)
        self._device = torch.device(str(devices.find(device)[0]))
        try:
            text = (folder / "tokenizer.json").read_text(encoding="utf-8")
            self._codec = TokenizerPair.from_json(text)
            model = assemble(self._spec.model, self._codec.vocabulary, PAD)
            load_model(model, folder / "model.safetensors")
        except FileNotFoundError as error:
            raise StoreError(f"{folder}: this run left no model ({error})") from error
        self._model = model.to(self._device).eval()
        self._search = build(Search, _choice(self._spec.decoding, n_best), at="decoding")

    def translate(self, lines: Iterable[str], *, is_prompt: bool = False) -> Iterator[list[str]]:
        """Yield the best translations of every line, in order.

        Args:
            lines: source sentences, with or without line ends.
            is_prompt: whether somebody waits for every single translation.
        """
        rest = iter(lines)
        while some := list(islice(rest, 1 if is_prompt else _N_LINES)):
            yield from self._batch([line.strip() for line in some])

    def _batch(self, lines: list[str]) -> Iterator[list[str]]:
        max_len = self._spec.model.dims.max_len
        sources = Ragged.of(self._codec.encode_src(lines)).cut(max_len)
        found = translate(
            self._model,
            self._search,
            sources,
            self._spec.training.batch_tokens,
            self._device,
            resolve("auto", self._device.type),
        )
        for line, hypotheses in zip(lines, found, strict=True):
            texts = [self._codec.decode_tgt(hypothesis.tokens) for hypothesis in hypotheses]
            yield texts if line else [""]


def _spec(record: dict[str, Any], folder: Path) -> RunSpec:
    try:
        return RunSpec.model_validate(record["spec"])
    except ValidationError as error:
        named = "".join(f" --plugin {plugin['name']}" for plugin in record.get("plugins", []))
        hint = f"; it was trained with{named}" if named else ""
        raise StoreError(f"{folder}: {error.errors()[0]['msg']}{hint}") from error


def _choice(decoding: Choice, n_best: int) -> Choice:
    if n_best == 1:
        return decoding
    if "n_best" not in decoding.options:
        raise SpecError(f"{decoding.name} search finds one translation; --n-best needs beam search")
    return lookup("decoding", decoding.name).choose({**decoding.options, "n_best": n_best})
