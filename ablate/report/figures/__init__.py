"""The figures of an experiment. This package alone imports matplotlib, which is slow to import."""

from __future__ import annotations

from collections.abc import Iterator

from ablate.report.figures.attention import draw_attention as draw_attention
from ablate.report.figures.attention import draw_similarities as draw_similarities
from ablate.report.figures.contexts import draw_contexts as draw_contexts
from ablate.report.figures.costs import draw_costs as draw_costs
from ablate.report.figures.curves import draw_curves as draw_curves
from ablate.report.figures.differences import draw_differences as draw_differences
from ablate.report.figures.interactions import draw_interactions as draw_interactions
from ablate.report.figures.layers import draw_layers as draw_layers
from ablate.report.figures.lengths import draw_lengths as draw_lengths
from ablate.report.figures.style import Drawing as Drawing
from ablate.report.results import Details
from ablate.report.table import Table


def drawings(table: Table) -> Iterator[Drawing]:
    """Yield every figure for which an experiment, or the overview of its contexts, has numbers."""
    drawn = [draw_contexts(table)] if table.details is None else _of_runs(table.details)
    yield from filter(None, drawn)


def _of_runs(details: Details) -> list[Drawing | None]:
    results = details.results
    diverged = [run for run, record in details.records.items() if record["status"] == "diverged"]
    first = results.sets[0] if results.sets else ""
    texts = details.texts()
    sources = texts[first][0] if first in texts else ()
    return [
        draw_differences(results),
        draw_costs(results),
        draw_interactions(details.experiment, results),
        draw_lengths(results, details.sentences, sources),
        draw_curves(
            details.experiment,
            details.files("curve.csv"),
            diverged,
            has_one_tokenizer=results.has_one_tokenizer,
        ),
        draw_layers(details.experiment, details.files("layers.csv"), diverged),
    ]
