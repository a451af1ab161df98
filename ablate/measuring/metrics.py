"""BLEU and chrF by sacreBLEU, each with its signature, and exact match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


def score(
    hypotheses: Sequence[str], references: Sequence[str], *, is_tokenised: bool
) -> dict[str, Any]:
    """Score translations against one reference each.

    ``bleu`` is sacreBLEU's default: cased, tokenised by 13a (Post 2018, arXiv:1804.08771).
    ``bleu_lc_tok`` is lower-cased BLEU on the corpus' own tokens, as papers on Multi30k report it;
    only for corpora that are tokenised. ``chrf`` is chrF2 (Popović 2015). ``exact_match`` is the
    share of translations equal to their reference. All are percentages.

    Args:
        hypotheses: one per sentence.
        references: one per sentence.
        is_tokenised: whether the corpus is tokenised.
    """
    metrics: dict[str, Metric] = {"bleu": BLEU(tokenize="13a", force=True), "chrf": CHRF()}
    if is_tokenised:
        metrics["bleu_lc_tok"] = BLEU(tokenize="none", lowercase=True, force=True)
    scores: dict[str, Any] = {}
    for name, metric in metrics.items():
        scores[name] = metric.corpus_score(list(hypotheses), [list(references)]).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    n_equal = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return {**scores, "exact_match": 100 * n_equal / len(references)}
