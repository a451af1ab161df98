"""Tokenizers whose pieces are parts of words: pairs of pieces that are joined, and unigrams."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, chain, compress, islice
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveInt
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as HFTokenizer

from ablate.data.corpus import Bitext, CorpusText
from ablate.data.segmentation import BYTES, DropoutSampler, LatticeSampler
from ablate.data.tokenizer import (
    SPACE,
    SPECIAL,
    UNK,
    LimitedTokenizer,
    MakeSampler,
    Normalisation,
    TokenizerPair,
    VocabularySize,
    WordMarker,
    count_pieces,
    split_words,
)
from ablate.data.unigram import train_unigram
from ablate.errors import DataError
from ablate.registry import AddedOption, register

Coverage = Annotated[float, Field(gt=0.0, le=1.0), AddedOption(1.0)]
TrainOn = Annotated[PositiveInt | None, AddedOption(None)]

_BLOCK = 1_000  # lines


class SubwordTokenizer(LimitedTokenizer):
    """A tokenizer that writes every character of its alphabet, and joins frequent ones.

    Args:
        character_coverage: the most frequent characters that make up this share of the training
            text are the alphabet, the others are unknown (Kudo & Richardson 2018,
            arXiv:1808.06226; 0.9995 there for large alphabets).
        byte_fallback: a character that is not in the alphabet is written by its bytes in UTF-8,
            which take 256 entries of the vocabulary, so that nothing is unknown.
        train_on: the vocabulary is learned from so many training pairs at most, evenly spaced;
            null: from all.
        word_marker: whether the first piece of a word is marked (``▁``, as in SentencePiece: Kudo &
            Richardson 2018, arXiv:1808.06226) or the last (``</w>`` of Sennrich et al. 2016,
            arXiv:1508.07909). The end of a compound is then the piece that it is as a word.
    """

    character_coverage: float
    byte_fallback: bool
    train_on: int | None
    word_marker: WordMarker

    def train(self, text: CorpusText) -> TokenizerPair:
        return super().train(self._sampled(text))

    def n_learned_from(self, n_pairs: int) -> int:
        return min(n_pairs, self.train_on or n_pairs)

    def _sampled(self, text: CorpusText) -> CorpusText:
        n_pairs = len(text.train)
        n_kept = self.n_learned_from(n_pairs)
        if n_kept == n_pairs:
            return text
        is_kept = (
            (row + 1) * n_kept // n_pairs > row * n_kept // n_pairs for row in range(n_pairs)
        )
        pairs = zip(text.train.src, text.train.tgt, strict=True)
        return replace(text, train=Bitext.on_disk(compress(pairs, is_kept)))

    def least_size(self, text: CorpusText) -> int:
        text = self._sampled(text)
        sides: list[Iterable[str]] = [text.train.src, text.train.tgt]
        if self.joint:
            sides = [chain(*sides)]
        return max(self._n_others + len(self._alphabet(side)[0]) for side in sides)

    @property
    def _n_others(self) -> int:
        """Return how many entries of a vocabulary are no characters of the text."""
        return len(SPECIAL) + (len(BYTES) if self.byte_fallback else 0)

    def _alphabet(self, lines: Iterable[str]) -> tuple[list[str], list[str]]:
        """Return the characters of a text that are in the alphabet, and the others."""
        normalizer = self.untrained(models.BPE(), split_words(False)).normalizer
        assert normalizer is not None
        counts: Counter[str] = Counter()
        rest = iter(lines)
        while block := [*islice(rest, _BLOCK)]:
            counts.update(normalizer.normalize_str("\n".join(block)).strip(" "))
            counts[SPACE] += 1  # as every word has one
        counts[SPACE] += counts.pop(" ", 0)
        ranked = sorted(counts, key=lambda character: (-counts[character], character))
        needed = self.character_coverage * counts.total()
        before = accumulate((counts[character] for character in ranked), initial=0)
        n_kept = sum(n < needed for n in before)
        return ranked[:n_kept], ranked[n_kept:]

    def _check_size(self, n_needed: int) -> None:
        if n_needed > self.vocab_size:
            raise DataError(f"tokenizer.vocab_size {self.too_small(n_needed)}")

    def too_small(self, n_needed: int) -> str:
        """Return why a vocabulary that needs more entries cannot be learned."""
        in_bytes = ", 256 for bytes" if self.byte_fallback else ""
        return (
            f"is {self.vocab_size}, but the text needs {n_needed}: one for "
            f"every character of the alphabet{in_bytes} and {len(SPECIAL)} special ones; raise it, "
            "or leave rare characters out of the alphabet, as with character_coverage: 0.9995"
        )


@register("bpe", source="Sennrich et al. 2016, arXiv:1508.07909, sec. 3.2")
class BytePair(SubwordTokenizer):
    """Join the most frequent pair of neighbouring pieces, again and again.

    Args:
        min_frequency: pairs that occur less often are not joined.
        dropout: the probability that a merge is left out, drawn for every word of the training
            text in every epoch (BPE-dropout, Provilkov et al. 2020, arXiv:1910.13267; 0.1 there).
            Other text is segmented without, and the vocabulary is learned without.
    """

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        *,
        vocab_size: VocabularySize = 10_000,
        joint: bool = True,
        lowercase: bool = False,
        min_frequency: PositiveInt = 2,
        dropout: Annotated[float, Field(ge=0.0, le=1.0), AddedOption(0.0)] = 0.0,
        character_coverage: Coverage = 1.0,
        byte_fallback: Annotated[bool, AddedOption(False)] = False,
        normalise: Normalisation = "none",
        train_on: TrainOn = None,
        word_marker: WordMarker = "start",
    ) -> None:
        super().__init__(
            vocab_size=vocab_size, joint=joint, lowercase=lowercase, normalise=normalise
        )
        self.min_frequency = min_frequency
        self.dropout = dropout
        self.character_coverage = character_coverage
        self.byte_fallback = byte_fallback
        self.train_on = train_on
        self.word_marker = word_marker

    def sampling(self) -> MakeSampler | None:
        if not self.dropout:
            return None
        return partial(DropoutSampler, unknown=UNK, dropout=self.dropout)

    def fit(self, lines: Sequence[str], is_tokenised: bool) -> HFTokenizer:
        splitting = split_words(is_tokenised, self.word_marker)
        learning = splitting  # what the merges are learned from, without rare characters
        if self.character_coverage < 1 and (rare := self._alphabet(lines)[1]):
            parts = [splitting, pre_tokenizers.Split(Regex(_any_of(rare)), "removed")]
            learning = pre_tokenizers.Sequence(parts)
        return self._trained(learning, lines, splitting=splitting)

    def _trained(
        self,
        learning: pre_tokenizers.PreTokenizer,
        lines: Sequence[str],
        *,
        splitting: pre_tokenizers.PreTokenizer,
        alphabet: Sequence[str] = (),
    ) -> HFTokenizer:
        """Learn merges; the alphabet is in the vocabulary even where it does not occur."""
        bytes_ = BYTES if self.byte_fallback else ()
        hf = self.untrained(models.BPE(unk_token=SPECIAL[UNK]), learning)
        trainer = trainers.BpeTrainer(
            vocab_size=max(self.vocab_size - len(bytes_), 0),
            min_frequency=self.min_frequency,
            special_tokens=list(SPECIAL),
            initial_alphabet=list(alphabet),
            show_progress=False,
        )
        hf.train_from_iterator(lines, trainer, length=len(lines))
        self._check_size(hf.get_vocab_size() + len(bytes_))
        hf.pre_tokenizer = splitting
        settings = json.loads(hf.to_str())
        settings["added_tokens"] = []  # the name of a special token in a text is text
        _add_bytes(settings["model"], bytes_)
        return HFTokenizer.from_str(json.dumps(settings))


@register("byte_bpe", source="Radford et al. 2019 (GPT-2), sec. 2.2")
class ByteLevelPairs(BytePair):
    """Join the most frequent pair of neighbouring bytes of UTF-8, again and again.

    All 256 bytes are in the vocabulary, so that nothing is unknown in any language. Unlike GPT-2,
    words are those of ``bpe``. A translation may hold bytes that are no UTF-8; they become U+FFFD.

    Args:
        dropout: the probability that a merge is left out, as in ``bpe``.
    """

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        *,
        vocab_size: Annotated[int, Field(ge=len(SPECIAL) + 256)] = 10_000,
        joint: bool = True,
        lowercase: bool = False,
        min_frequency: PositiveInt = 2,
        dropout: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0,
        normalise: Normalisation = "none",
        train_on: TrainOn = None,
        word_marker: WordMarker = "start",
    ) -> None:
        super().__init__(
            vocab_size=vocab_size,
            joint=joint,
            lowercase=lowercase,
            min_frequency=min_frequency,
            dropout=dropout,
            normalise=normalise,
            train_on=train_on,
            word_marker=word_marker,
        )

    def least_size(self, text: CorpusText) -> int:
        return self._n_others + 256

    def fit(self, lines: Sequence[str], is_tokenised: bool) -> HFTokenizer:
        in_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        splitting = pre_tokenizers.Sequence([split_words(is_tokenised, self.word_marker), in_bytes])
        alphabet = in_bytes.alphabet()
        hf = self._trained(splitting, lines, splitting=splitting, alphabet=alphabet)
        hf.decoder = decoders.ByteLevel()
        return hf


@register("unigram", source="Kudo 2018, arXiv:1804.10959, sec. 3.2")
class Unigram(SubwordTokenizer):
    """Start from many candidate pieces and drop those that add least to the likelihood.

    Args:
        alpha: segmentations of the training text are drawn in every epoch, each with a probability
            proportional to its own to the power of alpha (subword regularisation, sec. 3.3; 0.1 to
            0.5 there, and 0 for all alike). Other text has the likeliest; null: this text too.
    """

    def __init__(  # noqa: PLR0913 - one argument for every option
        self,
        *,
        vocab_size: VocabularySize = 10_000,
        joint: bool = True,
        lowercase: bool = False,
        alpha: Annotated[NonNegativeFloat | None, AddedOption(None)] = None,
        character_coverage: Coverage = 1.0,
        byte_fallback: Annotated[bool, AddedOption(False)] = False,
        normalise: Normalisation = "none",
        train_on: TrainOn = None,
        word_marker: WordMarker = "start",
    ) -> None:
        super().__init__(
            vocab_size=vocab_size, joint=joint, lowercase=lowercase, normalise=normalise
        )
        self.alpha = alpha
        self.character_coverage = character_coverage
        self.byte_fallback = byte_fallback
        self.train_on = train_on
        self.word_marker = word_marker

    def sampling(self) -> MakeSampler | None:
        if self.alpha is None:
            return None
        return partial(LatticeSampler, unknown=UNK, alpha=self.alpha)

    def fit(self, lines: Sequence[str], is_tokenised: bool) -> HFTokenizer:
        splitting = split_words(is_tokenised, self.word_marker)
        counts = count_pieces(self.untrained(models.Unigram(), splitting), lines)
        if self.character_coverage < 1 and (rare := self._alphabet(lines)[1]):
            apart, words, counts = re.compile(_any_of(rare)), counts, Counter()
            for word, count in words.items():
                for part in filter(None, apart.split(word)):
                    counts[part] += count
        self._check_size(len(set(chain.from_iterable(counts))) + self._n_others)
        pieces = train_unigram(counts, self.vocab_size - self._n_others)
        rarest = min(score for _, score in pieces)
        specials = [(name, rarest - 10.0) for name in SPECIAL]
        hf = self.untrained(models.Unigram([*specials, *pieces], UNK, False), splitting)
        if not self.byte_fallback:
            return hf
        settings = json.loads(hf.to_str())
        _add_bytes(settings["model"], BYTES)
        return HFTokenizer.from_str(json.dumps(settings))


def _any_of(characters: Iterable[str]) -> str:
    """Return a pattern of single characters, for the library's expressions and Python's."""
    return "|".join(rf"\{each}" if each in r"\.^$*+?{}[]()|" else each for each in characters)


def _add_bytes(model: dict[str, Any], names: Sequence[str]) -> None:
    """Add pieces for single bytes to a model, which then writes with them what it does not know."""
    if not names:
        return
    model["byte_fallback"] = True
    if isinstance(model["vocab"], list):  # of a unigram model, with scores
        known = {piece for piece, _ in model["vocab"]}
        lowest = min(score for _, score in model["vocab"])
        model["vocab"] += [[name, lowest] for name in names]
    else:
        known = set(model["vocab"])
        model["vocab"] |= {name: len(known) + i for i, name in enumerate(names)}
    if both := known.intersection(names):
        raise DataError(f"the text has the piece {min(both)}, which byte_fallback needs for a byte")
