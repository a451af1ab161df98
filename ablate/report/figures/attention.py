"""Attention weights as heat maps, and what position encodings make of distance."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from ablate.measuring.attention import AttentionMap, Similarity
from ablate.report.figures.style import COLOURS, DASHES, FAINT, INK, SOFT, Drawing, look
from ablate.report.values import grouped

_PER_LINE = 4
_INCHES = 0.17  # of a token
_SIDES = {"encoder": "encoder", "decoder": "decoder self-attention", "cross": "cross-attention"}
_KINDS = {
    "embedding": "cosine of the added vectors",
    "rotation": "mean cosine after rotation",
    "bias": "bias of the score",
}


def draw_attention(each: AttentionMap) -> Drawing:
    """Draw the weights of one sub-layer, a panel for every head; dark is much, red is negative."""
    n_heads, n_queries, n_keys = each.weights.shape
    n_columns = min(n_heads, _PER_LINE)
    n_lines = math.ceil(n_heads / n_columns)
    width, height = max(1.2, _INCHES * n_keys), max(1.2, _INCHES * n_queries)
    side, _, layer = each.name.partition(".")
    title = f"{_SIDES[side]}, layer {layer}"
    least, most = float(min(0.0, each.weights.min())), float(max(1.0, each.weights.max()))
    is_signed = least < -1e-6
    limits = (-max(-least, most), max(-least, most)) if is_signed else (0.0, most)
    colours = "RdBu" if is_signed else "Blues"
    with look():
        size = (n_columns * (width + 0.3) + 1.0, n_lines * (height + 0.4) + 0.9)
        figure = Figure(figsize=size, layout="constrained")
        panels = figure.subplots(n_lines, n_columns, sharex=True, sharey=True, squeeze=False)
        for head, axes in enumerate(panels.flatten()):
            if head >= n_heads:
                figure.delaxes(axes)
                continue
            image = axes.imshow(each.weights[head], colours, aspect="auto")
            image.set_clim(*limits)
            axes.set_title(f"head {head}", loc="left", fontsize=8, color=INK)
            axes.set_xticks(range(n_keys), each.keys, rotation=90, fontsize=6)
            axes.set_yticks(range(n_queries), each.queries, fontsize=6)
            axes.tick_params(length=0, labelbottom=head + n_columns >= n_heads)
        figure.colorbar(image, ax=panels, shrink=0.8, pad=0.01).ax.tick_params(labelsize=6)
        figure.suptitle(title, x=0.01, ha="left", fontsize=9, color=INK)
        figure.supylabel("query", size=7, color=SOFT)
        figure.supxlabel("key", size=7, color=SOFT)
    numbers = [
        {
            "sublayer": each.name,
            "head": head,
            "query": query,
            "query_token": each.queries[query],
            "key": key,
            "key_token": each.keys[key],
            "weight": float(each.weights[head, query, key]),
        }
        for head, query, key in np.ndindex(each.weights.shape)
    ]
    return Drawing(f"attention.{each.name}", f"Attention: {title}", figure, numbers)


def draw_similarities(similarities: Sequence[Similarity]) -> Drawing:
    """Draw what encodings make of distance: a panel for each side and kind, a line per head."""
    groups = grouped(((each.side, each.kind), each) for each in similarities)
    with look():
        figure = Figure(figsize=(3.4 * len(groups) + 0.4, 2.8), layout="constrained")
        panels = figure.subplots(1, len(groups), squeeze=False).flatten()
        for axes, ((side, kind), lines) in zip(panels, groups.items(), strict=True):
            for at, line in enumerate(lines):
                colour, dash = COLOURS[at % len(COLOURS)], DASHES[at // len(COLOURS) % len(DASHES)]
                known = (("layer", line.layer), ("head", line.head))
                label = ", ".join(
                    f"{word} {number}" for word, number in known if number is not None
                )
                (drawn,) = axes.plot(list(line.values), list(line.values.values()))
                drawn.set(color=colour, linestyle=dash, linewidth=1.1, label=label or "all")
            axes.axhline(0, color=SOFT, linewidth=0.6)
            axes.set_title(f"{side}: {kind}", loc="left", fontsize=8.5, color=INK)
            axes.set_xlabel("query less key, in tokens", size=8, color=SOFT)
            axes.set_ylabel(_KINDS[kind], size=8, color=SOFT)
            axes.grid(color=FAINT, linewidth=0.6)
            if len(lines) > 1:
                axes.legend(fontsize=6, frameon=False, ncols=math.ceil(len(lines) / 8))
    numbers = [
        {
            "side": each.side,
            "kind": each.kind,
            "layer": "" if each.layer is None else each.layer,
            "head": "" if each.head is None else each.head,
            "distance": distance,
            "similarity": value,
        }
        for each in similarities
        for distance, value in each.values.items()
    ]
    return Drawing("positions", "What the position encodings make of distance", figure, numbers)
