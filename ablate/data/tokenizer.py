"""Tokenizers: text to ids and back.

A space becomes part of the token that follows it, as ``▁``, so that tokens mark where words begin
and any sentence can be restored, up to runs of white space. In raw text a word and the punctuation
beside it never share a token; tokenised text is split at white space alone. Every tokenizer is
trained on the training split and nothing else.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveInt
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as HFTokenizer

from ablate.data.corpus import CorpusText
from ablate.data.lines import Lines
from ablate.data.ragged import Ragged
from ablate.data.segmentation import DropoutSampler, LatticeSampler, WordNumbers, WordSampler
from ablate.data.unigram import train_unigram
from ablate.errors import DataError
from ablate.hashing import digest
from ablate.parts.embedding import Vocabulary
from ablate.registry import AddedOption, Part, register

PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("< pad>", "< bos>", "< eos>", "< unk>")  # with a space: no text has such a piece

VocabularySize = Annotated[int, Field(gt=len(SPECIAL))]

MakeSampler = Callable[[HFTokenizer, Ragged], WordSampler]
"""Makes a sampler from a trained tokenizer and its own segmentation of each word."""

_SPACE = "▁"
_UNKNOWN = f"{_SPACE}⁇{_SPACE}"  # an unknown piece in text, as SentencePiece writes it


class TokenizerPair:
    """A trained tokenizer, for both languages; ``tgt`` is None if both share one vocabulary."""

    def __init__(self, src: HFTokenizer, tgt: HFTokenizer | None) -> None:
        self._src = src
        self._tgt = tgt or src
        self._is_joint = tgt is None
        n_tgt = self._tgt.get_vocab_size()
        self._pieces = [self._tgt.id_to_token(i) or "" for i in range(n_tgt)]
        self._pieces[PAD] = self._pieces[BOS] = self._pieces[EOS] = ""
        self._pieces[UNK] = _UNKNOWN
        self.vocabulary = Vocabulary(src.get_vocab_size(), n_tgt, self._is_joint)
        self.fingerprint = digest([self.to_json()])

    @classmethod
    def from_json(cls, text: str) -> TokenizerPair:
        """Read the output of `to_json`; a DataError if ``text`` is none."""
        try:
            sides = json.loads(text)
            tgt = HFTokenizer.from_str(sides["tgt"]) if sides["tgt"] else None
            return cls(HFTokenizer.from_str(sides["src"]), tgt)
        except Exception as error:  # the library raises bare exceptions
            raise DataError(f"this is not a trained tokenizer: {error}") from error

    def to_json(self) -> str:
        """Return both sides as one JSON text."""
        tgt = None if self._is_joint else self._tgt.to_str()
        return json.dumps({"src": self._src.to_str(), "tgt": tgt})

    def encode_src(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source sentence, EOS last."""
        return [[*each.ids, EOS] for each in self._src.encode_batch([*lines])]

    def encode_tgt(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target sentence, EOS last; batches put BOS in front."""
        return [[*each.ids, EOS] for each in self._tgt.encode_batch([*lines])]

    def words_src(self, lines: Sequence[str], numbers: WordNumbers) -> list[list[int]]:
        """Return the number of each word of each source sentence."""
        return [numbers.of(each.ids, each.word_ids) for each in self._src.encode_batch([*lines])]

    def words_tgt(self, lines: Sequence[str], numbers: WordNumbers) -> list[list[int]]:
        """Return the number of each word of each target sentence."""
        return [numbers.of(each.ids, each.word_ids) for each in self._tgt.encode_batch([*lines])]

    def samplers(self, make: MakeSampler, src: Ragged, tgt: Ragged) -> tuple[WordSampler, ...]:
        """Return the samplers of each side, from its segmentations of distinct words."""
        return make(self._src, src), make(self._tgt, tgt)

    def src_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the piece of each source id, special ones included."""
        return [self._src.id_to_token(i) or "" for i in ids]

    def tgt_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the piece of each target id, special ones included."""
        return [self._tgt.id_to_token(i) or "" for i in ids]

    def decode_tgt(self, ids: Sequence[int]) -> str:
        """Return the sentence without special ids; an unknown piece becomes ``⁇``."""
        return " ".join("".join([self._pieces[i] for i in ids]).replace(_SPACE, " ").split())


class Tokenizer(Part, slot="tokenizer"):
    """The contract: learn a vocabulary from the training split.

    Args:
        joint: one vocabulary, learned from both sides, or one for each.
        lowercase: whether upper case becomes lower case, on both sides.
    """

    nominal_size: int
    """The largest possible size of a vocabulary, before any text is known."""

    def __init__(self, *, joint: bool = True, lowercase: bool = False) -> None:
        self.joint = joint
        self.lowercase = lowercase

    def nominal_vocabulary(self) -> Vocabulary:
        """Return the largest possible sizes of the vocabularies, before any text is known."""
        return Vocabulary(self.nominal_size, self.nominal_size, self.joint)

    def train(self, text: CorpusText) -> TokenizerPair:
        """Learn from ``text.train``; the same text gives the same tokenizers.

        Raises:
            DataError: if the text does not suit the options.
        """
        src, tgt = text.train.src, text.train.tgt
        if not src:
            raise DataError(f"{text.name}: there is no text to train a tokenizer on")
        tokenised = text.is_tokenised
        if self.joint:
            return TokenizerPair(self.fit(Lines(chain(src, tgt)), tokenised), None)
        return TokenizerPair(self.fit(src, tokenised), self.fit(tgt, tokenised))

    def sampling(self) -> MakeSampler | None:
        """Return the maker of samplers, if training text is segmented anew in every epoch."""
        return None

    @abstractmethod
    def fit(self, lines: Sequence[str], is_tokenised: bool) -> HFTokenizer:
        """Return a tokenizer of the library, trained on ``lines``."""

    def untrained(self, model: models.Model, splitting: pre_tokenizers.PreTokenizer) -> HFTokenizer:
        """Return an untrained one: normalise, mark the spaces, split, apply ``model``."""
        hf = HFTokenizer(model)
        steps: list[Any] = [
            normalizers.Replace(Regex(rf"[\s{_SPACE}]+"), " "),
            normalizers.Strip(),
        ]
        if self.lowercase:
            steps.append(normalizers.Lowercase())
        hf.normalizer = normalizers.Sequence(steps)
        hf.pre_tokenizer = splitting
        hf.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
        return hf


class LimitedTokenizer(Tokenizer):
    """A tokenizer whose vocabulary has a chosen size.

    Args:
        vocab_size: ids in a vocabulary, the four special ones included; fewer if the text does
            not have as many pieces.
    """

    def __init__(
        self,
        *,
        vocab_size: VocabularySize = 10_000,
        joint: bool = True,
        lowercase: bool = False,
    ) -> None:
        super().__init__(joint=joint, lowercase=lowercase)
        self.vocab_size = self.nominal_size = vocab_size


@register("bpe", source="Sennrich et al. 2016, arXiv:1508.07909, sec. 3.2")
class BytePair(LimitedTokenizer):
    """Join the most frequent pair of neighbouring pieces, again and again.

    Args:
        min_frequency: pairs that occur less often are not joined.
        dropout: the probability that a merge is left out, drawn for every word of the training
            text in every epoch (BPE-dropout, Provilkov et al. 2020, arXiv:1910.13267; 0.1 there).
            Other text is segmented without, and the vocabulary is learned without.
    """

    def __init__(
        self,
        *,
        vocab_size: VocabularySize = 10_000,
        joint: bool = True,
        lowercase: bool = False,
        min_frequency: PositiveInt = 2,
        dropout: Annotated[float, Field(ge=0.0, le=1.0), AddedOption(0.0)] = 0.0,
    ) -> None:
        super().__init__(vocab_size=vocab_size, joint=joint, lowercase=lowercase)
        self.min_frequency = min_frequency
        self.dropout = dropout

    def sampling(self) -> MakeSampler | None:
        if not self.dropout:
            return None
        return partial(DropoutSampler, unknown=UNK, dropout=self.dropout)

    def fit(self, lines: Sequence[str], is_tokenised: bool) -> HFTokenizer:
        hf = self.untrained(models.BPE(unk_token=SPECIAL[UNK]), _words(is_tokenised))
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab_size,
            min_frequency=self.min_frequency,
            special_tokens=list(SPECIAL),
            show_progress=False,
        )
        hf.train_from_iterator(lines, trainer, length=len(lines))
        _check_size(hf.get_vocab_size(), self.vocab_size)
        settings = json.loads(hf.to_str())
        settings["added_tokens"] = []  # the name of a special token in a text is text
        return HFTokenizer.from_str(json.dumps(settings))


@register("unigram", source="Kudo 2018, arXiv:1804.10959, sec. 3.2")
class Unigram(LimitedTokenizer):
    """Start from many candidate pieces and drop those that add least to the likelihood.

    Args:
        alpha: segmentations of the training text are drawn in every epoch, each with a probability
            proportional to its own to the power of alpha (subword regularisation, sec. 3.3; 0.1 to
            0.5 there, and 0 for all alike). Other text has the likeliest; null: this text too.
    """

    def __init__(
        self,
        *,
        vocab_size: VocabularySize = 10_000,
        joint: bool = True,
        lowercase: bool = False,
        alpha: Annotated[NonNegativeFloat | None, AddedOption(None)] = None,
    ) -> None:
        super().__init__(vocab_size=vocab_size, joint=joint, lowercase=lowercase)
        self.alpha = alpha

    def sampling(self) -> MakeSampler | None:
        if self.alpha is None:
            return None
        return partial(LatticeSampler, unknown=UNK, alpha=self.alpha)

    def fit(self, lines: Sequence[str], is_tokenised: bool) -> HFTokenizer:
        splitting = _words(is_tokenised)
        counts = _count(self.untrained(models.Unigram(), splitting), lines)
        n_characters = len(set(chain.from_iterable(counts)))
        _check_size(n_characters + len(SPECIAL), self.vocab_size)
        pieces = train_unigram(counts, self.vocab_size - len(SPECIAL))
        rarest = min(score for _, score in pieces)
        specials = [(name, rarest - 10.0) for name in SPECIAL]
        return self.untrained(models.Unigram([*specials, *pieces], UNK, False), splitting)


@register("word", source="Bahdanau et al. 2015, arXiv:1409.0473, sec. 4.1")
class Word(LimitedTokenizer):
    """Whole words, the most frequent ones; every other word is unknown.

    Args:
        min_frequency: words that occur less often are unknown.
    """

    def __init__(
        self,
        *,
        vocab_size: VocabularySize = 10_000,
        joint: bool = True,
        lowercase: bool = False,
        min_frequency: PositiveInt = 2,
    ) -> None:
        super().__init__(vocab_size=vocab_size, joint=joint, lowercase=lowercase)
        self.min_frequency = min_frequency

    def fit(self, lines: Sequence[str], is_tokenised: bool) -> HFTokenizer:
        n_pieces = self.vocab_size - len(SPECIAL)
        return _fit_whole(self, _words(is_tokenised), lines, n_pieces, self.min_frequency)


@register("char", source="Lee et al. 2017, arXiv:1610.03017")
class Character(Tokenizer):
    """Single characters, all that occur; the space is one of them."""

    nominal_size = 256  # enough for European languages; the text decides

    def fit(self, lines: Sequence[str], is_tokenised: bool) -> HFTokenizer:
        return _fit_whole(self, _split_at(r"[\s\S]"), lines)


def _words(is_tokenised: bool) -> pre_tokenizers.PreTokenizer:
    """Split at white space; in raw text also between words and single punctuation marks."""
    if is_tokenised:
        return _split_at(rf"{_SPACE}[^{_SPACE}]+")
    return _split_at(rf"{_SPACE}?\w+|{_SPACE}?[^\w{_SPACE}]")


def _split_at(piece: str) -> pre_tokenizers.PreTokenizer:
    """Mark the spaces, then split the line into the matches of ``piece``."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always", split=False),
            pre_tokenizers.Split(Regex(piece), "isolated"),
        ]
    )


