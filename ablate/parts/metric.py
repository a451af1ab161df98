"""Metrics: scores of translations, computed from texts alone.

They are not part of a run: a run stores its translations, from which any metric can be computed.
"""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import PositiveInt

from ablate.registry import FilePaths, Part, register

Tokenizer = Literal["13a", "intl", "zh", "char", "ja-mecab", "ko-mecab", "none"]


class UnavailableError(ValueError):
    """A metric needs a package or weights that are not here, so that it cannot score at all."""


class Metric(Part, slot="metric"):
    """The contract: sources, translations and references in, one number out; higher is better."""

    @abstractmethod
    def score(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> float:
        """Return the score of a whole test set, of texts with one per sentence.

        Raises:
            UnavailableError: if a package or weights are missing.
        """

    def score_by_all(
        self,
        sources: Sequence[str],
        hypotheses: Sequence[str],
        references: Sequence[Sequence[str]],
    ) -> float:
        """Return the score of a test set with one or more references of every sentence.

        ``references`` has those by one translator at a time. A metric that takes one reference
        scores by the first.
        """
        return self.score(sources, hypotheses, references[0])

    def signature(self) -> str:
        """Return the settings and versions that scores as the last one must share."""
        return ""


class _OfAnyReferences(Metric):
    """A metric that takes one or more references of each sentence."""

    def score(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> float:
        return self.score_by_all(sources, hypotheses, [references])


@register("bleu", source="Post 2018, arXiv:1804.08771; sacreBLEU", formula="BLEU of tokens, cased")
class Bleu(_OfAnyReferences):
    """BLEU of sacreBLEU, which every run has and by which rows are compared.

    Args:
        tokenize: its tokenizer. None: that of the target language, ``zh`` for Chinese, ``char`` for
            Japanese, Thai, Lao, Khmer, Burmese and Tibetan, and ``13a`` for all others.
            ``ja-mecab`` and ``ko-mecab`` need packages: ``pip install 'sacrebleu[ja,ko]'``.
    """

    def __init__(self, *, tokenize: Tokenizer | None = None) -> None:
        super().__init__()
        self.tokenize = tokenize or "13a"

    def score_by_all(
        self,
        sources: Sequence[str],
        hypotheses: Sequence[str],
        references: Sequence[Sequence[str]],
    ) -> float:
        return float(self._sacrebleu.corpus_score(hypotheses, references).score)

    def signature(self) -> str:
        return str(self._sacrebleu.get_signature())

    @cached_property
    def _sacrebleu(self) -> Any:
        try:
            return _sacrebleu("BLEU", tokenize=self.tokenize, force=True)
        except RuntimeError as error:  # of a tokenizer whose package is missing
            raise UnavailableError(f"tokenize: {self.tokenize}: {error}") from error


@register(
    "chrf",
    source="Popović 2015, W15-3049; sacreBLEU",
    formula="F score of character n-grams, n = 1 ... 6, recall twice as important",
)
class Chrf(_OfAnyReferences):
    """chrF2 of sacreBLEU, which every run has."""

    def score_by_all(
        self,
        sources: Sequence[str],
        hypotheses: Sequence[str],
        references: Sequence[Sequence[str]],
    ) -> float:
        return float(_sacrebleu("CHRF").corpus_score(hypotheses, references).score)


@register(
    "comet",
    source="Rei et al. 2020, arXiv:2009.09025; unbabel-comet",
    formula="100 times the mean over sentences of a trained regression",
)
class Comet(Metric):
    """COMET with weights that you provide; needs the extra ``comet`` of this package.

    Args:
        model: the checkpoint, a file that ``comet.load_from_checkpoint`` reads.
        batch_size: sentences at a time.
    """

    def __init__(self, *, model: Annotated[str, FilePaths()], batch_size: PositiveInt = 16) -> None:
        super().__init__()
        self.model = model
        self.batch_size = batch_size

    def score(
        self, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[str]
    ) -> float:
        try:
            comet = importlib.import_module("comet")
        except ModuleNotFoundError as error:
            raise UnavailableError(
                "the metric comet needs a package that is not installed; "
                "`pip install 'ablate-transformer[comet]'` installs it"
            ) from error
        if not Path(self.model).is_file():
            raise UnavailableError(f"model: there is no file {self.model!r}, of the weights")
        texts = zip(sources, hypotheses, references, strict=True)
        samples = [{"src": src, "mt": mt, "ref": ref} for src, mt, ref in texts]
        model = comet.load_from_checkpoint(self.model)
        prediction = model.predict(samples, batch_size=self.batch_size, gpus=0)
        return 100 * float(prediction.system_score)

    def signature(self) -> str:
        return f"comet|model:{self.model}"


def _sacrebleu(name: str, **options: Any) -> Any:
    """Return a metric of sacreBLEU, which is slow to import."""
    return getattr(importlib.import_module("sacrebleu.metrics"), name)(**options)
