"""Tokenizers: text to ids and back.

A space becomes part of the token that follows it, as ``▁``, so that tokens mark where words begin
and any sentence can be restored, up to runs of white space; `word_marker` puts it behind words. In
raw text a word and the punctuation beside it never share a token; tokenised text is split at white
space alone. Every tokenizer is trained on the training split and nothing else.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as HFTokenizer

from ablate.data.corpus import CorpusText
from ablate.data.segmentation import BYTES, WordNumbers, WordSampler
from ablate.data.sentences import Lines, Ragged
from ablate.errors import DataError
from ablate.hashing import digest
from ablate.parts.embedding import Vocabulary
from ablate.registry import AddedOption, Part, register

PAD, BOS, EOS, UNK = range(4)
SPECIAL = ("< pad>", "< bos>", "< eos>", "< unk>")  # with a space: no text has such a piece

VocabularySize = Annotated[int, Field(gt=len(SPECIAL))]
Normalisation = Annotated[Literal["none", "nfc", "nfkc"], AddedOption("none")]
WordMarker = Annotated[Literal["start", "end"], AddedOption("start")]

MakeSampler = Callable[[HFTokenizer, Ragged], WordSampler]
"""Makes a sampler from a trained tokenizer and its own segmentation of each word."""

SPACE = "▁"
_UNKNOWN = f"{SPACE}⁇{SPACE}"  # an unknown piece in text, as SentencePiece writes it


class TokenizerPair:
    """A trained tokenizer, for both languages; ``tgt`` is None if both share one vocabulary."""

    def __init__(self, src: HFTokenizer, tgt: HFTokenizer | None) -> None:
        self._src = src
        self._tgt = tgt or src
        self._is_joint = tgt is None
        n_tgt = self._tgt.get_vocab_size()
        self._bytes = _bytes_of(self._tgt)
        self._bytes[PAD] = self._bytes[BOS] = self._bytes[EOS] = b""
        self._bytes[UNK] = _UNKNOWN.encode()
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
        tgt = None if self._is_joint else self._tgt.to_str()
        return json.dumps({"src": self._src.to_str(), "tgt": tgt})

    def encode_src(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each source sentence, EOS last."""
        return [[*each.ids, EOS] for each in self._src.encode_batch_fast([*lines])]

    def encode_tgt(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the ids of each target sentence, EOS last; batches put BOS in front."""
        return [[*each.ids, EOS] for each in self._tgt.encode_batch_fast([*lines])]

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
        return _readable(self._src, ids)

    def tgt_pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the piece of each target id, special ones included."""
        return _readable(self._tgt, ids)

    def decode_tgt(self, ids: Sequence[int]) -> str:
        """Return the sentence without special ids; an unknown piece becomes ``⁇``.

        Bytes that are no UTF-8 become U+FFFD, the replacement character.
        """
        text = b"".join([self._bytes[i] for i in ids]).decode(errors="replace")
        return " ".join(text.replace(SPACE, " ").split())


class Tokenizer(Part, slot="tokenizer"):
    """The contract: learn a vocabulary from the training split.

    Args:
        joint: one vocabulary, learned from both sides, or one for each.
        lowercase: whether upper case becomes lower case, on both sides.
        normalise: the form of Unicode that both sides are brought into (Unicode Standard Annex 15):
            ``nfc`` composes accents; ``nfkc`` also makes wide and narrow forms alike.
    """

    nominal_size: int
    """The largest possible size of a vocabulary, before any text is known."""

    word_marker: WordMarker = "start"
    """Where the space between words is: with the first piece of a word, or with the last."""

    def __init__(
        self, *, joint: bool = True, lowercase: bool = False, normalise: Normalisation = "none"
    ) -> None:
        self.joint = joint
        self.lowercase = lowercase
        self.normalise = normalise

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

    def least_size(self, text: CorpusText) -> int:
        """Return how many entries a vocabulary for this text has at least; 0: any number."""
        return 0

    def n_learned_from(self, n_pairs: int) -> int:
        """Return from how many of the training text's pairs the vocabulary is learned."""
        return n_pairs

    def sampling(self) -> MakeSampler | None:
        """Return the maker of samplers, if training text is segmented anew in every epoch."""
        return None

    @abstractmethod
    def fit(self, lines: Sequence[str], is_tokenised: bool) -> HFTokenizer:
        """Return a tokenizer of the library, trained on ``lines``."""

    def untrained(self, model: models.Model, splitting: pre_tokenizers.PreTokenizer) -> HFTokenizer:
        """Return an untrained one: normalise, mark the spaces, split, apply ``model``."""
        hf = HFTokenizer(model)
        forms = {"nfc": normalizers.NFC, "nfkc": normalizers.NFKC}
        steps: list[Any] = [
            *([forms[self.normalise]()] if self.normalise in forms else ()),
            normalizers.Replace(Regex(rf"[\s{SPACE}]+"), " "),
            normalizers.Strip(),
        ]
        if self.lowercase:
            steps.append(normalizers.Lowercase())
        if self.word_marker == "end":
            steps.append(normalizers.Replace(Regex(r"\z"), " "))
        hf.normalizer = normalizers.Sequence(steps)
        hf.pre_tokenizer = splitting
        hf.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
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
        normalise: Normalisation = "none",
    ) -> None:
        super().__init__(joint=joint, lowercase=lowercase, normalise=normalise)
        self.vocab_size = self.nominal_size = vocab_size


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
        normalise: Normalisation = "none",
    ) -> None:
        super().__init__(
            vocab_size=vocab_size, joint=joint, lowercase=lowercase, normalise=normalise
        )
        self.min_frequency = min_frequency

    def fit(self, lines: Sequence[str], is_tokenised: bool) -> HFTokenizer:
        n_pieces = self.vocab_size - len(SPECIAL)
        return _fit_whole(self, split_words(is_tokenised), lines, n_pieces, self.min_frequency)


