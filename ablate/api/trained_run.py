"""A trained run in Python: its model, its tokenizers, its translations and its attention.

H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ablate.api.translate import Translator
from ablate.data.tokenizer import BOS
from ablate.errors import SpecError
from ablate.measuring.attention import AttentionMap, Similarity, similarities
from ablate.parts.attention import Attention


class LoadedRun:
    """A trained run; arguments, attributes and errors are those of `Translator`."""

    def __init__(self, run: str, *, device: str = "cpu", results: Path | str = "results") -> None:
        translator = Translator(run, device=device, results=results)
        self.record, self.spec = translator.record, translator.spec
        self.model, self.tokenizers = translator.model, translator.tokenizers
        self._translator = translator

    def translate(self, lines: str | Sequence[str]) -> list[str]:
        """Return the translation of every line, by the search that the run was tested with."""
        sources = [lines] if isinstance(lines, str) else lines
        return [best[0].text for best in self._translator.translate(sources)]

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
            side, cross = ("decoder", "cross") if name.startswith("cross") else (name[:7], "")
            stack = self.spec.model.stack("encoder" if side == "encoder" else "decoder")
            chosen = stack.cross_attention if cross else stack.attention
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
