"""``ablate inspect``: a trained run's attention, and the similarity of positions by distance."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ablate.api.corpora import text_of_runs
from ablate.api.translate import LoadedRun
from ablate.config.inheritance import SIDES
from ablate.errors import DataError, SpecError
from ablate.measuring.attention import AttentionMap, Similarity

if TYPE_CHECKING:
    from ablate.report.figures import Drawing


@dataclass(frozen=True)
class Inspection:
    """The attention of a trained run for one sentence, and its positions."""

    source: str
    translation: str  # that the decoder was fed
    attention: Sequence[AttentionMap]  # of the sub-layers that have weights
    positions: Sequence[Similarity]  # by distance; empty where it depends on content
    remarks: Sequence[str]  # sub-layers and encodings that have none of these, in sentences

    def drawings(self) -> Iterator[Drawing]:
        """Yield the figures: one for each sub-layer, then that of the positions."""
        from ablate.report import figures  # slow to import, and seldom needed

        yield from map(figures.draw_attention, self.attention)
        if self.positions:
            yield figures.draw_similarities(self.positions)

    def save(self, folder: Path | str) -> list[Path]:
        """Write each figure as SVG, PNG and CSV; return the files."""
        return [path for drawing in self.drawings() for path in drawing.save(Path(folder))]


def inspect(
    run: str | LoadedRun,
    sentence: str | None = None,
    target: str | None = None,
    *,
    device: str = "cpu",
    results: Path | str = "results",
) -> Inspection:
    """Return the attention of a run for one sentence, and the similarity of positions by distance.

    The sentence is by default the first of the run's first test set; the target, which the decoder
    is fed, the model's own translation. The other arguments are those of `Translator`.

    Raises:
        SpecError: if the sentence is empty or longer than the model allows.
        StoreError: if there is no such run, or it left no model.
        DataError: if no sentence is given and the corpus is unavailable.
    """
    if sentence is not None and not sentence.strip():
        raise SpecError("the sentence is empty; give --sentence 'some words'")
    loaded = run if isinstance(run, LoadedRun) else LoadedRun(run, device=device, results=results)
    if sentence is None:
        try:
            first = next(iter(text_of_runs(loaded.spec.corpus, []).tests.values()))
        except DataError as error:
            raise DataError(f"{error}; give --sentence 'some words'") from None
        sentence = next(line for line in first.src if line.strip())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a sentence that is too long, which is refused below
        text = loaded.translate(sentence)[0] if target is None else target
    maps = loaded.attention(sentence, text)
    with_weights = {each.name for each in maps}
    remarks = [
        f"{name} has no attention weights: the part {part!r} makes none"
        for name, part in loaded.attention_parts().items()
        if name not in with_weights
    ]
    positions = loaded.position_similarity()
    sides = {each.side for each in positions}
    names = (loaded.spec.model.stack(side).position.name for side in SIDES if side not in sides)
    remarks += [
        f"the position encoding {name!r} has no similarity by distance of its own"
        for name in dict.fromkeys(names)
    ]
    return Inspection(sentence, text, maps, positions, remarks)