@register("char", source="Lee et al. 2017, arXiv:1610.03017")
class Character(Tokenizer):
    """Single characters, all that occur; the space is one of them."""

    nominal_size = 256  # enough for European languages; the text decides

    def fit(self, lines: Sequence[str], is_tokenised: bool) -> HFTokenizer:
        return _fit_whole(self, _split_at(r"[\s\S]"), lines)


def split_words(is_tokenised: bool, marker: WordMarker = "start") -> pre_tokenizers.PreTokenizer:
    """Split at white space; in raw text also between words and single punctuation marks."""
    words = (rf"[^{SPACE}]+",) if is_tokenised else (r"\w+", rf"[^\w{SPACE}]")
    mark = SPACE if is_tokenised else f"{SPACE}?"
    at_start = marker == "start"
    return _split_at(
        "|".join(mark + word if at_start else word + mark for word in words),
        prepend_scheme="always" if at_start else "never",
    )


def _split_at(
    piece: str, prepend_scheme: Literal["always", "never"] = "always"
) -> pre_tokenizers.PreTokenizer:
    """Mark the spaces, then split the line into the matches of ``piece``."""
    marked = pre_tokenizers.Metaspace(SPACE, prepend_scheme=prepend_scheme, split=False)
    return pre_tokenizers.Sequence([marked, pre_tokenizers.Split(Regex(piece), "isolated")])


def count_pieces(hf: HFTokenizer, lines: Sequence[str]) -> Counter[str]:
    """Count the pieces that ``lines`` are split into before the model is applied."""
    assert hf.normalizer is not None
    assert hf.pre_tokenizer is not None
    normal = map(hf.normalizer.normalize_str, lines)
    words = Counter(chain.from_iterable(line.split(" ") for line in normal))
    del words[""]  # of empty lines, and of those that end with a space, as words then do
    space = hf.normalizer.normalize_str("-")[1:]
    counts: Counter[str] = Counter()
    for word, count in words.items():  # no piece reaches over a space
        for piece, _ in hf.pre_tokenizer.pre_tokenize_str(word + space):
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
    counts = count_pieces(tokenizer.untrained(models.WordLevel({}), splitting), lines)
    frequent = [piece for piece, count in counts.items() if count >= min_frequency]
    frequent.sort(key=lambda piece: (-counts[piece], piece))
    pieces = [*SPECIAL, *frequent[:n_pieces]]
    ids = {piece: i for i, piece in enumerate(pieces)}
    return tokenizer.untrained(models.WordLevel(ids, unk_token=SPECIAL[UNK]), splitting)


def _bytes_of(hf: HFTokenizer) -> list[bytes]:
    """Return the text of every id, in UTF-8; that of a piece may be a part of a character."""
    pieces = [hf.id_to_token(i) or "" for i in range(hf.get_vocab_size())]
    settings = json.loads(hf.to_str())
    if settings["decoder"]["type"] == "ByteLevel":
        return [bytes(_BYTE_OF[x] for x in piece if x in _BYTE_OF) for piece in pieces]
    of_byte = {}
    if settings["model"].get("byte_fallback"):
        of_byte = {name: bytes([value]) for value, name in enumerate(BYTES)}
    return [of_byte.get(piece, piece.encode()) for piece in pieces]


def _readable(hf: HFTokenizer, ids: Sequence[int]) -> list[str]:
    pieces = [hf.id_to_token(i) or "" for i in ids]
    if json.loads(hf.to_str())["decoder"]["type"] != "ByteLevel":
        return pieces
    letters = [
        bytes(_BYTE_OF.get(x, 0) for x in piece).decode(errors="replace") for piece in pieces
    ]
    return [SPECIAL[i] if i < len(SPECIAL) else x for i, x in zip(ids, letters, strict=True)]


_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = (value for value in range(0x100) if value not in _PRINTABLE)
_BYTE_OF = {chr(x): x for x in _PRINTABLE} | {chr(0x100 + i): x for i, x in enumerate(_OTHERS)}
"""The byte that each letter of byte-level pieces stands for, as GPT-2 has them."""
