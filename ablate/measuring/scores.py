"""BLEU and chrF by sacreBLEU, exact match, and the statistics of each test sentence.

Sums of the statistics give the scores of a run. I sentences.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

References = Sequence[Sequence[str]]
"""One or more of every sentence, those by one translator at a time."""
Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
Encode = Callable[[Sequence[str]], Sequence[Sequence[int]]]
"""Returns the ids of each sentence."""

_BLEU = ("tokens_hyp", "tokens_ref", *(f"match_{n}" for n in (1, 2, 3, 4)))
_BLEU += tuple(f"ngrams_{n}" for n in (1, 2, 3, 4))
_CHRF = tuple(f"char_{of}_{n}" for n in range(1, 7) for of in ("hyp", "ref", "match"))
_COLUMNS = (*_BLEU, *_CHRF, "characters", "target_tokens", "nll")
_BLOCK = 256  # characters, of which no token has as many
_DECIMALS = 5  # of the NLL of a sentence, in nats


def score(
    hypotheses: Sequence[str], references: References, *, tokenizer: str, is_tokenised: bool
) -> dict[str, Any]:
    """Score translations against one or more references each.

    ``bleu`` is sacreBLEU's: cased, in tokens of the given tokenizer (Post 2018, arXiv:1804.08771).
    ``bleu_lc_tok`` is lower-cased BLEU on the corpus' own tokens, as papers on Multi30k report it;
    only for corpora that are tokenised. ``chrf`` is chrF2 (Popović 2015). ``exact_match`` is the
    share of translations with the words of a reference of theirs. All are percentages.
    """
    bleu = BLEU(tokenize=tokenizer, force=True)
    metrics: dict[str, Metric] = {"bleu": bleu, "chrf": CHRF()}
    if is_tokenised:
        metrics["bleu_lc_tok"] = BLEU(tokenize="none", lowercase=True, force=True)
    scores: dict[str, Any] = {}
    for name, metric in metrics.items():
        scores[name] = metric.corpus_score(hypotheses, references).score
        scores[f"{name}_signature"] = str(metric.get_signature())
    words = [[line.split() for line in lines] for lines in (hypotheses, *references)]
    n_equal = sum(h in of for h, *of in zip(*words, strict=True))
    return {**scores, "exact_match": 100 * n_equal / len(hypotheses)}


@dataclass(frozen=True)
class SentenceStatistics:
    """Statistics of sentences, which sum up to the scores of a test set."""

    bleu: Integers  # (I, 10): tokens of both, n-grams that match, n-grams of the translation
    chrf: Integers  # (I, 18): for n = 1 to 6, n-grams of the translation, the reference, and both
    characters: Integers  # of the first reference, as far as the model reads it, (I,), at least 1
    target_tokens: Integers  # of the first reference as the model reads it, EOS counted, (I,)
    nll: Floats  # of the first reference, in nats, (I,)

    @classmethod
    def of(
        cls,
        hypotheses: Sequence[str],
        references: References,
        target_tokens: Integers,
        nll: Floats,
        scored: Sequence[str] | None = None,
        tokenizer: str = "13a",
    ) -> SentenceStatistics:
        """Count the statistics of translations and references, (I,) each.

        ``scored`` are the first references as far as the NLL is theirs, by default all of them.
        BLEU is counted in tokens of ``tokenizer``, one of sacreBLEU.
        """
        read = references[0] if scored is None else scored
        return cls(
            bleu=bleu_counts(hypotheses, references, tokenizer),
            chrf=_counts(CHRF(), hypotheses, references),
            characters=np.array([max(1, len(line)) for line in read], dtype=np.int64),
            target_tokens=target_tokens,
            nll=nll,
        )

    @property
    def bits_per_character(self) -> float:
        """The NLL in bits per character of the references, comparable between tokenizers."""
        return float(self.nll.sum() / self.characters.sum() / math.log(2))

    def to_csv(self) -> str:
        """Return one line per sentence, after a header."""
        rows = [self.bleu, self.chrf, self.characters, self.target_tokens, self.nll]
        formats = ["%d"] * (len(_COLUMNS) - 1) + [f"%.{_DECIMALS}f"]
        text, header = io.StringIO(), ",".join(_COLUMNS)
        np.savetxt(text, np.column_stack(rows), formats, ",", header=header, comments="")
        return text.getvalue()

    @classmethod
    def from_csv(cls, text: str) -> SentenceStatistics:
        """Read the text of `to_csv`; ValueError if its columns are others."""
        header, _, lines = text.partition("\n")
        if tuple(header.split(",")) != _COLUMNS or not lines:
            raise ValueError("its columns are not those of statistics of sentences")
        rows = np.loadtxt(io.StringIO(lines), delimiter=",", ndmin=2)  # (I, columns)
        counts, nll = rows[:, :-1].astype(np.int64), rows[:, -1]
        bleu, chrf, rest = np.split(counts, [len(_BLEU), len(_BLEU) + len(_CHRF)], axis=1)
        return cls(bleu, chrf, rest[:, 0], rest[:, 1], nll)


def cut_text(
    lines: Sequence[str],
    n_tokens: Integers,
    encode: Encode,
) -> list[str]:
    """Return the text that is left of sentences whose ids are cut to ``n_tokens`` (I,).

    EOS counts. Of a sentence that is cut, this is the longest beginning that has no more tokens.
    """
    left = list(lines)
    longest = n_tokens.max(initial=0)  # whatever is cut has this many
    for row in np.flatnonzero(n_tokens == longest).tolist():
        if len(encode([lines[row]])[0]) > longest:
            left[row] = _beginning(lines[row], longest, encode)
    return left


def _beginning(line: str, n_tokens: int, encode: Encode) -> str:
    """Return the longest beginning of at most ``n_tokens``, without trying all of a long line."""
    longest = ""
    for start in range(0, len(line), _BLOCK):
        ends = range(start, min(start + _BLOCK, len(line)))
        beginnings = [line[:end].rstrip() for end in ends]
        counts = map(len, encode(beginnings))
        short = [text for text, n in zip(beginnings, counts, strict=True) if n <= n_tokens]
        if not short:
            break
        longest = max(short, key=len)
    return longest


def bleu_counts(hypotheses: Sequence[str], references: References, tokenizer: str) -> Integers:
    """Return the statistics of BLEU with a tokenizer of sacreBLEU, (I, 10)."""
    return _counts(BLEU(tokenize=tokenizer, force=True), hypotheses, references)


def _counts(metric: Metric, hypotheses: Sequence[str], references: References) -> Integers:
    # sacreBLEU has no public function for these
    counts = metric._extract_corpus_statistics(hypotheses, references)
    return np.array(counts, dtype=np.int64)