def _count(hf: HFTokenizer, lines: Sequence[str]) -> Counter[str]:
    """Count the pieces that ``lines`` are split into before the model is applied."""
    assert hf.normalizer is not None
    assert hf.pre_tokenizer is not None
    normal = map(hf.normalizer.normalize_str, lines)
    words = Counter(chain.from_iterable(line.split(" ") for line in normal))
    del words[""]  # of empty lines
    counts: Counter[str] = Counter()
    for word, count in words.items():  # no piece reaches over a space
        for piece, _ in hf.pre_tokenizer.pre_tokenize_str(word):
            counts[piece] += count
    return counts


def _fit_whole(
    tokenizer: Tokenizer,
    splitting: pre_tokenizers.PreTokenizer,
    lines: Sequence[str],
    n_pieces: int | None = None,
    min_frequency: int = 1,
) -> HFTokenizer:
    """Give an id to each of the most frequent pieces; ties are broken alphabetically."""
    counts = _count(tokenizer.untrained(models.WordLevel({}), splitting), lines)
    frequent = [piece for piece, count in counts.items() if count >= min_frequency]
    frequent.sort(key=lambda piece: (-counts[piece], piece))
    pieces = [*SPECIAL, *frequent[:n_pieces]]
    ids = {piece: i for i, piece in enumerate(pieces)}
    return tokenizer.untrained(models.WordLevel(ids, unk_token=SPECIAL[UNK]), splitting)


def _check_size(n_needed: int, vocab_size: int) -> None:
    if n_needed > vocab_size:
        raise DataError(
            f"tokenizer.vocab_size is {vocab_size}, but the text needs {n_needed}: one for every "
            f"character that occurs and {len(SPECIAL)} special ones; raise it"
        )
